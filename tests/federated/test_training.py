"""`dorfl.train` as users meet it."""

import itertools
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

import dorfl
from dorfl import losses, methods, mixture, scores
from dorfl.federated.training import prepare

pytestmark = pytest.mark.portable


@pytest.fixture(scope="module")
def data():
    return dorfl.datasets.synthetic(seed=4)


def pooled(clients):
    return tuple(np.concatenate(parts) for parts in zip(*clients.values(), strict=True))


def test_erm_is_logistic_regression(data):
    X, y = pooled(data.clients)
    l2 = 0.01
    expected = LogisticRegression(C=1 / (l2 * len(y)), tol=1e-10, max_iter=10_000).fit(X, y)
    fit = dorfl.train(data.clients, methods.erm(), l2=l2, tol=1e-12)
    # The intercept has a thousandth of the ridge here and none there.
    np.testing.assert_allclose(fit.theta[:-1], expected.coef_[0], atol=5e-4)
    np.testing.assert_allclose(fit.theta[-1], expected.intercept_[0], atol=5e-4)


def test_softmax_is_multinomial_regression():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    y = np.array(["a", "b", "c"])[
        (X @ rng.normal(size=(4, 3)) + rng.gumbel(size=(300, 3))).argmax(1)
    ]
    l2 = 0.05
    expected = LogisticRegression(C=1 / (l2 * 300), tol=1e-10, max_iter=10_000).fit(X, y)
    fit = dorfl.train([(X, y)], methods.erm(), loss="softmax", l2=l2, tol=1e-12)
    assert fit.theta.shape == (3, 5)
    np.testing.assert_allclose(fit.theta[:, :-1], expected.coef_, atol=1e-4)
    assert (fit.predict(X) == expected.predict(X)).mean() > 0.99


def test_squared_loss_is_ridge_regression():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(100, 3))
    y = X @ [1.0, -2.0, 0.5] + 3 + 0.1 * rng.normal(size=100)
    full = np.column_stack([X, np.sqrt(1e3) * np.ones(100)])  # a thousandth of the ridge
    expected = Ridge(alpha=0.1 * 100, fit_intercept=False).fit(full, y)
    fit = dorfl.train([(X, y)], methods.erm(), loss="squared", l2=0.1, tol=1e-12)
    np.testing.assert_allclose(fit.theta[:-1], expected.coef_[:-1], atol=1e-6)


def test_squared_loss_trains_where_the_supremum_is_finite():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 3))
    y = X @ [3.0, -2.0, 1.0]
    method = methods.wafl(rho=2.0)  # finite only for ‖θ‖² < 2, the true θ has 14
    for solver in ("sqp", "optimistic"):
        fit = dorfl.train([(X, y)], method, loss="squared", solver=solver, intercept=False)
        assert fit.theta @ fit.theta < 2.0
        assert fit.status == "converged"


def test_any_two_labels_will_do(data):
    fit = dorfl.train(data.clients, methods.paper())
    renamed = {k: (X, np.where(y > 0, "yes", "no")) for k, (X, y) in data.clients.items()}
    other = dorfl.train(renamed, methods.paper())
    np.testing.assert_array_equal(fit.theta, other.theta)
    X, y = data.test["client-1"]
    assert set(other.predict(X)) == {"yes", "no"}
    assert other.score(X, np.where(y > 0, "yes", "no")) == fit.score(X, y)


def test_separable_rows_end_with_a_bounded_theta_and_a_message():
    X = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    with pytest.warns(UserWarning, match="separable.*l2"):
        fit = dorfl.train([(X, [0, 0, 1, 1])], methods.erm())
    assert fit.status == "separable"
    assert fit.rounds < 50
    assert np.linalg.norm(fit.theta) < 1e3
    assert fit.score(X, [0, 0, 1, 1]) == 1.0
    assert dorfl.train([(X, [0, 0, 1, 1])], methods.erm(), l2=1e-3).status == "converged"
    assert dorfl.train([(X, [0, 0, 1, 1])], methods.wafl(rho=5)).status == "converged"


def test_a_budget_that_runs_out_is_said(data):
    with pytest.warns(UserWarning, match="max_rounds"):
        fit = dorfl.train(data.clients, methods.paper(), max_rounds=2)
    assert fit.status == "budget"
    assert fit.rounds == 2


