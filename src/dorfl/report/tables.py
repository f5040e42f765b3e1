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

from dorfl.report.content import Cell, Measured, Table, finite, plain
from dorfl.report.latex import tex

T = TypeVar("T")
_NARROW = 5  # columns that have room on a telephone
GAP = "–"  # where there is no number to show


class Line(NamedTuple):
    """A row as a person reads it: its words, which are the best or a no, and is it set apart."""

    words: list[str]
    best: list[bool]
    fails: list[bool]
    reference: bool


def lines(table: Table) -> list[Line]:
    """The rows of a table as a person reads them."""
    rows = _rows(table)
    forms = [_of(table.format, name) or "" for name in table.columns]
    words = [[_words(*pair) for pair in zip(row, forms, strict=True)] for row in rows]
    apart = [str(row[0]) in table.reference for row in rows]
    best = [
        _best(
            None if k == 0 and isinstance(table.best, str) else _of(table.best, name),
            [None if out else finite(row[k]) for row, out in zip(rows, apart, strict=True)],
            [_mean(row[k]) for row in words],
        )
        for k, name in enumerate(table.columns)
    ]
    return [
        Line(words[r], [column[r] for column in best], [cell is False for cell in row], apart[r])
        for r, row in enumerate(rows)
    ]


def _best(direction: str | None, values: list[float | None], words: list[str]) -> list[bool]:
    """Which cells of a column are the best: all that cannot be told apart from it in print."""
    known = [value for value in values if value is not None]
    if direction is None or len(known) < 2:
        return [False] * len(words)
    top = words[values.index(max(known) if direction == "max" else min(known))]
    return [v is not None and text == top for v, text in zip(values, words, strict=True)]


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
    sides = [f' class="{side}"' if side else "" for side in _sides(table)]
    head = "".join(
        f'<th scope="col"{side}>{escape(name)}</th>'
        for name, side in zip(table.columns, sides, strict=True)
    )
    body = []
    for line in lines(table)[:most]:
        cells = []
        for k, words in enumerate(line.words):
            text = escape(words).replace("± ", "±&nbsp;")
            text = f"{text[:-2]}&nbsp;%" if text.endswith(" %") else text
            if line.best[k]:
                text = f'<strong>{text}<span class="unseen"> (best)</span></strong>'
            elif line.fails[k]:
                text = f'<span class="fails">{text}</span>'
            tag = "td" if k else "th"
            scope = "" if k else ' scope="row"'
            label = f' data-label="{escape(table.columns[k])}"' if k else ""
            cells.append(f"<{tag}{scope}{sides[k]}{label}>{text}</{tag}>")
        kind = ' class="reference"' if line.reference else ""
        body.append(f"<tr{kind}>{''.join(cells)}</tr>")
    rows = "\n".join(body)
    room = len(table.columns) + 2 * sum("words" in side for side in sides)
    wide = ' class="wide"' if room > _NARROW else ""
    return (
        f"<table{wide}>\n<caption>{escape(table.title)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"
    )


def _sides(table: Table) -> list[str]:
    """How a page sets each column: numbers to the right, long words on several lines."""
    longest = [
        max((len(str(row[k])) for row in table.rows), default=0) for k in range(len(table.columns))
    ]
    return [
        "number" if number else "words" if length > 30 else ""
        for number, length in zip(numeric(table), longest, strict=True)
    ]


def as_rich(table: Table) -> rich.table.Table:
    """A table for the terminal."""
    found = rich.table.Table(
        title=Text(table.title, style="bold"), title_justify="left", title_style="",
        caption=Text(table.note) if table.note else None, caption_justify="left",
    )  # fmt: skip
    for name, number in zip(table.columns, numeric(table), strict=True):
        found.add_column(Text(name), justify="right" if number else "left")
    for line in lines(table):
        cells = [
            Text(words, style="bold" if best else "red" if fails else "")
            for words, best, fails in zip(line.words, line.best, line.fails, strict=True)
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
    rows = [plain(row) for row in table.rows]
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
    words = _POWER.sub(_power, format(cell, form)).replace("-", "−")
    return f"{words[:-1]} %" if form.endswith("%") else words  # as sentences have it


_POWER = re.compile(r"(.*)e([+-]\d+)")


def _power(found: re.Match[str]) -> str:
    """4.6e-09 as 4.6·10⁻⁹."""
    mantissa, power = found[1], str(int(found[2])).translate(_RAISED)
    return f"10{power}" if mantissa == "1" else f"{mantissa}·10{power}"


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _digits(cell: object) -> object:
    """A cell for a machine: a number as Python's shortest text that reads back as the same."""
    return str(cell).lower() if isinstance(cell, bool) else cell


def _bar(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|~$])", r"\\\1", " ".join(text.split()))
