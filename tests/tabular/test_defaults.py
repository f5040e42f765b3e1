"""The defaults: units that bad rows do not move, weights as promised, accuracy on real tables."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dorfl
from dorfl.data import robust
from dorfl.defaults import choose
from dorfl.objective.scores import Quadratic
from dorfl.selection import defaults
from experiments.data import cardio


def normal_clients(seed=0, sizes=(300, 200), dims=4):
    rng = np.random.default_rng(seed)
    out = {}
    for k, size in enumerate(sizes):
        X = rng.normal(size=(size, dims)) + k
        y = np.where(X[:, 0] - k + 0.3 * rng.normal(size=size) > 0, 1, -1)
        out[f"c{k}"] = (X, y)
    return out


# ── the spread ──────────────────────────────────────────────────────────────────────────────────


def measure(*tables, inlier_share=0.8):
    return robust.column_scales(robust.report_all(tables)[0], inlier_share)


@given(st.lists(st.floats(-1e6, 1e6), min_size=10, max_size=400), st.integers(5, 9))
def test_nothing_is_told_of_fewer_rows_than_agreed(values, least):
    place = robust.report(np.array(values)[:, None], least=5)
    assert place.away.shape == (min(len(values) // 5, 256), 1)
    assert (np.diff(place.away, axis=0) >= 0).all() and place.kept >= 5
    assert (
        len(robust.distance_sketch(np.zeros((least - 1, 1)), np.zeros(1), np.ones(1), least).means)
        == 0
    )


@pytest.mark.parametrize("pieces", [1, 3, 20, 250, 1000])
def test_units_hardly_depend_on_how_rows_are_divided(pieces):
    rows = np.random.default_rng(1).normal(scale=[1.0, 1e-3, 1e5], size=(1000, 3))
    rows[:, 2] *= np.random.default_rng(2).random(1000) < 0.1  # nearly always nil
    measured = measure(*np.array_split(rows, pieces))
    typical = np.median(np.abs(rows[rows[:, 2] != 0, 2]))
    np.testing.assert_allclose(measured.units, [1.0, 1e-3, typical], rtol=0.15)
    assert measured.rigid == (2,)


def test_bad_rows_move_units_and_centre_little():
    rows = np.random.default_rng(3).normal(loc=5.0, size=(2000, 4))
    clean, before = measure(rows), robust.report(rows).mean
    rows[:200] *= -8
    dirty, after = measure(rows), robust.report(rows).mean
    assert (dirty.units / clean.units).max() < 1.35
    assert np.abs(after - before).max() < 0.1


def test_only_some_rows_of_a_large_client_are_looked_at_and_always_the_same():
    rows = np.random.default_rng(4).normal(size=(robust.SUBSAMPLE + 5000, 1))
    np.testing.assert_array_equal(robust.subsample(rows), robust.subsample(rows))
    assert len(robust.subsample(rows)) == robust.SUBSAMPLE
    assert measure(rows).units[0] == pytest.approx(1.0, rel=0.05)


# ── what is chosen ──────────────────────────────────────────────────────────────────────────────


def test_the_words_say_what_a_row_weighs():
    clients = normal_clients(sizes=(4000,))
    choice = choose(
        clients, outliers=0.1, shift=0.0
    )  # nothing moves: weights are the score's alone
    X, y = clients["c0"]
    score = choice.method.score
    far = score.at(X, score.center) / score.weight  # squared, 1 at the cutoff
    assert np.mean(far <= 1.0) == pytest.approx(0.8, abs=0.02)
    weights = dorfl.risk(np.zeros(4), X, y, choice.method).sample_weights
    relative = weights / weights[np.argmin(far)] * np.exp(-defaults.STEEPNESS * far.min())
    np.testing.assert_allclose(relative, np.exp(-defaults.STEEPNESS * far), rtol=1e-9)
    assert "74 %" in choice.words[0]


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_the_units_of_columns_do_not_matter(loss):
    clients = normal_clients()
    scale = np.array([1.0, 64.0, 2.0**-10, 4096.0])  # powers of two: bins move as a whole
    scaled = {name: (X * scale, y) for name, (X, y) in clients.items()}
    one, other = (
        dorfl.train(c, choose(c, loss=loss).method, loss=loss, tol=1e-10) for c in (clients, scaled)
    )
    np.testing.assert_allclose(other.theta[:-1] * scale, one.theta[:-1], rtol=2e-3, atol=1e-4)
    for name in clients:
        np.testing.assert_allclose(
            one.sample_weights[name], other.sample_weights[name], rtol=1e-3, atol=1e-9
        )


def test_the_unit_of_y_does_not_matter_either():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(400, 3))
    y = X @ [1.0, -2.0, 0.5] + rng.normal(size=400)
    small, large = (
        dorfl.train([(X, k * y)], choose([(X, k * y)], loss="squared").method, loss="squared")
        for k in (1.0, 1024.0)
    )
    np.testing.assert_allclose(large.theta / 1024.0, small.theta, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("shift", [0.1, 0.5, 2.0])
def test_the_supremum_of_a_squared_loss_stays_finite(shift):
    rng = np.random.default_rng(6)
    X = rng.normal(size=(400, 3))
    X[:, 2] = X[:, 1] + 0.1 * X[:, 2]  # nearly the same column twice
    y = X @ [3.0, -2.0, 2.0] + rng.normal(size=400)
    fit = dorfl.train(
        [(X, y)], choose([(X, y)], shift=shift, loss="squared").method, loss="squared"
    )
    assert fit.status == "converged" and fit.problem.is_finite(fit.theta)


def test_a_stronger_model_than_most_moves_no_row_beyond_the_shift():
    clients = normal_clients()
    choice = choose(clients, shift=0.25)
    fit = dorfl.train(clients, choice.method)
    assert np.linalg.norm(fit.theta[:-1]) < defaults.REFERENCE_NORM[True]
    rows = np.concatenate([X for X, _ in clients.values()])
    plain = dorfl.train(clients, replace(choice.method, score=None))
    moved = dorfl.worst_case(plain, clients).rows - rows
    units = 1.0 / np.sqrt(choice.method.cost.weights(rows.shape[1]))
    assert np.linalg.norm(moved / units, axis=1).max() < 0.25


def test_columns_that_mostly_have_one_value_do_not_drift_and_categories_are_not_suspect():
    rng = np.random.default_rng(7)
    X = np.column_stack([
        rng.normal(size=500), rng.random(500) < 0.3, 1e4 * (rng.random(500) < 0.05), np.ones(500)
    ])  # fmt: skip
    y = rng.integers(0, 2, 500)
    method = choose([(X, y)], frozen=[1], outliers=0.1).method
    np.testing.assert_array_equal(np.isinf(method.cost.weights(4)), [False, True, True, True])
    assert isinstance(method.score, Quadratic)
    np.testing.assert_array_equal(method.score.shape(4) > 0, [True, False, True, False])


def test_what_is_given_by_hand_is_taken():
    clients = normal_clients()
    method = choose(clients, outliers=0.1, rho=7.0, beta=2.0).method
    assert (method.rho, method.beta) == (7.0, 2.0)
    own = dorfl.scores.quadratic(0.5, center=[0.0, 1.0, 2.0])
    assert choose(clients, outliers=0.1, score=own).method.score is own
    assert choose(clients, mixture="agnostic").method.mixture.adversarial
    assert choose(clients, mixture=dorfl.mixture.capped(0.6)).method.mixture.cap == 0.6


@pytest.mark.parametrize(
    ("method", "agnostic", "moves"),
    [("erm", False, False), ("afl", True, False), ("wafl", False, True), ("gdrfl", True, True)],
)
def test_the_other_methods_get_the_same_price(method, agnostic, moves):
    clients = normal_clients()
    made = choose(clients, method=method).method
    assert (made.name, made.mixture.adversarial) == (method, agnostic)
    assert np.isfinite(made.rho) == moves and made.score is None
    if moves:
        assert made.rho == choose(clients, shift=0.25).method.rho


def test_nothing_expected_nothing_done():
    clients = normal_clients()
    trusting = choose(clients, outliers=0.0)
    assert trusting.method.score is None
    assert np.isinf(trusting.method.rho) and "shift = 0.25" in trusting.words[0]
    assert np.isfinite(choose(clients, outliers=0.0, shift=0.25).method.rho)
    assert np.isfinite(choose(clients, outliers=0.1).method.rho)
    still = choose(clients, shift=0.0)
    assert np.isinf(still.method.rho) and "do not drift" in " ".join(still.words)
    flags = [(np.random.default_rng(8).integers(0, 2, (60, 2)), np.arange(60) % 2)]
    frozen = choose(flags, frozen=[0, 1]).method
    assert frozen.score is None and np.isinf(frozen.rho)
    dorfl.train(flags, frozen)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"outliers": 0.6}, "outliers=0.6"),
        ({"shift": -1.0}, "shift=-1.0"),
        ({"shift": "some"}, "or auto"),
        ({"method": "magic"}, "choose one of dorfl"),
        ({"frozen": [9]}, "no column 9"),
        ({"shift": 0.0, "beta": 1.0}, "give rho"),
        ({"mixture": "all"}, "mixture = 'all'"),
    ],
)
def test_errors_say_what_to_do(wrong, says):
    with pytest.raises(ValueError, match=says):
        choose(normal_clients(), **wrong)


def test_tiny_clients_are_judged_by_the_others():
    rng = np.random.default_rng(9)
    X = rng.normal(size=(600, 3))
    y = np.where(X[:, 0] > 0, 1, -1)
    bad = rng.random(600) < 0.1
    X[bad] *= -8
    clients = {str(k): (X[6 * k : 6 * k + 6], y[6 * k : 6 * k + 6]) for k in range(100)}
    fit = dorfl.train(clients, choose(clients).method)
    clean = rng.normal(size=(2000, 3))
    assert fit.score(clean, np.where(clean[:, 0] > 0, 1, -1)) > 0.97


# ── what it achieves ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(5))
def test_injected_outliers_rank_first_and_accuracy_is_that_without_them(seed):
    data = dorfl.datasets.synthetic(seed=seed)
    fit = dorfl.train(data.clients, choose(data.clients).method)
    weights = [len(y) * fit.sample_weights[name] for name, (_, y) in data.clients.items()]
    bad = np.concatenate([data.outliers[name] for name in data.clients])
    assert average_precision_score(bad, -np.concatenate(weights)) >= 0.95
    oracle = dorfl.train(data.uncontaminated(), dorfl.methods.erm())
    for name, (X, y) in data.test.items():
        assert fit.score(X, y) > oracle.score(X, y) - 0.03, name


def accuracies(X, y, X_test, y_test, who, bad=None, frozen=()):
    """Ours and scikit-learn's accuracy in per cent, trained with some rows times −8."""
    fitted, numeric = X.copy(), np.setdiff1d(np.arange(X.shape[1]), frozen)
    if bad is not None:
        fitted[np.ix_(bad, numeric)] *= -8
    clients = {w: (fitted[who == w], y[who == w]) for w in np.unique(who)}
    loss = "logistic" if len(np.unique(y)) == 2 else "softmax"
    method = choose(clients, frozen=frozen, loss=loss).method
    ours = dorfl.train(clients, method, loss=loss, tol=1e-4, l2=1 / len(X), max_rounds=1000)
    plain = make_pipeline(StandardScaler(), LogisticRegression(max_iter=3000)).fit(fitted, y)
    return 100 * ours.score(X_test, y_test), 100 * plain.score(X_test, y_test)


