"""The same problem in other words: what rounding decides shows on any machine.

Rows in another order, or all of them longer by 1e-12, change the optimum by next to nothing and
every rounding on the way to it. Two fits that say "converged" are both within `tol` of it.
"""

import math

import numpy as np
import pytest

import dorfl
from dorfl import methods, mixture, scores

pytestmark = pytest.mark.portable

TOL = 1e-6
CONTAMINATIONS = ("negate", "scale", "flip")
FIVE = (methods.erm(), methods.afl(), methods.wafl(10), methods.gdrfl(10), methods.paper())
RULES = ("agnostic", mixture.capped(0.5), mixture.capped(1 / 3), mixture.agnostic(by="loss"))


def in_other_words(clients):
    rng, mixed = np.random.default_rng(0), {}
    for name, (X, y) in clients.items():
        order = rng.permutation(len(y))
        mixed[name] = X[order], y[order]
    yield "as given", clients
    yield "permuted", mixed
    yield "longer", {name: (X * (1 + 1e-12), y) for name, (X, y) in clients.items()}
    yield "permuted and shorter", {name: (X * (1 - 1e-12), y) for name, (X, y) in mixed.items()}


def assert_all_alike(clients, method, **options):
    first = None
    for words, same in in_other_words(clients):
        fit = dorfl.train(same, method, tol=TOL, **options)
        assert fit.status == "converged", words
        assert math.fsum(fit.lam) == 1.0, words
        assert fit.lam.min() >= 0.0, words
        assert fit.lam.max() <= method.mixture.cap, words
        if first is None:
            first = fit
        # `tol` is in units of the objective or, where that is next to nothing, of what was gained
        unit = max(abs(first.objective), 1e-7 * (fit.history[0].objective - first.objective))
        assert abs(fit.objective - first.objective) <= TOL * unit, words


@pytest.mark.parametrize("kind", CONTAMINATIONS)
@pytest.mark.parametrize("method", FIVE, ids=lambda method: method.name)
def test_the_five_methods(method, kind):
    for seed in range(3):
        assert_all_alike(dorfl.datasets.synthetic(seed, kind=kind).clients, method)


@pytest.mark.parametrize("kind", CONTAMINATIONS)
@pytest.mark.parametrize("rule", RULES, ids=["agnostic", "half", "third", "by loss"])
def test_mixtures_and_caps(rule, kind):
    data = dorfl.datasets.synthetic(seed=0, kind=kind)
    for rho, temperature, score in (
        (None, None, None),
        (10, None, None),
        (10, 10, scores.quadratic(0.2, center="client")),
        (None, 10, scores.quadratic(0.2)),
        (10, None, scores.quadratic(0.2)),
    ):
        method = methods.method(rho=rho, temperature=temperature, score=score, mixture=rule)
        assert_all_alike(data.clients, method)


@pytest.mark.parametrize("kind", CONTAMINATIONS)
@pytest.mark.parametrize("radius", [0.01, 0.05, 0.1, 0.2])
def test_the_radius_form(radius, kind):
    """With a large radius θ = 0 is best, and ρ tends to 0."""
    data = dorfl.datasets.synthetic(seed=0, kind=kind)
    for score in (None, scores.quadratic(0.5)):
        assert_all_alike(data.clients, methods.method(radius=radius, beta=1.0, score=score))


@pytest.mark.parametrize("radius", [0.01, 0.2])
def test_the_radius_form_from_any_start(radius):
    data = dorfl.datasets.synthetic(seed=0)
    method = methods.method(radius=radius, beta=1.0)
    first = dorfl.train(data.clients, method, tol=TOL)
    rng = np.random.default_rng(0)
    for start in (first, *(rng.normal(size=6) * 10 ** rng.uniform(-2, 1) for _ in range(8))):
        fit = dorfl.train(data.clients, method, tol=TOL, start=start)
        assert fit.status == "converged"
        assert fit.objective == pytest.approx(first.objective, rel=TOL)


@pytest.mark.parametrize("loss", ["softmax", "squared", "huber"])
@pytest.mark.parametrize("method", FIVE, ids=lambda method: method.name)
def test_other_losses(method, loss):
    assert_all_alike(dorfl.datasets.synthetic(seed=1).clients, method, loss=loss, l2=1e-3)
