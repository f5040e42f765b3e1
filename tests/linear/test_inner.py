"""The inner supremum against brute force, row by row."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dorfl
import reference
from cases import PAIRS, Case, cases, centred_top, make, slowly
from dorfl.federated.training import prepare
from dorfl.linear.inner import geometry

pytestmark = pytest.mark.portable


def assert_exact(case: Case, tolerance: float = 1e-9) -> None:
    """F is the supremum, and the row it claims to have moved to attains it."""
    atoms = case.group().atoms(case.parameters.ravel())
    f = case.brute_f()
    np.testing.assert_allclose(atoms.value, f, rtol=tolerance, atol=tolerance)
    attained = case.attained(atoms.rows, atoms.target)
    np.testing.assert_allclose(attained, f, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("loss", "score"), PAIRS)
def test_supremum_and_maximiser_are_those_of_brute_force(loss, score):
    @slowly(20)
    @given(cases(loss, score, rows=st.just(3)))
    def check(case):
        assert_exact(case)

    check()


@pytest.mark.slow
@slowly(40)
@given(
    st.integers(0, 2**32 - 1), st.floats(4.0, 20.0), st.sampled_from(["none", "threshold"]),
    st.booleans(),
)  # fmt: skip
def test_logistic_is_exact_where_it_has_two_local_maxima(seed, spread, score, priced):
    assert_exact(make(seed, "logistic", score, spread=spread, priced=priced))


@slowly(20)
@given(st.integers(0, 2**32 - 1), st.floats(1.0, 5.0))
def test_huber_is_exact_where_every_row_reaches_the_linear_part(seed, spread):
    assert_exact(make(seed, "huber", "none", spread=spread))


# ── the logistic tie ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("S", [4.0, 4.0 + 1e-13, 4.0 + 1e-6, 4.5, 9.0, 100.0])
@pytest.mark.parametrize("off", [0.0, 1e-15, -1e-15, 1e-9, -1e-9, 1e-4])
def test_logistic_tie_gives_either_maximiser(S, off):
    """At a = S/2 two rows are equally bad (at S = 4 they meet); any of them will do."""
    theta, X = np.array([np.sqrt(S)]), np.array([[0.5 * np.sqrt(S) + off]])
    group = prepare(
        {"c": (X, np.array([1]))}, dorfl.methods.wafl(1.0), intercept=False, classes=[-1, 1]
    )
    atoms = group.atoms(theta)

    def objective(x):
        return np.logaddexp(0, -theta[0] * x) - 0.5 * (x - X[0, 0]) ** 2

    grid = X[0, 0] - np.linspace(-0.1, 1.1, 200_001) * theta[0]
    near = np.linspace(-1, 1, 20_001) * 1e-5 * theta[0]
    f = objective(grid[objective(grid).argmax()] + near).max()
    assert atoms.value[0] == pytest.approx(f, abs=1e-9)
    assert objective(atoms.rows[0, 0]) == pytest.approx(f, abs=1e-9)


# ── the threshold score where the rest of the problem is not concave ────────────────────────────

# (stiffness, S of the other coordinates, θ_k, margin at the row, level, softness, weight), y = +1
HARD = {
    "three local maxima": (1.30566, 5.16258, -2.11135, 4.54825, -0.5991, 0.07423, 9.2822),
    "A: two below the level": (0.43915, 3.86733, -1.4783, 3.41773, 2.79486, 0.12886, 0.25825),
    "B: far left of the plain one": (1.37954, 8.98715, 2.74123, 7.35432, 1.15348, 1.52296, 9.71193),
    "no slope in the column": (1.0, 2.0, 0.0, 1.0, -0.5, 0.2, 3.0),
    "no slope in the column, S = 6": (1.0, 6.0, 0.0, 3.1, -0.5, 0.2, 3.0),
    "next to a kink": (5.95242, 4.08888, 1.26697, 2.19761, -1.20631, 2.52941, 2.10223),
    "next to a kink, S = 5.9": (9.72024, 4.39215, 3.78521, 3.08313, -0.43622, 1.71025, 2.78221),
    "next to a kink, sharp": (0.10729, 4.10016, 0.37183, 2.69759, -1.18131, 0.015433, 1.02076),
    "next to a kink, high": (9.88296, 4.25359, 2.00374, 2.45496, 2.05064, 0.92279, 9.52998),
}


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("label", [1, -1])
def test_threshold_finds_the_best_of_several_local_maxima(name, label):
    stiffness, other, slope, margin, level, softness, weight = HARD[name]
    theta, w = label * np.array([slope, np.sqrt(other)]), np.array([stiffness, 1.0])
    score = reference.Threshold(weight, label, 0, level, softness)
    f, x, _ = reference.supremum(
        theta, label * margin, np.zeros(2), label, "logistic", 1.0, w, score
    )
    method = dorfl.methods.method(
        rho=1.0,
        cost=dorfl.costs.squared(w),
        score=dorfl.scores.threshold(weight, 0, level, softness, label),
    )
    group = prepare({"c": (np.zeros((1, 2)), np.array([label]))}, method, classes=[-1, 1])
    atoms = group.atoms(np.append(theta, label * margin))
    assert atoms.value[0] == pytest.approx(f, abs=1e-9)
    np.testing.assert_allclose(atoms.rows[0], x, atol=1e-6)


@pytest.mark.slow
@slowly(120)
@given(st.integers(0, 2**32 - 1))
def test_threshold_near_the_kink_of_the_other_coordinates(seed):
    """Their S just above 4, and a margin at which they are about to switch sides."""
    rng = np.random.default_rng(seed)
    stiffness, other = 10 ** rng.uniform(-1, 1), rng.uniform(3.9, 4.6)
    slope = np.sqrt(stiffness * rng.uniform(0.01, 1.5)) * rng.choice([-1, 1])
    margin = 0.5 * (other + slope**2 / stiffness) + rng.normal() * 0.3
    level, softness = -slope / stiffness * rng.uniform(0, 1.2), 10 ** rng.uniform(-1.5, 0.4)
    weight = 10 ** rng.uniform(-1, 1)
    theta, w = np.array([slope, np.sqrt(other)]), np.array([stiffness, 1.0])
    score = reference.Threshold(weight, 1, 0, level, softness)
    f, _, _ = reference.supremum(theta, margin, np.zeros(2), 1, "logistic", 1.0, w, score)
    method = dorfl.methods.method(
        rho=1.0,
        cost=dorfl.costs.squared(w),
        score=dorfl.scores.threshold(weight, 0, level, softness, 1),
    )
    found = dorfl.risk([*theta, margin], np.zeros((1, 2)), [1], method, classes=[-1, 1])
    assert found.value == pytest.approx(f, abs=1e-9)


# ── softmax ─────────────────────────────────────────────────────────────────────────────────────


@slowly(60)
@given(st.integers(0, 2**32 - 1), st.floats(2.0, 8.0), st.integers(3, 4))
def test_softmax_with_several_maxima_never_claims_more_than_its_row_attains(seed, spread, classes):
    case = make(seed, "softmax", "none", spread=spread, classes=classes, rows=40)
    atoms = case.group().atoms(case.parameters.ravel())
    attained = case.attained(atoms.rows, atoms.target)
    np.testing.assert_allclose(atoms.value, attained, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_softmax_with_several_maxima_rarely_misses_the_best():
    found, best = [], []
    for seed in range(50):
        spread = 2.0 + seed / 8
        case = make(seed, "softmax", "none", spread=spread, classes=3 + seed % 2, rows=3)
        found.append(case.group().atoms(case.parameters.ravel()).value)
        best.append(case.brute_f())
    missed = np.abs(np.array(found) - best) > 1e-9 * (1 + np.abs(best))
    assert missed.mean() <= 0.01


# Found by random search: a climb that wandered between two points for all its sweeps.
WANDERING = (
    [[-0.0909, -0.0802, 0.9571], [1.2447, -1.0574, 0.9662], [1.1233, -1.7737, 0.0890]],
    [0.25895377, 0.15695962, -0.66532241],
    1,
)


def test_softmax_climb_that_does_not_settle_is_not_believed():
    W, x, y = np.array(WANDERING[0]), np.array(WANDERING[1]), WANDERING[2]
    f, _, _ = reference.supremum(W, np.zeros(3), x, y, "softmax", 1.0)
    method = dorfl.methods.wafl(1.0)
    found = dorfl.risk(W, x[None], [y], method, loss="softmax", classes=[0, 1, 2])
    assert found.value == pytest.approx(f, abs=1e-9)


@pytest.mark.parametrize("off", [0.0, 1e-9, 1e-6, 1e-3, -1e-6])
def test_softmax_where_two_maxima_meet(off):
    """Two classes are the logistic loss; at S = 4 and a = S/2 its two maxima meet."""
    W, x = np.array([[1.0], [-1.0]]), np.array([1.0 + off])
    method = dorfl.methods.wafl(1.0)
    two = dorfl.risk(W, x[None], [0], method, loss="softmax", classes=[0, 1]).value
    one = dorfl.risk(W[0] - W[1], x[None], [1], method, classes=[0, 1])
    assert two == pytest.approx(one.value, abs=1e-9)


# ── the infinite supremum ───────────────────────────────────────────────────────────────────────


@slowly(40)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["none", "diagonal", "full"]), st.booleans())
def test_infinite_supremum_names_the_rho_that_would_do(seed, score, frozen):
    case = make(seed, "squared", score, spread=50.0, frozen=frozen)

    def risk(rho):
        cost = dorfl.costs.squared(case.weights)
        method = dorfl.methods.method(rho=rho, cost=cost, score=case.score)
        return dorfl.risk(case.parameters, case.X, case.y, method, loss="squared").value

    start = case.rho
    while True:  # the score may have made it finite already
        try:
            risk(start)
        except ValueError as error:
            message = str(error)
            break
        start /= 4.0
        if start < 1e-9:  # it is the score, not the price, that keeps it finite
            return
    named = float(re.search(r"above ([0-9.e+-]+)", message).group(1))
    assert named > start
    assert np.isfinite(risk(named * (1 + 1e-9)))
    with pytest.raises(ValueError, match="rho"):
        risk(named * (1 - 1e-4))


def test_infinite_supremum_at_exactly_one():
    X, y = np.array([[1.0], [2.0]]), np.array([0.0, 1.0])
    with pytest.raises(ValueError, match="above 4 "):
        dorfl.risk([2.0], X, y, dorfl.methods.wafl(4.0), loss="squared")


# ── geometry ────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 2**32 - 1), st.booleans())
@slowly(50)
def test_diagonal_and_full_geometry_agree(seed, frozen):
    rng = np.random.default_rng(seed)
    weights, v = rng.uniform(0.5, 2, 4), rng.uniform(0, 2, 4)
    weights[:2] = np.inf if frozen else weights[:2]
    rows, center, theta = rng.normal(size=(5, 4)), rng.normal(size=4), rng.normal(size=(3, 4))
    one, two = geometry(1.5, weights, 1.4 * v), geometry(1.5, weights, np.diag(1.4 * v))
    np.testing.assert_allclose(one.spread(theta), two.spread(theta), atol=1e-13)
    np.testing.assert_allclose(one.anchor(center), two.anchor(center), atol=1e-13)
    np.testing.assert_allclose(one.penalty(rows, center), two.penalty(rows, center), atol=1e-12)
    assert centred_top(one.spread(theta)) >= 0
