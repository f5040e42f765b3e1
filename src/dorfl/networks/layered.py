"""A fully connected network for tables in NumPy. Only training needs PyTorch.

>>> from dorfl.objective import losses, methods
>>> problem = Layered(methods.erm(), losses.logistic, 2, np.arange(2), hidden=(3,))
>>> problem.size, problem.predict(np.ones(problem.size), np.zeros((1, 2))).tolist()
(13, [4.0])
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from dorfl.linear.problem import Problem
from dorfl.support.types import Array

NO_CERTIFICATE = (
    "this model is a network, and the exact certificate is for linear models: train a linear one, "
    "or measure the network on rows it has not seen"
)


@dataclass(frozen=True, eq=False)
class Layered(Problem):
    """Fully connected layers of widths `hidden` with ReLU between them; θ is one vector.

    Numbers are in the order, and have the names, of :func:`dorfl.networks.mlp`.
    """

    hidden: tuple[int, ...] = (64, 64)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Widths of the layers, from inputs to outputs."""
        return (self.dims, *self.hidden, self.outputs)

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return sum(map(math.prod, self.shapes.values()))

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the layers: "0.weight" (outputs, inputs), "0.bias", "2.weight", …."""
        found: dict[str, tuple[int, ...]] = {}
        for k, (one, two) in enumerate(pairwise(self.widths)):
            found |= {f"{2 * k}.weight": (two, one), f"{2 * k}.bias": (two,)}
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of θ, one vector."""
        return (self.size,)

    def split(self, theta: Array) -> tuple[Array, Array]:
        """Raise ValueError: there are no coefficients to derive a certificate from."""
        del theta
        raise ValueError(NO_CERTIFICATE)

    def arrays(self, theta: Array) -> dict[str, Array]:
        """Return θ by layer, in the order and with the names of `shapes`."""
        flat, place, found = np.ravel(theta), 0, dict[str, Array]()
        for name, shape in self.shapes.items():
            found[name] = flat[place : place + math.prod(shape)].reshape(shape)
            place += math.prod(shape)
        return found

    def gathered(self, arrays: Mapping[str, Array]) -> Array:
        """Return θ from its layers; ValueError if they are not those of this network."""
        if set(arrays) != set(self.shapes):
            raise ValueError("its layers are not those of `network.hidden`")
        for name, shape in self.shapes.items():
            if arrays[name].shape != shape:
                raise ValueError(f"its layer {name} is not of the size that `network.hidden` gives")
            if not np.isfinite(arrays[name]).all():
                raise ValueError(f"its layer {name} is damaged")
        return np.concatenate([arrays[name].ravel() for name in self.shapes]).astype(np.float64)

    def predict(self, theta: Array, rows: Array) -> Array:
        """Return the network's outputs for rows: (n,), or (n, classes) for softmax."""
        x, layers = np.asarray(rows, dtype=np.float64), list(self.arrays(theta).values())
        for k in range(0, len(layers), 2):
            x = (np.maximum(x, 0.0) if k else x) @ layers[k].T + layers[k + 1]
        return x if self.outputs > 1 else x[:, 0]


def layered(problem: Problem) -> Layered:
    """Return the problem of a network with a linear one's method, loss, columns and classes."""
    return Layered(problem.method, problem.loss, problem.dims, problem.classes)
