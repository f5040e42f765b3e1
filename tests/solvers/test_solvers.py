"""The solvers reach the same minimiser, from messages alone, in the rounds they claim."""

import itertools
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

import dorfl
from cases import slowly
from dorfl import methods, mixture, scores
from dorfl.federated.training import prepare
from dorfl.linear.curvature import Shape, pack
from dorfl.solvers import Optimistic, Paper, program, sqp
from dorfl.solvers.base import Setting
from dorfl.solvers.program import Tangents
from dorfl.solvers.quasi_newton import model, no_secants

pytestmark = pytest.mark.portable


def epigraph_minimum(group, radius=None):
    """min max_i F_i by an independent solver: SLSQP on the epigraph form."""
    size = group.problem.size
    constraints = [
        {
            "type": "ineq",
            "fun": lambda z: z[-1] - group.evaluate(z[:-1]).values,
            "jac": lambda z: np.column_stack(
                [-group.evaluate(z[:-1]).gradients, np.ones(len(group.names))]
            ),
        }
    ]
    if radius is not None:
        constraints.append({"type": "ineq", "fun": lambda z: radius**2 - z[:-1] @ z[:-1]})
    start = np.append(np.zeros(size), group.evaluate(np.zeros(size)).values.max())
    found = minimize(
        lambda z: z[-1],
        start,
        jac=lambda z: np.append(np.zeros(size), 1.0),
        constraints=constraints,
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-14},
    )
    return group.evaluate(found.x[:-1]).values.max(), found.x[:-1]


@pytest.mark.parametrize(
    ("method", "loss"),
    [
        (methods.afl(), "logistic"),
        (methods.gdrfl(5), "logistic"),
        (methods.paper(20, 1), "logistic"),
        (methods.paper(5, 10, scores.quadratic(0.05)), "huber"),
        (methods.paper(50, 1), "squared"),
        (methods.paper(20, 1), "softmax"),
    ],
    ids=lambda part: getattr(part, "name", part),
)
def test_sqp_agrees_with_an_independent_solver(method, loss):
    data = dorfl.datasets.synthetic(seed=1)
    fit = dorfl.train(data.clients, method, loss=loss, tol=1e-9)
    expected, _ = epigraph_minimum(prepare(data.clients, method, loss))
    assert fit.status == "converged"
    assert fit.objective <= expected + 1e-7 * abs(expected)


@pytest.mark.slow
def test_sqp_rounds_and_gap_over_the_paper_s_problem():
    rounds, gaps = [], []
    for seed in range(20):
        data = dorfl.datasets.synthetic(seed)
        for rho, beta, weight in itertools.product((1, 5, 20, 50), (0.2, 1, 10), (0.05, 0.3, 1)):
            method = methods.paper(rho, beta, scores.quadratic(weight))
            fit = dorfl.train(data.clients, method)
            rounds.append(fit.rounds)
            if seed < 3:
                best = prepare_minimum(data, method)
                start = fit.history[0].risks.max()
                scale = max(abs(best), start - best)
                gaps.append((fit.objective - best) / scale)
    assert np.median(rounds) <= 12
    assert np.quantile(rounds, 0.99) <= 22
    assert max(rounds) <= 30  # at a kink: a row has two worst places there, and F no curvature
    assert max(gaps) <= 2e-6  # without a ridge the reported gap is an estimate


def prepare_minimum(data, method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "stalled" is as far as floating point goes
        return dorfl.train(data.clients, method, tol=1e-13).objective


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "method", [methods.erm(), methods.afl(), methods.wafl(5), methods.gdrfl(5), methods.paper()]
)
def test_sqp_and_optimistic_agree_on_theta(seed, method):
    data = dorfl.datasets.synthetic(seed)
    first = dorfl.train(data.clients, method, tol=1e-11)
    second = dorfl.train(data.clients, method, tol=1e-12, solver="optimistic")
    assert np.abs(first.theta - second.theta).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [methods.paper(2, 0.5, scores.quadratic(0.1)), methods.paper(5, 1, scores.none)]
)
def test_the_paper_s_algorithm_converges_at_its_rate(method):
    data = dorfl.datasets.synthetic(seed=0, contamination=(0, 0, 0))
    options = {"intercept": False, "theta_radius": 5.0}
    best = dorfl.train(data.clients, method, tol=1e-7, **options).objective
    lengths = np.array([50, 200, 800, 3200])
    gaps = [
        np.mean(
            [
                dorfl.train(
                    data.clients, method, solver="paper", max_rounds=T, seed=seed, **options
                ).objective
                - best
                for seed in range(4)
            ]
        )
        for T in lengths
    ]
    assert min(gaps) > 0
    assert np.polyfit(np.log(lengths), np.log(gaps), 1)[0] < -0.4


def test_the_paper_s_algorithm_says_when_its_exponential_overflows():
    data = dorfl.datasets.synthetic(seed=0)
    with pytest.raises(OverflowError, match=r"overflows.*'sqp' or 'optimistic'"):
        dorfl.train(data.clients, methods.paper(0.01, 0.01, None), solver="paper", max_rounds=400)


