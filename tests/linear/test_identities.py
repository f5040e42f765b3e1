"""The limits in which one method becomes another, and what symmetry and convexity demand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dorfl
from cases import SCORES, cases, make, slowly
from dorfl import methods
from dorfl.federated.training import prepare

pytestmark = pytest.mark.portable

DATA = dorfl.datasets.synthetic(seed=3)


def train(method, clients=DATA.clients, tol=1e-10):
    return dorfl.train(clients, method, tol=tol)


def assert_same_fit(one, two, tolerance):
    np.testing.assert_allclose(one.theta, two.theta, atol=tolerance)
    np.testing.assert_allclose(one.risks, two.risks, atol=tolerance)
    assert one.objective == pytest.approx(two.objective, abs=tolerance)


@pytest.mark.parametrize("beta", [1e6, 1e9, 1e12])
@pytest.mark.parametrize("loss", SCORES)
def test_large_beta_is_no_tilt(loss, beta):
    case = make(0, loss, "full", spread=0.5, rows=200, tilted=False)
    cost = dorfl.costs.squared(case.weights)
    method = methods.method(rho=case.rho, beta=beta, score=case.score, cost=cost)
    options = {"loss": case.chosen_loss, "classes": case.classes}
    found = dorfl.risk(case.parameters, case.X, case.y, method, **options)
    limit = case.risk()
    size = np.abs(case.group().atoms(case.parameters.ravel()).value).max()
    close = (size + size**2) / (case.rho * beta)
    assert found.value == pytest.approx(limit.value, abs=close + 1e-9)
    np.testing.assert_allclose(found.gradient, limit.gradient, atol=100 * close + 1e-9)
    np.testing.assert_allclose(found.sample_weights, 1 / 200, rtol=close + 1e-9)


@pytest.mark.parametrize("beta", [1e6, 1e9])
@pytest.mark.parametrize(
    ("mixture", "limit"), [("fixed", methods.wafl), ("agnostic", methods.gdrfl)]
)
def test_large_beta_trains_wafl_and_gdrfl(beta, mixture, limit):
    tilted = train(methods.paper(rho=20, beta=beta, score=None, mixture=mixture), tol=1e-8)
    assert_same_fit(tilted, train(limit(rho=20)), 1e-3)


@pytest.mark.parametrize("rho", [1e6, 1e9])
@pytest.mark.parametrize(
    ("method", "limit"),
    [(methods.wafl, methods.erm), (methods.gdrfl, methods.afl)],
)
def test_large_rho_trains_erm_and_afl(rho, method, limit):
    assert_same_fit(train(method(rho=rho)), train(limit()), 1e-4)


@pytest.mark.parametrize("rho", [1e6, 1e9])
def test_large_rho_at_a_given_temperature_is_the_tilt_alone(rho):
    still = train(methods.method(temperature=5.0))
    assert_same_fit(train(methods.method(rho=rho, temperature=5.0)), still, 1e-4)


@pytest.mark.parametrize("score", [None, dorfl.scores.quadratic(0.5)])
def test_one_client_makes_agnostic_fixed(score):
    alone = {"only": DATA.clients["client-3"]}
    options = {"rho": 20, "beta": 1, "score": score}
    agnostic = train(methods.paper(**options), alone)
    fixed = train(methods.paper(**options, mixture="fixed"), alone)
    assert_same_fit(agnostic, fixed, 1e-5)
    np.testing.assert_array_equal(agnostic.lam, [1.0])


@pytest.mark.parametrize("method", [methods.paper(), methods.afl(), methods.wafl(rho=20)])
def test_permuting_clients_permutes_lambda(method):
    fit = train(method)
    order = [2, 0, 1]
    names = [fit.clients[i] for i in order]
    other = train(method, {name: DATA.clients[name] for name in names})
    assert list(other.clients) == names
    np.testing.assert_allclose(other.lam, fit.lam[order], atol=1e-4)
    np.testing.assert_allclose(other.theta, fit.theta, atol=1e-4)


@pytest.mark.parametrize("score", SCORES["logistic"][:-1])
def test_the_risk_is_convex_in_theta(score):
    @slowly(40)
    @given(cases("logistic", score, rows=st.just(20)), st.integers(0, 100), st.floats(0.05, 0.95))
    def check(case, seed, share):
        other = case.parameters + np.random.default_rng(seed).normal(size=4) * 3
        values = [
            case.risk(p).value
            for p in (case.parameters, other, (1 - share) * case.parameters + share * other)
        ]
        bound = (1 - share) * values[0] + share * values[1]
        assert values[2] <= bound + 1e-10 * (1 + abs(bound))

    check()


@slowly(40)
@given(cases("huber", "full", rows=st.just(20)), st.integers(0, 100), st.floats(0.05, 0.95))
def test_the_risk_of_the_huber_loss_is_convex_too(case, seed, share):
    other = case.parameters + np.random.default_rng(seed).normal(size=4) * 3
    middle = (1 - share) * case.parameters + share * other
    bound = (1 - share) * case.risk().value + share * case.risk(other).value
    assert case.risk(middle).value <= bound + 1e-10 * (1 + abs(bound))


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("score", ["none", "full", "threshold"])
def test_a_high_label_price_is_no_label_change(loss, score):
    case = make(1, loss, score, spread=0.5, rows=50)
    priced = dorfl.costs.squared(case.weights, label_price=1e6)
    method = methods.method(rho=case.rho, beta=case.beta, cost=priced, score=case.score)
    found = dorfl.risk(case.parameters, case.X, case.y, method, loss=loss, classes=case.classes)
    assert found.value == pytest.approx(case.risk().value, rel=1e-13)
    np.testing.assert_allclose(found.gradient, case.risk().gradient, rtol=1e-10, atol=1e-12)


def test_a_low_label_price_raises_the_risk():
    case = make(1, "logistic", "none", spread=0.5, rows=50)
    cheap = dorfl.costs.squared(case.weights, label_price=1e-3)
    method = methods.method(rho=case.rho, beta=case.beta, cost=cheap)
    found = dorfl.risk(case.parameters, case.X, case.y, method, classes=[-1, 1])
    assert found.value > case.risk().value + 0.1


@pytest.mark.parametrize("loss", SCORES)
def test_a_score_of_weight_zero_is_no_score(loss):
    case = make(4, loss, "none", spread=0.5, rows=50)
    cost = dorfl.costs.squared(case.weights)
    zero = dorfl.scores.quadratic(0.0, np.ones(3), np.eye(3))
    method = methods.method(rho=case.rho, beta=case.beta, cost=cost, score=zero)
    options = {"loss": case.chosen_loss, "classes": case.classes}
    found = dorfl.risk(case.parameters, case.X, case.y, method, **options)
    assert found.value == pytest.approx(case.risk().value, rel=1e-12)
    np.testing.assert_allclose(found.sample_weights, case.risk().sample_weights, rtol=1e-10)


def test_a_frozen_column_is_one_of_infinite_weight_and_all_frozen_is_no_transport():
    case = make(4, "logistic", "none", spread=2.0, rows=50)

    def value(cost):
        method = methods.method(rho=case.rho, temperature=2.0, cost=cost)
        return dorfl.risk(case.parameters, case.X, case.y, method).value

    squared = dorfl.costs.squared
    assert (
        value(squared([1, 1, np.inf])) == value(squared(frozen=[2])) == value(squared(frozen=[-1]))
    )
    still = dorfl.risk(case.parameters, case.X, case.y, methods.method(temperature=2.0)).value
    assert value(squared(frozen=[0, 1, 2])) == pytest.approx(still, rel=1e-14)


def test_two_softmax_classes_are_the_logistic_loss():
    case = make(9, "logistic", "full", spread=3.0, rows=50)
    theta = np.array([-0.5 * case.parameters, 0.5 * case.parameters])
    found = dorfl.risk(theta, case.X, case.y, case.method, loss="softmax", classes=[-1, 1])
    assert found.value == pytest.approx(case.risk().value, rel=1e-10)
    np.testing.assert_allclose(found.gradient[1], case.risk().gradient, rtol=1e-8, atol=1e-9)


def test_by_loss_takes_the_level_of_the_score_out_of_the_comparison():
    """Equal clients but for where they are: by risk the far one looks better, by loss the same."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    y = rng.choice([-1, 1], 100)
    score = dorfl.scores.quadratic(0.5, np.zeros(2))
    theta, away = np.zeros(3), np.array([3.0, 0.0])
    values = {}
    for by in ("risk", "loss"):
        method = methods.paper(score=score, mixture=dorfl.mixture.agnostic(by))
        values[by] = prepare([(X, y), (X + away, y)], method).evaluate(theta).values
    assert values["risk"][1] < values["risk"][0] - 1
    np.testing.assert_allclose(values["loss"], np.log(2.0), rtol=1e-12)
