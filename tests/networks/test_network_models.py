"""Models and data of the size that people bring: ResNet-18, a transformer, 2 GB of pictures."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import dorfl

pytestmark = pytest.mark.slow


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.one = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm_one, self.norm_two = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.short = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.short = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        inner = self.norm_two(self.two(torch.relu(self.norm_one(self.one(x)))))
        return torch.relu(inner + self.short(x))


class ResNet18(nn.Module):
    """The layers of He et al. (2016): 11.2 million parameters."""

    def __init__(self, outputs):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        blocks = [b for i, o, s in widths for b in (Block(i, o, s), Block(o, o, 1))]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(512, outputs)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def pictures(count, seed):
    """Two classes: the left or the right half is brighter."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, count)
    X = rng.normal(size=(count, 3, 32, 32)).astype(np.float32)
    X[y == 0, :, :, :16] += 1.0
    X[y == 1, :, :, 16:] += 1.0
    return X, y


@pytest.mark.parametrize("whole", [False, True], ids=["head", "all but normalisation"])
def test_a_resnet_with_frozen_normalisation_is_fine_tuned(whole):
    torch.manual_seed(0)
    model = ResNet18(2).eval()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_((whole and "norm" not in name) or name.startswith("head"))
    clients = {f"c{k}": pictures(24, k) for k in range(2)}
    fit = dorfl.train(
        clients, "erm", model=model, rounds=10 if whole else 40, batch_size=8,
        lr=1e-3 if whole else 1e-2,
    )  # fmt: skip
    assert fit.objective < 0.6
    for name, value in model.named_buffers():
        assert torch.equal(dict(fit.model.named_buffers())[name], value)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.place = nn.Embedding(50, 16), nn.Parameter(0.1 * torch.randn(12, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        return self.out(self.layers(self.table(x) + self.place).mean(1))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("method", [None, "afl"])
def test_a_transformer_of_two_layers_learns_from_token_ids_by_default(method):
    rng = np.random.default_rng(0)
    clients = {}
    for name in ("a", "b", "c"):
        X = rng.integers(0, 50, (120, 12))
        clients[name] = (X, ((X < 10).sum(1) > (X >= 40).sum(1)).astype(int))
    fit = dorfl.train(clients, method, model=Transformer)
    assert fit.method.score is None
    assert min(fit.score(*rows) for rows in clients.values()) > 0.85


LAZY = """
import numpy as np, torch, dorfl
from torch import nn
from torch.utils.data import Dataset

class Pictures(Dataset):
    targets = np.arange(400) % 2
    def __len__(self):
        return 400
    def __getitem__(self, i):
        return torch.full((3, 662, 662), float(self.targets[i])), self.targets[i]

torch.set_num_threads(1)
rows = 2 * 400 * 3 * 662**2 * 4
assert rows > 2 * 2**30
def model():
    return nn.Sequential(nn.AvgPool2d(331), nn.Flatten(), nn.Linear(12, 2))
fit = dorfl.train([Pictures(), Pictures()], "erm", model=model, rounds=3, batch_size=8)
# getrusage would count the process that started this one.
status = open("/proc/self/status").read().split()
peak = int(status[status.index("VmHWM:") + 1]) * 1024
assert peak < 2**30, peak
print(rows, peak)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="measured by Linux")
def test_two_gigabytes_of_lazy_rows_in_one_of_memory():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LAZY], capture_output=True, check=False, text=True,
        # Freed blocks go back to the system, so that the peak is what is held, not fragments.
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
