"""Tuning: deterministic folds inside clients, and a measure that wrong rows do not fool."""

import numpy as np
import pytest

import dorfl
from dorfl.study import tuning
from dorfl.study.tuning import tune


def contaminated(seed, factor=-8.0, size=400):
    """Two clients with one row in eight wrong, and clean rows to judge by."""
    rng = np.random.default_rng(seed)
    clients = {}
    for name in ("a", "b"):
        X = rng.normal(size=(size, 3))
        y = np.where(X @ [2.0, 1.0, 0.0] + rng.logistic(size=size) > 0, 1, -1)
        X[: size // 8] *= factor
        clients[name] = (X, y)
    clean = rng.normal(size=(4000, 3))
    return clients, clean, np.where(clean @ [2.0, 1.0, 0.0] > 0, 1, -1)


GRID = {"outliers": (0.0, 0.15), "shift": (0.1,)}


@pytest.mark.parametrize("seed", range(3))
def test_wrong_rows_fool_the_plain_measure_and_not_ours(seed):
    clients, clean, label = contaminated(seed)
    ours = tune(clients, grid=GRID, outliers=0.15, folds=3)
    plain = tune(clients, grid=GRID, outliers=0.15, folds=3, measure="plain")
    assert ours.trials[0].settings["outliers"] == 0.15
    assert plain.trials[0].settings["outliers"] == 0.0
    right, wrong = (dorfl.train(clients, t.method).score(clean, label) for t in (ours, plain))
    assert right > 0.95 and wrong < 0.8


def test_the_measure_hears_every_honest_row_and_no_wild_one():
    clients, _, _ = contaminated(0)
    heard = tuning._inlying(clients, 0.15, (), dorfl.losses.logistic)
    for name, (X, _) in clients.items():
        honest = np.arange(len(X)) >= len(X) // 8
        assert heard[name][honest].all()
        assert heard[name][~honest].mean() < 0.1
        assert np.linalg.norm(X[~honest & heard[name]], axis=1).max(initial=0.0) < 6.0


def test_folds_are_the_same_every_time_inside_clients_and_even_in_labels():
    rng = np.random.default_rng(1)
    clients = {
        n: (rng.normal(size=(k, 2)), rng.integers(0, 3, k)) for n, k in (("a", 61), ("b", 4))
    }
    one, two = tuning.folds_of(clients, 5, 0), tuning.folds_of(clients, 5, 0)
    other = tuning.folds_of(clients, 5, 1)
    np.testing.assert_array_equal(one["a"], two["a"])
    assert (one["a"] != other["a"]).any()
    for label in range(3):
        counts = np.bincount(one["a"][clients["a"][1] == label], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert len(set(one["b"])) == 4


def test_a_tie_goes_to_the_more_robust_and_trials_are_listed():
    clients, _, _ = contaminated(2, factor=1.0)
    tuned = tune(clients, grid={"shift": (0.1, 0.1001), "outliers": (0.1,)}, folds=3)
    assert tuned.trials[0].settings == {"shift": 0.1001, "outliers": 0.1}
    assert len(tuned.trials) == 2 and set(tuned.trials[0].clients) == {"a", "b"}
    assert "shift = 0.1001" in tuned.words[0]
    assert tuned.method is tuned.choice.method


def test_three_classes_and_regressions_can_be_tuned():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(150, 2))
    for loss, y in (
        ("softmax", rng.integers(0, 3, 150)),
        ("huber", X[:, 0] + rng.normal(size=150)),
    ):
        tuned = tune([(X, y)], grid={"shift": (0.1, 0.5)}, loss=loss, folds=3)
        assert np.isfinite([trial.loss for trial in tuned.trials]).all()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"folds": 1}, "at least 2"),
        ({"folds": 500}, "too many"),
        ({"grid": {}}, "at least one value"),
        ({"grid": {"shift": ()}}, "at least one value"),
        ({"measure": "mean"}, '"inlying" or "plain"'),
    ],
)
def test_errors_say_what_to_do(wrong, says):
    clients, _, _ = contaminated(0)
    with pytest.raises(ValueError, match=says):
        tune(clients, **wrong)


def test_a_class_too_rare_for_the_folds_is_named():
    rng = np.random.default_rng(4)
    y = np.array([0] * 30 + [1] * 29 + [2])
    with pytest.raises(ValueError, match="too few rows to be in every fold"):
        tune([(rng.normal(size=(60, 2)), y)], grid={"shift": (0.1,)}, loss="softmax", folds=3)
