"""What the pages of all parts share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dorfl.report.content import Cell, Direction, Measured, Series, Table, Values, measured
from dorfl.support.types import Array
from experiments.tuning import RULES


def percent(values: Sequence[float] | Array) -> Measured:
    """Mean and standard error over seeds of accuracies, in %."""
    return measured(100.0 * np.asarray(values, dtype=float))


def percents(runs: Sequence[Sequence[float]]) -> list[Measured]:
    """The same of every place in lists of accuracies, one list a seed."""
    return [percent(column) for column in np.array(runs).T]


def curve(name: str, x: Values, points: Sequence[Measured]) -> Series:
    """A line through measured points, each with its standard error."""
    return Series(name, x, [point.mean for point in points], [point.error for point in points])


MEASURES = ("accuracy", "balanced accuracy", "log loss")
FORMATS = {"accuracy": ".1f", "balanced accuracy": ".1f", "log loss": ".3f"}
MARKS: dict[str, Direction] = {"accuracy": "max", "balanced accuracy": "max", "log loss": "min"}


def measures(runs: Sequence[Mapping[str, Sequence[float]]]) -> list[Measured]:
    """Accuracy and balanced accuracy in % and log loss, overall."""
    accuracy, balanced = (percent([r[key][0] for r in runs]) for key in ("accuracy", "balanced"))
    return [accuracy, balanced, measured([r["loss"][0] for r in runs])]


def ahead(
    ours: Sequence[Mapping[str, Sequence[float]]], other: Sequence[Mapping[str, Sequence[float]]]
) -> Array:
    """How far the overall accuracy is ahead in points, seed by seed."""
    pairs = zip(ours, other, strict=True)
    return np.array([100.0 * (one["accuracy"][0] - two["accuracy"][0]) for one, two in pairs])


def tuning_table(
    name: str, title: str, runs: Mapping[str, Sequence[Mapping[str, Any]]], note: str = ""
) -> Table:
    """Overall accuracy in % by either rule, and the settings it chose, of `runs` by method."""
    rows: list[list[Cell]] = [
        [
            label,
            *(percent([run[rule]["accuracy"][0] for run in mine]) for rule in RULES),
            *(_most_common([run[rule]["settings"] for run in mine]) for rule in RULES),
        ]
        for label, mine in runs.items()
    ]
    measured_columns = tuple(f"{rule} validation" for rule in RULES)
    columns = ("method", *measured_columns, *(f"chosen, {rule}" for rule in RULES))
    return Table(name, title, columns, rows, ".2f", note, dict.fromkeys(measured_columns, "max"))


def _most_common(words: Sequence[str]) -> str:
    """Every setting that won, the most frequent first, with how often it did."""
    counts = {word: words.count(word) for word in dict.fromkeys(words)}
    ranked = sorted(counts.items(), key=lambda pair: -pair[1])
    if len(ranked) == 1:
        return ranked[0][0]
    return "; ".join(f"{word} ({times} of {len(words)})" for word, times in ranked)
