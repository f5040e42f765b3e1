"""A linear network through gradient ascent gives the numbers of the exact kernel."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import dorfl
from dorfl import methods, scores
from dorfl.data.robust import find_centers
from dorfl.networks.plan import Plan
from dorfl.networks.training import oracle, prepare
from dorfl.objective.costs import squared

SYNTHETIC = dorfl.datasets.synthetic(seed=0).clients
THETA = np.array([0.4, 0.3, -0.2, 0.1, 0.5, 0.05])


def bowl(x, y):
    return 0.1 * (x**2).sum(1)


CASES = {
    "erm": (methods.erm(), "logistic"),
    "wafl": (methods.wafl(5.0), "logistic"),
    "frozen": (methods.wafl(5.0, cost=squared([1, 2, 3, 1, 1], frozen=[1])), "logistic"),
    "dorfl": (methods.paper(20, 1), "logistic"),
    "client": (methods.paper(2.0, 0.5, scores.quadratic(0.3, center="client")), "logistic"),
    "matrix": (methods.paper(20, 1, scores.quadratic(0.5, matrix=np.eye(5) + 0.3)), "logistic"),
    "threshold": (methods.paper(20, 1, scores.threshold(3.0, 1, 1.0, 0.3, 1.0)), "logistic"),
    "custom": (
        methods.paper(20, 1, scores.custom(bowl, lambda x, y: 0.2 * x, convex=True)),
        "logistic",
    ),
    "tilt alone": (
        methods.method(temperature=5.0, score=scores.quadratic(0.1), mixture="fixed"),
        "logistic",
    ),
    "squared": (methods.wafl(5.0), "squared"),
    "huber": (methods.paper(20, 1), "huber"),
    "softmax": (methods.paper(5, 1), "softmax"),
    "by class": (
        methods.paper(5, 1, scores.quadratic(0.3, center=np.arange(12.0).reshape(3, 4) / 12)),
        "softmax",
    ),
}


def three_classes():
    rng = np.random.default_rng(0)
    return {
        name: (rng.normal(size=(60, 4)) + k, np.concatenate([[0, 1, 2], rng.integers(0, 3, 57)]))
        for k, name in enumerate(("a", "b"))
    }


def linear(theta, dtype):
    table = torch.tensor(theta, dtype=dtype).reshape(-1, theta.shape[-1])
    layer = nn.Linear(table.shape[1] - 1, len(table), dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(table[:, :-1])
        layer.bias.copy_(table[:, -1])
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("case", CASES)
def test_linear_network_agrees_with_the_exact_kernel(case, dtype):
    method, loss = CASES[case]
    clients = three_classes() if loss == "softmax" else SYNTHETIC
    theta = np.random.default_rng(1).normal(size=(3, 5)) if loss == "softmax" else THETA
    plan = Plan(inner_steps=60, inner_tol=1e-13 if dtype == torch.float64 else 1e-9)
    local = prepare(clients, method, linear(theta, dtype), plan, loss=loss)
    found = local.risks(local.network.start(), gradients=True)
    given = method
    if isinstance(method.score, scores.Quadratic):
        centers = find_centers(method, {name: X for name, (X, _) in clients.items()}, 3)
        named = dict(zip(clients, centers, strict=True))
    near = 1e-4 if dtype == torch.float32 else 1e-8
    for i, (name, (X, y)) in enumerate(clients.items()):
        if isinstance(method.score, scores.Quadratic):
            given = replace(method, score=replace(method.score, center=named[name]))
        exact = dorfl.risk(theta, X, y, given, loss=loss)
        assert found.values[i] == pytest.approx(exact.value, abs=near, rel=near)
        weights = np.asarray(exact.gradient).reshape(-1, theta.shape[-1])
        slope = np.concatenate([weights[:, :-1].ravel(), weights[:, -1]])
        assert np.abs(found.gradients[i] - slope).max() < near * max(1.0, np.abs(slope).max())
        assert np.abs(found.sample_weights[i] - exact.sample_weights).max() < near
    assert 0.0 <= found.error < near
    assert found.non_concave == 0.0


def test_a_warning_where_the_supremum_is_not_concave():
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(40, 5)), rng.integers(0, 2, 40))]
    steep = linear(6.0 * THETA, torch.float32)
    local = prepare(clients, methods.wafl(0.2), steep, Plan(inner_steps=20), loss="logistic")
    with pytest.warns(UserWarning, match="not concave"):
        found = local.risks(local.network.start())
    assert found.non_concave > 0


def test_gradient_of_a_network_is_that_of_its_risk():
    """Danskin: the moved rows count as fixed, and differences of F agree."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    plan = Plan(inner_steps=200, inner_tol=1e-15)
    local = prepare(three_classes(), methods.paper(20, 1), model, plan)
    theta = local.network.start()
    found = local.risks(theta, gradients=True)
    way = torch.randn(len(theta), dtype=torch.float64)
    up, down = (local.risks(theta + s * 1e-5 * way).values for s in (1, -1))
    assert (up - down) / 2e-5 == pytest.approx(found.gradients @ way.numpy(), rel=1e-4, abs=1e-6)


def test_solvers_of_linear_models_train_a_network_through_its_oracle():
    """A linear network on a convex problem reaches the optimum of the exact kernel."""
    method = methods.paper(5, 1, scores.quadratic(0.2, center="client"))
    layer = linear(np.zeros(6), torch.float64)
    own = oracle(SYNTHETIC, method, layer, loss="logistic", inner_steps=50, inner_tol=1e-14)
    found = dorfl.train(own, tol=1e-5)
    exact = dorfl.train(SYNTHETIC, method, tol=1e-7)
    assert found.objective == pytest.approx(exact.objective, abs=1e-4)
    assert found.lam == pytest.approx(exact.lam, abs=0.05)
    assert {name: len(p) for name, p in found.sample_weights.items()} == {
        name: len(y) for name, (_, y) in SYNTHETIC.items()
    }


def test_parts_of_an_oracle_are_those_of_its_rows():
    method = methods.paper(5, 1, scores.quadratic(0.2, center="client"))
    own = oracle(SYNTHETIC, method, linear(THETA, torch.float64), loss="logistic")
    theta = own.problem.start
    whole = own.evaluate(theta, rows=True)
    some = own.select([0, 2]).evaluate(theta)
    assert some.values == pytest.approx(whole.values[[0, 2]])
    assert some.gradients == pytest.approx(whole.gradients[[0, 2]])
    few = own.take([np.arange(10)] * 3).evaluate(theta)
    first = {name: (X[:10], y[:10]) for name, (X, y) in SYNTHETIC.items()}
    fixed = dict(zip(SYNTHETIC, own.centers.numpy(), strict=True))
    same = methods.paper(5, 1, scores.quadratic(0.2, center=fixed))
    alone = oracle(first, same, linear(THETA, torch.float64), loss="logistic", classes=[-1, 1])
    assert few.values == pytest.approx(alone.evaluate(theta).values)
