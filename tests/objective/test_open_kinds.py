"""A loss and a score of one's own are trained as those of the library are."""

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import minimize

import dorfl
from dorfl import losses, methods, scores
from dorfl.federated import simulation
from dorfl.federated.training import prepare, serve
from dorfl.objective.base import Loss, Score
from dorfl.objective.serialization import read_loss, read_method, write_loss, write_method


@dataclass(frozen=True)
class LogCosh(Loss):
    """width² log cosh((t − y)/width): a regression without a closed supremum."""

    name = "log-cosh"
    curvature = 1.0
    width: float = 1.0

    @property
    def max_slope(self):
        return self.width

    def value(self, outputs, target):
        z = (outputs - target) / self.width
        return self.width**2 * (np.logaddexp(z, -z) - np.log(2.0))

    def slope(self, outputs, target):
        return self.width * np.tanh((outputs - target) / self.width)[:, None]


class SmoothHinge(Loss):
    """½ max(0, 1 − y t)² up to a margin of 0, linear beyond: two classes, one output."""

    name, classifies, curvature, max_slope = "smooth hinge", True, 1.0, 1.0

    def value(self, outputs, target):
        short = np.maximum(1.0 - target * outputs, 0.0)
        return np.where(short <= 1.0, 0.5 * short**2, short - 0.5)

    def slope(self, outputs, target):
        return (-target * np.clip(1.0 - target * outputs, 0.0, 1.0))[:, None]


class OneAgainstAll(Loss):
    """A logistic loss for every class: several outputs, and all of θ matters."""

    name, classifies, curvature, max_slope = "one against all", True, 0.25, 2.0

    def outputs(self, classes):
        return classes

    def _signs(self, outputs, target):
        return np.where(np.arange(outputs.shape[1]) == target[:, None], 1.0, -1.0)

    def value(self, outputs, target):
        return np.logaddexp(0.0, -self._signs(outputs, target) * outputs).sum(axis=1)

    def slope(self, outputs, target):
        signs = self._signs(outputs, target)
        return -signs * np.exp(-np.logaddexp(0.0, signs * outputs))


@dataclass(frozen=True)
class Far(Score):
    """weight · log(1 + ‖x‖²): convex near the origin alone."""

    name = "far"
    weight: float = 0.3

    def at(self, rows, center, labels):
        return self.weight * np.log1p((rows**2).sum(axis=1))


LOSSES = [LogCosh(0.5), SmoothHinge(), OneAgainstAll()]
METHODS = {
    "afl": methods.afl(),
    "gdrfl": methods.gdrfl(12.0),
    "dorfl": methods.paper(12.0, 0.5),
    "tilted": methods.method(temperature=2.0, mixture="fixed"),
}


def make_clients(loss, rows=12):
    rng = np.random.default_rng(1)
    clients = {}
    for name, shift in (("north", 0.0), ("south", 0.6), ("west", -0.5)):
        X = rng.normal(size=(rows, 2)) + shift
        y = X @ [1.0, -0.7] + 0.6 * rng.normal(size=rows)
        if loss.classifies:
            y = np.digitize(y, [-0.3, 0.6] if loss.outputs(3) > 1 else [0.2])
        clients[name] = (X, y)
    return clients


