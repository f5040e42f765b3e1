"""Problems that once went wrong: far targets, odd mixtures, stand-ins, warm starts, other data."""

import numpy as np
import pytest

import dorfl
from dorfl import costs, methods, mixture, scores
from dorfl.linear import hessian
from dorfl.linear.curvature import Shape, is_plausible

pytestmark = pytest.mark.portable


@pytest.fixture(scope="module")
def clients():
    return dorfl.datasets.synthetic(seed=0).clients


@pytest.mark.parametrize("offset", [1e2, 1e4])
@pytest.mark.parametrize("solver", ["sqp", "optimistic"])
def test_a_bad_start_does_not_loosen_the_tolerance(offset, solver):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 3))
    y = offset + X @ [1, 2, 3] + rng.normal(size=100)
    full = np.column_stack([X, np.ones(100)])
    best = np.linalg.lstsq(full, y, rcond=None)[0]
    fit = dorfl.train([(X, y)], methods.erm(), loss="squared", solver=solver)
    assert fit.objective == pytest.approx(0.5 * np.mean((full @ best - y) ** 2), rel=1e-3)


@pytest.mark.parametrize("method", [methods.erm(), methods.gdrfl(20), methods.paper()])
def test_huber_finds_targets_far_from_zero(method):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 3))
    y = 50 + X @ [1, 2, 3] + rng.normal(size=200)
    fit = dorfl.train([(X, y)], method, loss="huber")
    assert fit.status == "converged"
    assert fit.theta[-1] == pytest.approx(50, abs=1)


@pytest.mark.parametrize("size", [1e-5, 1.0, 1e3, 1e5])
def test_the_constrained_problem_knows_no_units(size):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(100, 3))
    y = X @ [1, 2, 3] + rng.normal(size=100)
    method = methods.method(radius=0.1, beta=1.0)
    plain = dorfl.train([(X, y)], method, loss="squared", tol=1e-9)
    fit = dorfl.train([(X, size * y)], method, loss="squared", tol=1e-9)
    assert fit.radius == pytest.approx(0.1, rel=1e-2)
    assert fit.objective == pytest.approx(size**2 * plain.objective, rel=1e-4)


def test_the_constrained_problem_goes_on_from_its_own_fit(clients):
    method = methods.method(radius=0.1, beta=1.0)
    first = dorfl.train(clients, method)
    again = dorfl.train(clients, method, start=first)
    assert again.rounds < first.rounds
    assert again.objective == pytest.approx(first.objective, rel=1e-5)


def test_the_constrained_problem_needs_something_to_move():
    X = np.random.default_rng(0).normal(size=(20, 2))
    frozen = methods.method(radius=0.1, cost=costs.squared(frozen=[0, 1]))
    with pytest.raises(ValueError, match="beta"):
        dorfl.train([(X, np.arange(20) % 2)], frozen)


def test_certificates_go_by_name_and_not_by_place(clients):
    fit = dorfl.train(clients, methods.paper())
    turned = dict(reversed(list(clients.items())))
    assert dorfl.certificate.paper(fit, turned).bound == pytest.approx(
        dorfl.certificate.paper(fit, clients).bound
    )
    assert dorfl.saddle_gap(fit, turned) == pytest.approx(dorfl.saddle_gap(fit, clients), abs=1e-8)
    with pytest.raises(ValueError, match=r"'elsewhere'.*lam="):
        dorfl.certificate.paper(fit, {"elsewhere": clients["client-1"]})


def test_a_client_that_does_not_count_does_not_count():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(100, 2))
    y = (X[:, 0] + rng.normal(size=100) > 0).astype(int)
    both = {"a": (X, y), "b": (50 * X, 1 - y)}
    fit = dorfl.train({"a": both["a"]}, methods.paper(2, 0.1, None))
    alone = dorfl.certificate.paper(fit, {"a": both["a"]})
    beside = dorfl.certificate.paper(fit, both, lam=[1, 0])
    assert beside.bound == pytest.approx(alone.bound)
    assert beside.at(1.0) == pytest.approx(alone.at(1.0))
    method = methods.method(temperature=0.5, mixture=mixture.fixed([1, 0]))
    assert dorfl.train(both, method).status == "converged"


