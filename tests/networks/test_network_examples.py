"""The examples: methods of the field as user code, each under 30 lines."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_network_training import blobs, model, quick

from dorfl import methods, networks
from dorfl.federated import registry
from experiments import candidates

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    sys.path.insert(0, str(EXAMPLES))  # ditto.py imports fedprox.py
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(EXAMPLES))
    return module


@pytest.mark.parametrize("name", ["fedprox", "trimmed_mean", "term", "cvar", "ditto"])
def test_an_example_is_short(name):
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 30


def test_fedprox_without_its_pull_is_fedavg_and_a_strong_pull_keeps_clients_at_home():
    proximal = load("fedprox").Proximal
    given = {"local_epochs": 3, "rounds": 3}
    plain = quick(blobs(), methods.erm(), optimizer=networks.sgd(0.1), **given)
    same = quick(blobs(), methods.erm(), optimizer=proximal(0.1, 0.0), **given)
    assert same.theta == pytest.approx(plain.theta, abs=1e-6)
    held = quick(blobs(), methods.erm(), optimizer=proximal(0.1, 9.0), **given)
    start = quick(blobs(), methods.erm(), optimizer=networks.sgd(1e-12), **given).theta
    assert np.linalg.norm(held.theta - start) < 0.5 * np.linalg.norm(plain.theta - start)


def test_the_trimmed_mean_is_that_of_the_library_for_clients_that_count_alike():
    updates, weights = torch.randn(7, 5), torch.full((7,), 1 / 7)
    own = load("trimmed_mean").trimmed_mean(updates, weights)
    assert torch.allclose(own, networks.trimmed_mean(0.2)(updates, weights), atol=1e-6)
    fit = quick(
        blobs((60,) * 5), methods.erm(), rounds=40, aggregator=load("trimmed_mean").trimmed_mean
    )
    assert fit.score(*blobs((300,), seed=2)["c0"]) > 0.75


def test_term_follows_large_losses_or_leaves_them_out_by_its_sign():
    term, losses = load("term").Term, torch.tensor([[0.1, 0.2, 5.0, 9.0]])
    there = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    for t, share in ((2.0, 1.0), (-2.0, 0.0)):
        risk, weights = term(t)(losses, there)
        assert float(weights[0, 2]) == pytest.approx(share, abs=1e-3)
        assert float(weights[0, 3]) == 0.0
        assert float(weights.sum()) == pytest.approx(1.0)
        assert 0.1 < float(risk) < 5.0
    clients = {"a": blobs((200,))["c0"]}
    _, y = clients["a"]
    y[:20] = (y[:20] + 1) % 3
    fit = quick(clients, methods.erm(), rounds=60, row_risk=term(-2.0))
    weights = fit.sample_weights["a"]
    assert weights.sum() == pytest.approx(1.0)
    assert np.median(weights[:20]) < 0.5 * np.median(weights[20:])
    with pytest.raises(ValueError, match="takes the place of the tilt"):
        quick(clients, methods.method(temperature=1.0), row_risk=term(-2.0))


def test_cvar_follows_the_largest_losses_of_the_rows():
    losses = torch.tensor([[1.0, 4.0, 2.0, 9.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    risk, weights = load("cvar").Cvar(0.5)(losses, mask)
    assert risk.tolist() == [3.0]
    assert weights.tolist() == [[0.0, 0.5, 0.5, 0.0]]


def test_ditto_is_near_the_common_network_and_serves_each_client_better():
    clients = blobs((60, 60))
    X, y = clients["c1"]
    clients["c1"] = (X, (y + 1) % 3)  # no network is right for both
    ditto = load("ditto").ditto
    common, own = ditto(clients, model(), rounds=40)
    for name, rows in clients.items():
        assert own[name].score(*rows) > common.score(*rows)
    common, near = ditto(clients, model(), mu=1e3, lr=1e-4, rounds=40)
    assert near["c0"].theta == pytest.approx(common.theta, abs=0.05)


@pytest.mark.parametrize("name", ["fedprox", "trimmed_mean", "term", "cvar"])
def test_examples_enter_the_benchmark_by_the_registry(name, monkeypatch):
    monkeypatch.setattr(registry, "_methods", {})
    load(name)
    (registered,) = registry._methods
    setup = candidates.Setup((8,))
    first = candidates.candidates(registered, setup)[0]
    data = blobs((60, 60, 60))
    task = candidates.Task(data, data, {})
    fit = candidates.fitted(first, task, setup, 0, 3)
    (option,) = {"optimizer", "aggregator", "row_risk"} & registry.method(registered).options.keys()
    assert getattr(fit.plan, option) is registry.method(registered).options[option]
