"""Minibatches are weighed against the client's running mean, not against themselves."""

import numpy as np
import pytest
import torch

from dorfl.networks.tilt import RowTilt

FIRST = torch.full((1, 2), torch.nan)  # before the first batch


def batches(f, size, rounds, memory, tau=1.0):
    """The mean weight that every row gets over many minibatches, times n."""
    rng, count = np.random.default_rng(0), len(f)
    tilt, seen = RowTilt(tau, memory), torch.full((1, 2), torch.nan, dtype=torch.float64)
    total = np.zeros(count)
    for step in range(rounds + 200):
        index = rng.permutation(count)[:size]
        seen, weights = tilt.weigh(f[index][None], torch.ones(1, size), seen, torch.zeros(1, size))
        if step >= 200:
            total[index] += weights[0].numpy() * count
    return total / rounds, tilt.risk(seen)


def test_weights_of_rows_are_those_of_all_rows_on_average():
    f = torch.tensor(np.random.default_rng(1).normal(size=50) * 2.0)
    exact = torch.softmax(f, 0).numpy() * 50
    running, _ = batches(f, 8, 4000, memory=0.98)
    alone, _ = batches(f, 8, 4000, memory=0.0)
    worst = int(f.argmax())
    assert abs(running[worst] / exact[worst] - 1) < 0.15
    assert alone[worst] < 0.6 * exact[worst]  # its weight cannot exceed one batch's
    assert np.abs(running - exact).max() < 0.2 * exact.max()


def test_the_risk_is_the_log_mean_exp():
    f = torch.tensor([0.0, 1.0, 2.0])
    seen, weights = RowTilt(2.0).weigh(f[None], torch.ones(1, 3), FIRST, torch.zeros(1, 3))
    assert float(RowTilt(2.0).risk(seen)) == pytest.approx(
        2 * np.log(np.mean(np.exp(f.numpy() / 2)))
    )
    assert weights[0].tolist() == pytest.approx(torch.softmax(f / 2, 0).tolist())


def test_padding_does_not_count():
    there = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    f = torch.tensor([[0.0, 1.0, 90.0], [1.0, 2.0, 3.0]])
    before = torch.tensor([[torch.nan, torch.nan], [0.7, 0.0]])
    for tilt in (RowTilt(1.0), RowTilt()):
        seen, weights = tilt.weigh(f, there, before, 0.0 * f)
        assert weights[0, 2] == 0
        assert (weights[1] == 0).all()
        assert float(seen[1, 0]) == pytest.approx(0.7)
    assert weights[0].tolist() == [0.5, 0.5, 0.0]


def test_trimming_leaves_out_the_largest():
    f = torch.tensor([[5.0, 1.0, 2.0, 9.0]])
    _, weights = RowTilt(trim=0.25).weigh(f, torch.ones(1, 4), FIRST, 0.0 * f)
    assert weights[0].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])


@pytest.mark.parametrize("tau", [20.0, np.inf])
def test_how_many_suspects_a_batch_has_does_not_move_the_risk_by_loss(tau):
    """At τ = 20 one suspect more in a batch of 64 moves F_i by 0.3: more than losses differ."""
    rng = np.random.default_rng(0)
    loss = torch.tensor(rng.exponential(0.5, 2000))
    bare = torch.where(torch.arange(2000) < 200, -600.0, 0.0).double()
    tilt, seen, by_loss, by_risk = RowTilt(tau, 0.9), FIRST.double(), [], []
    for _ in range(200):
        index = rng.permutation(2000)[:64]
        seen, _ = tilt.weigh((loss + bare)[index][None], torch.ones(1, 64), seen, bare[index][None])
        by_loss.append(float(tilt.risk(seen)))
        by_risk.append(float(tilt.risk(seen * torch.tensor([1.0, 0.0]))))
    assert np.mean(by_loss) == pytest.approx(0.5, abs=0.05)
    assert np.std(by_loss) < 0.25 * np.std(by_risk)


def test_a_rule_of_ones_own_counts_also_if_one_client_is_trained_at_a_time():
    f = torch.tensor([[0.0, 1.0, 9.0]])

    def worst(f, there):
        return f.max(1).values, torch.nn.functional.one_hot(f.argmax(1), f.shape[1])

    seen, weights = RowTilt(row_risk=worst).weigh(f, torch.ones(1, 3), FIRST)
    assert weights.tolist() == [[0.0, 0.0, 1.0]]
    assert float(seen[0, 0]) == 9.0