@pytest.mark.slow
@pytest.mark.parametrize("count", [49, 60])
def test_a_cap_that_leaves_one_mixture_only(count):
    rng = np.random.default_rng(4)
    clients = [(rng.normal(size=(20, 3)), np.arange(20) % 2) for _ in range(count)]
    method = methods.method(rho=20, beta=1, mixture=mixture.capped(1 / count))
    fit = dorfl.train(clients, method)
    np.testing.assert_allclose(fit.lam, 1 / count, rtol=1e-6)


def test_a_start_outside_the_ball_is_brought_in(clients):
    free = dorfl.train(clients, methods.paper())
    fit = dorfl.train(clients, methods.paper(), theta_radius=0.3, start=free)
    assert np.linalg.norm(fit.theta) <= 0.3 * (1 + 1e-9)
    assert dorfl.saddle_gap(fit, clients) == pytest.approx(fit.gap, abs=1e-5)


def test_a_stand_in_cannot_show_convergence(clients):
    whole = dorfl.train(clients, methods.afl())
    worst = whole.clients[int(whole.lam.argmax())]
    with pytest.warns(UserWarning, match="max_rounds|no further progress"):
        fit = dorfl.train(
            clients,
            methods.afl(),
            max_rounds=20,
            absent=lambda number, name: name == worst and number > 1,
        )
    assert fit.status != "converged"


def test_sparse_heavy_tailed_columns_have_a_centre():
    rng = np.random.default_rng(5)
    X = np.where(rng.random((300, 100)) < 0.1, np.exp(2 * rng.normal(size=(300, 100))), 0.0)
    fit = dorfl.train([(X, rng.integers(0, 2, 300))], methods.paper())
    assert np.isfinite(fit.centers).all()


def test_frozen_separable_columns_are_noticed():
    X = np.random.default_rng(6).normal(size=(100, 3))
    method = methods.paper(score=None, cost=costs.squared(frozen=[0, 1, 2]))
    with pytest.warns(UserWarning, match="separable"):
        fit = dorfl.train([(X, (X[:, 0] > 0).astype(int))], method)
    assert fit.status == "separable"


def test_a_score_keeps_its_own_copy():
    center = np.zeros(2)
    score = scores.quadratic(0.5, center)
    center += 5
    assert score.center.tolist() == [0.0, 0.0]


def test_label_prices_with_softmax_report_a_curvature_the_server_takes():
    rng = np.random.default_rng(7)
    X = rng.normal(size=(100, 4))
    y = (X @ rng.normal(size=(4, 3)) + rng.gumbel(size=(100, 3))).argmax(1)
    method = methods.paper(cost=costs.squared(label_price=0.01))
    group = dorfl.federated.training.prepare([(X, y)], method, "softmax")
    theta = rng.normal(size=group.problem.size)
    assert (group.atoms(theta).target != group.target).any()
    shape = Shape(group.problem.outputs, group.problem.dims + group.problem.intercept)
    for resolution in ("diagonal", "blocks", "full"):
        (packed,) = hessian.curvature(group, theta, resolution)
        assert is_plausible(packed, shape.sizes(resolution)), resolution


@pytest.mark.parametrize("solver", ["sqp", "optimistic"])
@pytest.mark.parametrize("method", [methods.erm(), methods.afl()])
def test_columns_may_have_units_from_a_millionth_to_a_million(method, solver):
    """Nothing is regularised or moved, so units change nothing; sqp once ended 15 % too high."""
    rng = np.random.default_rng(2)
    X, units = rng.normal(size=(600, 20)), 10.0 ** rng.uniform(-6, 6, size=20)
    y = (X @ rng.normal(size=20) / 2 + rng.logistic(size=600) > 0).astype(int)
    thirds = [slice(k, None, 3) for k in range(3)]
    plain = dorfl.train([(X[at], y[at]) for at in thirds], method)
    fit = dorfl.train([((X * units)[at], y[at]) for at in thirds], method, solver=solver)
    assert fit.status == "converged"
    assert fit.objective == pytest.approx(plain.objective, rel=2e-6)
    np.testing.assert_allclose((fit.theta[:-1] * units), plain.theta[:-1], atol=0.02)
    assert fit.rounds <= plain.rounds + 2 or solver == "optimistic"