def solve(clients, method, loss, l2=0.01):
    """min_θ of the objective by SciPy, from the definitions alone."""
    problem = prepare(clients, method, loss).problem
    tables = [(X, problem.encode(y)) for X, y in clients.values()]
    counts = np.array([len(y) for _, y in tables])
    center = prepare(clients, method, loss).centers[0]
    rho, tau, score = method.rho, method.temperature, problem.score

    def worst(theta, X, y, labels):
        def gain(x):
            moved = 0.0 if np.isinf(rho) else 0.5 * rho * ((x - X) ** 2).sum(axis=1)
            here = loss.value(problem.predict(theta, x), y)
            return here - score.at(x, center, labels) - moved

        if np.isinf(rho):
            return gain(X)
        found = minimize(
            lambda x: -gain(x.reshape(X.shape)).sum(), X.ravel(), method="BFGS", tol=1e-10
        )
        return gain(found.x.reshape(X.shape))

    def risks(theta):
        out = []
        for (X, y), (_, labels) in zip(tables, clients.values(), strict=True):
            f = worst(theta, X, y, labels)
            tilted = f.mean() if np.isinf(tau) else tau * np.log(np.exp(f / tau).mean())
            out.append(float(tilted))
        return np.array(out)

    def objective(theta):
        F = risks(theta)
        if method.mixture.adversarial:
            top = F.max()
        else:
            top = tau * np.log(counts / counts.sum() @ np.exp(F / tau))
        return top + 0.5 * l2 * float(problem.penalised @ theta**2)

    return objective


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_a_loss_of_ones_own(loss, name):
    clients, method = make_clients(loss), METHODS[name]
    fit = dorfl.train(clients, method, loss=loss, l2=0.01)
    assert fit.status == "converged"
    objective = solve(clients, method, loss)
    theta = fit.theta.ravel()
    assert objective(theta) == pytest.approx(fit.objective, rel=1e-7)
    rng = np.random.default_rng(2)
    for size in (1e-3, 1e-2, 0.1):  # convex: a minimiser nearby is the minimiser
        for _ in range(2):
            step = size * rng.normal(size=theta.size)
            assert objective(theta + step) >= fit.objective - 2e-6 * abs(fit.objective)


def test_the_minimiser_is_that_of_another_solver():
    """Without transport and with one client SciPy's own minimiser can be asked."""
    for loss in LOSSES:
        clients = dict(list(make_clients(loss).items())[:1])
        method = METHODS["tilted"]
        fit = dorfl.train(clients, method, loss=loss, l2=0.01, tol=1e-9)
        best = minimize(
            solve(clients, method, loss), np.zeros(fit.theta.size), method="BFGS", tol=1e-9
        )
        np.testing.assert_allclose(fit.theta.ravel(), best.x, atol=2e-4)
        assert fit.objective == pytest.approx(best.fun, rel=1e-8)


def engine(clients, method, loss, **options):
    group = prepare(clients, method, loss)
    theta = np.zeros(group.problem.size)
    server = serve(group.problem, group.names, group.counts, theta, dorfl.Options(**options))
    return simulation.run(server, group, seed=0)[0]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_in_process_engine_trains_it_as_well(loss):
    clients = make_clients(loss)
    fit = dorfl.train(clients, METHODS["dorfl"], loss=loss, l2=0.01)
    info = engine(clients, METHODS["dorfl"], loss, l2=0.01)
    np.testing.assert_array_equal(info.theta.reshape(fit.theta.shape), fit.theta)


def test_a_score_of_ones_own():
    score = Far(0.3)
    named = scores.custom(lambda x, _: 0.3 * np.log1p((x**2).sum(axis=1)))
    clients = make_clients(losses.logistic)
    for rho in (12.0, None):
        tilt = {"beta": 0.5} if rho else {"temperature": 6.0}
        own, known = (methods.method(rho=rho, score=h, **tilt) for h in (score, named))
        with pytest.warns(UserWarning, match="strongly concave") if rho else nullcontext():
            fit = dorfl.train(clients, own, l2=0.01)
            info = engine(clients, own, losses.logistic, l2=0.01)
            other = dorfl.train(clients, known, l2=0.01)
        np.testing.assert_array_equal(info.theta, fit.theta)
        np.testing.assert_array_equal(fit.theta, other.theta)
        objective = solve(clients, own, losses.logistic)
        assert objective(fit.theta) == pytest.approx(fit.objective, rel=1e-7)


