"""Steps along a gradient: plain, with momentum, and Adam, on vectors or on one vector per client.

>>> rule = sgd(0.5)
>>> theta = torch.ones(2)
>>> rule.step(theta, torch.ones(2), rule.start(theta), 1).tolist()
[0.5, 0.5]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rule:
    """One of :func:`sgd` and :func:`adam`."""

    rate: float
    momentum: float = 0.0
    second: float = 0.0  # Adam's memory of squares; 0: none
    tiny: float = 1e-8

    def start(self, theta: Tensor) -> list[Tensor]:
        """What is carried from step to step, before the first."""
        return [torch.zeros_like(theta) for _ in range((self.momentum > 0) + (self.second > 0))]

    def step(self, theta: Tensor, gradient: Tensor, carried: list[Tensor], count: int) -> Tensor:
        """θ after step number `count`; θ and what is carried are changed in place."""
        if self.second > 0:
            mean, square = carried
            mean.lerp_(gradient, 1.0 - self.momentum)
            square.mul_(self.second).addcmul_(gradient, gradient, value=1.0 - self.second)
            scale = (1.0 - self.second**count) ** 0.5
            rate = self.rate * scale / (1.0 - self.momentum**count)
            return theta.addcdiv_(mean, square.sqrt().add_(self.tiny * scale), value=-rate)
        if self.momentum > 0:
            gradient = carried[0].mul_(self.momentum).add_(gradient)
        return theta.sub_(gradient, alpha=self.rate)


def sgd(rate: float, momentum: float = 0.0) -> Rule:
    """θ ← θ − rate · v, v ← momentum · v + gradient."""
    _check("sgd", rate, momentum)
    return Rule(float(rate), float(momentum))


def adam(rate: float = 1e-3, momentum: float = 0.9, second: float = 0.999) -> Rule:
    """Adam (Kingma and Ba, 2015)."""
    _check("adam", rate, momentum)
    if not 0.0 < second < 1.0 or not momentum > 0.0:
        raise ValueError(f"adam(momentum={momentum}, second={second}): between 0 and 1")
    return Rule(float(rate), float(momentum), float(second))


def _check(name: str, rate: float, momentum: float) -> None:
    if not 0.0 < rate < float("inf"):
        raise ValueError(f"{name}(rate={rate}): must be a positive number")
    if not 0.0 <= momentum < 1.0:
        raise ValueError(f"{name}(momentum={momentum}): must be from 0 to below 1")
