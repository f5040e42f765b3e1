"""How rows ascent: towards more loss, within bounds, at the inputs or inside the network."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from dorfl.networks.model import Network, mlp
from dorfl.networks.supremum import RobustLoss, softmax, transport_geometry
from dorfl.objective.costs import squared


@pytest.fixture
def rows():
    torch.manual_seed(3)
    return torch.randn(2, 7, 4), torch.randint(0, 3, (2, 7))


def objective(robust, network, theta, ascent, y):
    with torch.no_grad():
        return robust.losses(network, theta, ascent.x.detach(), y) + ascent.level


def test_more_steps_find_more(rows):
    x, y = rows
    network = Network(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))
    theta = torch.stack([network.start(), 2 * network.start()])
    found = []
    for steps in (1, 3, 10, 40):
        robust = RobustLoss(softmax, transport_geometry(3.0, squared(), None, 4), steps=steps)
        ascent = robust.ascend(network, theta, x, y)
        found.append(objective(robust, network, theta, ascent, y))
    still = robust.losses(network, theta, x, y)
    assert (found[0] >= still - 1e-6).all()
    for less, more in itertools.pairwise(found):
        assert (more >= less - 1e-5).all()
    assert float(ascent.error[ascent.concavity > 0].max()) < 1e-5


def test_rows_of_several_clients_move_as_they_would_alone(rows):
    x, y = rows
    network = Network(mlp(4, (6,), 3))
    theta = torch.stack([network.start(), 2 * network.start()])
    robust = RobustLoss(softmax, transport_geometry(3.0, squared(), None, 4))
    together = robust.ascend(network, theta, x, y)
    for i in range(2):
        alone = robust.ascend(network, theta[i : i + 1], x[i : i + 1], y[i : i + 1])
        assert torch.allclose(alone.x[0], together.x[i], atol=1e-5)


def test_bounds_and_frozen_columns_hold(rows):
    x, y = rows[0].clamp(0, 1), rows[1]
    x[0, 0, 0] = 5.0  # outside: may come in, and not go farther out
    network = Network(mlp(4, (6,), 3))
    robust = RobustLoss(
        softmax, transport_geometry(0.05, squared(frozen=[2]), None, 4), bounds=(0.0, 1.0), steps=20
    )
    moved = robust.ascend(network, network.start()[None], x, y).x.detach()
    assert torch.equal(moved[..., 2], x[..., 2])
    assert not torch.allclose(moved, x)
    assert float(moved[0, 0, 0]) <= 5.0
    moved[0, 0, 0] = 1.0
    assert float(moved.min()) >= -1e-6
    assert float(moved.max()) <= 1.0 + 1e-6


def test_a_bounded_loss_stops_rows_that_are_beyond_it(rows):
    x, y = rows
    network = Network(mlp(4, (6,), 3))
    robust = RobustLoss(softmax, transport_geometry(np.inf, squared(), None, 4), max_loss=1.0)
    assert float(robust.losses(network, 50 * network.start()[None], x, y).max()) == 1.0


def test_batch_statistics_are_refused():
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6))
    with pytest.raises(ValueError, match="GroupNorm"):
        Network(model)
