"""Proposition 2 as users meet it: certificates, worst cases, gaps, the constrained problem."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dorfl
from cases import slowly
from dorfl import costs, methods, scores
from dorfl.certificates.certificate import combine, group_of, parts
from dorfl.certificates.distance import unbalanced_wasserstein

pytestmark = pytest.mark.portable


@pytest.fixture(scope="module")
def data():
    return dorfl.datasets.synthetic(seed=0)


METHODS = [
    methods.paper(),
    methods.paper(5, 0.5, None),
    methods.gdrfl(5),
    methods.paper(20, 1, scores.threshold(2.0, 0, 1.0, 0.3, 1)),
    methods.paper(20, 1, cost=costs.squared(frozen=[1], label_price=0.2)),
    methods.paper(20, 1, scores.quadratic(0.3, center="client")),
]


@pytest.mark.parametrize("method", METHODS)
def test_both_sides_of_proposition_2_agree(data, method):
    fit = dorfl.train(data.clients, method)
    certificate = dorfl.certificate.paper(fit, data.clients)
    assert certificate.exact
    assert certificate.is_certificate
    assert certificate.difference == pytest.approx(0.0, abs=1e-9 * (1 + abs(certificate.bound)))
    assert certificate.at(certificate.radius) == pytest.approx(certificate.bound, rel=1e-6)


@pytest.mark.parametrize("method", [*METHODS, methods.wafl(5), methods.paper(mixture="fixed")])
def test_four_numbers_of_each_client_make_the_same_certificate(data, method):
    fit = dorfl.train(data.clients, method)
    whole = dorfl.certificate.paper(fit, data.clients)
    told = [
        part
        for name, rows in data.clients.items()
        for part in parts(group_of(fit, {name: rows}), fit.theta)
    ]
    found = combine(told, fit.lam, method)
    assert found.error == 0.0
    for mine, theirs in zip(found[:3], (whole.radius, whole.bound, whole.attained), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-9, abs=1e-12)


def test_the_curve_rises_and_covers_every_mixture(data):
    fit = dorfl.train(data.clients, methods.paper())
    certificate = dorfl.certificate.paper(fit, data.clients)
    radii = certificate.radius * np.geomspace(0.2, 5, 6)
    one, every = certificate.curve(radii), certificate.curve(radii, all_mixtures=True)
    assert (np.diff(one) > 0).all()
    assert (every >= one - 1e-9).all()
    for lam in np.random.default_rng(0).dirichlet(np.ones(3), size=5):
        other = dorfl.certificate.paper(fit, data.clients, lam=lam)
        assert (other.curve(radii[:2]) <= every[:2] + 1e-9).all()


@pytest.mark.filterwarnings("ignore:not converged")  # the bound holds at any θ
@given(seed=st.integers(0, 10**6))
@slowly(15)
def test_no_distribution_within_the_radius_is_worse_than_certified(seed):
    """Random distributions P: E_P[L] ≤ the bound at UW(P‖P̂), computed by another solver."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(12, 2))
    y = np.where(X[:, 0] + 0.5 * rng.normal(size=12) > 0, 1, -1)
    if len(np.unique(y)) < 2:
        return
    fit = dorfl.train([(X, y)], methods.paper(4, 0.5, scores.quadratic(0.1)))
    certificate = dorfl.certificate.paper(fit, [(X, y)])
    group = dorfl.certificates.certificate.group_of(fit, [(X, y)])
    Z = X + rng.normal(size=X.shape) * 10 ** rng.uniform(-2, 0.5)
    weights = rng.dirichlet(np.ones(12))
    apart = 0.5 * ((Z[:, None] - X[None]) ** 2).sum(axis=2) + 1e6 * (y[:, None] != y[None])
    distance = unbalanced_wasserstein((Z, weights), X, 0.5, cost=apart, tol=1e-8).value
    outputs = group.problem.predict(fit.theta, Z)
    gain = group.problem.loss.value(outputs, y.astype(float))
    gain = gain - group.problem.method.score.at(Z, group.centers[0])
    assert weights @ gain <= certificate.at(max(distance, 1e-9)) + 1e-6


