"""Placement on a second device, which PyTorch's meta device stands in for: it refuses to mix two.

Its tensors have shapes and no numbers, so this shows where things are, and that nothing is looked
at on the way, which a GPU would wait for.
"""

import numpy as np
import pytest
import torch
from test_network_training import blobs, model, quick

from dorfl import methods
from dorfl.networks import adam, sgd
from dorfl.networks.client import LocalClients
from dorfl.networks.data import gather
from dorfl.networks.device import resolve, seeded
from dorfl.networks.model import Network
from dorfl.networks.plan import Plan
from dorfl.networks.supremum import RobustLoss, softmax, transport_geometry
from dorfl.networks.tilt import RowTilt

SECOND = torch.device("meta")


@pytest.mark.parametrize("who", [[0], [0, 1, 2]], ids=["alone", "together"])
@pytest.mark.parametrize(
    ("rho", "temperature", "given"),
    [
        (np.inf, np.inf, {"optimizer": adam(0.1)}),
        (5.0, 4.0, {"optimizer": sgd(0.1, 0.9), "l2": 0.1}),
        (5.0, np.inf, {"trim": 0.1, "input_bounds": (-3.0, 3.0)}),
    ],
)
def test_a_clients_round_stays_on_its_device(who, rho, temperature, given):
    plan = Plan(batch_size=8, local_steps=2, **given)
    method = methods.method(rho=rho, temperature=temperature)
    rows = gather(blobs(), torch.float32, classify=True, device=SECOND)
    with SECOND:
        network = Network(model())
    theta = network.start()
    robust = RobustLoss(
        softmax, transport_geometry(rho, method.cost, None, 2, theta), bounds=plan.input_bounds
    )
    local = LocalClients(network, rows, robust, RowTilt(temperature, 0.9, plan.trim), plan, method)
    seen = local.begin()[who]
    reply = local.reply(theta, 1, who, seen)
    for part in (theta, reply.updates, reply.risks, reply.means):
        assert part.device == SECOND
    server = plan.used_server_optimizer
    after = server.step(theta, reply.updates[0], server.start(theta), 1)
    assert after.device == SECOND


def test_a_device_that_is_not_there_is_refused_and_auto_is_one_that_is():
    assert resolve("auto").type in ("cpu", "cuda", "mps")
    missing = "mps" if not torch.backends.mps.is_available() else "cuda"
    for name in (missing, "tpu9"):
        with pytest.raises(ValueError, match='Give "auto"'):
            quick(blobs(), methods.erm(), device=name)
    fits = [quick(blobs(), methods.erm(), device=name) for name in ("cpu", "auto")]
    assert fits[0].theta == pytest.approx(fits[1].theta, abs=1e-4)


def test_random_numbers_are_seeded_inside_and_restored_after():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    with seeded(1, 2):
        one = torch.rand(3), np.random.rand(3)  # noqa: NPY002 - what augmentation draws from
    assert torch.equal(torch.random.get_rng_state(), before)
    with seeded(1, 2):
        two = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    assert torch.equal(one[0], two[0])
    assert np.array_equal(one[1], two[1])
