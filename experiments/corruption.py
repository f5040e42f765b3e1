"""Corruption of the benchmark's training rows.

>>> rows = {"a": (np.ones((10, 4), np.float32), np.arange(10) % 2)}
>>> made, wrong = spoil(rows, "negate", 0)
>>> int(wrong["a"].sum()), float(made["a"][0][wrong["a"]].max())
(1, -8.0)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dorfl.data.datasets.base import Clients
from dorfl.support.types import Array
from experiments.rows import pooled

SHARES = {  # of the training rows that are wrong
    "clean": 0.0,
    "negate": 0.1,
    "labels": 0.2,
    "liar": 0.45,
}
ABOUT = {
    "clean": "nothing is wrong",
    "negate": "one row in ten times −8",
    "labels": "one label in five wrong",
    "liar": "45 % of the labels of one client wrong",
}
FACTOR = -8.0


class Columns(NamedTuple):
    """Columns that show an outlier (None: all), and columns of categories."""

    measured: tuple[int, ...] | None = None
    frozen: tuple[int, ...] = ()


PLAIN = Columns()


class Task(NamedTuple):
    """Clients to train on, clients to test on, and which training rows are wrong."""

    clients: dict[str, tuple[Array, Array]]
    test: dict[str, tuple[Array, Array]]
    wrong: dict[str, Array]
    columns: Columns = PLAIN


def make(clients: Clients, test: Clients, kind: str, seed: int, columns: Columns = PLAIN) -> Task:
    """Return a task whose training rows are wrong in one way; test rows are right."""
    made, wrong = spoil(clients, kind, seed)
    return Task(made, dict(test), wrong, columns)


def spoil(
    clients: Clients, kind: str, seed: int
) -> tuple[dict[str, tuple[Array, Array]], dict[str, Array]]:
    """Return clients with some rows made wrong as :data:`ABOUT` says, and which rows these are."""
    if kind not in SHARES:
        raise ValueError(f"{kind!r}: choose one of {', '.join(SHARES)}")
    known = np.unique(pooled(clients)[1])
    made, wrong = {}, {}
    for i, (name, (X, y)) in enumerate(clients.items()):
        rng = np.random.default_rng([seed, 12, i])
        share = SHARES[kind] if kind != "liar" or i == 0 else 0.0
        bad = np.zeros(len(y), dtype=bool)
        bad[rng.permutation(len(y))[: round(share * len(y))]] = True
        rows, labels = np.array(X, dtype=np.float32), np.array(y)
        if kind == "negate":
            rows[bad] *= FACTOR
        elif bad.any():
            place = np.searchsorted(known, y[bad])
            labels[bad] = known[(place + rng.integers(1, len(known), len(place))) % len(known)]
        made[name], wrong[name] = (rows, labels), bad
    return made, wrong