@pytest.mark.parametrize("l2", [0.0, 1e-12])
def test_separable_rows_with_transport_reach_their_tolerance(l2):
    """Supremum and risk have kinks there; curvature taken for rounding once ended it early."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 5))
    y = (X[:, 0] + 0.5 * X[:, 1] > 0).astype(int)
    X[:, 0] += np.where(y, 0.2, -0.2)
    clients = [(X[at], y[at]) for at in (slice(100), slice(100, 200), slice(200, 300))]
    fit = dorfl.train(clients, methods.gdrfl(20), l2=l2)
    assert fit.status == "converged"
    assert dorfl.saddle_gap(fit, clients) < 1e-5 * fit.objective


@pytest.mark.portable
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", [methods.erm(), methods.afl()], ids=["erm", "afl"])
def test_all_levels_of_categories_and_an_intercept_without_any_penalty(method, dtype):
    rng = np.random.default_rng(0)
    clients = {}
    for name in ("a", "b"):
        levels = [np.eye(k)[rng.integers(k, size=3000)] for k in (3, 7, 12)]
        X = np.column_stack([rng.normal(size=(3000, 2)), *levels])
        y = X @ rng.normal(size=X.shape[1]) + rng.logistic(size=3000) > 0.5
        clients[name] = (X.astype(dtype), y)
    fit = dorfl.train(clients, method, l2=0.0)
    assert fit.status == "converged" and fit.rounds <= 15
    assert np.abs(fit.theta).max() < 1e3


def test_a_stall_says_what_was_seen_and_what_to_try():
    """No gap can be 1e-16 of the objective in floating point."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5)).astype(np.float32)
    y = X @ np.arange(5) + rng.logistic(size=300) > 0
    clients = [(X[:100], y[:100]), (X[100:], y[100:])]
    for method in (methods.erm(), methods.afl()):
        with pytest.warns(UserWarning, match=r"because .*(rounding|no lower|too short)"):
            fit = dorfl.train(clients, method, tol=1e-18)
        assert fit.status == "stalled"
        assert fit.relative_gap <= 1e-8 or "rounding" in fit.message
        assert "float64" in fit.message and "l2" in fit.message


def test_fewer_rows_than_columns_in_any_units_are_not_taken_for_kinks():
    """Steps too long are none of a kink where rows cannot move; tangents once led nowhere."""
    rng = np.random.default_rng(0)
    X, units = rng.normal(size=(252, 750)), 10.0 ** rng.uniform(-6, 6, size=750)
    y = (2 * X @ rng.normal(size=750) / 750**0.5 + rng.logistic(size=252) > 0).astype(int)
    X = X * units
    fit = dorfl.train([(X[:126], y[:126]), (X[126:], y[126:])], methods.erm(), l2=1 / 252)
    assert fit.status == "converged"
    assert fit.objective < 5e-7  # the classes are separable by columns that cost next to nothing


def test_a_kink_in_many_columns_leaves_no_absurd_gap():
    """Rows so cheap to move that Huber's loss is |t − y|: every row is a kink."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 40))
    y = X @ rng.normal(size=40) / 40**0.5 + 0.3 * rng.standard_t(3, size=300)
    clients = [(X[k::3], y[k::3] + 0.2 * k) for k in range(3)]
    loss = dorfl.losses.huber(0.05)
    fit = dorfl.train(clients, methods.gdrfl(1.0), loss=loss, tol=1e-3)
    assert fit.status == "converged"
    assert dorfl.saddle_gap(fit, clients) < 1e-2 * fit.objective


def test_rounds_without_new_curvature_are_used_for_longer_where_it_is_dear():
    """Ten classes of 41 numbers: what one full curvature weighs, two hundred gradients do."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 40))
    y = (X @ rng.normal(size=(40, 10)) / 2 + rng.gumbel(size=(600, 10))).argmax(1)
    clients = [(X[:300], y[:300]), (X[300:], y[300:])]
    fit = dorfl.train(clients, methods.erm(), loss="softmax", l2=1 / 600, tol=1e-4)
    bare = min(one.bytes_up for one in fit.history)
    asked = sum(one.bytes_up > bare for one in fit.history)
    assert fit.status == "converged" and fit.rounds <= 15
    assert asked <= fit.rounds // 2


def test_optimistic_says_what_to_try_where_its_rounds_are_over():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4)) @ rng.normal(size=(4, 30))  # columns that go together
    y = X[:, 0] + rng.logistic(size=200) > 0
    clients = [(X[:100], y[:100]), (X[100:], y[100:])]
    with pytest.warns(UserWarning, match=r"not converged.*solver 'sqp'"):
        dorfl.train(clients, methods.afl(), solver="optimistic", l2=1e-6, max_rounds=20)