def test_the_worst_case_is_a_distribution_and_its_parts_add_up(data):
    fit = dorfl.train(data.clients, methods.paper())
    worst = dorfl.worst_case(fit, data.clients)
    certificate = dorfl.certificate.paper(fit, data.clients)
    assert worst.weights.sum() == pytest.approx(1.0)
    assert worst.rows.shape == (800, 5)
    before = np.repeat(fit.lam / [100, 200, 500], [100, 200, 500])
    live = worst.weights > 0
    divergence = np.sum(worst.weights[live] * np.log(worst.weights[live] / before[live]))
    assert worst.weights @ worst.moved + divergence == pytest.approx(certificate.radius, rel=1e-9)
    alone = dorfl.worst_case(fit, data.clients, client="client-2")
    np.testing.assert_allclose(alone.weights, fit.sample_weights["client-2"], rtol=1e-9)


@pytest.mark.slow
def test_an_approximate_supremum_is_called_what_it_is(data):
    convex = scores.custom(lambda X, y: 0.1 * (X**2).sum(axis=1), convex=True)
    fit = dorfl.train(data.clients, methods.paper(20, 1, convex))
    bounded = dorfl.certificate.paper(fit, data.clients)
    assert not bounded.exact
    assert bounded.is_certificate
    assert bounded.bound >= bounded.attained - 1e-12
    assert "the most they miss is added" in str(bounded)
    unknown = scores.custom(lambda X, y: np.sin(X).sum(axis=1))
    with pytest.warns(UserWarning, match="strongly concave"):
        fit = dorfl.train(data.clients, methods.paper(20, 1, unknown))
    with pytest.warns(UserWarning, match="strongly concave"):
        estimate = dorfl.certificate.paper(fit, data.clients)
    assert not estimate.is_certificate
    assert "estimated" in str(estimate)


def test_the_text_says_what_is_bounded(data):
    text = str(dorfl.certificate.paper(dorfl.train(data.clients, methods.paper()), data.clients))
    assert "L = l − h" in text
    assert "certified" in text


def test_without_transport_there_is_nothing_to_certify(data):
    fit = dorfl.train(data.clients, methods.afl())
    with pytest.raises(ValueError, match="rho"):
        dorfl.certificate.paper(fit, data.clients)


@pytest.mark.parametrize("method", [methods.afl(), methods.gdrfl(5), methods.paper()])
def test_the_saddle_gap_is_small_at_the_solution_and_large_elsewhere(data, method):
    fit = dorfl.train(data.clients, method)
    assert -1e-9 <= dorfl.saddle_gap(fit, data.clients) <= 3e-6 * (1 + abs(fit.objective))
    away = dorfl.saddle_gap(fit, data.clients, theta=fit.theta + 0.5, lam=np.full(3, 1 / 3))
    assert away > 0.01


@pytest.mark.parametrize("loss", ["logistic", "softmax", "squared", "huber"])
@pytest.mark.parametrize("radius", [0.05, 0.3])
def test_the_constrained_problem_is_the_lagrangian_at_its_multiplier(data, loss, radius):
    method = methods.method(radius=radius, beta=1.0, score=scores.quadratic(0.5))
    fit = dorfl.train(data.clients, method, loss=loss, tol=1e-7)
    lagrangian = dorfl.train(data.clients, methods.paper(fit.rho, 1.0), loss=loss, tol=1e-8)
    assert fit.objective == pytest.approx(lagrangian.objective + fit.rho * radius, rel=1e-5)
    assert dorfl.certificate.paper(fit, data.clients).radius == pytest.approx(radius, rel=0.05)
    assert fit.radius == pytest.approx(radius, rel=0.05)


def test_no_other_multiplier_is_better(data):
    radius = 0.2
    fit = dorfl.train(data.clients, methods.method(radius=radius, beta=1.0), tol=1e-8)
    for factor in (0.5, 0.9, 1.1, 2.0):
        other = dorfl.train(data.clients, methods.paper(factor * fit.rho, 1.0, None))
        assert other.objective + factor * fit.rho * radius >= fit.objective - 1e-7


def test_the_constrained_problem_says_what_it_cannot_do(data):
    with pytest.raises(ValueError, match="agnostic"):
        methods.method(radius=0.1, beta=1.0, mixture="fixed")
    with pytest.raises(ValueError, match="temperature"):
        methods.method(radius=0.1, temperature=1.0)
    for solver in ("paper", "optimistic"):
        with pytest.raises(ValueError, match="'sqp'"):
            dorfl.train(data.clients, methods.method(radius=0.1, beta=1.0), solver=solver)
