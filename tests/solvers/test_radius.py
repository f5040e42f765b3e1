"""The radius form by its own solver: kinks, starts, rounds, and what is told of a large radius."""

import numpy as np
import pytest
from scipy.optimize import minimize

import dorfl
from dorfl import methods
from dorfl.federated.training import prepare
from dorfl.linear.base import Priced
from dorfl.linear.curvature import Shape, bordered
from dorfl.objective.mixture import agnostic
from dorfl.solvers import Radius
from dorfl.solvers.base import Answers, Setting

pytestmark = pytest.mark.portable


def solve(radius, risks, theta, rho, tol=1e-8):
    """Rounds with clients that are functions of (θ, ρ): values, gradients, diagonal curvature."""
    setting = Setting(
        agnostic(), np.inf, np.zeros(len(theta) + 1), tol=tol, shape=Shape(1, len(theta), 1),
        resolution="diagonal", feasible=lambda at: bool(at[-1] > 0),
    )  # fmt: skip
    solver = Radius(radius)
    state = solver.init(setting, np.append(theta, rho), agnostic().start("ab", np.ones(2)))
    for number in range(1, 41):
        task = solver.ask(state)
        values, vectors, bend = risks(task.theta[:-1], task.theta[-1])
        told = Answers(values, vectors, bend if task.curvature != "none" else None)
        state, info = solver.update(state, told)
        if info.done:
            return info, number
    raise AssertionError(f"not done: {info}")


@pytest.mark.parametrize("rho", [1e-3, 0.7, 1.0, 40.0])
def test_where_v_has_a_kink_the_mixture_is_the_one_that_levels_it(rho):
    """F = ½(θ − 1)² + (1 − 0.05 ρ, 2 − 1.05 ρ): V falls by 0.55 up to ρ = 1, then rises by 0.45."""

    def risks(theta, price):
        common = 0.5 * float((theta - 1) @ (theta - 1))
        values = common + np.array([1 - 0.05 * price, 2 - 1.05 * price])
        vectors = np.column_stack([np.tile(theta - 1, (2, 1)), [-0.05, -1.05]])
        return values, vectors, np.tile(np.append(np.ones(len(theta)), 0.0), (2, 1))

    info, rounds = solve(0.5, risks, np.zeros(2), rho)
    assert info.done == "converged"
    assert rounds <= 20
    assert info.objective == pytest.approx(1.45, rel=1e-8)
    np.testing.assert_allclose(info.theta, [1, 1, 1], atol=1e-4)
    np.testing.assert_allclose(info.lam, [0.55, 0.45], atol=1e-6)


@pytest.mark.parametrize("rho", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("radius", [1e-4, 1.0, 1e4])
def test_the_price_is_found_from_any_price(radius, rho):
    """F_i = ½(θ − i)² + 1/ρ: ρ = 1/√r, and θ halfway."""

    def risks(theta, price):
        apart = theta[0] - np.array([0.0, 1.0])
        return (
            0.5 * apart**2 + 1 / price,
            np.column_stack([apart, np.full(2, -1 / price**2)]),
            np.array([[1.0, 2 / price]] * 2),  # ρ in its own unit
        )

    info, rounds = solve(radius, risks, np.full(1, 5.0), rho)
    assert info.done == "converged"
    assert rounds <= 40
    assert info.objective == pytest.approx(0.125 + 2 * np.sqrt(radius), rel=1e-8)
    assert info.theta == pytest.approx([0.5, radius**-0.5], rel=1e-2)


def test_the_gap_estimates_how_far_the_optimum_is():
    data, method = dorfl.datasets.synthetic(seed=2), methods.method(radius=0.02, beta=1.0)
    best = dorfl.train(data.clients, method, tol=1e-9)
    rounds = []
    dorfl.train(data.clients, method, tol=1e-7, progress=rounds.append)
    assert len(rounds) <= 30
    for told in rounds:  # an estimate, which may be a few times too small on the way
        assert told.objective - 5.0 * told.gap <= best.objective * (1 + 1e-9)


def test_a_radius_too_large_for_any_model_is_called_so():
    data = dorfl.datasets.synthetic(seed=0)
    words = "no model is better than a constant prediction"
    large = dorfl.train(data.clients, methods.method(radius=0.2, beta=1.0))
    assert large.objective == pytest.approx(np.log(2), rel=1e-6)
    assert words in large.message
    small = dorfl.train(data.clients, methods.method(radius=0.01, beta=1.0))
    assert small.objective < np.log(2) - 1e-3
    assert words not in small.message


def test_a_step_that_is_no_number_ends_it_in_words():
    """Few separable rows in many columns: clients were once asked about θ = NaN."""
    setting = Setting(agnostic(), np.inf, np.zeros(2), shape=Shape(1, 1, 1))
    solver = Radius(0.1)
    state = solver.init(setting, np.array([0.0, 1.0]), np.ones(1))
    absurd = Answers(np.ones(1), np.array([[1e300, -1.0]]), np.array([[1e-300, 0.0]]))
    with np.errstate(all="ignore"):
        state, info = solver.update(state, absurd)
    assert info.done == "stalled" and "not a finite number" in info.why


def independent(clients, method, loss, l2):
    """Min over θ, ρ and t of t with t ≥ ρ r + F_i(θ, ρ) + l2/2 ‖θ‖², by SciPy's SLSQP."""
    group = prepare(clients, method, loss)
    priced, penalty = Priced(group), l2 * group.problem.penalised
    start = max(float(group.evaluate(group.problem.start).values.max()), 1e-3)

    def told(z):
        return priced.evaluate(z[:-1])

    def room(z):
        cost = z[-2] * method.radius + 0.5 * penalty @ z[:-2] ** 2
        return z[-1] - told(z).values - cost

    def slopes(z):
        steep = told(z).gradients + np.append(penalty * z[:-2], method.radius)
        return np.column_stack([-steep, np.ones(len(steep))])

    best = np.inf
    for rho in (0.3 * start / method.radius, 0.03 * start / method.radius):
        z = np.append(group.problem.start, [rho, 2.0 * start])
        bounds = [(-50, 50)] * group.problem.size + [(1e-4 * rho, None), (None, None)]
        found = minimize(
            lambda z: z[-1], z, jac=lambda z: np.eye(len(z))[-1], method="SLSQP", bounds=bounds,
            constraints={"type": "ineq", "fun": room, "jac": slopes},
            options={"maxiter": 500, "ftol": 1e-13},
        )  # fmt: skip
        best = min(best, found.fun - min(room(found.x).min(), 0.0))
    return best


@pytest.mark.parametrize("radius", [1e-3, 0.03, 0.3])
@pytest.mark.parametrize("loss", ["logistic", "softmax", "huber"])
def test_an_independent_solver_finds_nothing_lower(loss, radius):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60, 3))
    score = X @ [1.0, -1.0, 0.5] + 0.5 * rng.normal(size=60)
    y = {"logistic": score > 0, "softmax": np.digitize(score, [-0.7, 0.7])}.get(loss, score)
    clients = {name: (X[k::3], y[k::3]) for k, name in enumerate("abc")}
    method = methods.method(radius=radius, beta=1.0)
    fit = dorfl.train(clients, method, loss=loss, l2=1e-3)
    assert fit.status == "converged"
    assert fit.rounds <= 40
    other = independent(clients, method, loss, 1e-3)
    assert fit.objective <= other * (1 + 1e-6)
    assert fit.objective >= other * (1 - 1e-4)  # it comes near, too


