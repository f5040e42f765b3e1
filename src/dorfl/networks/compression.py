"""What travels, made smaller: the largest entries, or 8 bits each. What is lost goes with the next.

Error feedback (Seide et al., 2014; Karimireddy et al., 2019): a client adds what the last message
left out to the next before it is compressed, so that nothing is lost in the long run.

>>> sent, bytes_sent = top(0.5).squeeze(torch.tensor([[3.0, 1.0, -2.0, 0.0]]))
>>> sent.tolist(), bytes_sent
([[3.0, 0.0, -2.0, 0.0]], 16)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_BLOCK = 2048  # numbers that share one scale


@dataclass(frozen=True)
class Compression:
    """One of :func:`top` and :func:`eight_bits`."""

    name: str
    share: float = 1.0

    def squeeze(self, messages: Tensor) -> tuple[Tensor, int]:
        """What arrives of (clients, P) numbers, and the bytes that one client sends."""
        size = messages.shape[1]
        if self.name == "top":
            count = max(1, round(self.share * size))
            kept = messages.abs().topk(count, dim=1).indices
            sent = torch.zeros_like(messages).scatter_(1, kept, messages.gather(1, kept))
            return sent, count * (messages.element_size() + 4)
        blocks = functional.pad(messages, (0, -size % _BLOCK)).unflatten(1, (-1, _BLOCK))
        scale = blocks.abs().amax(2, keepdim=True) / 127.0
        levels = (blocks / scale.clamp(min=1e-30)).round_()
        return (levels * scale).flatten(1)[:, :size], size + 4 * blocks.shape[1]


def top(share: float = 0.1) -> Compression:
    """The largest `share` of the numbers as they are, with their places; the others not at all."""
    if not 0.0 < share <= 1.0:
        raise ValueError(f"top(share={share}): must be above 0 and at most 1")
    return Compression("top", float(share))


def eight_bits() -> Compression:
    """Every number in steps of 1/127 of the largest among its neighbours."""
    return Compression("eight_bits")
