"""Optimizers of clients and server: SGD, with momentum, and Adam, on one vector or one per client.

Any object with the two methods of :class:`Optimizer` will do, such as the proximal steps of
``examples/fedprox.py``.

>>> optimizer = sgd(0.5)
>>> theta = torch.ones(2)
>>> optimizer.step(theta, torch.ones(2), optimizer.start(theta), 1).tolist()
[0.5, 0.5]
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Optimizer(Protocol):
    """Steps along a gradient. Vectors have the shape (P,) at the server, (clients, P) at clients.

    `lr` is the learning rate, which a schedule multiplies on a copy of the object.
    """

    @property
    def lr(self) -> float:
        """Learning rate."""
        ...

    def start(self, theta: Tensor) -> list[Tensor]:
        """Return what is carried from step to step, before the first step from `theta`."""
        ...

    def step(self, theta: Tensor, gradient: Tensor, carried: list[Tensor], count: int) -> Tensor:
        """Return `theta` after step number `count`, from 1; may change its arguments in place."""
        ...


@dataclass(frozen=True)
class SGD:
    """θ ← θ − lr · v with v ← momentum · v + gradient."""

    lr: float
    momentum: float = 0.0

    def start(self, theta: Tensor) -> list[Tensor]:
        """Return v = 0, or nothing without momentum."""
        return [torch.zeros_like(theta)] if self.momentum > 0 else []

    def step(self, theta: Tensor, gradient: Tensor, carried: list[Tensor], count: int) -> Tensor:
        """Change θ, and v, in place."""
        del count
        if self.momentum > 0:
            gradient = carried[0].mul_(self.momentum).add_(gradient)
        return theta.sub_(gradient, alpha=self.lr)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015)."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def start(self, theta: Tensor) -> list[Tensor]:
        """Return the running means of the gradient and of its square, which start at 0."""
        return [torch.zeros_like(theta), torch.zeros_like(theta)]

    def step(self, theta: Tensor, gradient: Tensor, carried: list[Tensor], count: int) -> Tensor:
        """Change θ and the running means in place."""
        mean, square = carried
        mean.lerp_(gradient, 1.0 - self.beta1)
        square.mul_(self.beta2).addcmul_(gradient, gradient, value=1.0 - self.beta2)
        scale = (1.0 - self.beta2**count) ** 0.5
        lr = self.lr * scale / (1.0 - self.beta1**count)
        return theta.addcdiv_(mean, square.sqrt().add_(self.eps * scale), value=-lr)


def cosine(rounds: int, warmup: int = 0) -> Callable[[int], float]:
    """Return a schedule: linear warm-up, then a cosine down to 0.001 of the rate at `rounds`.

    >>> [round(cosine(10, warmup=2)(number), 3) for number in (1, 2, 6, 10)]
    [0.5, 1.0, 0.5, 0.001]
    """

    def factor(number: int) -> float:
        if number <= warmup:
            return number / warmup
        done = min(1.0, (number - warmup) / max(1, rounds - warmup))
        return max(0.5 * (1.0 + math.cos(math.pi * done)), 1e-3)

    return factor


def at_round(
    optimizer: Optimizer, schedule: Callable[[int], float] | None, number: int
) -> Optimizer:
    """Return the optimizer with the learning rate of a round."""
    if schedule is None:
        return optimizer
    made = copy.copy(optimizer)
    object.__setattr__(made, "lr", optimizer.lr * float(schedule(number)))
    return made


def sgd(lr: float, momentum: float = 0.0) -> SGD:
    """Return SGD with learning rate `lr` and `momentum` from 0 to below 1."""
    _check("sgd", lr)
    if not 0.0 <= momentum < 1.0:
        raise ValueError(f"sgd(momentum={momentum}): must be from 0 to below 1")
    return SGD(float(lr), float(momentum))


def adam(lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Adam:
    """Return Adam with learning rate `lr` and the decay rates β₁ and β₂ of its running means."""
    _check("adam", lr)
    if not (0.0 < beta1 < 1.0 and 0.0 < beta2 < 1.0):
        raise ValueError(f"adam(beta1={beta1}, beta2={beta2}): must be between 0 and 1")
    return Adam(float(lr), float(beta1), float(beta2), float(eps))


def _check(name: str, lr: float) -> None:
    if not 0.0 < lr < float("inf"):
        raise ValueError(f"{name}(lr={lr}): must be a positive number")
