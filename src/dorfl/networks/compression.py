"""What travels, made smaller: the largest entries, or 8 bits each. What is lost goes with the next.

Error feedback (Seide et al., 2014; Karimireddy et al., 2019): a client adds what the last message
left out to the next before it is compressed, so that nothing is lost in the long run.

>>> half = top(0.5)
>>> parts = half.pack(torch.tensor([[3.0, 1.0, -2.0, 0.0]]))
>>> half.unpack(parts, 4).tolist(), parts["places"].tolist()
([[3.0, 0.0, -2.0, 0.0]], [[0, 2]])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

_BLOCK = 2048  # numbers that share one scale

Parts: TypeAlias = dict[str, Tensor]  # what travels, each (clients, …)


@dataclass(frozen=True)
class Compression:
    """One of :func:`top` and :func:`eight_bits`, or all numbers as they are."""

    name: str = "none"
    share: float = 1.0

    def pack(self, messages: Tensor) -> Parts:
        """What travels of (clients, P) numbers."""
        size = messages.shape[1]
        if self.name == "none":
            return {"values": messages}
        if self.name == "top":
            count = max(1, round(self.share * size))
            kept = messages.abs().topk(count, dim=1).indices
            return {"values": messages.gather(1, kept), "places": kept.to(torch.int32)}
        blocks = functional.pad(messages, (0, -size % _BLOCK)).unflatten(1, (-1, _BLOCK))
        scale = blocks.abs().amax(2) / 127.0
        levels = (blocks / scale[..., None].clamp(min=1e-30)).round_().to(torch.int8)
        return {"levels": levels.flatten(1)[:, :size], "scale": scale}

    def unpack(self, parts: Parts, size: int) -> Tensor:
        """What arrives: (clients, P) numbers."""
        if self.name == "none":
            return parts["values"]
        if self.name == "top":
            values, places = parts["values"], parts["places"].long()
            return values.new_zeros(len(values), size).scatter_(1, places, values)
        scale = parts["scale"].repeat_interleave(_BLOCK, 1)[:, :size]
        return parts["levels"].to(scale) * scale


def size_of(parts: Parts) -> int:
    """The bytes that one client sends."""
    return sum(part[0].numel() * part.element_size() for part in parts.values())


def top(share: float = 0.1) -> Compression:
    """The largest `share` of the numbers as they are, with their places; the others not at all."""
    if not 0.0 < share <= 1.0:
        raise ValueError(f"top(share={share}): must be above 0 and at most 1")
    return Compression("top", float(share))


def eight_bits() -> Compression:
    """Every number in steps of 1/127 of the largest among its neighbours."""
    return Compression("eight_bits")
