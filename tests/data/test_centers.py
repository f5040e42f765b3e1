"""The robust centre: near the clean mean whatever a tenth of the rows say."""

import numpy as np
import pytest

import dorfl
from dorfl.data.robust import average_centers, find_centers, local_center

pytestmark = pytest.mark.portable

RNG = np.random.default_rng


def off(rows, wrong=0.1, factor=-8.0):
    """How far the centre of contaminated rows is from the clean mean, in clean deviations."""
    spoilt = rows.copy()
    spoilt[: int(wrong * len(rows))] *= factor
    deviation = rows.std(axis=0)
    deviation[deviation == 0] = 1.0
    return np.abs((local_center(spoilt).mean - rows.mean(axis=0)) / deviation).max()


def binary(rng, rows, share, columns=1):
    return (rng.random((rows, columns)) < share).astype(float)


@pytest.mark.parametrize("factor", [-8.0, 8.0, 1e6])
@pytest.mark.parametrize("mean", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("columns", [1, 2, 5, 60])
def test_normal_rows(columns, mean, factor):
    for seed in range(5):
        rows = mean + RNG(seed).normal(size=(1000, columns)) * np.linspace(1, 30, columns)
        assert off(rows, factor=factor) < 0.3


@pytest.mark.parametrize("rows", [30, 100])
def test_few_rows(rows):
    assert np.mean([off(RNG(seed).normal(size=(rows, 5))) < 0.3 for seed in range(40)]) > 0.9


@pytest.mark.parametrize("wrong", [0.0, 0.1])
@pytest.mark.parametrize("normal", [0, 1, 4])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.8])
def test_binary_columns(share, normal, wrong):
    """An ordinary category is no outlier, however few columns there are beside it."""
    rng = RNG(0)
    rows = np.hstack([rng.normal(size=(2000, normal)), binary(rng, 2000, share)])
    assert off(rows, wrong) < 0.3


@pytest.mark.parametrize("wrong", [0.0, 0.1])
@pytest.mark.parametrize("normal", [0, 3])
@pytest.mark.parametrize(
    "shares", [[0.5, 0.5], [0.7, 0.2, 0.06, 0.04], [0.25] * 4, [0.1] * 10], ids=len
)
def test_one_hot_columns(shares, normal, wrong):
    rng = RNG(1)
    hot = np.eye(len(shares))[rng.choice(len(shares), 2000, p=shares)]
    assert off(np.hstack([rng.normal(size=(2000, normal)), hot]), wrong) < 0.3


def test_constant_columns():
    rng = RNG(2)
    rows = np.hstack([rng.normal(size=(500, 2)), np.full((500, 1), 3.0), np.zeros((500, 1))])
    assert off(rows) < 0.3
    same = local_center(np.full((7, 2), 4.0))
    assert same.kept == 7
    np.testing.assert_array_equal(same.mean, [4.0, 4.0])


@pytest.mark.parametrize("columns", [1, 2, 10])
@pytest.mark.parametrize("draw", ["standard_exponential", "standard_t", "zero-inflated"])
def test_heavy_tailed_columns(draw, columns):
    rng = RNG(3)
    shape = (2000, columns)
    if draw == "zero-inflated":  # like a capital gain: nearly always nought, sometimes thousands
        rows = binary(rng, 2000, 0.08, columns) * rng.lognormal(8, 1, shape)
    else:
        rows = getattr(rng, draw)(*(() if draw == "standard_exponential" else (3,)), size=shape)
    assert off(rows) < 0.3


def test_single_row_and_float32():
    np.testing.assert_array_equal(local_center(np.array([[2.0, 5.0]])).mean, [2.0, 5.0])
    rows = RNG(4).normal(size=(1000, 3))
    np.testing.assert_allclose(
        local_center(rows.astype(np.float32)).mean, local_center(rows).mean, atol=1e-3
    )


def test_combine_counts_clients_by_the_rows_they_kept():
    one, two = local_center(np.full((10, 1), 1.0)), local_center(np.full((30, 1), 5.0))
    np.testing.assert_allclose(average_centers([one, two]), [4.0])


@pytest.mark.parametrize("seed", range(5))
def test_federated_centre_of_the_synthetic_clients(seed):
    data = dorfl.datasets.synthetic(seed)
    tables = {name: X for name, (X, _) in data.clients.items()}
    clean = np.vstack([X for X, _ in data.uncontaminated().values()])
    shared = find_centers(dorfl.methods.paper(), tables)
    assert (shared == shared[0]).all()
    assert (np.abs(shared[0] - clean.mean(axis=0)) < 0.3 * clean.std(axis=0)).all()


def test_centres_per_client_and_as_given():
    data = dorfl.datasets.synthetic(0)
    tables = {name: X for name, (X, _) in data.clients.items()}
    own = find_centers(dorfl.methods.paper(score=dorfl.scores.quadratic(1, "client")), tables)
    for center, (X, _) in zip(own, data.uncontaminated().values(), strict=True):
        assert (np.abs(center - X.mean(axis=0)) < 0.3 * X.std(axis=0)).all()
    assert np.abs(own[0] - own[2]).max() > 1
    given = {name: np.full(5, i) for i, name in enumerate(tables)}
    score = dorfl.scores.quadratic(1, given)
    np.testing.assert_array_equal(
        find_centers(dorfl.methods.paper(score=score), tables), np.array(list(given.values()))
    )
