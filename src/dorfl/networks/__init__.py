"""Networks: the same methods for any PyTorch model (extra `torch`).

>>> import dorfl
>>> data = dorfl.datasets.synthetic(seed=0)
>>> fit = dorfl.train(
...     data.clients, dorfl.methods.afl(), model=lambda: dorfl.networks.mlp(5, (8,), 2), rounds=3
... )
>>> fit.lam.shape, fit.model[0]
((3,), Linear(in_features=5, out_features=8, bias=True))
"""

from __future__ import annotations

import importlib
from typing import Any

from dorfl.support import lazy

_PUBLIC = {
    "NetworkFit": "training",
    "Plan": "plan",
    "Progress": "callbacks",
    "adam": "optimizers",
    "coordinate_median": "aggregation",
    "cosine": "optimizers",
    "distance": "scores",
    "eight_bits": "compression",
    "geometric_median": "aggregation",
    "krum": "aggregation",
    "load": "saving",
    "mlflow": "callbacks",
    "mlp": "model",
    "oracle": "training",
    "reference": "scores",
    "save": "saving",
    "sgd": "optimizers",
    "tensorboard": "callbacks",
    "top": "compression",
    "train": "training",
    "trimmed_mean": "aggregation",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    """What is asked for, and torch with it: the rest of dorfl does without."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'dorfl.networks' has no attribute {name!r}")
    require()
    return getattr(importlib.import_module(f"dorfl.networks.{_PUBLIC[name]}"), name)


def require() -> None:
    """Say what to install where PyTorch is missing."""
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"networks need PyTorch; install it with: {lazy.install_command('torch')}"
        ) from None