def test_warm_start_takes_fewer_rounds(data):
    cold = dorfl.train(data.clients, methods.paper(rho=20))
    warm = dorfl.train(data.clients, methods.paper(rho=21), start=cold)
    assert warm.rounds < cold.rounds


def test_history_and_progress(data):
    seen = []
    fit = dorfl.train(data.clients, methods.paper(), progress=seen.append)
    assert seen == fit.history
    assert [r.round for r in fit.history] == list(range(1, fit.rounds + 1))
    assert fit.history[-1].gap == fit.gap
    assert np.array_equal(fit.history[-1].lam, fit.lam)
    objectives = [r.objective for r in fit.history]
    assert all(a >= b for a, b in itertools.pairwise(objectives))


def test_sample_weights_single_out_the_outliers(data):
    fit = dorfl.train(data.clients, methods.paper())
    for name, bad in data.outliers.items():
        weights = fit.sample_weights[name]
        assert weights.sum() == pytest.approx(1.0)
        assert np.median(weights[bad]) < 0.05 * np.median(weights[~bad])


@pytest.mark.parametrize("kind", ["negate", "scale", "flip"])
def test_every_method_and_mixture_trains_on_every_contamination(kind):
    data = dorfl.datasets.synthetic(seed=0, kind=kind)
    for rule in ("fixed", "agnostic", mixture.capped(0.5), mixture.agnostic(by="loss")):
        for rho, temperature, score in (
            (None, None, None),
            (10, None, None),
            (10, 10, scores.quadratic(0.2, center="client")),
            (None, 10, scores.quadratic(0.2)),
            (10, None, scores.quadratic(0.2)),
        ):
            method = methods.method(rho=rho, temperature=temperature, score=score, mixture=rule)
            fit = dorfl.train(data.clients, method)
            assert fit.status == "converged"
            assert fit.lam.max() <= method.mixture.cap
            assert fit.lam.min() >= 0.0
            assert math.fsum(fit.lam) == 1.0


@pytest.mark.slow
def test_a_score_of_one_s_own(data):
    center = np.array([1.0, 1.0, 0.3, 0.5, 1.0])
    closed = dorfl.train(
        data.clients, methods.paper(20, 1, scores.quadratic(0.5, center)), tol=1e-8
    )
    own = scores.custom(lambda X, y: 0.5 * ((X - center) ** 2).sum(axis=1), convex=True)
    fit = dorfl.train(data.clients, methods.paper(20, 1, own), tol=1e-8)
    np.testing.assert_allclose(fit.theta, closed.theta, atol=1e-3)
    assert fit.objective == pytest.approx(closed.objective, rel=1e-6)


def test_huber_takes_its_delta():
    assert losses.huber(0.3).delta == 0.3
    with pytest.raises(ValueError, match="delta"):
        losses.huber(-1)


@pytest.mark.slow
def test_a_fresh_process_does_not_compile_again():
    """The disk cache serves every kernel: the second process compiles nothing."""
    script = """
import dorfl
from dorfl.linear import kernels
dorfl.train(dorfl.datasets.synthetic(seed=0).clients, dorfl.methods.paper())
stats = kernels.one_pass.stats
softmax = len(kernels.softmax_pass.signatures)
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()), softmax)
"""
    for _ in range(2):
        out = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
    hits, misses, softmax = map(int, out.stdout.split())
    assert hits >= 1
    assert misses == 0
    assert softmax == 0, "a model of one output needs no kernel of several"


