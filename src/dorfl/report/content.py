"""Content of a report as plain values: text, figures and tables, without their style.

:mod:`~dorfl.report.page` renders them as HTML, and writes them as files for a paper.

>>> rows = [("ERM", Measured(70.5, 0.41)), ("DOR-FL", Measured(95.0, 0.08))]
>>> accuracy = Table("accuracy", "Accuracy in %", ("method", "overall"), rows, ".1f", best="max")
>>> page = Page("A study", "What we found.", sections=(Section("Accuracy", (accuracy,)),))
>>> [block.name for block in blocks(page)]
['accuracy']
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from dorfl.support.types import Array

Values: TypeAlias = Sequence[Any] | Array
Direction: TypeAlias = Literal["max", "min"]
_MAX_COLUMNS = 12  # series that a table of numbers has as columns

Kind: TypeAlias = Literal["lines", "points", "bars", "dots", "heat"]


class Measured(NamedTuple):
    """A mean with its standard error; an error of NaN is not shown."""

    mean: float
    error: float


def measured(values: Values) -> Measured:
    """Return mean and standard error of repetitions; the error of a single one is NaN."""
    numbers = np.asarray(values, dtype=float)
    count = len(numbers)
    error = float(numbers.std(ddof=1) / np.sqrt(count)) if count > 1 else float("nan")
    return Measured(float(numbers.mean()), error)


Cell: TypeAlias = str | int | float | Measured | None


class Series(NamedTuple):
    """One line of a figure, one group of its bars, or one row of its heat map."""

    label: str  # in the legend
    x: Values  # numbers or names
    y: Values
    error: Values | None = None  # standard errors, drawn as ± around `y`
    hover: Sequence[str] | None = None  # text that a page shows for each point
    fill: bool = False  # whether the line is an outline whose inside is shaded


class Slider(NamedTuple):
    """A number that a reader can change, on a logarithmic scale."""

    label: str
    low: float
    high: float
    value: float


class Live(NamedTuple):
    """Interaction of a figure that a script of the page redraws when a slider moves.

    `script` names a JavaScript function of `assets/` that computes the series' points from `data`
    and the sliders' values.
    """

    script: str
    data: Mapping[str, Any]
    sliders: Sequence[Slider]


class Figure(NamedTuple):
    """A figure of some series."""

    name: str  # of its files
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    kind: Kind = "lines"  # "dots": a category per line; "heat": a series per row
    x_log: bool = False  # whether the axis is logarithmic if all its values are positive
    y_log: bool = False
    note: str = ""
    alt: str = ""  # for readers who cannot see it; by default made from the titles
    y_range: tuple[float, float] | None = None
    square: bool = False  # whether both axes have one scale
    live: Live | None = None  # sliders that redraw it


class Table(NamedTuple):
    """A table; the first cell of a row names it."""

    name: str  # of its files
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    format: str | Mapping[str, str] = ""  # for all numbers, or by column
    note: str = ""  # below it
    best: Direction | Mapping[str, Direction] | None = None  # marked in all, or in these columns
    reference: Sequence[str] = ()  # rows that do not compete, such as the paper's own figures


class Text(NamedTuple):
    """Paragraphs; words in `backticks` are set as code."""

    paragraphs: Sequence[str]


class Details(NamedTuple):
    """Blocks folded away under a summary."""

    summary: str
    blocks: Sequence[Block]


class Beside(NamedTuple):
    """Blocks shown side by side if the page is wide enough."""

    blocks: Sequence[Block]


Block: TypeAlias = Text | Figure | Table | Details | Beside


class Finding(NamedTuple):
    """A card of the headline: a value, the claim it supports, whether it holds, who claims it."""

    claim: str
    value: str
    holds: bool | None = None
    whose: str = ""


class Section(NamedTuple):
    """A part of the page with an entry in the table of contents."""

    title: str
    blocks: Sequence[Block]


class Page(NamedTuple):
    """A report; `opening` follows the cards of the headline."""

    title: str
    lead: str
    cards: Sequence[Finding] = ()
    sections: Sequence[Section] = ()
    opening: Sequence[Block] = ()


def blocks(page: Page) -> Iterator[Figure | Table]:
    """Yield the figures and tables of a page in reading order.

    Each becomes a file: names must be safe as file names and unique among figures or tables.
    """
    seen = set()
    for part in (page.opening, *(section.blocks for section in page.sections)):
        for block in _flat(part):
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", block.name):
                raise ValueError(f"the name {block.name!r} must be letters, digits, - and _")
            if (type(block), block.name) in seen:
                raise ValueError(f"two {type(block).__name__.lower()}s are named {block.name!r}")
            seen.add((type(block), block.name))
            if isinstance(block, Figure):
                _check(block)
            yield block


def _check(figure: Figure) -> None:
    if not figure.series:
        raise ValueError(f"figure {figure.name!r} has no series")
    for one in figure.series:
        lengths = [len(part) for part in (one.x, one.y, one.error, one.hover) if part is not None]
        if len(set(lengths)) > 1 or not lengths[0]:
            raise ValueError(
                f"figure {figure.name!r}, series {one.label!r}: x, y, error and hover must have "
                f"one value each for every point, but there are {lengths}"
            )


def _flat(parts: Sequence[Block]) -> Iterator[Figure | Table]:
    for part in parts:
        if isinstance(part, Details | Beside):
            yield from _flat(part.blocks)
        elif not isinstance(part, Text):
            yield part


def numbers(figure: Figure) -> Table:
    """Return the numbers of a figure as a table.

    The table has a column per series if no series repeats an x and there are few of them, else a
    row per point.

    >>> curve = Series("F", [1, 2], [0.5, 0.25])
    >>> numbers(Figure("rate", "Rate", "rounds", "gap", [curve])).rows
    [(1, 0.5), (2, 0.25)]
    """
    title, series = f"{figure.title}: the numbers", figure.series
    twice = any(len(set(plain(one.x))) < len(one.x) for one in series)
    if figure.kind == "points" or twice or len(series) > _MAX_COLUMNS:
        points = [
            (one.label, x, y, *([one.hover[k]] if one.hover else []))
            for one in series
            for k, (x, y) in enumerate(zip(plain(one.x), _cells(one), strict=True))
        ]
        named = any(one.hover for one in series)
        columns = ("series", figure.x_label, figure.y_label, *(["row"] if named else []))
        width = len(columns)
        return Table(
            figure.name, title, columns, [(*p, *[None] * (width - len(p))) for p in points]
        )
    known = [dict(zip(plain(one.x), _cells(one), strict=True)) for one in series]
    places = list(dict.fromkeys(x for values in known for x in values))
    if not any(isinstance(x, str) for x in places):
        places.sort()
    rows = [(x, *(values.get(x) for values in known)) for x in places]
    columns = (figure.x_label or "category", *(one.label for one in series))
    return Table(figure.name, title, columns, rows)


def categories(figure: Figure) -> list[str]:
    """Return the names along x in the order of their first use."""
    return list(dict.fromkeys(str(x) for one in figure.series for x in one.x))


def heights(figure: Figure, names: list[str]) -> Array:
    """Return the matrix of a heat map: a row per series, NaN for missing values."""
    known = [dict(zip(map(str, one.x), one.y, strict=True)) for one in figure.series]
    return np.array([[float(values.get(name, np.nan)) for name in names] for values in known])


def log_axes(figure: Figure) -> tuple[bool, bool]:
    """Return whether x and y are logarithmic: if wanted and all values are positive."""
    return (
        figure.x_log and all((np.asarray(one.x) > 0).all() for one in figure.series),
        figure.y_log and all((np.asarray(one.y) > 0).all() for one in figure.series),
    )


def nesting(figure: Figure) -> list[int]:
    """Return how many later lines cover each line; it is drawn that much wider to be seen.

    >>> same = [Series(name, [1, 2, 3], [0.5, 0.5, 1.0]) for name in "ab"]
    >>> nesting(Figure("f", "F", "x", "y", [*same, Series("c", [1, 2, 3], [0.0, 0.2, 0.1])]))
    [1, 0, 0]
    """
    values = [np.asarray(one.y, dtype=float) for one in figure.series]
    if figure.kind != "lines" or log_axes(figure)[1]:
        return [0] * len(values)
    near = 0.01 * float(np.ptp(np.concatenate(values)))

    def lies_on(a: int, b: int) -> bool:
        alike = len(values[a]) > 1 and plain(figure.series[a].x) == plain(figure.series[b].x)
        return alike and float(np.mean(np.abs(values[a] - values[b]) <= near)) > 0.5

    return [sum(lies_on(b, a) for b in range(a + 1, len(values))) for a in range(len(values))]


def finite(cell: Cell) -> float | None:
    """Return the number of a cell, or None if it has no finite one."""
    value = cell.mean if isinstance(cell, Measured) else cell
    if value is None or isinstance(value, str | bool) or not math.isfinite(value):
        return None
    return float(value)


def plain(values: Values) -> list[Any]:
    """Return the values as numbers and strings of Python."""
    return [value.item() if hasattr(value, "item") else value for value in values]


def _cells(series: Series) -> list[Cell]:
    if series.error is None:
        return plain(series.y)
    return [Measured(y, e) for y, e in zip(plain(series.y), plain(series.error), strict=True)]
