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
    "adam": "optimizers",
    "by_column": "partition",
    "coordinate_median": "aggregation",
    "cosine": "optimizers",
    "dirichlet": "partition",
    "distance": "scores",
    "from_flwr_datasets": "partition",
    "geometric_median": "aggregation",
    "iid": "partition",
    "krum": "aggregation",
    "load": "saving",
    "mlflow": "evaluation",
    "mlp": "model",
    "NetworkFit": "training",
    "oracle": "training",
    "Plan": "plan",
    "Progress": "evaluation",
    "save": "saving",
    "sgd": "optimizers",
    "shards": "partition",
    "tensorboard": "evaluation",
    "train": "training",
    "trimmed_mean": "aggregation",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    """Import on first use what needs PyTorch; the rest of dorfl does without."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'dorfl.networks' has no attribute {name!r}")
    if _PUBLIC[name] != "partition":
        require()
    return getattr(importlib.import_module(f"dorfl.networks.{_PUBLIC[name]}"), name)


def require() -> None:
    """Raise ModuleNotFoundError with what to install if PyTorch is missing."""
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"networks need PyTorch; install it with: {lazy.install_command('torch')}"
        ) from None