def test_one_step_of_algorithm_1_is_as_printed():
    """θ₂ = Proj_Θ(Σ λ_i (θ₁ − η g_i)), λ₂ = Proj_Λ(λ₁ + η g^λ), then the average of θ₁ and θ₂."""
    data = dorfl.datasets.synthetic(seed=0)
    method, T = methods.paper(20, 1), 2
    solver = Paper(rounds=T, batch=None)
    fit = dorfl.train(data.clients, method, solver=solver, theta_radius=3.0)
    group = prepare(data.clients, method)
    theta, lam, eta, tau = np.zeros(group.problem.size), np.full(3, 1 / 3), 1 / np.sqrt(T), 20.0
    risks = group.evaluate(theta)
    weight = np.exp(risks.values / tau)
    steps = theta - eta * weight[:, None] * risks.gradients / tau
    following = dorfl.solvers.base.Setting(method.mixture, tau, np.zeros(6), 3.0).project(
        lam @ steps
    )
    np.testing.assert_allclose(fit.theta, (theta + following) / 2, rtol=1e-12)
    raised = lam + eta * weight
    np.testing.assert_allclose(fit.lam, (lam + raised - (raised.sum() - 1) / 3) / 2, rtol=1e-12)


@pytest.mark.parametrize("solver", ["sqp", "optimistic"])
@pytest.mark.parametrize("radius", [0.3, 1.0, 50.0])
def test_theta_stays_in_the_ball_and_is_best_there(solver, radius):
    data, method = dorfl.datasets.synthetic(seed=2), methods.paper()
    fit = dorfl.train(data.clients, method, solver=solver, theta_radius=radius, tol=1e-8)
    expected, _ = epigraph_minimum(prepare(data.clients, method), radius)
    assert np.linalg.norm(fit.theta) <= radius * (1 + 1e-9)
    assert fit.objective <= expected + 1e-5 * abs(expected)


class Matrices:
    """The curvatures of clients as plain matrices, for the program."""

    def __init__(self, matrices):
        self.matrices = matrices

    def mixed(self, lam):
        whole = np.tensordot(lam, self.matrices, 1)
        solve = np.linalg.inv(whole)
        return SimpleNamespace(solve=lambda v: v @ solve, multiply=lambda v: v @ whole)

    def forms(self, move):
        return np.einsum("kij,i,j->k", self.matrices, move, move)

    def products(self, clients, move):
        return self.matrices[clients] @ move


@given(
    seed=st.integers(0, 10_000),
    count=st.integers(2, 80),
    more=st.integers(0, 30),
    cap=st.sampled_from([1.0, 0.6, 0.1]),
)
@slowly(40)
def test_the_program_is_solved(seed, count, more, cap):
    """Model and dual value meet only at the solution; both are computed anew here."""
    cap = 1.0 if cap * count < 1 else cap
    rng = np.random.default_rng(seed)
    owner = np.append(np.arange(count), rng.integers(0, count, size=more))
    values, slopes = rng.normal(size=len(owner)), rng.normal(size=(len(owner), 4))
    root = rng.normal(size=(count, 4, 4))
    matrices = root @ root.transpose(0, 2, 1) + 0.1 * np.eye(4)
    rule = mixture.capped(cap)
    start = np.append(rule.worst(values[:count]), np.zeros(more))
    tangents = Tangents(values, slopes, owner)
    step = program.solve(tangents, Matrices(matrices), rule, start, 60)
    assert step.weights.min() >= 0 and step.weights.sum() == pytest.approx(1.0, abs=1e-9)
    assert step.lam.max() <= cap * (1 + 1e-6)
    move = step.move
    reached = values + slopes @ move + 0.5 * np.einsum("kij,i,j->k", matrices, move, move)[owner]
    height = rule.height(np.array([reached[owner == i].max() for i in range(count)]))
    assert height == pytest.approx(step.model, abs=1e-9)
    level = rule.height(np.array([values[owner == i].max() for i in range(count)]))
    assert step.dual <= step.model + 1e-9
    assert step.model - step.dual <= 1.01 * program.ACCURACY * (level - step.model) + 1e-9


@given(
    seed=st.integers(0, 10_000),
    pairs=st.integers(0, 8),
    shift=st.sampled_from([0.0, 0.7]),
    sizes=st.sampled_from([(1,) * 5, (2, 3), (5,)]),
)
@slowly(60)
def test_the_curvature_model_inverts_itself_and_meets_its_last_secant(seed, pairs, shift, sizes):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(3, 5, 5))
    hessians = root @ root.transpose(0, 2, 1) + np.eye(5)
    secants = no_secants(3, 5)
    for _ in range(pairs):
        step = rng.normal(size=5)
        secants = secants.append(step, hessians @ step)
    lam = rng.dirichlet(np.ones(3))
    mixed = lam @ np.array([pack(h + shift * np.eye(5), sizes) for h in hessians])
    changes = lam @ secants.changes + shift * secants.steps
    bend = model(mixed, sizes, secants.steps, changes)
    vector = rng.normal(size=5)
    np.testing.assert_allclose(bend.solve(bend.multiply(vector)), vector, rtol=1e-7, atol=1e-8)
    assert vector @ bend.multiply(vector) > 0
    if pairs:
        step = secants.steps[-1]
        seen = lam @ secants.changes[-1] + shift * step
        if not np.allclose(bend.changes[-1], seen):  # damped: the model did not believe it in full
            return
        np.testing.assert_allclose(bend.multiply(step), seen, rtol=1e-8)


