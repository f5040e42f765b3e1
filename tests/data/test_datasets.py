"""The data sets: who has which rows, and where they come from."""

import importlib

import numpy as np
import pytest

import dorfl
from dorfl.data.datasets import synthetic
from experiments.rows import pooled

adult_module = importlib.import_module("dorfl.data.datasets.adult")


def test_the_paper_s_constants():
    data = synthetic(seed=0)
    assert list(data.clients) == list(data.test) == ["client-1", "client-2", "client-3"]
    assert [len(y) for _, y in data.clients.values()] == [100, 200, 500]
    assert [int(bad.sum()) for bad in data.outliers.values()] == [10, 10, 50]
    assert [len(y) for _, y in data.test.values()] == [1000, 2000, 5000]
    np.testing.assert_array_equal(data.theta, [2, 2, 1, -1, 0.5])
    assert data.feature_names == ("x1", "x2", "x3", "x4", "x5")
    for pairs in (data.clients, data.test):
        for X, y in pairs.values():
            assert X.shape == (len(y), 5)
            assert set(np.unique(y)) == {-1, 1}


def test_means_shifts_and_factors():
    data = synthetic(seed=0, sizes=(40_000,) * 3)
    means = [[0, 0, 0, 0, 0], [1, 1, 0, 0, 0], [2, 2, 0.5, 1, 2]]
    for mean, shift, factor, (name, (X, _)) in zip(
        means, (1, -0.5, 0.6), (7, 8, 9), data.clients.items(), strict=True
    ):
        bad = data.outliers[name]
        moved = np.array(mean) + shift * np.eye(5)[0]
        np.testing.assert_allclose(X[~bad].mean(axis=0), moved, atol=0.03)
        np.testing.assert_allclose(X[~bad].std(axis=0), 1, atol=0.03)
        np.testing.assert_allclose(X[bad].mean(axis=0), -factor * np.array(mean), atol=0.7)
        np.testing.assert_allclose(X[bad].std(axis=0), factor, rtol=0.1)
        np.testing.assert_allclose(data.test[name][0].mean(axis=0), mean, atol=0.1)


def test_labels_give_the_paper_s_accuracies():
    """The best classifier scores some 84.8 / 91.5 / 99.1 %."""
    data = synthetic(seed=1, test_rows=90_000)
    accuracy = [np.mean(np.sign(X @ data.theta) == y) for X, y in data.test.values()]
    np.testing.assert_allclose(accuracy, [0.848, 0.915, 0.991], atol=0.01)


def test_kinds_of_contamination_differ_in_the_wrong_rows_alone():
    negate, scale, flip = (synthetic(seed=5, kind=kind) for kind in ("negate", "scale", "flip"))
    for i, name in enumerate(negate.clients):
        bad = negate.outliers[name]
        np.testing.assert_array_equal(bad, flip.outliers[name])
        (X, y), (Xs, ys), (Xf, yf) = (d.clients[name] for d in (negate, scale, flip))
        np.testing.assert_array_equal(X[~bad], Xs[~bad])
        np.testing.assert_array_equal(X[~bad], Xf[~bad])
        np.testing.assert_array_equal(X[bad], -Xs[bad])
        np.testing.assert_allclose(Xs[bad], (7, 8, 9)[i] * Xf[bad])
        np.testing.assert_array_equal(y, ys)
        np.testing.assert_array_equal(yf, np.where(bad, -y, y))
        np.testing.assert_array_equal(negate.test[name][0], flip.test[name][0])


def test_a_seed_decides_everything():
    one, same, other = synthetic(seed=2), synthetic(seed=2), synthetic(seed=3)
    for name in one.clients:
        np.testing.assert_array_equal(one.clients[name][0], same.clients[name][0])
        np.testing.assert_array_equal(one.test[name][1], same.test[name][1])
        assert not np.array_equal(one.clients[name][0], other.clients[name][0])


def test_uncontaminated_leaves_the_wrong_rows_out():
    data = synthetic(seed=0)
    clean = data.uncontaminated()
    assert [len(y) for _, y in clean.values()] == [90, 190, 450]
    assert max(np.abs(X).max() for X, _ in clean.values()) < 8


def test_every_constant_is_a_parameter():
    data = synthetic(
        0, sizes=(10, 20), means=[[0.0], [3.0]], theta=[1.0], contamination=(0.5, 0.0),
        factors=(2.0, 2.0), shifts=(0.0, 0.0), test_rows=30,
    )  # fmt: skip
    assert [X.shape for X, _ in data.clients.values()] == [(10, 1), (20, 1)]
    assert [int(bad.sum()) for bad in data.outliers.values()] == [5, 0]
    assert [len(y) for _, y in data.test.values()] == [10, 20]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"kind": "drop"}, "kind='drop'"), ({"sizes": (1, 2)}, "sizes"), ({"theta": [1.0]}, "theta")],
)
def test_bad_arguments_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        dorfl.datasets.synthetic(0, **options)


@pytest.mark.parametrize(("split", "rows"), [("official", 32_561), ("paper", 34_189)])
def test_adult_is_split_as_published(split, rows):
    data = dorfl.datasets.adult(split, seed=3)
    assert sum(len(y) for _, y in data.clients.values()) == rows
    assert sum(len(y) for pairs in (data.clients, data.test) for _, y in pairs.values()) == 48_842
    X, y = pooled(data.clients)
    assert X.shape[1] == len(data.feature_names) == 108
    np.testing.assert_allclose(X[:, :6].mean(axis=0, dtype=float), 0, atol=1e-6)
    np.testing.assert_allclose(X[:, :6].std(axis=0, dtype=float), 1, atol=1e-6)
    np.testing.assert_array_equal(X[:, 6:].sum(axis=1), 8)  # one value of each of 8 categories
    assert data.frozen == tuple(range(6, 108))
    assert set(np.unique(y)) == {-1, 1}


def test_adult_s_suspects_are_those_the_paper_names():
    data = dorfl.datasets.adult(features="numeric")
    gain, limit = data.feature_names.index("capital-gain"), data.in_units("capital-gain", 20_000)
    for name, (X, y) in data.clients.items():
        np.testing.assert_array_equal(data.outliers[name], (X[:, gain] > limit) & (y == -1))
    assert sum(bad.sum() for bad in data.outliers.values()) == 8
    assert [len(y) for _, y in data.uncontaminated().values()] == [27_809, 3_123, 1_621]


def test_a_far_cluster_sits_where_it_does_harm():
    data = synthetic(seed=0, kind="cluster")
    for factor, (name, (X, y)) in zip((7, 8, 9), data.clients.items(), strict=True):
        bad = data.outliers[name]
        direction = data.theta / np.linalg.norm(data.theta)
        np.testing.assert_allclose(X[bad] @ direction, -factor, atol=1.5)
        assert (y[bad] == 1).all()
