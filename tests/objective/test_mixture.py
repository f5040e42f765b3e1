"""λ: projections onto the simplex, the worst mixture, the objective."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog
from scipy.special import logsumexp

from cases import slowly
from dorfl import mixture

pytestmark = pytest.mark.portable

points = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12).map(np.array)
small = st.lists(st.floats(-3, 3), min_size=1, max_size=12).map(np.array)


def nearest(point, cap):
    """The projection by its multiplier: Σ clip(v − ν, 0, cap) = 1, ν by Brent's method."""

    def excess(nu):
        return np.clip(point - nu, 0.0, cap).sum() - 1.0

    low = point.min() - 2.0
    if excess(low) <= 0:  # the tightest cap, short of 1 by rounding
        return np.full(len(point), cap)
    nu = brentq(excess, low, point.max() + 1e-9, xtol=1e-15, rtol=1e-15)
    return np.clip(point - nu, 0.0, cap)


def assert_mixture(lam, cap=1.0):
    """A mixture to the last bit; see `mixture.snap` for what a cap of about 1/N leaves of it."""
    count = len(lam)
    assert math.fsum(lam) == 1.0
    assert (lam >= 0).all()
    if count * Fraction(cap) < 1 and math.fsum([cap] * count) != 1.0:  # no floats do
        assert lam.max() <= 1 / count + math.ulp(1 / count)
    else:
        assert lam.max() <= cap
    if count * math.floor(cap * 2**53) >= 2**53:
        assert lam.sum() == sum(lam) == sum(sorted(lam)) == np.cumsum(lam[::-1])[-1] == 1.0
    else:
        assert lam.sum() == pytest.approx(1.0, abs=count * 2**-53)


weights = st.lists(
    st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 1e-300, 1e-17, 2**-53])),
    min_size=1,
    max_size=60,
).filter(any)


@given(weights, st.floats(0.0, 1.0), st.sampled_from([0.0, 1e-16, 1e-13, 1e-9]))
@slowly(500)
def test_snapping_moves_a_nearly_right_mixture_onto_its_set(given, share, off):
    count = len(given)
    cap = 1 / count + share * (1 - 1 / count)
    exact = mixture.project_capped(np.array(given) / sum(given), cap)
    swing = off * np.where(np.arange(count) % 2, 1.0, -1.0)
    lam = mixture.snap(exact * (1 + swing), cap)
    assert_mixture(lam, cap)
    assert np.abs(lam - exact).max() <= 2 * off + count * 2**-53
    np.testing.assert_array_equal(mixture.snap(lam, cap), lam)
    np.testing.assert_array_equal(mixture.capped(cap).snap(lam), lam)
    if (np.minimum(exact, cap)[exact > 0] < cap - 1e-8).any():  # somebody else has room
        assert (lam[exact == 0] == 0).all()


@given(weights)
@slowly(200)
def test_given_weights_are_snapped_too(given):
    names = [str(i) for i in range(len(given))]
    lam = mixture.fixed(given).start(names, np.ones(len(given)))
    assert_mixture(lam)
    np.testing.assert_allclose(lam, np.array(given) / sum(given), atol=len(given) * 2**-53)
    counts = np.arange(1, len(given) + 1)
    for rule in (mixture.fixed(), mixture.agnostic(), mixture.capped(1 / len(given))):
        assert_mixture(rule.start(names, counts), rule.cap)


def test_caps_around_the_tightest_are_kept_to_the_last_bit():
    """1/N rounded, N·cap a little above 1 or, where rounding has it so, a little below."""
    rng = np.random.default_rng(0)
    for clients in range(1, 400):
        uniform = 1 / clients
        caps = [uniform, math.nextafter(uniform, 1), math.nextafter(uniform, 0), uniform + 2**-53]
        for cap, scale in itertools.product(caps, (0.0, 1e-12, 1.0)):
            lam = mixture.snap(np.maximum(uniform + scale * rng.normal(size=clients), 1e-20), cap)
            assert_mixture(lam, cap)
            np.testing.assert_allclose(lam, uniform, atol=clients * 2**-53)


def test_the_cap_of_a_third_is_the_mixture_itself():
    np.testing.assert_array_equal(mixture.snap([0.5, 0.3, 0.2], 1 / 3), [1 / 3] * 3)
    np.testing.assert_array_equal(mixture.snap([1.0] * 5, 0.2), [0.2] * 5)


def test_many_clients_sum_to_one_in_any_order():
    rng = np.random.default_rng(0)
    lam = mixture.snap(rng.pareto(0.5, size=100_000), cap=2e-5)
    assert_mixture(lam, 2e-5)
    for _ in range(5):
        assert np.cumsum(rng.permutation(lam))[-1] == 1.0


@given(small)
@slowly(200)
def test_simplex_projection_is_the_nearest_mixture(point):
    lam = mixture.project_simplex(point)
    assert_mixture(lam)
    np.testing.assert_allclose(lam, nearest(point, 1.0), atol=1e-12)


@given(small, st.floats(0.0, 1.0))
@slowly(200)
def test_capped_projection_is_the_nearest_mixture(point, share):
    cap = 1 / len(point) + share * (1 - 1 / len(point))
    lam = mixture.project_capped(point, cap)
    assert_mixture(lam, cap)
    np.testing.assert_allclose(lam, nearest(point, cap), atol=1e-12)