@pytest.mark.slow
def test_kernels_compiled_and_loaded_from_the_cache_give_the_same_bits(tmp_path):
    """What rounds may not depend on what happened to be inlined where."""
    script = """
import numpy as np, dorfl
rng = np.random.default_rng(0)
for rows, columns in ((203, 5), (300, 41)):
    X = rng.normal(size=(rows, columns))
    for table, method in ((X.astype(np.float32), dorfl.methods.paper()), (X, dorfl.methods.afl())):
        labels = X[:, 0] + rng.logistic(size=rows) > 0
        clients = [(table[:90], labels[:90]), (table[90:], labels[90:])]
        print([x.hex() for x in dorfl.train(clients, method, l2=0.1).theta])
"""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", script]
    compiled, loaded = (
        subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert list(tmp_path.rglob("*one_pass*.nbc"))
    assert compiled.splitlines() == loaded.splitlines()


@pytest.mark.slow
def test_the_number_of_threads_of_blas_changes_no_bit():
    """OpenBLAS adds up in another order with two threads, once matrices are large enough."""
    script = """
import numpy as np, dorfl
rng = np.random.default_rng(0)
X = rng.normal(size=(1400, 300))
y = (X[:, :6] + rng.gumbel(size=(1400, 6))).argmax(axis=1)
halves = [slice(0, 700), slice(700, 1400)]
for method in (dorfl.methods.erm(), dorfl.methods.paper()):
    for loss, labels in (("logistic", y > 2), ("softmax", y)):
        clients = [(X[half], labels[half]) for half in halves]
        fit = dorfl.train(clients, method, loss=loss, l2=0.1, tol=1e-3)
        print(method.name, loss, fit.rounds, hash((fit.theta.tobytes(), fit.lam.tobytes())))
"""
    one, two = (
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            env={**os.environ, "OPENBLAS_NUM_THREADS": threads, "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    )
    assert one.splitlines() == two.splitlines()


def test_pieces_of_one_table_are_trained_on_where_they_lie():
    data = dorfl.datasets.synthetic(seed=0)
    apart = data.clients
    whole = np.vstack([X for X, _ in apart.values()])
    bounds = np.cumsum([0, *(len(X) for X, _ in apart.values())])
    parts = [whole[a:b] for a, b in itertools.pairwise(bounds)]
    pieces = {n: (X, y) for (n, (_, y)), X in zip(apart.items(), parts, strict=True)}
    group = prepare(pieces, dorfl.methods.paper())
    assert np.shares_memory(group.rows, whole)
    np.testing.assert_array_equal(group.rows, whole)
    for mixed in (parts[::-1], [parts[0], parts[2]], [parts[0], parts[1].copy()], parts[1:]):
        rows = prepare([(X, np.arange(len(X)) % 2) for X in mixed], dorfl.methods.afl()).rows
        np.testing.assert_array_equal(rows, np.vstack(mixed))
    wide = np.hstack([whole, whole])  # columns of a wider table are no piece of it
    clients = [(wide[a : a + 10, :5], [0, 1] * 5) for a in (0, 10)]
    rows = prepare(clients, dorfl.methods.afl()).rows
    np.testing.assert_array_equal(rows, whole[:20])


def test_a_fit_is_shown_in_ten_lines():
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(40, 3)), np.arange(40) % 2) for _ in range(30)]
    shown = repr(dorfl.train(clients, methods.afl(), l2=0.1))
    assert len(shown.splitlines()) == 10 and len(shown) < 1000
    assert "afl" in shown and "converged" in shown and "25 more clients" in shown
    assert "no outlier score" in shown
    score = dorfl.scores.quadratic(0.5)
    robust = dorfl.train(clients, methods.method(rho=20, beta=1, score=score), l2=0.1)
    assert "with outlier score" in repr(robust)


@pytest.mark.parametrize("kinds", [2, 4])
def test_probabilities_of_a_fit(kinds):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = np.array(["a", "b", "c", "d"])[np.digitize(X[:, 0], [-0.5, 0.0, 0.5][: kinds - 1])]
    loss = "logistic" if kinds == 2 else "softmax"
    fit = dorfl.train([(X, y)], methods.erm(), loss=loss, l2=0.01)
    chance = fit.predict_proba(X)
    assert chance.shape == (200, kinds)
    np.testing.assert_allclose(chance.sum(axis=1), 1.0)
    assert (fit.problem.classes[chance.argmax(axis=1)] == fit.predict(X)).all()
    number = dorfl.train([(X, X[:, 0])], methods.erm(), loss="squared", l2=0.01)
    with pytest.raises(ValueError, match="no classes"):
        number.predict_proba(X)


def test_a_callback_ends_training():
    data = dorfl.datasets.synthetic(seed=0)
    fit = dorfl.train(data.clients, methods.paper(), progress=lambda done: done.round == 3)
    assert fit.status == "stopped" and fit.rounds == 3 and "by `progress`" in fit.message
    whole = dorfl.train(data.clients, methods.paper(), progress=lambda done: done.round)
    assert whole.status == "converged"