@pytest.mark.slow
def test_optimistic_learns_from_minibatches_and_local_steps():
    data = dorfl.datasets.synthetic(seed=0)
    best = dorfl.train(data.clients, methods.gdrfl(20), intercept=False).objective
    for solver in (Optimistic(batch=32), Optimistic(local_steps=5)):
        fit = dorfl.train(
            data.clients, methods.gdrfl(20), solver=solver, max_rounds=300, intercept=False,
            batch=solver.batch,
        )  # fmt: skip
        risks = prepare(data.clients, methods.gdrfl(20), intercept=False).evaluate(fit.theta)
        assert risks.values.max() < best + 0.05 * abs(best)


@pytest.mark.slow
def test_a_column_only_one_client_has_does_not_end_the_training_early():
    """A client of little weight and a column of its own once spoilt the program for λ."""
    data = dorfl.datasets.adult()
    clients = {name: (X[::8], y[::8]) for name, (X, y) in data.clients.items()}
    cost = dorfl.costs.squared(frozen=data.frozen)
    for method in (dorfl.methods.afl(), dorfl.methods.gdrfl(50, cost=cost)):
        fit = dorfl.train(clients, method, l2=1e-3, tol=1e-5)
        assert fit.status == "converged"
        assert dorfl.saddle_gap(fit, clients) < 2e-5 * fit.objective


@pytest.mark.parametrize(
    ("width", "failures", "before", "gap", "due"),
    [
        (300, 0, np.inf, 1.0, True),  # the first was at θ = 0
        (300, 0, 1.0, 0.9, True),  # slow
        (300, 1, 1.0, 1e-3, True),
        (300, 0, 1.0, 1e-3, False),  # 1e-3 to the power of 1 + 1.5 is below the tolerance
        (3, 0, 1.0, 3e-3, True),
        (3, 0, 1e-2, 1e-5, False),
    ],
)
def test_curvature_is_asked_for_if_that_saves_rounds(width, failures, before, gap, due):
    shape = Shape(1, width)
    setting = Setting(
        mixture.fixed(), np.inf, np.zeros(width), shape=shape, resolution="full", tol=1e-6
    )
    state = sqp.Sqp().init(setting, np.zeros(width), np.ones(1))
    known = np.ones((1, shape.numbers("full")))
    best = state.best._replace(values=np.ones(1))
    state = state._replace(curvature=known, failures=failures, best=best, start=1.0, gap=before)
    assert sqp._is_due(state, gap) is due


@pytest.mark.parametrize("cap", [1.0, 0.3])
def test_the_quadratic_program_is_exact_though_its_matrix_is_singular(cap):
    """No allowed weights have a larger inner product with the slope at the solution."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        count, owners = int(rng.integers(8, 50)), np.arange(4)
        factor = rng.normal(size=(count, int(rng.integers(1, 20)))) * 10.0 ** rng.uniform(-3, 3)
        owner = np.sort(np.append(owners, rng.integers(0, 4, size=count - 4)))
        quadratic, slope = factor @ factor.T, rng.normal(size=count)
        start = np.zeros(count)
        start[np.searchsorted(owner, owners)] = 0.25
        found = program.quadratic_program(quadratic, slope, start, cap, owner)
        taken = np.bincount(owner, found)
        assert found.min() >= 0.0 and found.sum() == pytest.approx(1.0, abs=1e-12)
        assert taken.max() <= cap + 1e-9
        ahead = slope - quadratic @ (found - start)
        best = np.sort([ahead[owner == i].max() for i in owners])[::-1]
        most = best[0] if cap == 1.0 else 0.3 * best[:3].sum() + 0.1 * best[3]
        assert most - ahead @ found <= 1e-11 * max(1.0, float(np.abs(quadratic).max()))


def test_optimistic_steps_do_not_run_away_where_columns_go_together():
    """Pictures, one class per client: the first step went to forty times the loss of θ = 0."""
    rng = np.random.default_rng(0)
    shade = rng.normal(size=(300, 1))
    X = 1.0 + 0.5 * shade + 0.2 * rng.normal(size=(300, 200))
    y = np.arange(300) % 3
    X[:, :60] += 0.2 * y[:, None]
    clients = {f"class {k}": (X[y == k], y[y == k]) for k in range(3)}
    rounds = []
    fit = dorfl.train(
        clients, methods.afl(), loss="softmax", l2=1e-3, tol=1e-4, solver="optimistic",
        max_rounds=200, progress=rounds.append,
    )  # fmt: skip
    assert fit.status == "converged" and fit.gap_kind == "bound"
    means = [float(told.lam @ told.risks) for told in rounds]
    assert max(means) <= 1.02 * means[0]
    assert fit.objective < 0.98 * rounds[0].objective
