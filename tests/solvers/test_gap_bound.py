"""A gap that is called a bound is one: an independent solver never finds more to gain.

Random problems of all shapes: losses, mixtures, transport, tilts, ridges, non-smooth points. The
reference is SciPy's SLSQP on the epigraph form, from the fit's own θ and from zero. It knows only
values and gradients, so that what it finds is a value that can be reached.
"""

import warnings

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize

import dorfl
from cases import slowly
from dorfl import losses, methods, mixture, scores
from dorfl.federated.training import prepare
from dorfl.solvers.base import Setting, is_bounded, lower_bound

pytestmark = pytest.mark.portable

LOSSES = ("logistic", "softmax", "huber", "squared")


def draw(seed, loss, rule, robust, l2):
    rng = np.random.default_rng(seed)
    count, d = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    clients = []
    for _ in range(count):
        n = int(rng.integers(4, 30))
        X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-1, 1, size=d)
        t = X @ rng.normal(size=(d, 3)) + rng.gumbel(size=(n, 3))
        y = {"logistic": t[:, 0] > 0, "softmax": t.argmax(axis=1)}.get(loss, t[:, 0])
        clients.append((X, y))
    labels = {"logistic": [0, 1], "softmax": [0, 1, 2]}.get(loss)
    if labels:  # every class at least once
        X, y = clients[0]
        clients[0] = (X, np.append(labels, y[len(labels) :]))
    rules = {
        "fixed": mixture.fixed(),
        "agnostic": mixture.agnostic(),
        "capped": mixture.capped(0.6),
    }
    score = scores.quadratic(0.1) if robust == "tilted" else None
    parts = {
        "plain": {},
        "moved": {"rho": 10.0 ** rng.uniform(1, 3)},
        "tilted": {"rho": 10.0 ** rng.uniform(2, 3), "beta": 1.0, "score": score},
    }[robust]
    which = rules["agnostic" if rule == "capped" and count == 1 else rule]
    return clients, methods.method(mixture=which, **parts), l2


def best_found(clients, method, loss, l2, fit):
    """The lowest objective that SLSQP reaches."""
    group = prepare(clients, method, loss)
    penalty, lam = l2 * group.problem.penalised, fit.lam
    rule, tau = method.mixture, method.temperature

    def height(theta):
        if not group.problem.is_finite(theta):
            return np.inf
        risks = group.evaluate(theta).values
        return rule.objective(risks, lam, tau) + 0.5 * float(penalty @ theta**2)

    start, least = fit.theta.ravel(), height(fit.theta.ravel())
    for point in (start, 0.9 * start, np.zeros_like(start)):
        for kind in ("SLSQP", "Powell"):
            found = minimize(height, point, method=kind, options={"maxiter": 200})
            least = min(least, height(found.x))
    return least


@given(
    seed=st.integers(0, 10_000),
    loss=st.sampled_from(LOSSES),
    rule=st.sampled_from(["fixed", "agnostic", "capped"]),
    robust=st.sampled_from(["plain", "moved", "tilted"]),
    l2=st.sampled_from([1e-3, 1e-2, 1e-1]),
    rounds=st.sampled_from([2, 4, 8, None]),
)
@slowly(30)
def test_no_solver_finds_more_to_gain_than_the_bound(seed, loss, rule, robust, l2, rounds):
    """Also of a training that was stopped early: the bound holds in every round."""
    clients, method, l2 = draw(seed, loss, rule, robust, l2)
    chosen = losses.huber(0.5) if loss == "huber" else loss
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            fit = dorfl.train(clients, method, loss=chosen, l2=l2, tol=1e-6, max_rounds=rounds)
        except ValueError:  # the squared loss has no finite supremum for so small a rho
            assume(False)
    assert fit.gap_kind == "bound"
    least = best_found(clients, method, chosen, l2, fit)
    slack = 1e-9 * max(abs(fit.objective), 1.0)
    assert fit.objective - fit.gap <= least + slack


def test_a_ball_gives_a_bound_and_nothing_else_does():
    clients = dorfl.datasets.synthetic(seed=0).clients
    inside = dorfl.train(clients, methods.afl(), theta_radius=0.5, tol=1e-6)
    assert inside.status == "converged" and inside.gap_kind == "bound"
    assert "proven" in inside.message
    free = dorfl.train(clients, methods.afl(), tol=1e-6)
    assert free.gap_kind == "estimate" and "estimated" in free.message


@pytest.mark.parametrize("penalty", [[0.0, 0.0], [1.0, 0.0], [2.0, 0.5]])
def test_the_bound_in_a_ball_is_the_minimum_of_the_model(penalty):
    """Against brute force: the least of a linear function and a ridge over a fine polar grid."""
    rng = np.random.default_rng(0)
    setting = Setting(mixture.agnostic(), np.inf, np.array(penalty), radius=1.5)
    center, slope = rng.normal(size=2) / 2, rng.normal(size=2)
    angle, length = np.meshgrid(np.linspace(0, 2 * np.pi, 2001), np.linspace(0, 1.5, 500))
    points = np.stack([length * np.cos(angle), length * np.sin(angle)], axis=-1)
    move = points - center
    values = 1.0 + move @ slope + 0.5 * move**2 @ setting.penalty
    found = lower_bound(setting, center, 1.0, slope)
    assert is_bounded(setting)
    assert found <= values.min()
    assert found == pytest.approx(values.min(), abs=1e-4)
