"""All methods on one table, by k-fold cross-validation inside every client."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dorfl.data.tables import DataError, Split
from dorfl.federation.client import stream
from dorfl.study import results, table
from dorfl.study.rows import measure, open_split, rows_for
from dorfl.study.settings import METHODS, Study
from dorfl.support.types import Array


class Comparison(NamedTuple):
    """What each method scores on rows it has not seen, (methods, folds, clients)."""

    methods: tuple[str, ...]
    clients: tuple[str, ...]
    rows: Array
    scores: Array
    classifies: bool
    shortfalls: tuple[str, ...] = ()  # which trainings did not reach their tolerance

    @property
    def overall(self) -> Array:
        """By rows, over all clients: (methods, folds)."""
        return np.asarray(np.average(self.scores, axis=2, weights=self.rows))

    def worst(self, method: int) -> int:
        """The client that a method serves worst."""
        mean = self.scores[method].mean(axis=0)
        return int(mean.argmin() if self.classifies else mean.argmax())

    @property
    def best(self) -> int:
        """The method whose worst served client is served best."""
        mean = self.scores.mean(axis=1)
        return int(mean.min(axis=1).argmax() if self.classifies else mean.max(axis=1).argmin())


def compare(
    study: Study, folds: int = 5, methods: tuple[str, ...] = METHODS,
    tick: Callable[[str], object] = str,
) -> Comparison:  # fmt: skip
    """Every method trained on all folds but one and measured on that one, in turn."""
    split = open_split(study)
    counts = np.diff(split.bounds)
    few = int(counts.argmin())
    if counts[few] < folds:
        raise DataError(
            f"client {split.names[few]!r} has {counts[few]} rows, too few for {folds} folds"
        )
    fold = _folds(split, folds, study.training.seed)
    scores: list[list[list[float]]] = [[] for _ in methods]
    classifies, short = True, list[str]()
    for k in range(folds):
        prepared = table.prepare(study, split.keep(fold != k))
        held_out = split.keep(fold == k)
        for i, name in enumerate(methods):
            tick(f"fold {k + 1}, {name}")
            model = results.model_of(table.fit(study.changed(method_name=name), prepared)[0])
            classifies = model.classifies
            if model.shortfall:
                short.append(f"{name}, fold {k + 1}: {model.shortfall}")
            served = {s.name: s.score or 0.0 for s in measure(model, rows_for(model, held_out))}
            scores[i].append([served.get(client, np.nan) for client in split.names])
    return Comparison(methods, split.names, counts, np.array(scores), classifies, tuple(short))


def _folds(split: Split, folds: int, seed: int) -> Array:
    """Which fold each row is in: the same share of every client's, drawn from its own stream."""
    parts = []
    for name, count in zip(split.names, np.diff(split.bounds), strict=True):
        parts.append(stream(seed, name, 0).permutation(np.arange(count) % folds))
    return np.concatenate(parts)
