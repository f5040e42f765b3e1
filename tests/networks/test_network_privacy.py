"""Differential privacy of rows for networks: gradients clipped one by one, with noise."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_network_training import blobs, model, quick
from torch import nn

import dorfl
from dorfl import methods, privacy
from dorfl.networks import distance, mlp
from dorfl.networks.plan import Plan
from dorfl.networks.training import oracle, prepare, terms

WEAK = privacy.gaussian(200.0, 1e-3, rounds=40, seed=1)
TILTED = methods.method(temperature=2.0)
MOVED = methods.method(rho=5.0, temperature=2.0)


class Recurrent(nn.Module):
    """A module that PyTorch cannot batch over rows with parameters of their own."""

    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.cell(x[..., None])[0][:, -1])


@pytest.mark.parametrize("made", [model, Recurrent], ids=["mlp", "recurrent"])
@pytest.mark.parametrize("method", [methods.erm(), TILTED, MOVED], ids=["erm", "tilt", "dorfl"])
def test_gradients_are_clipped_row_by_row(made, method):
    torch.manual_seed(0)
    clients = oracle(blobs((12, 7)), method, made(), max_loss=30.0)
    theta, longest, (low, high) = clients.problem.start, 0.3, (0.5, 1.2)
    found = clients.clipped(theta, longest, (low, high))
    for i in range(2):
        rows = [clients.select([i]).take([np.array([j])]) for j in range(clients.counts[i])]
        each = [row.evaluate(theta) for row in rows]
        f = np.clip([one.values[0] for one in each], low, high)
        g = np.array([one.gradients[0] for one in each])
        g *= np.minimum(1.0, longest / np.linalg.norm(g, axis=1))[:, None]
        tau = method.temperature
        p = (
            np.full(len(f), 1 / len(f))
            if np.isinf(tau)
            else np.exp(f / tau) / np.exp(f / tau).sum()
        )
        value = f.mean() if np.isinf(tau) else tau * np.log(np.exp(f / tau).mean())
        assert found.values[i] == pytest.approx(value, abs=1e-5)
        assert found.gradients[i] == pytest.approx(p @ g, abs=1e-5)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([np.inf, 0.5, 3.0]),
    st.integers(1, 6),
    st.floats(0.1, 3.0),
    st.integers(0, 999),
)
def test_replacing_a_row_moves_a_report_by_no_more_than_the_noise_is_for(tau, rows, clip, seed):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(rows, 2)).astype(np.float32), rng.integers(0, 3, rows)
    other_X, other_y = X.copy(), y.copy()
    other_X[0], other_y[0] = 100.0 * rng.normal(size=2), (y[0] + 1) % 3
    method, mechanism = methods.method(temperature=tau), privacy.gaussian(1.0, 1e-5, clip=clip)
    one, two = (
        oracle([pair], method, model(), classes=range(3)) for pair in ((X, y), (other_X, other_y))
    )
    theta = one.problem.start
    first, second = (o.clipped(theta, clip, (mechanism.low, mechanism.high)) for o in (one, two))
    bound = mechanism.sensitivity(rows, tau)
    assert abs(first.values - second.values)[0] <= bound.value * (1 + 1e-6)
    moved = np.linalg.norm(first.gradients - second.gradients)
    assert moved <= bound.gradient * (1 + 1e-4)


def test_an_update_is_the_report_of_the_mechanism():
    plan = Plan().changed(privacy=WEAK)
    local = prepare(blobs(), methods.erm(), model(), plan)
    theta = local.network.start()
    reply = local.reply(theta, 3, [2, 0], local.begin()[[2, 0]])
    values, gradients = WEAK.report(local.select([2, 0]), theta.numpy().astype(float), 3)
    assert reply.risks.numpy() == pytest.approx(values, abs=1e-6)
    assert reply.updates.numpy() == pytest.approx(gradients, abs=1e-6)
    noise = gradients - local.select([2, 0]).clipped(theta.numpy(), 1.0, (0.0, 2.0)).gradients
    wanted = WEAK.noise(int(local.counts[2]), np.inf).gradient
    assert noise[0].std() == pytest.approx(wanted, rel=0.4)


@pytest.mark.parametrize("method", [methods.erm(), methods.afl(), MOVED], ids=lambda m: m.name)
def test_a_private_training_learns_and_repeats_with_its_seed(method):
    clients, test = blobs((300, 300, 300)), blobs((300,), seed=2)["c0"]
    fit = dorfl.train(clients, method, model=model, privacy=WEAK)
    assert fit.rounds == WEAK.rounds
    assert fit.score(*test) > 0.8
    again = dorfl.train(clients, method, model=model, privacy=WEAK)
    assert np.array_equal(fit.theta, again.theta)
    assert not np.array_equal(fit.risks, fit.history[0].risks)
    own = privacy.gaussian(200.0, 1e-3, rounds=40)
    assert not np.array_equal(
        fit.theta, dorfl.train(clients, method, model=model, privacy=own).theta
    )


def test_solvers_of_linear_models_train_a_private_network():
    small = oracle(blobs(), methods.erm(), lambda: mlp(2, (4,), 3))
    fit = dorfl.train(small, privacy=WEAK)
    assert fit.rounds == WEAK.rounds
    assert fit.objective < np.log(3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"rounds": 41}, "the privacy budget is for 40 rounds"),
        ({"local_epochs": 1}, "one gradient of all rows"),
        ({"method": None}, "is chosen from rows"),
        ({"score": distance(1.0)}, "found from rows"),
        ({"validation": 0.2, "patience": 2}, "patience"),
        ({"trim": 0.1}, "trim"),
    ],
)
def test_what_would_show_rows_is_refused(words, said):
    given = {"method": methods.method(temperature=1.0), **words}
    with pytest.raises(ValueError, match=said):
        quick(blobs(), given.pop("method"), privacy=WEAK, rounds=given.pop("rounds", 40), **given)


def test_the_seed_of_the_noise_is_not_part_of_what_client_and_server_compare():
    one, two = (Plan(rounds=5, privacy=privacy.gaussian(1.0, 1e-5, seed=k)) for k in (1, 2))
    assert terms(methods.erm(), one) == terms(methods.erm(), two)
    other = Plan(rounds=5, privacy=privacy.gaussian(2.0, 1e-5, seed=1))
    assert terms(methods.erm(), one) != terms(methods.erm(), other)
    secret = privacy.gaussian(1.0, 1e-5, seed=123456789)
    assert "123456789" not in str(terms(methods.erm(), Plan(rounds=5, privacy=secret)))
