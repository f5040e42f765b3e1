r"""A table as CSV, Markdown, LaTeX, HTML, and for the terminal.

CSV carries every digit, ready to compute with; the others carry what a person reads.

>>> from dorfl.report.content import Measured, Table
>>> table = Table("t", "Accuracy", ("method", "overall"), [("ERM", Measured(70.52, 0.4))], ".1f")
>>> print(as_csv(table), end="")
method,overall,overall error
ERM,70.52,0.4
>>> print(as_markdown(table).splitlines()[-1])
| ERM | 70.5 ± 0.4 |
>>> print(as_latex(table).splitlines()[6])
ERM & 70.5 $\pm$ 0.4 \\
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import NamedTuple, TypeVar

import rich.table
from rich.text import Text

from dorfl.report.content import Cell, Measured, Table, finite
from dorfl.report.latex import tex

T = TypeVar("T")
GAP = "–"  # where there is no number to show


class Line(NamedTuple):
    """A row as a person reads it: its words, which of them are the best, and is it set apart."""

    words: list[str]
    best: list[bool]
    reference: bool


def lines(table: Table) -> list[Line]:
    """The rows of a table as a person reads them."""
    words = [
        [
            _words(cell, _of(table.format, name) or "")
            for name, cell in zip(table.columns, row, strict=True)
        ]
        for row in _rows(table)
    ]
    apart = [str(row[0]) in table.reference for row in table.rows]
    best = [_best(table, k, [row[k] for row in words], apart) for k in range(len(table.columns))]
    return [Line(row, [column[r] for column in best], apart[r]) for r, row in enumerate(words)]


def _best(table: Table, column: int, words: list[str], apart: list[bool]) -> list[bool]:
    """Which cells of a column are the best: all that cannot be told apart from it in print."""
    direction = _of(table.best, table.columns[column])
    values = [
        None if out else finite(row[column]) for row, out in zip(table.rows, apart, strict=True)
    ]
    known = [value for value in values if value is not None]
    if direction is None or len(known) < 2 or (column == 0 and isinstance(table.best, str)):
        return [False] * len(words)
    top = words[values.index(max(known) if direction == "max" else min(known))]
    return [
        value is not None and _mean(text) == _mean(top)
        for value, text in zip(values, words, strict=True)
    ]


def _mean(words: str) -> str:
    return words.partition(" ± ")[0]


def as_csv(table: Table) -> str:
    """Every digit; a measured column is followed by one of its standard errors."""
    rows = _rows(table)
    measured = [
        any(isinstance(row[k], Measured) for row in rows) for k in range(len(table.columns))
    ]

    def spread(pairs: Iterable[tuple[object, object]]) -> list[object]:
        return [
            part
            for pair, both in zip(pairs, measured, strict=True)
            for part in (pair if both else pair[:1])
        ]

    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(spread((name, f"{name} error") for name in table.columns))
    for row in rows:
        pairs = (cell if isinstance(cell, Measured) else (cell, None) for cell in row)
        writer.writerow(spread((_digits(value), _digits(error)) for value, error in pairs))
    return file.getvalue()


def as_markdown(table: Table) -> str:
    """A table for a README: the best in bold, rows of reference in italics."""
    found = [
        _bar(_markdown(name) for name in table.columns),
        _bar("---:" if number else "---" for number in numeric(table)),
    ]
    for line in lines(table):
        marks = ["**" if best else "*" if line.reference else "" for best in line.best]
        found.append(
            _bar(
                f"{mark}{_markdown(words)}{mark}" if words else ""
                for words, mark in zip(line.words, marks, strict=True)
            )
        )
    return "\n".join(found) + "\n"


def as_latex(table: Table) -> str:
    """A table for a paper, in the style of the package booktabs."""
    sides = "".join("r" if number else "l" for number in numeric(table))
    found = [
        r"\begin{table}",
        rf"\caption{{{tex(table.title)}}}\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{sides}}}",
        r"\toprule",
        " & ".join(map(tex, table.columns)) + r" \\",
        r"\midrule",
    ]
    apart = False
    for line in lines(table):
        if line.reference and not apart and found[-1] != r"\midrule":
            found.append(r"\midrule")
        apart = line.reference
        cells = [
            rf"\textbf{{{tex(words)}}}" if best else tex(words)
            for words, best in zip(line.words, line.best, strict=True)
        ]
        found.append(" & ".join(cells) + r" \\")
    return "\n".join([*found, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def as_html(table: Table, most: int | None = None) -> str:
    """A table for a page, its headings tied to their cells; at most `most` of its rows."""
    sides = [' class="number"' if number else "" for number in numeric(table)]
    head = "".join(
        f'<th scope="col"{side}>{escape(name)}</th>'
        for name, side in zip(table.columns, sides, strict=True)
    )
    body = []
    for table_row, line in list(zip(table.rows, lines(table), strict=True))[:most]:
        cells = []
        for k, (words, best, side) in enumerate(zip(line.words, line.best, sides, strict=True)):
            text = escape(words)
            if k and table_row[k] is False:
                text = f'<span class="fails">{text}</span>'
            if best:
                text = f'<strong>{text}<span class="unseen"> (best)</span></strong>'
            tag = ('th scope="row"', "th") if k == 0 else ("td", "td")
            cells.append(f"<{tag[0]}{side}>{text}</{tag[1]}>")
        kind = ' class="reference"' if line.reference else ""
        body.append(f"<tr{kind}>{''.join(cells)}</tr>")
    rows = "\n".join(body)
    return (
        f"<table>\n<caption>{escape(table.title)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"
    )


def as_rich(table: Table) -> rich.table.Table:
    """A table for the terminal."""
    found = rich.table.Table(
        title=Text(table.title), caption=Text(table.note) if table.note else None
    )
    for name, number in zip(table.columns, numeric(table), strict=True):
        found.add_column(Text(name), justify="right" if number else "left")
    for row, line in zip(table.rows, lines(table), strict=True):
        cells = [
            Text(words, style="bold" if best else "red" if cell is False else "")
            for cell, words, best in zip(row, line.words, line.best, strict=True)
        ]
        found.add_row(*cells, style="dim" if line.reference else None)
    return found


def numeric(table: Table) -> list[bool]:
    """Which columns hold numbers, and so are set to the right."""
    rows = _rows(table)
    columns = [[row[k] for row in rows] for k in range(len(table.columns))]
    return [
        any(cell is not None for cell in column)
        and not any(isinstance(cell, str | bool) for cell in column)
        for column in columns
    ]


def _rows(table: Table) -> list[list[Cell]]:
    rows = [list(row) for row in table.rows]
    for row in rows:
        if len(row) != len(table.columns):
            raise ValueError(
                f"table {table.name!r} has {len(table.columns)} columns "
                f"but a row of {len(row)} cells"
            )
    return rows


def _of(choice: T | Mapping[str, T] | None, name: str) -> T | None:
    return choice.get(name) if isinstance(choice, Mapping) else choice


def _words(cell: Cell, form: str) -> str:
    """A cell as it is read: '95.1 ± 0.1', a true minus sign, a dash for what is not a number."""
    match cell:
        case None:
            return ""
        case str():
            return " ".join(cell.split())
        case bool():
            return "yes" if cell else "no"
        case Measured(mean, error):
            if math.isnan(mean) or math.isnan(error):
                return _words(mean, form)
            return f"{_words(mean, form)} ± {_words(error, form or '.2g')}"
    if math.isnan(cell):
        return GAP
    if not form:
        small = isinstance(cell, float) and abs(cell) < 10_000
        form = ".4g" if small or math.isinf(cell) or abs(cell) >= 1e15 else ",.0f"
    return _POWER.sub(_power, format(cell, form)).replace("-", "−")


_POWER = re.compile(r"(.*)e([+-]\d+)")


def _power(found: re.Match[str]) -> str:
    """4.6e-09 as 4.6·10⁻⁹."""
    mantissa, power = found[1], str(int(found[2])).translate(_RAISED)
    return f"10{power}" if mantissa == "1" else f"{mantissa}·10{power}"


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _digits(cell: object) -> object:
    """A cell for a machine: Python's shortest text that reads back as the same number."""
    if cell is None or isinstance(cell, str):
        return cell
    if isinstance(cell, bool):
        return str(cell).lower()
    return getattr(cell, "item", lambda: cell)()


def _bar(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|~$])", r"\\\1", " ".join(text.split()))
