"""Devices: every tensor of a training is made, moved and seeded by these functions.

Parameters, optimizer state, running means and batches are on the device. Rows stay where the user
has them until a batch of them is read, and λ and the clients' risks are NumPy arrays.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from dorfl.support.types import Array


def resolve(name: str) -> torch.device:
    """Return the device; "auto" is the first of CUDA, MPS and the CPU that is there.

    Raises
    ------
    ValueError
        If there is no such device.

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
def seeded(*seed: int) -> Iterator[None]:
    """Seed the random numbers of PyTorch, NumPy and Python inside, and restore them after.

    Dropout draws from PyTorch's, data augmentation from any of the three.
    """
    words = np.random.SeedSequence(seed).generate_state(1)
    # Users' augmentation draws from NumPy's global generator, so that is what must be seeded.
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(int(words[0]))
    np.random.seed(words)  # noqa: NPY002
    try:
        if resolve("auto").type != "cpu":
            with torch.random.fork_rng():
                torch.manual_seed(int(words[0]))
                yield
            return
        state = torch.default_generator.get_state()  # the same as above, without what that costs
        torch.default_generator.manual_seed(int(words[0]))
        try:
            yield
        finally:
            torch.default_generator.set_state(state)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
