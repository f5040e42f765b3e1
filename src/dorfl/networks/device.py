"""Devices: every tensor of a training is made, moved and seeded by these functions.

Parameters, optimizer state, running means and batches are on the device. Rows stay where the user
has them until a batch of them is read, and λ and the clients' risks are NumPy arrays.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from dorfl.support.types import Array


@cache
def resolve(name: str) -> torch.device:
    """Return the device; "auto" is the first of CUDA, MPS and the CPU that is there.

    >>> resolve("cpu")
    device(type='cpu')
    """
    if name == "auto":
        for kind in ("cuda", "mps"):
            if getattr(torch, kind).is_available():
                return torch.device(kind)
        return torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        known = '"auto", "cpu", "cuda" or "mps"'
        raise ValueError(f"device={name!r}: {reason}. Give {known}") from None
    return device


def mapped(change: Callable[[Tensor], Tensor], x: Any) -> Any:
    """Return inputs, a tensor or a tuple or dict of tensors, with each tensor changed."""
    return change(x) if isinstance(x, Tensor) else tree_map(change, x)


def tensor(values: Any, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return values as a tensor on the device of `like`, of its dtype unless another is given."""
    made = torch.as_tensor(values)
    return made.to(device=like.device, dtype=dtype or like.dtype)


def array(values: Tensor) -> Array:
    """Return a tensor as a NumPy array."""
    return np.asarray(values.detach().cpu().numpy())


def wide(like: Tensor) -> torch.dtype:
    """Return the dtype of running means: float64, or float32 on MPS, which has no other."""
    return torch.float32 if like.device.type == "mps" else torch.float64


@contextmanager
def seeded(*seed: int, torch_only: bool = False) -> Iterator[None]:
    """Seed the random numbers of PyTorch, NumPy and Python inside, and restore them after.

    Dropout draws from PyTorch's, data augmentation from any of the three. `torch_only` saves the
    time of the others, for layers of `torch.nn` on rows in memory.
    """
    numbers = np.random.SeedSequence(seed).generate_state(1)
    # Users' augmentation draws from NumPy's global generator, so that is what must be seeded.
    others = None if torch_only else (random.getstate(), np.random.get_state())  # noqa: NPY002
    if others is not None:
        random.seed(int(numbers[0]))
        np.random.seed(numbers)  # noqa: NPY002
    cpu_only = resolve("auto").type == "cpu"
    state = torch.default_generator.get_state()
    try:
        with nullcontext() if cpu_only else torch.random.fork_rng():
            if cpu_only:
                torch.default_generator.manual_seed(int(numbers[0]))
            else:
                torch.manual_seed(int(numbers[0]))
            yield
    finally:
        torch.default_generator.set_state(state)
        if others is not None:
            random.setstate(others[0])
            np.random.set_state(others[1])  # noqa: NPY002
