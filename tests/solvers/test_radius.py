"""The radius form by its own solver: kinks, starts, rounds, and what is told of a large radius."""

import numpy as np
import pytest

import dorfl
from dorfl import methods
from dorfl.objective.mixture import agnostic
from dorfl.oracle.curvature import Shape
from dorfl.solvers import Radius
from dorfl.solvers.base import Answers, Setting

pytestmark = pytest.mark.portable


def solve(radius, risks, theta, rho, tol=1e-8):
    """Rounds with clients that are functions of (θ, ρ): values, gradients, curvature in θ."""
    setting = Setting(
        agnostic(), np.inf, np.zeros(len(theta)), tol=tol, shape=Shape(1, len(theta)),
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
        return values, vectors, np.ones((2, len(theta)))

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
            np.ones((2, 1)),
        )

    info, rounds = solve(radius, risks, np.full(1, 5.0), rho)
    assert info.done == "converged"
    assert rounds <= 40
    assert info.objective == pytest.approx(0.125 + 2 * np.sqrt(radius), rel=1e-8)
    assert info.theta == pytest.approx([0.5, radius**-0.5], rel=1e-2)


def test_the_gap_bounds_how_far_the_optimum_is():
    data, method = dorfl.datasets.synthetic(seed=2), methods.method(radius=0.02, beta=1.0)
    best = dorfl.train(data.clients, method, tol=1e-9)
    rounds = []
    dorfl.train(data.clients, method, tol=1e-7, progress=rounds.append)
    assert len(rounds) <= 30
    for told in rounds:
        assert told.objective - told.gap <= best.objective * (1 + 1e-9)


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
    setting = Setting(agnostic(), np.inf, np.zeros(1), shape=Shape(1, 1))
    solver = Radius(0.1)
    state = solver.init(setting, np.array([0.0, 1.0]), np.ones(1))
    absurd = Answers(np.ones(1), np.array([[1e300, -1.0]]), np.array([[1e-300]]))
    with np.errstate(all="ignore"):
        state, info = solver.update(state, absurd)
    assert info.done == "stalled" and "not a finite number" in info.why