@given(points, st.floats(0.0, 1.0))
@slowly(200)
def test_projections_of_large_points_are_mixtures(point, share):
    assert_mixture(mixture.project_simplex(point))
    cap = 1 / len(point) + share * (1 - 1 / len(point))
    assert_mixture(mixture.project_capped(point, cap), cap)


@pytest.mark.parametrize("size", [1e8, 1e16, 1e17, 1e100, 1e300])
def test_one_huge_report_takes_all_that_it_may(size):
    """The exponential weights of the paper's solver reach any size."""
    np.testing.assert_array_equal(mixture.project_simplex([0.2, size, 0.3]), [0, 1, 0])
    np.testing.assert_allclose(
        mixture.project_capped([0.25, size, 0.35], 0.6), [0.15, 0.6, 0.25], atol=1e-12
    )


@given(small)
@slowly(100)
def test_a_mixture_is_its_own_projection(point):
    lam = mixture.project_simplex(point)
    np.testing.assert_allclose(mixture.project_simplex(lam), lam, atol=1e-15)
    np.testing.assert_allclose(mixture.project_capped(lam, 1.0), lam, atol=1e-15)


@pytest.mark.parametrize("clients", range(1, 40))
def test_the_tightest_cap_leaves_the_uniform_mixture(clients):
    point = np.random.default_rng(clients).normal(size=clients)
    uniform = np.full(clients, 1 / clients)
    np.testing.assert_allclose(mixture.project_capped(point, 1 / clients), uniform, atol=1e-15)


@given(small, st.floats(0.0, 1.0))
@slowly(100)
def test_the_worst_mixture_solves_its_linear_programme(risks, share):
    cap = 1 / len(risks) + share * (1 - 1 / len(risks))
    rule = mixture.capped(min(cap, 1.0))
    lam = rule.worst(risks)
    assert_mixture(lam, cap)
    programme = linprog(
        -risks, A_eq=np.ones((1, len(risks))), b_eq=[1], bounds=(0, cap * (1 + 1e-12))
    )
    assert lam @ risks == pytest.approx(-programme.fun, abs=1e-7)
    assert rule.objective(risks, lam, 1.0) == pytest.approx(lam @ risks)


def test_agnostic_is_the_worst_client():
    risks = np.array([0.3, 0.9, -1.0])
    rule = mixture.agnostic()
    np.testing.assert_array_equal(rule.worst(risks), [0, 1, 0])
    assert rule.objective(risks, np.full(3, 1 / 3), 5.0) == 0.9
    assert rule.adversarial
    assert not mixture.fixed().adversarial


@given(small, st.floats(0.01, 100.0))
@slowly(100)
def test_fixed_mixture_pools_the_risks(risks, temperature):
    rule = mixture.fixed()
    counts = np.arange(1, len(risks) + 1)
    lam = rule.start([str(i) for i in counts], counts)
    np.testing.assert_allclose(lam, counts / counts.sum())
    pooled = temperature * logsumexp(risks / temperature, b=lam)
    assert rule.objective(risks, lam, temperature) == pytest.approx(pooled)
    assert rule.objective(risks, lam, np.inf) == pytest.approx(lam @ risks)
    step = 1e-6  # shares are the derivatives of the objective
    for i, share in enumerate(rule.shares(risks, lam, temperature)):
        bumped = [risks + sign * step * np.eye(len(risks))[i] for sign in (1, -1)]
        up, down = (rule.objective(r, lam, temperature) for r in bumped)
        assert share == pytest.approx((up - down) / (2 * step), abs=1e-6)


def test_fixed_weights_by_name_and_in_order():
    names, counts = ["a", "b"], np.array([10, 30])
    by_name = mixture.fixed({"b": 3, "a": 1}).start(names, counts)
    np.testing.assert_allclose(by_name, [0.25, 0.75])
    np.testing.assert_allclose(mixture.fixed([1, 1]).start(names, counts), [0.5, 0.5])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: mixture.capped(0.0), "cap"),
        (lambda: mixture.capped(1.1), "cap"),
        (lambda: mixture.capped(np.nan), "cap"),
        (lambda: mixture.agnostic(by="size"), "by='size'"),
        (lambda: mixture.fixed([1, -1]), "weights"),
        (lambda: mixture.fixed([0, 0]), "weights"),
        (lambda: mixture.fixed([np.nan, 1]), "weights"),
        (lambda: mixture.fixed([1, 2, 3]).start(["a", "b"], np.ones(2)), "3 weights for 2"),
        (lambda: mixture.fixed({"a": 1}).start(["a", "b"], np.ones(2)), "client 'b'"),
        (lambda: mixture.capped(0.3).start(["a", "b"], np.ones(2)), "at least 0.5"),
        (lambda: mixture.resolve("uniform"), "mixture='uniform'"),
        (lambda: mixture.snap([0.0, -1.0]), "one of them positive"),
        (lambda: mixture.snap([np.nan, 1.0]), "finite"),
        (lambda: mixture.snap([1.0, 1.0], 0.4), "at least 0.5"),
    ],
)
def test_bad_rules_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()
