"""A module as a function of one vector θ, so that clients, servers and files handle numbers only.

>>> network = Network(mlp(4, (8,), 3))
>>> theta = network.start()
>>> rows = torch.zeros(2, 5, 4)                            # two clients, five rows each
>>> network.outputs(theta.expand(2, -1), rows).shape
torch.Size([2, 5, 3])
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_leaves, tree_map

from dorfl.networks.device import mapped

CONVOLUTIONS = (nn.modules.conv._ConvNd,)  # the base class of all
_DTYPES = (torch.float16, torch.float32, torch.float64)


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Module:
    """Return a fully connected network with ReLU between its layers.

    Parameters
    ----------
    inputs
        Number of inputs.
    hidden
        Widths of the hidden layers.
    outputs
        Number of outputs.
    """
    widths = [inputs, *hidden]
    layers: list[nn.Module] = []
    for one, next_one in itertools.pairwise(widths):
        layers += [nn.Linear(one, next_one), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


class Network:
    """A module whose trainable parameters are one vector; see :meth:`outputs`."""

    def __init__(self, module: nn.Module, device: torch.device | None = None) -> None:
        self.module = copy.deepcopy(module)
        if device is not None:
            self.module = self.module.to(device)
        trained = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        if not trained:
            raise ValueError("model: it has no parameters to train")
        _refuse_batch_statistics(self.module)
        lazy = next((n for n, p in trained.items() if nn.parameter.is_lazy(p)), None)
        if lazy is not None:
            raise ValueError(
                f"model: {lazy} has no shape yet; pass some rows through the model first"
            )
        strange = next((n for n, p in trained.items() if p.dtype not in _DTYPES), None)
        if strange is not None:
            raise ValueError(
                f"model: {strange} is {trained[strange].dtype}, and what is trained must be real "
                "numbers that NumPy has too: float32 or float64"
            )
        self.names = tuple(trained)
        self.shapes = tuple(tuple(p.shape) for p in trained.values())
        self.sizes = tuple(p.numel() for p in trained.values())
        self.size = sum(self.sizes)
        self._trained = list(trained.values())
        self._start = torch.cat([p.detach().reshape(-1) for p in self._trained])
        self._loaded: Tensor | None = None
        self.convolves = any(isinstance(part, CONVOLUTIONS) for part in self.module.modules())
        self.has_user_code = not all(
            type(part).__module__.startswith("torch.nn.") for part in self.module.modules()
        )
        self._one_by_one = False  # whether `vmap` cannot batch the module over clients

    def start(self) -> Tensor:
        """Return θ as the module was given."""
        return self._start.clone()

    def load(self, theta: Tensor) -> list[nn.Parameter]:
        """Put θ (1, P) into the module, without a copy, for :meth:`outputs` without θ."""
        if theta is not self._loaded:  # else a step has changed it in place
            pieces = zip(self._trained, theta[0].split(self.sizes), self.shapes, strict=True)
            for parameter, piece, shape in pieces:
                parameter.data = piece.view(shape)
            self._loaded = theta
        return self._trained

    def parameters(self, theta: Tensor) -> dict[str, Tensor]:
        """Return θ by parameter."""
        pieces = theta.split(self.sizes)
        return {n: v.view(s) for n, v, s in zip(self.names, pieces, self.shapes, strict=True)}

    def outputs(self, theta: Tensor | None, x: Any) -> Tensor:
        """Return outputs of rows (clients, n, …), each client at its own θ (clients, P).

        One θ for all is given as (1, P). None means the θ of :meth:`load`.
        """
        first = x if isinstance(x, Tensor) else tree_leaves(x)[0]
        return self.flat_outputs(theta, x).unflatten(0, first.shape[:2])

    def flat_outputs(self, theta: Tensor | None, x: Any) -> Tensor:
        """Return outputs like :meth:`outputs`, for all clients in one batch, (clients · n, …)."""
        if theta is None or len(theta) == 1:
            return self._call(None if theta is None else theta[0], joined(x))
        if not self._one_by_one:
            try:
                return vmap(self._call, randomness="different")(theta, x).flatten(0, 1)
            except RuntimeError:  # a recurrent layer, or a choice that depends on the rows
                self._one_by_one = True
        parts = [tree_map(itemgetter(k), (theta, x)) for k in range(len(theta))]
        return torch.cat([self._call(*own) for own in parts])

    def module_at(self, theta: Tensor) -> nn.Module:
        """Return a copy of the module with the parameters θ, in eval mode."""
        made = copy.deepcopy(self.module).eval()
        with torch.no_grad():
            own = dict(made.named_parameters())
            for name, value in self.parameters(theta).items():
                own[name].copy_(value)
        return made

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch dropout off inside: the supremum of a row is that of the model as it predicts.

        PyTorch's fast path for attention, which has no gradient by rows, is off as well.
        """
        before = [(part, part.training) for part in self.module.modules()]  # frozen parts rest
        short = torch.backends.mha.get_fastpath_enabled()
        self.module.eval()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            for part, training in before:
                part.training = training
            torch.backends.mha.set_fastpath_enabled(short)

    def _call(self, theta: Tensor | None, x: Any) -> Tensor:
        if theta is None:
            out = call(self.module, x)
        else:
            own = self.parameters(theta)
            out = call(lambda *a, **k: functional_call(self.module, own, a, k), x)
        if not isinstance(out, Tensor):
            raise ValueError(
                f"model: returns a {type(out).__name__}, and one tensor (rows, outputs) is "
                "needed; wrap it in a module that gives the one to train"
            )
        return out


def call(module: Callable[..., Any], x: Any) -> Any:
    """Return what a module puts out for a tensor, a tuple of arguments or a dict of keywords."""
    if isinstance(x, dict):
        return module(**x)
    return module(*x) if isinstance(x, tuple | list) else module(x)


def joined(x: Any) -> Any:
    """Return the rows of all clients, (clients, n, …), as rows of one batch, (clients · n, …)."""
    return mapped(lambda leaf: leaf.flatten(0, 1), x)


def make(model: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return the module, or the one that the function makes from random numbers of `seed`."""
    if isinstance(model, nn.Module):
        return model
    if not callable(model):
        raise ValueError(f"model={model!r}: give a torch.nn.Module or a function that makes one")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: Any = model()
    if not isinstance(made, nn.Module):
        raise ValueError(f"model={model!r}: it made a {type(made).__name__}, not a torch.nn.Module")
    return made


def _refuse_batch_statistics(module: nn.Module) -> None:
    for name, part in module.named_modules():
        known = getattr(part, "running_mean", None) is not None
        if part.training and (known or "BatchNorm" in type(part).__name__):
            raise ValueError(
                f"model: {name or 'it'} is {type(part).__name__}: its output for a row depends on "
                "the batch's other rows, so a row has no worst place of its own, and clients that "
                "differ have no common statistics; use GroupNorm or LayerNorm, or freeze: .eval()"
            )
