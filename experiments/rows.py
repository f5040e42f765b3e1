"""Rows of clients: pooled into one table, or divided into kept and held-out ones."""

from __future__ import annotations

import numpy as np

from dorfl.data.datasets.base import Clients
from dorfl.support.types import Array


def pooled(clients: Clients) -> tuple[Array, Array]:
    """Return the rows and labels of all clients as one table."""
    tables, labels = zip(*clients.values(), strict=True)
    return np.concatenate(tables), np.concatenate(labels)


def hold_out(clients: Clients, share: float, seed: int) -> tuple[list[Array], list[Array]]:
    """Return sorted row numbers of every client: those kept, and a random `share` to hold out."""
    streams = np.random.default_rng([seed, 70]).spawn(len(clients))
    kept, held = [], []
    for (_, y), rng in zip(clients.values(), streams, strict=True):
        order, size = rng.permutation(len(y)), round(share * len(y))
        held.append(np.sort(order[:size]))
        kept.append(np.sort(order[size:]))
    return kept, held
