"""Clients whose model is not linear: an oracle of one's own, trained without touching the rest."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.optimize import minimize

import dorfl
from dorfl import methods
from dorfl.federated import simulation
from dorfl.federated.client import respond
from dorfl.federated.messages import Broadcast
from dorfl.federated.training import prepare, serve
from dorfl.linear.base import Evaluation, Terms
from dorfl.objective.mixture import tilted_mean
from dorfl.solvers.base import Task


@dataclass(frozen=True)
class Growth:
    """Curves y ≈ a / (1 + e^{−(b + c x)}), in squares: three parameters, not linear in them."""

    problem: Terms
    clients: dict

    @property
    def names(self):
        return tuple(self.clients)

    @property
    def counts(self):
        return np.array([len(x) for x, _ in self.clients.values()])

    def evaluate(self, theta, curvature="none", *, rows=False):
        a, b, c = theta
        tau, values, gradients, weights = self.problem.method.temperature, [], [], []
        for x, y in self.clients.values():
            share = 1.0 / (1.0 + np.exp(-(b + c * x)))
            residual, bent = a * share - y, a * share * (1.0 - share)
            f = 0.5 * residual**2
            values.append(tilted_mean(f, tau))
            p = np.exp((f - values[-1]) / tau) / len(f)
            gradients.append((p * residual) @ np.column_stack([share, bent, bent * x]))
            weights.append(p)
        return Evaluation(np.array(values), np.array(gradients), weights=weights if rows else None)

    def take(self, indices):
        parts = zip(self.clients.items(), indices, strict=True)
        return replace(self, clients={n: (x[i], y[i]) for (n, (x, y)), i in parts})

    def select(self, clients):
        return replace(self, clients={self.names[i]: self.clients[self.names[i]] for i in clients})


def make(method):
    rng = np.random.default_rng(0)
    clients = {}
    for name, middle in (("north", -1.0), ("south", 1.0)):
        x = rng.normal(size=60) + middle
        y = 2.0 / (1.0 + np.exp(-(0.3 + 1.2 * x))) + 0.2 * rng.normal(size=60)
        clients[name] = (x, y)
    return Growth(Terms(method, np.array([1.0, 0.0, 0.5])), clients)


METHODS = {
    "afl": methods.afl(),
    "erm": methods.erm(),
    "tilted": methods.method(temperature=0.5, mixture="agnostic"),
    "pooled": methods.method(temperature=0.5, mixture="fixed"),
}


def best_of(oracle):
    """The minimum by SciPy: epigraph form of a maximum, or the mixture itself."""
    rule, tau = oracle.problem.method.mixture, oracle.problem.method.temperature
    start = oracle.problem.start
    if not rule.adversarial:
        lam = oracle.counts / oracle.counts.sum()
        pooled = lambda theta: rule.objective(oracle.evaluate(theta).values, lam, tau)  # noqa: E731
        return minimize(pooled, start, method="BFGS", tol=1e-10)
    top = oracle.evaluate(start).values.max()
    return minimize(
        lambda z: z[-1],
        np.append(start, top),
        constraints={"type": "ineq", "fun": lambda z: z[-1] - oracle.evaluate(z[:-1]).values},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )


@pytest.mark.parametrize("name", METHODS)
def test_it_is_trained_as_linear_models_are(name):
    oracle = make(METHODS[name])
    fit = dorfl.train(oracle)
    best = best_of(oracle)
    assert fit.status == "converged"
    assert fit.objective == pytest.approx(best.fun, rel=1e-5)
    np.testing.assert_allclose(fit.theta, best.x[:3], atol=0.02)
    assert {n: len(p) for n, p in fit.sample_weights.items()} == {"north": 60, "south": 60}


def test_the_in_process_engine_trains_it_as_well():
    oracle = make(METHODS["tilted"])
    server = serve(
        oracle.problem, oracle.names, oracle.counts, oracle.problem.start, dorfl.Options()
    )
    info, history = simulation.run(server, oracle, seed=0)
    fit = dorfl.train(oracle)
    assert (info.done, len(history)) == (fit.status, fit.rounds)
    np.testing.assert_array_equal(info.theta, fit.theta)


def test_minibatches_and_some_of_the_clients():
    oracle = make(METHODS["erm"])
    fit = dorfl.train(
        oracle, solver="optimistic", batch=30, participation=0.5, max_rounds=400, seed=1
    )
    exact = dorfl.train(oracle)
    reached = oracle.evaluate(fit.theta).values.mean()
    assert reached < oracle.evaluate(oracle.problem.start).values.mean() / 4
    assert reached < 1.5 * exact.objective


def test_what_it_cannot_do_is_said():
    oracle = make(METHODS["afl"])
    with pytest.raises(ValueError, match="its own method"):
        dorfl.train(oracle, methods.afl())
    with pytest.raises(ValueError, match="limits"):
        dorfl.train(oracle, limits=dorfl.federated.report_bounds.Limits(3.0))
    with pytest.raises(ValueError, match="clipped"):
        dorfl.train(oracle, privacy=dorfl.privacy.gaussian(2.0, 1e-5, rounds=2, seed=1))
    with pytest.raises(NotImplementedError, match="outputs"):
        dorfl.train(oracle).predict([[0.0]])


class Count:
    """How often rows are passed over."""

    def __init__(self, monkeypatch):
        self.passes = 0
        plain = dorfl.linear.group.Group._pass

        def counted(group, *args, **options):
            self.passes += 1
            return plain(group, *args, **options)

        monkeypatch.setattr(dorfl.linear.group.Group, "_pass", counted)


@pytest.mark.parametrize("radius", [None, 0.1])
def test_a_report_takes_one_pass_over_the_rows(monkeypatch, radius):
    data = dorfl.datasets.synthetic(seed=0)
    method = methods.paper() if radius is None else methods.method(beta=1.0, radius=radius)
    group = prepare(data.clients, method)
    theta = np.zeros(6) if radius is None else np.append(np.zeros(6), 5.0)
    seen = Count(monkeypatch)
    task = Task(theta, np.ones(3) / 3, curvature="full")
    reports = respond(group, Broadcast(1, task), 0, least=10)
    assert seen.passes == 1
    assert [r.value for r in respond(group, Broadcast(1, task), 0)] == [r.value for r in reports]
    assert all(report.curvature is not None for report in reports)
    assert all(report.vector.shape == theta.shape for report in reports)
