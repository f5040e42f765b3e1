"""Tuning: the comparison of candidates over a grid of outlier shares and drifts."""

import numpy as np
import pytest

import dorfl
from dorfl.tabular.tuning import GRID, tune


def contaminated(seed, factor=-8.0, size=400):
    """Two clients with one row in eight wrong, and clean rows to test on."""
    rng = np.random.default_rng(seed)
    clients = {}
    for name in ("a", "b"):
        X = rng.normal(size=(size, 3))
        y = np.where(X @ [2.0, 1.0, 0.0] + rng.logistic(size=size) > 0, 1, -1)
        X[: size // 8] *= factor
        clients[name] = (X, y)
    clean = rng.normal(size=(4000, 3))
    return clients, clean, np.where(clean @ [2.0, 1.0, 0.0] > 0, 1, -1)


@pytest.mark.parametrize("seed", range(3))
def test_outliers_among_the_held_out_rows_do_not_decide(seed):
    clients, clean, label = contaminated(seed)
    tuned = tune(clients, grid={"outliers": (0.0, 0.15), "shift": (0.1,)})
    assert tuned.trials[0].settings == {"outliers": 0.15, "shift": 0.1}
    assert dorfl.train(clients, tuned.method).score(clean, label) > 0.95


def test_of_equals_the_plainest_is_chosen_and_all_trials_are_listed():
    clients, _, _ = contaminated(2, factor=1.0)
    tuned = tune(clients)
    assert tuned.trials[0].settings == {"outliers": 0.0, "shift": 0.0}
    count = len(GRID["outliers"]) * len(GRID["shift"])
    assert len(tuned.trials) == count and tuned.rows > 200
    assert tuned.trials[0].difference == 0.0 < tuned.trials[1].error
    losses = [trial.loss for trial in tuned.trials[1:]]
    assert losses == sorted(losses) and "outliers = 0" in tuned.words[0]


def test_three_classes_and_regressions_can_be_tuned():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(150, 2))
    for loss, y in (
        ("softmax", rng.integers(0, 3, 150)),
        ("huber", X[:, 0] + rng.normal(size=150)),
    ):
        tuned = tune([(X, y)], grid={"shift": (0.1, 0.5)}, loss=loss)
        assert np.isfinite([trial.loss for trial in tuned.trials]).all()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"grid": {}}, "outliers"),
        ({"grid": {"shift": ()}}, "shift"),
        ({"grid": {"rho": (1.0,)}}, "outliers"),
        ({"grid": {"outliers": (0.0, 0.7)}}, "0 to 0.4"),
    ],
)
def test_errors_say_what_to_do(wrong, says):
    with pytest.raises(ValueError, match=says):
        tune(contaminated(0)[0], **wrong)
