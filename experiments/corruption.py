"""Corruption of the benchmark's training rows, and noise on test rows.

>>> rows = {"a": (np.ones((10, 4), np.float32), np.arange(10) % 2)}
>>> made, wrong = spoil(rows, "negate", 0)
>>> int(wrong["a"].sum()), float(made["a"][0][wrong["a"]].max())
(1, -8.0)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dorfl.data.datasets.base import Clients, pooled
from dorfl.support.types import Array

SHARES = {  # of the training rows that are wrong
    "clean": 0.0,
    "negate": 0.1,
    "scale": 0.1,
    "noise": 0.2,
    "cluster": 0.1,
    "labels": 0.2,
    "liar": 0.45,
    "backdoor": 0.5,
    "shift": 0.0,
}
ABOUT = {
    "clean": "nothing is wrong",
    "negate": "one row in ten times −8",
    "scale": "one row in ten times 8",
    "noise": "one row in five replaced by noise",
    "cluster": "one row in ten in a far cluster, at −8 times another client's mean",
    "labels": "one label in five wrong",
    "liar": "45 % of the labels of one client wrong",
    "backdoor": "half the pictures of one client marked, with another client's label",
    "shift": "clean training rows, noise on the test rows",
}
ONE_CLIENT = ("liar", "backdoor")
FACTOR, PATCH = 8.0, 4  # pixels along a side of the mark


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
    target: int | None = None  # the label a mark is to bring about

    def marked(self) -> Array:
        """Return test rows of all labels but the target's, with the mark."""
        X, y = pooled(self.test)
        return mark(X[y != self.target])


def make(
    clients: Clients,
    test: Clients,
    kind: str,
    seed: int,
    *,
    shift: float = 0.2,
    columns: Columns = PLAIN,
) -> Task:
    """Return a task whose training rows are wrong in one way; `shift` is the noise on test rows."""
    made, wrong = spoil(clients, kind, seed)
    tested = dict(test)
    if kind == "shift":
        rng = np.random.default_rng([seed, 13])
        tested = {
            name: ((X + shift * rng.standard_normal(X.shape)).astype(np.float32), y)
            for name, (X, y) in test.items()
        }
    target = _target(clients) if kind == "backdoor" else None
    return Task(made, tested, wrong, columns, target)


def spoil(
    clients: Clients, kind: str, seed: int
) -> tuple[dict[str, tuple[Array, Array]], dict[str, Array]]:
    """Return clients with some rows made wrong as :data:`ABOUT` says, and which rows these are."""
    if kind not in SHARES:
        raise ValueError(f"{kind!r}: choose one of {', '.join(SHARES)}")
    known = np.unique(pooled(clients)[1])
    means = [X.mean(0) for X, _ in clients.values()]
    made, wrong = {}, {}
    for i, (name, (X, y)) in enumerate(clients.items()):
        rng = np.random.default_rng([seed, 12, i])
        share = SHARES[kind] if kind not in ONE_CLIENT or i == 0 else 0.0
        bad = np.zeros(len(y), dtype=bool)
        bad[rng.permutation(len(y))[: round(share * len(y))]] = True
        rows, labels = np.array(X, dtype=np.float32), np.array(y)
        if kind in ("negate", "scale"):
            rows[bad] *= FACTOR if kind == "scale" else -FACTOR
        elif kind == "noise":
            low, high = X.min(), X.max()
            rows[bad] = low + (high - low) * rng.random((int(bad.sum()), X.shape[1]))
        elif kind == "cluster":
            middle = -FACTOR * means[(i + 1) % len(means)]
            rows[bad] = middle + 0.1 * rng.standard_normal((int(bad.sum()), X.shape[1]))
        elif kind == "backdoor":
            rows[bad], labels[bad] = mark(rows[bad]), _target(clients)
        elif bad.any():
            place = np.searchsorted(known, y[bad])
            labels[bad] = known[(place + rng.integers(1, len(known), len(place))) % len(known)]
        made[name], wrong[name] = (rows, labels), bad
    return made, wrong


def mark(rows: Array) -> Array:
    """Return square pictures with a white corner."""
    side = round(rows.shape[1] ** 0.5)
    pictures = np.array(rows, dtype=np.float32).reshape(len(rows), side, side)
    pictures[:, :PATCH, :PATCH] = 1.0
    return pictures.reshape(rows.shape)


def spread(clients: Clients, seed: int, count: int = 20, alpha: float = 0.3) -> Clients:
    """Return the same rows in clients whose classes are mixed by a Dirichlet draw."""
    X, y = pooled(clients)
    rng = np.random.default_rng([seed, 7])
    known = np.unique(y)
    portions = rng.dirichlet(np.full(count, alpha), len(known))  # the same for train and test
    parts: list[list[Array]] = [[] for _ in range(count)]
    for k, label in enumerate(known):
        own = np.flatnonzero(y == label)
        edges = np.round(np.cumsum(portions[k])[:-1] * len(own)).astype(int)
        for part, piece in zip(parts, np.split(own, edges), strict=True):
            part.append(piece)
    rows = [np.concatenate(part) for part in parts]
    return {f"client-{i}": (X[r], y[r]) for i, r in enumerate(rows, 1) if len(r)}


def three_labels(clients: Clients, seed: int, count: int = 100) -> tuple[Clients, Clients]:
    """Return clients with three consecutive labels and log-normal sizes; three in four rows train.

    The clients are those that WAFL was shown on (Nguyen et al., 2022, and their code).
    """
    rng = np.random.default_rng([seed, 8])
    pictures = {k: rng.permutation(X) for k, (X, _) in enumerate(clients.values())}
    labels = [y[0] for _, y in clients.values()]
    size = rng.lognormal(0.0, 1.0, (count, 3))
    train, test = {}, {}
    for i in range(count):
        parts, told = [], []
        for j in range(3):
            k = (i + j) % len(labels)
            rivals = [(u, (k - u) % len(labels)) for u in range(count) if (k - u) % len(labels) < 3]
            weight = np.array([size[pair] for pair in rivals]).cumsum()
            place = rivals.index((i, j))
            ends = np.round(len(pictures[k]) * np.array([0.0, *weight]) / weight[-1]).astype(int)
            parts.append(pictures[k][ends[place] : ends[place + 1]])
            told.append(np.full(len(parts[-1]), labels[k]))
        order = rng.permutation(sum(map(len, parts)))
        X, y = np.concatenate(parts)[order], np.concatenate(told)[order]
        cut = round(0.75 * len(y))
        train[f"client-{i + 1}"], test[f"client-{i + 1}"] = (X[:cut], y[:cut]), (X[cut:], y[cut:])
    return train, test


def _target(clients: Clients) -> int:
    """Return the commonest label of the second client."""
    values, counts = np.unique(list(clients.values())[1][1], return_counts=True)
    return int(values[counts.argmax()])