def test_on_a_real_table_little_is_lost_and_most_is_kept():
    X, y = load_breast_cancer(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    clean, dirty = [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(y))
        train, test = order[:400], order[400:]
        who = np.where(X[train, 0] > 0, "large", "small")
        arguments = (X[train], y[train], X[test], y[test], who)
        clean.append(accuracies(*arguments))
        dirty.append(accuracies(*arguments, bad=rng.permutation(400)[:40]))
    (ours, theirs), (ours_bad, theirs_bad) = np.mean(clean, axis=0), np.mean(dirty, axis=0)
    assert ours > theirs - 0.3
    assert ours_bad - theirs_bad > 0.8 * (theirs - theirs_bad)


@pytest.mark.slow
def test_on_adult_little_is_lost_and_most_is_kept():
    data = dorfl.datasets.adult()
    X, y = (np.concatenate(part) for part in zip(*data.clients.values(), strict=True))
    X_test, y_test = (np.concatenate(part) for part in zip(*data.test.values(), strict=True))
    who = np.repeat(list(data.clients), [len(y) for _, y in data.clients.values()])
    rng = np.random.default_rng(0)
    some = rng.permutation(len(y))[:8000]
    arguments = (X[some].astype(float), y[some], X_test, y_test, who[some])
    ours, theirs = accuracies(*arguments, frozen=data.frozen)
    bad = rng.permutation(8000)[:800]
    ours_bad, theirs_bad = accuracies(*arguments, bad=bad, frozen=data.frozen)
    assert ours > theirs - 0.3
    assert ours_bad - theirs_bad > 0.8 * (theirs - theirs_bad)


@pytest.mark.slow
def test_impossible_blood_pressures_are_among_the_most_suspicious_rows(cardio_records):
    data = cardio()
    fit = dorfl.train(data.clients, choose(data.clients, frozen=data.frozen).method)
    X = np.concatenate([rows for rows, _ in data.clients.values()])
    pressures = []
    for name in ("ap_hi", "ap_lo"):
        zero, unit = data.units[name]
        pressures.append(X[:, data.feature_names.index(name)] * unit + zero)
    high, low = pressures
    bad = (high < 70) | (high > 250) | (low < 40) | (low > 150) | (low >= high)
    weights = [len(y) * fit.sample_weights[name] for name, (_, y) in data.clients.items()]
    top = np.argsort(np.concatenate(weights), kind="stable")[: round(0.03 * len(X))]
    assert bad[top].sum() > 0.95 * bad.sum() > 800


@pytest.mark.parametrize(
    ("method", "words", "told"),
    [
        ("erm", {"shift": 0.5, "outliers": 0.1}, "shift, outliers: has no part"),
        ("afl", {"rho": 3.0}, "but by wafl, gdrfl and dorfl"),
        ("wafl", {"outliers": 0.1}, r"\(the certificate goes by it\), but by dorfl"),
        ("wafl", {"shift": 0.5}, ""),
        ("erm", {"shift": 0, "outliers": 0}, ""),
        ("dorfl", {"shift": 0.5, "outliers": 0.1, "rho": 3.0}, ""),
    ],
)
def test_words_without_a_part_in_the_method_are_not_passed_over(method, words, told):
    X, y = normal_clients()["c0"]
    if told:
        with pytest.warns(UserWarning, match=told):
            dorfl.RobustClassifier(method, **words).fit(X, y)
    else:
        dorfl.RobustClassifier(method, **words).fit(X, y)
