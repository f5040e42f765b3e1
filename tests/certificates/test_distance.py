"""Tests of the unbalanced Wasserstein distance: another solver, the paper's Lemma 1, limits."""

from __future__ import annotations

import importlib.util
import re
import sys
import warnings
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cases import slowly
from dorfl.certificates.distance import Transport, unbalanced_wasserstein, wasserstein
from dorfl.support.types import Array

pytestmark = pytest.mark.portable

BETAS = (0.1, 1.0, 10.0)


def reference(cost: Array, p: Array, q: Array, beta: float) -> float:
    """The problem as stated, handed to cvxpy (q > 0)."""
    gamma = cp.Variable(cost.shape, nonneg=True)
    divergence = cp.sum(cp.rel_entr(cp.sum(gamma, axis=0), q))
    problem = cp.Problem(
        cp.Minimize(cp.sum(cp.multiply(cost, gamma)) + beta * divergence),
        [cp.sum(gamma, axis=1) == p],
    )
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    assume(problem.status == cp.OPTIMAL)  # Clarabel itself is inaccurate on some outliers
    return float(problem.value)


def samples(n: int, m: int, dims: int, seed: int, factor: float = 1.0) -> tuple[Array, Array]:
    """P clean, Q shifted and with a tenth of its rows multiplied by `factor`."""
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(n, dims)), random.normal(size=(m, dims)) + 0.3
    y[: m // 10] *= factor
    return x, y


def divergence(left: Array, right: Array) -> float:
    keep = left > 0
    return float(left[keep] @ np.log(left[keep] / right[keep]))


def check_certificate(result: Transport, cost: Array, p: Array, q: Array, beta: float) -> None:
    """Value and lower recomputed here, from the plan and the potential alone."""
    assert (result.plan >= 0).all()
    np.testing.assert_allclose(result.plan.sum(axis=1), p, rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(result.plan.sum(axis=0), result.marginal, atol=1e-15)
    assert (result.marginal[q == 0] == 0).all()
    value = np.sum(result.plan * cost) + beta * divergence(result.marginal, q)
    phi = (cost - result.potential).min(axis=1)
    exponent = np.where(q > 0, np.log(np.where(q > 0, q, 1.0)) - result.potential / beta, -np.inf)
    lower = p @ phi - beta * np.logaddexp.reduce(exponent)
    scale = abs(value) + abs(lower) + 1e-9 + 1e-4 * beta  # β log(1 ± rounding) is in both bounds
    assert result.value == pytest.approx(value, abs=1e-10 * scale)
    assert result.lower == pytest.approx(lower, abs=1e-10 * scale)
    assert result.lower <= result.value + 1e-10 * scale


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@slowly(40)
@given(
    n=st.integers(1, 7),
    m=st.integers(1, 7),
    dims=st.integers(1, 3),
    beta=st.floats(0.05, 20.0),
    factor=st.sampled_from([1.0, -8.0]),
    seed=st.integers(0, 10**6),
)
def test_agrees_with_cvxpy(
    n: int, m: int, dims: int, beta: float, factor: float, seed: int
) -> None:
    x, y = samples(n, m, dims, seed)
    y[:1] *= factor
    random = np.random.default_rng(seed)
    p, q = random.dirichlet(np.ones(n)) + 1e-3, random.dirichlet(np.ones(m)) + 1e-3
    p, q = p / p.sum(), q / q.sum()
    cost = 0.5 * ((x[:, None] - y) ** 2).sum(axis=-1)
    result = unbalanced_wasserstein((x, p), (y, q), beta, tol=1e-8)
    check_certificate(result, cost, p, q, beta)
    expected = reference(cost, p, q, beta)
    assert result.value == pytest.approx(expected, rel=1e-6, abs=1e-6)
    slack = 1e-6 * (1 + abs(expected))
    assert result.lower - slack <= expected <= result.value + slack


@slowly(40)
@given(
    n=st.integers(1, 12),
    m=st.integers(1, 12),
    exponent=st.floats(-6.0, 6.0),
    size=st.floats(-6.0, 6.0),
    seed=st.integers(0, 10**6),
)
def test_certificate_holds_at_any_scale_and_with_zero_weights(
    n: int, m: int, exponent: float, size: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    cost = 10**size * random.standard_cauchy(size=(n, m))  # negative and heavy-tailed
    p, q = random.random(n) * (random.random(n) < 0.7), random.random(m) * (random.random(m) < 0.7)
    p[random.integers(n)], q[random.integers(m)] = 1.0, 1.0
    p, q = p / p.sum(), q / q.sum()
    beta = 10**exponent
    result = unbalanced_wasserstein((np.zeros(n), p), (np.zeros(m), q), beta, cost=cost)
    check_certificate(result, cost, p, q, beta)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("factor", [1.0, -8.0, 1e3])
@pytest.mark.parametrize("dims", [1, 5])
def test_gap_at_both_sizes(beta: float, factor: float, dims: int) -> None:
    small = unbalanced_wasserstein(*samples(30, 30, dims, 0, factor), beta, tol=1e-6)
    assert small.relative_gap <= 1e-6
    large = unbalanced_wasserstein(*samples(500, 500, dims, 1, factor), beta)
    assert large.relative_gap <= 1e-4


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (20, 300), (300, 20)])
def test_any_shape(shape: tuple[int, int]) -> None:
    x, y = samples(*shape, 2, 3, -8.0)
    result = unbalanced_wasserstein(x, y, 1.0, tol=1e-8)
    cost = 0.5 * ((x[:, None] - y) ** 2).sum(axis=-1)
    p, q = np.full(shape[0], 1 / shape[0]), np.full(shape[1], 1 / shape[1])
    check_certificate(result, cost, p, q, 1.0)
    assert result.relative_gap <= 1e-8


@slowly(20)
@given(beta=st.floats(0.05, 20.0), seed=st.integers(0, 10**6))
def test_lemma_1(beta: float, seed: int) -> None:
    """UW(P‖Q) ≤ W(P, P̄) + β KL(P̄‖Q) for every P̄, with equality at the one returned."""
    x, y = samples(12, 15, 2, seed, -8.0)
    q = np.full(15, 1 / 15)
    result = unbalanced_wasserstein(x, y, beta, tol=1e-7)
    for concentration in (0.1, 1.0, 10.0):
        other = np.random.default_rng(seed).dirichlet(np.full(15, concentration))
        bound = wasserstein(x, (y, other)).value + beta * divergence(other, q)
        assert result.lower <= bound * (1 + 1e-9)
    own = wasserstein(x, (y, result.marginal)).value + beta * divergence(result.marginal, q)
    assert own == pytest.approx(result.value, rel=1e-6)


def test_limits_of_beta() -> None:
    x, y = samples(40, 30, 2, 4)
    cost = 0.5 * ((x[:, None] - y) ** 2).sum(axis=-1)
    exact = wasserstein(x, y)
    assert exact.gap <= 1e-9 * exact.value
    assert unbalanced_wasserstein(x, y, np.inf).value == exact.value
    np.testing.assert_allclose(exact.marginal, 1 / 30)
    assert unbalanced_wasserstein(x, y, 1e6, tol=1e-8).value == pytest.approx(exact.value, rel=1e-4)
    free = cost.min(axis=1).mean()
    assert unbalanced_wasserstein(x, y, 1e-7, tol=1e-8).value == pytest.approx(free, rel=1e-5)
    values = [unbalanced_wasserstein(x, y, beta).value for beta in (1e-7, *BETAS, 1e6)]
    assert values == sorted(values)


def test_outliers_are_bounded_while_wasserstein_grows() -> None:
    x, y = samples(40, 40, 2, 5)
    clean, q = y[4:], np.full(40, 1 / 40)
    weights = np.r_[np.zeros(4), np.full(36, 1 / 36)]
    bound = wasserstein(x, clean).value + divergence(weights, q)  # the paper's, after Lemma 1
    plain = []
    for factor in (1e1, 1e3, 1e6):
        dirty = np.r_[np.sign(y[:4]) * factor, clean]
        result = unbalanced_wasserstein(x, dirty, 1.0, tol=1e-6)
        assert result.value <= bound * (1 + 1e-6)
        assert result.relative_gap <= 1e-6
        plain.append(wasserstein(x, dirty).value)
    assert result.marginal[:4].sum() < 1e-6
    assert plain[0] > 2 * bound and plain[1] > 1e3 * plain[0] and plain[2] > 1e3 * plain[1]


def test_symmetries() -> None:
    x, y = samples(20, 25, 3, 6, -8.0)
    random = np.random.default_rng(6)
    base = unbalanced_wasserstein(x, y, 1.0, tol=1e-9)
    moved = unbalanced_wasserstein(x + 2.0, y + 2.0, 1.0, tol=1e-9)
    assert moved.value == pytest.approx(base.value, rel=1e-8)
    rows, columns = random.permutation(20), random.permutation(25)
    permuted = unbalanced_wasserstein(x[rows], y[columns], 1.0, tol=1e-9)
    assert permuted.value == pytest.approx(base.value, rel=1e-8)
    np.testing.assert_allclose(permuted.marginal, base.marginal[columns], atol=1e-5)
    scaled = unbalanced_wasserstein(10 * x, 10 * y, 100.0, tol=1e-9)  # c and β in the same units
    assert scaled.value == pytest.approx(100 * base.value, rel=1e-8)
    twice = unbalanced_wasserstein(x, np.r_[y, y], 1.0, tol=1e-9)  # the same Q, written twice
    assert twice.value == pytest.approx(base.value, rel=1e-8)


def test_degenerate_problems() -> None:
    x, _ = samples(30, 30, 2, 7)
    same = unbalanced_wasserstein(x, x, 1.0)
    assert 0 <= same.value < 1e-6 and same.lower > -1e-6
    constant = unbalanced_wasserstein(x, x, 1.0, cost=np.full((30, 30), 3.0))
    assert constant.value == pytest.approx(3.0) and constant.relative_gap < 1e-12
    apart = np.where(np.add.outer(np.arange(30), np.arange(30)) % 2, 1e6, 1.0)  # forbidden pairs
    assert unbalanced_wasserstein(x, x, 1.0, cost=apart).value == pytest.approx(1.0, rel=1e-4)


def test_cost_forms_agree_and_answers_repeat() -> None:
    x, y = samples(15, 10, 2, 8)

    def squared(a: Array, b: Array) -> Array:
        return np.asarray(0.5 * ((a[:, None] - b) ** 2).sum(axis=-1))

    named, called = (unbalanced_wasserstein(x, y, 1.0, cost=c) for c in ("squared", squared))
    given_matrix = unbalanced_wasserstein(x, y, 1.0, cost=squared(x, y))
    assert called.value == given_matrix.value == pytest.approx(named.value, rel=1e-12)
    weighted = unbalanced_wasserstein((x, np.full(15, 7.0)), y, 1.0)  # weights of any sum
    assert weighted.value == pytest.approx(named.value, rel=1e-12)


def test_warns_when_it_stops_early() -> None:
    x, y = samples(30, 30, 2, 9)
    with pytest.warns(RuntimeWarning, match="still bracket the distance"):
        early = unbalanced_wasserstein(x, y, 1.0, max_iterations=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        final = unbalanced_wasserstein(x, y, 1.0)
    assert early.lower <= final.value and final.lower <= early.value


X = [[0.0], [1.0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beta": 0.0}, "beta=0.0: must be positive"),
        ({"beta": np.nan}, "beta=nan: must be positive"),
        ({"tol": 0.0}, "tol must be positive"),
        ({"P": []}, "P: no points"),
        ({"P": [[np.nan], [0.0]]}, "P: points are NaN"),
        ({"Q": (X, [1.0, -1.0])}, "Q: weights must be finite, not negative"),
        ({"Q": (X, [0.0, 0.0])}, "Q: weights must be"),
        ({"Q": (X, [1.0])}, "Q: 2 points, weights"),
        ({"Q": [[0.0, 1.0]]}, "P and Q: shapes"),
        ({"cost": "cubed"}, 'cost="cubed" is unknown'),
        ({"cost": np.zeros((3, 2))}, "cost: shape"),
        ({"cost": np.full((2, 2), np.inf)}, "cost: NaN or infinite"),
    ],
)
def test_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        unbalanced_wasserstein(**{"P": X, "Q": X, "beta": 1.0, **arguments})


def test_without_pot_plain_transport_says_what_to_install_and_the_rest_works(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"POT; install it with: pip install"):
        wasserstein([[0.0], [1.0]], [[1.0], [2.0]])
    assert unbalanced_wasserstein([[0.0], [1.0]], [[1.0], [2.0]], 1.0).relative_gap < 1e-4
    assert wasserstein([[0.0]], [[1.0], [2.0]]).value == 1.25  # one plan only