def test_a_loss_by_ascent_is_the_closed_one():
    """Huber's loss without its closed form gives what it gives with it."""

    class Plain(losses.Huber):
        supremum, has_hessian = "", False

    clients = make_clients(losses.huber())
    by_loss = methods.paper(12.0, 0.5, mixture=dorfl.mixture.capped(0.5, by="loss"))
    for method in (*METHODS.values(), by_loss):
        closed = dorfl.train(clients, method, loss=losses.huber(0.7), l2=0.01, tol=1e-8)
        climbed = dorfl.train(clients, method, loss=Plain(0.7), l2=0.01, tol=1e-8)
        assert climbed.objective == pytest.approx(closed.objective, rel=2e-8)
        np.testing.assert_allclose(climbed.theta, closed.theta, atol=1e-3)


def test_labels_and_predictions_are_the_loss_s_business():
    words, plain = np.array(["no", "yes"]), make_clients(SmoothHinge(), rows=60)
    clients = {name: (X, words[y]) for name, (X, y) in plain.items()}
    fit = dorfl.train(clients, methods.erm(), loss=SmoothHinge(), l2=0.01)
    X, y = clients["north"]
    assert set(fit.predict(X)) == {"no", "yes"}
    assert fit.score(X, y) > 0.75
    with pytest.raises(ValueError, match="is for two classes, y has 3"):
        dorfl.train(make_clients(OneAgainstAll()), methods.afl(), loss=SmoothHinge())


def test_separable_rows_leave_a_hinge_its_minimiser():
    clients = [([[-2.0], [-1.0], [1.0], [2.0]], [0, 0, 1, 1])]
    fit = dorfl.train(clients, methods.erm(), loss=SmoothHinge())
    assert (fit.status, round(fit.objective, 9)) == ("converged", 0.0)


def test_reports_of_it_have_bounds():
    limits = dorfl.federated.report_bounds.Limits(row=6.0, target=6.0)
    for loss in LOSSES:
        clients = make_clients(loss)
        fit = dorfl.train(clients, METHODS["dorfl"], loss=loss, l2=0.01, limits=limits)
        assert not any(line.clipped or line.refused for line in fit.history)
    with pytest.raises(ValueError, match="no known bounds"):
        dorfl.train(
            make_clients(losses.logistic), methods.method(rho=9.0, score=Far()), limits=limits
        )


def test_a_place_in_the_registry_is_all_that_files_need(monkeypatch):
    method = methods.method(rho=9.0, beta=0.5, score=Far(0.25))
    for write, kind in ((write_loss, LogCosh(0.5)), (write_method, method)):
        with pytest.raises(ValueError, match="add it to KINDS"):
            write(kind)
    monkeypatch.setitem(losses.KINDS, "log-cosh", LogCosh)
    monkeypatch.setitem(scores.KINDS, "far", Far)
    assert read_loss(write_loss(LogCosh(0.5))) == LogCosh(0.5)
    assert read_method(write_method(method)).score == Far(0.25)
    assert losses.resolve("log-cosh") == LogCosh()


def test_what_version_one_wrote_is_still_read():
    assert read_loss({"name": "logistic", "delta": 1.0}) == losses.logistic
    assert read_loss({"name": "huber", "delta": 0.3}) == losses.huber(0.3)
    written = write_method(methods.paper(score=scores.threshold(3.0, 0, 1.0, 0.3, np.int64(1))))
    assert written["score"] == {
        "kind": "threshold", "weight": 3.0, "column": 0, "level": 1.0, "softness": 0.3, "label": 1
    }  # fmt: skip
    written = write_method(methods.paper(score=scores.quadratic(0.5, {"a": [0.0]}, [1.0])))
    assert written["score"] == {
        "kind": "quadratic", "weight": 0.5, "center": {"a": [0.0]}, "matrix": [1.0]
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:the inner problem cannot be shown")
def test_a_score_with_nothing_but_values_trains_a_regression_by_default():
    method = methods.method(rho=10.0, temperature=2.0, score=Far())
    fit = dorfl.train(make_clients(LogCosh(0.5)), method, l2=0.01)
    assert fit.problem.loss.name == "huber" and np.isfinite(fit.objective)
