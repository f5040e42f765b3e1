"""What every data set here comes as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dorfl.support.types import Array

Clients = Mapping[str, tuple[Array, Array]]


@dataclass(frozen=True)
class Dataset:
    """Clients and test sets by name, and which training rows are known to be wrong."""

    clients: dict[str, tuple[Array, Array]]
    test: dict[str, tuple[Array, Array]]
    outliers: dict[str, Array]  # True for a training row known, or strongly suspected, to be wrong
    feature_names: tuple[str, ...]
    theta: Array | None = None  # the parameter the labels were drawn with, where they were drawn
    frozen: tuple[int, ...] = ()  # columns that stand for categories: a row cannot drift in them
    units: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # column: zero and unit

    def in_units(self, column: str, value: float) -> float:
        """A value in the column's own units as the rows here have it."""
        zero, unit = self.units.get(column, (0.0, 1.0))
        return (value - zero) / unit

    def uncontaminated(self) -> dict[str, tuple[Array, Array]]:
        """The clients without the rows known to be wrong."""
        return {
            name: (X[~self.outliers[name]], y[~self.outliers[name]])
            for name, (X, y) in self.clients.items()
        }


def seventy_percent(count: int, seed: int) -> Array:
    """Which of so many rows are to train on: 70 % of them, drawn at random."""
    drawn = np.zeros(count, dtype=bool)
    order = np.random.default_rng([seed, count]).permutation(count)
    drawn[order[: round(0.7 * count)]] = True
    return drawn


def pooled(clients: Clients) -> tuple[Array, Array]:
    """All rows and labels as one table, client after client."""
    tables, labels = zip(*clients.values(), strict=True)
    return np.concatenate(tables), np.concatenate(labels)


def hold_out(clients: Clients, share: float, seed: int) -> tuple[list[Array], list[Array]]:
    """Row numbers of every client, some kept and a share held out, each in its own random order."""
    streams = np.random.default_rng([seed, 70]).spawn(len(clients))
    kept, held = [], []
    for (_, y), rng in zip(clients.values(), streams, strict=True):
        order, size = rng.permutation(len(y)), round(share * len(y))
        held.append(np.sort(order[:size]))
        kept.append(np.sort(order[size:]))
    return kept, held
