"""What clients must agree on before the first round: the centre or the scales of a score.

They get there in stages. In each, every client tells something of its own rows, the server makes
one array of what all have told, and everybody knows that in the next stage. No row is told.

>>> rows = gather([(np.ones((8, 2)), np.zeros(8))], torch.float32, classify=True)
>>> find(Center(), rows)["center"].tolist()
[1.0, 1.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch  # noqa: F401 - for the example above

from dorfl.data import robust
from dorfl.networks.data import Rows, gather  # noqa: F401 - for the example above
from dorfl.networks.device import array
from dorfl.objective.methods import Method
from dorfl.support.types import Array

LEAST = 5  # rows that are told of together, at least
Agreed: TypeAlias = dict[str, Array]  # what was agreed on, by stage


class Told(NamedTuple):
    """What a client tells in a stage, and of how many rows; 0 for what it has too few for."""

    values: Array
    weight: Array


class Search(Protocol):
    """How something is found: what a client tells in a stage, and what is made of that."""

    @property
    def stages(self) -> tuple[str, ...]:
        """Their names, in order."""
        ...

    def tell(self, stage: str, rows: Rows, agreed: Agreed) -> Told:
        """What a client with these rows tells, given what the stages before have led to."""
        ...

    def agree(self, stage: str, told: Sequence[Told]) -> Array:
        """What the clients' words lead to; they come in the clients' order."""
        ...


class Center:
    """ξ̄ of a quadratic score, common to all clients: :mod:`dorfl.data.robust`."""

    stages = ("center",)

    def tell(self, stage: str, rows: Rows, agreed: Agreed) -> Told:
        """The mean of the rows that do not lie far out."""
        del stage, agreed
        kept, mean = robust.local_center(array(rows.known(0)[0].flatten(1)), LEAST)
        return Told(mean, np.array([kept], dtype=float))

    def agree(self, stage: str, told: Sequence[Told]) -> Array:
        """The mean of these."""
        del stage
        return robust.average_centers(
            [robust.LocalCenter(float(one.weight[0]), one.values) for one in told]
        )


def search(method: Method, score: Any = None) -> Search | None:
    """How to find what the score needs; `score` stands in for the method's. None: nothing."""
    if score is not None:
        return score if hasattr(score, "stages") else None
    own = None if method.score is None else method.score.center
    return Center() if isinstance(own, str) and own != "client" else None


def find(seeking: Search, rows: Rows) -> Agreed:
    """All stages, with the clients of this process."""
    agreed: Agreed = {}
    for stage in seeking.stages:
        told = [seeking.tell(stage, rows.select([i]), agreed) for i in range(len(rows.names))]
        agreed[stage] = seeking.agree(stage, told)
    return agreed