def test_clients_tell_how_risks_bend_in_theta_and_rho():
    data, method = dorfl.datasets.synthetic(seed=0), methods.method(radius=0.02, beta=1.0)
    group = prepare(data.clients, method)
    priced, z = Priced(group), np.append(np.full(group.problem.size, 0.3), 2.0)
    told = priced.evaluate(z, "full").curvature
    unit = np.append(np.ones(group.problem.size), z[-1])  # ρ in its own unit
    for i, packed in enumerate(told):
        whole = np.zeros((len(z), len(z)))
        whole[np.tril_indices(len(z))] = packed
        whole += np.tril(whole, -1).T
        steps = 1e-5 * np.eye(len(z))
        slopes = [
            (priced.evaluate(z + s).gradients[i] - priced.evaluate(z - s).gradients[i]) / 2e-5
            for s in steps
        ]
        expected = np.array(slopes) * np.outer(unit, unit)
        np.testing.assert_allclose(whole, expected, rtol=1e-3, atol=1e-4)
        assert np.linalg.eigvalsh(whole).min() >= -1e-6


def test_a_site_that_looks_after_its_rows_tells_nothing_of_how_risks_bend_in_rho():
    group = prepare(dorfl.datasets.synthetic(seed=0).clients, methods.method(radius=0.02, beta=1.0))
    z = np.append(np.full(group.problem.size, 0.3), 2.0)
    told = Priced(group).evaluate(z, "full", rows=True).curvature
    assert told is not None
    assert not told[:, -len(z) :].any()
    fit = dorfl.train(group, curvature="none")  # and the training goes on without
    assert fit.status == "converged"


def test_a_price_that_falls_does_not_pass_for_a_lie():
    """Everybody's curvature goes with 1/ρ, a million times that of the first round."""
    rounds = []
    method = methods.method(radius=0.2, beta=1.0)
    fit = dorfl.train(dorfl.datasets.synthetic(seed=0).clients, method, progress=rounds.append)
    assert fit.rho < 1e-5
    assert not any(told.clipped for told in rounds)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("radius", [1e-3, 0.01, 0.05, 0.2, 2.0])
def test_few_rounds_do(seed, radius):
    data, method = dorfl.datasets.synthetic(seed=seed), methods.method(radius=radius, beta=1.0)
    fit = dorfl.train(data.clients, method)
    assert fit.status == "converged"
    assert fit.rounds <= 20  # 9 in the median


def test_a_column_of_any_scale_leaves_the_curvature_positive():
    """Squares of units from 1e-3 to 1e3: a floor for all alike let a move have no length."""
    scale = np.array([1e-3, 1.0, 1e3])
    matrix = np.outer(scale, scale) * (0.5 + 0.5 * np.eye(3))
    packed = matrix[np.tril_indices(3)][None]
    column = np.append(9.0 * scale, 1.0)[None]
    whole = np.zeros((4, 4))
    whole[np.tril_indices(4)] = bordered(packed, column, (3,))[0]
    unit = np.append(scale, 1.0)
    whole = (whole + np.tril(whole, -1).T) / np.outer(unit, unit)
    assert np.linalg.eigvalsh(whole).min() > -1e-7
