"""The supremum by ascent, for scores without a closed form: right, and honest about how right."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dorfl
from cases import ASCENT, LogCosh, make, slowly
from dorfl.federated.training import prepare
from dorfl.linear.inner import ascend

pytestmark = pytest.mark.portable


@pytest.mark.parametrize("loss", ["logistic", "softmax", "squared", "huber"])
@pytest.mark.parametrize("derivative", [True, False])
def test_custom_score_equal_to_the_quadratic_gives_the_closed_form(loss, derivative):
    @slowly(10)
    @given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
    def check(seed, frozen, priced):
        priced = priced and loss in ("logistic", "softmax")
        case = make(seed, loss, "full", spread=0.7, frozen=frozen, priced=priced, rows=6)
        rho2, center, V = case.score.weight, case.score.center, case.score.matrix
        custom = dorfl.scores.custom(
            lambda x, _: rho2 * np.einsum("ij,jk,ik->i", x - center, V, x - center),
            (lambda x, _: 2 * rho2 * (x - center) @ V) if derivative else None,
            convex=True,
        )
        cost = dorfl.costs.squared(case.weights, label_price=case.price)
        method = dorfl.methods.method(rho=case.rho, beta=case.beta, cost=cost, score=custom)
        options = {"loss": case.chosen_loss, "classes": case.classes}
        climbed = dorfl.risk(case.parameters, case.X, case.y, method, **options)
        exact = case.risk()
        scale = 1 + np.abs(exact.gradient).max()
        assert climbed.value == pytest.approx(exact.value, rel=1e-9, abs=1e-9)
        # differences of h are good to some 1e-10 of h, and so are the maximisers
        np.testing.assert_allclose(
            climbed.gradient, exact.gradient, atol=scale * (1e-9 if derivative else 1e-6)
        )

    check()


@slowly(30)
@given(st.integers(0, 2**32 - 1), st.integers(0, 30), st.floats(0.3, 3.5))
def test_ascent_reports_a_bound_on_its_error(seed, steps, spread):
    case = make(seed, "logistic", "custom", spread=spread, rows=3)
    score = LogCosh(case.brute_score.weight, case.brute_score.center)
    found = ascend(
        np.atleast_2d(case.theta), np.array([case.intercept]), case.X, case.y,
        dorfl.losses.logistic, case.rho * case.weights, score.h, score.slope, max_steps=steps,
    )  # fmt: skip
    shortfall = case.brute_f() - found.value
    assert (shortfall <= found.error + 1e-12 * (1 + np.abs(found.value))).all()
    assert (shortfall >= -1e-9).all()


@pytest.mark.parametrize(("loss", "score"), ASCENT)
def test_ascent_ends_with_a_small_error(loss, score):
    case = make(3, loss, score, spread=0.5, rows=50)
    assert case.group().evaluate(case.parameters.ravel()).error <= 1e-12


def test_epsilon_leaves_rows_within_that_distance():
    case = make(1, "logistic", "quadratic", spread=2.0, rows=50)
    exact = case.group().atoms(case.parameters.ravel())
    clients = {"client": (case.X, case.y)}
    rough = prepare(clients, case.method, classes=[-1, 1], tolerance=0.05).atoms(
        case.parameters.ravel()
    )
    apart = np.linalg.norm(exact.rows - rough.rows, axis=1)
    assert 1e-6 < apart.max() <= 0.05


def test_ascent_warns_where_concavity_cannot_be_shown():
    X, y = np.array([[1.0, 0.0], [0.0, -1.0]]), np.array([1, -1])
    wavy = dorfl.scores.custom(lambda x, _: np.sin(x).sum(axis=1) ** 2)
    with pytest.warns(UserWarning, match="strongly concave"):
        dorfl.risk([0.1, 0.1], X, y, dorfl.methods.paper(rho=20, score=wavy))
    flat = dorfl.scores.custom(lambda x, _: np.zeros(len(x)), convex=True)
    with pytest.warns(UserWarning, match="strongly concave"):
        dorfl.risk([3.0, 0.0], X, y, dorfl.methods.paper(rho=1, score=flat))  # S = 9
    dorfl.risk([0.1, 0.1], X, y, dorfl.methods.paper(rho=1, score=flat))


@pytest.mark.parametrize(("loss", "seed"), [("squared", 0), ("squared", 4), ("softmax", 4)])
def test_ascent_stops_where_rounding_does(loss, seed):
    """Asking for more than floating point has must not cost all the steps there are."""
    case = make(seed, loss, "full", spread=0.7, rows=20)
    calls = []

    def h(rows, _labels):
        calls.append(len(rows))
        return case.score.at(rows, case.score.center)

    score = dorfl.scores.custom(h, convex=True)
    cost = dorfl.costs.squared(case.weights)
    method = dorfl.methods.method(rho=case.rho, beta=case.beta, cost=cost, score=score)
    dorfl.risk(case.parameters, case.X, case.y, method, loss=loss, classes=case.classes)
    differences = 1 + 2 * case.X.shape[1]
    assert len(calls) < 2 * differences * 1000
