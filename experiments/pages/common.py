"""What the pages of all parts share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dorfl.report.content import (
    Beside,
    Cell,
    Direction,
    Figure,
    Measured,
    Series,
    Table,
    Values,
    measured,
)
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


MAX_SERIES = 4  # of a figure; a reader cannot tell more apart


def small_multiples(figure: Figure, shared: Sequence[str]) -> Figure | Beside:
    """Return a figure of more than four series as panels on one scale, with `shared` in each.

    The first panel keeps the name of the figure.

    >>> lines = [Series(name, [0, 1], [0, k]) for k, name in enumerate("abcdef")]
    >>> figure = Figure("f", "F", "x", "y", lines)
    >>> panels = small_multiples(figure, ["f"]).blocks
    >>> [[one.label for one in panel.series] for panel in panels]
    [['f', 'a', 'b', 'c'], ['f', 'd', 'e']]
    """
    if len(figure.series) <= MAX_SERIES:
        return figure
    common = [one for one in figure.series if one.label in shared]
    others = [one for one in figure.series if one.label not in shared]
    room = MAX_SERIES - len(common)
    ends = figure.y_range
    if ends is None:
        low, high = np.concatenate([_extent(one) for one in figure.series], axis=1)
        margin = 0.05 * float(high.max() - low.min()) or 1.0
        ends = (float(low.min()) - margin, float(high.max()) + margin)
    panels = [others[start : start + room] for start in range(0, len(others), room)]
    return Beside(
        [
            figure._replace(
                name=f"{figure.name}-{k + 1}" if k else figure.name,
                title=f"{figure.title}: {', '.join(one.label for one in panel)}",
                series=[*common, *panel],
                alt="",
                y_range=ends,
            )
            for k, panel in enumerate(panels)
        ]
    )


def _extent(series: Series) -> Array:
    """Return the lower and upper ends of the points of a series, with their standard errors."""
    y = np.asarray(series.y, dtype=float)
    errors = 0.0 * y if series.error is None else np.nan_to_num(np.asarray(series.error, float))
    return np.stack([y - errors, y + errors])


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
