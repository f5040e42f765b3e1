r"""Formats of a table: CSV, Markdown, LaTeX, cells of HTML, and the terminal.

CSV has every digit; the other formats are rounded for reading.

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
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import rich.table
from rich.text import Text as RichText

from dorfl.report.content import (
    Beside,
    Block,
    Cell,
    Details,
    Measured,
    Page,
    Table,
    Text,
    finite,
    plain,
)

T = TypeVar("T")
_PHONE_COLUMNS = 5  # columns that fit the width of a phone
_LONG_CELL = 30  # characters beyond which a column of text is set on several lines
_GROUPED = 1000.0  # mean from which digits are grouped, as in 23,254 ± 760
_LARGE_ERROR = 100.0  # standard error whose two digits would need a power of ten
GAP = "–"  # shown for a number that is NaN


class Line(NamedTuple):
    """A row as it is displayed."""

    cells: list[str]
    best: list[bool]  # which cells are the best of their column
    fails: list[bool]  # which cells are a "no"
    reference: bool  # whether the row does not compete


def lines(table: Table) -> list[Line]:
    """Return the rows of a table as they are displayed."""
    rows = _rows(table)
    forms = [_choice(table.format, name) or "" for name in table.columns]
    cells = [[_format(*pair) for pair in zip(row, forms, strict=True)] for row in rows]
    reference = [str(row[0]) in table.reference for row in rows]
    best = [
        _best(
            None if k == 0 and isinstance(table.best, str) else _choice(table.best, name),
            [None if out else finite(row[k]) for row, out in zip(rows, reference, strict=True)],
            [row[k].partition(" ± ")[0] for row in cells],
        )
        for k, name in enumerate(table.columns)
    ]
    return [
        Line(cells[r], [column[r] for column in best], [c is False for c in row], reference[r])
        for r, row in enumerate(rows)
    ]


def _best(direction: str | None, values: list[float | None], cells: list[str]) -> list[bool]:
    """Mark the best value of a column and all that are displayed the same."""
    known = [value for value in values if value is not None]
    if direction is None or len(known) < 2:
        return [False] * len(cells)
    top = cells[values.index(max(known) if direction == "max" else min(known))]
    return [v is not None and text == top for v, text in zip(values, cells, strict=True)]


def as_csv(table: Table) -> str:
    """Return CSV with every digit; standard errors have a column of their own."""
    rows = _rows(table)
    measured = [
        any(isinstance(row[k], Measured) for row in rows) for k in range(len(table.columns))
    ]

    def flat(pairs: Iterable[tuple[object, object]]) -> list[object]:
        return [
            part
            for pair, both in zip(pairs, measured, strict=True)
            for part in (pair if both else pair[:1])
        ]

    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(flat((name, f"{name} error") for name in table.columns))
    for row in rows:
        pairs = (cell if isinstance(cell, Measured) else (cell, None) for cell in row)
        writer.writerow(flat((_digits(value), _digits(error)) for value, error in pairs))
    return file.getvalue()


def as_markdown(table: Table) -> str:
    """Return Markdown: the best in bold, reference rows in italics."""
    found = [
        _bar(_markdown(name) for name in table.columns),
        _bar("---:" if number else "---" for number in _is_numeric(table)),
    ]
    for line in lines(table):
        marks = ["**" if best else "*" if line.reference else "" for best in line.best]
        found.append(
            _bar(
                f"{mark}{_markdown(cell)}{mark}" if cell else ""
                for cell, mark in zip(line.cells, marks, strict=True)
            )
        )
    return "\n".join(found) + "\n"


def page_as_markdown(page: Page) -> str:
    """Return the text and tables of a page as Markdown, without its figures."""
    found = [f"# {page.title}", page.lead]
    found += [f"- **{card.value}**: {card.claim}" for card in page.cards]
    for section in page.sections:
        parts = list(_blocks_as_markdown(section.blocks))
        found += [f"## {section.title}", *parts] if parts else []
    return re.sub(r"(?m)^(- .*)\n\n(?=- )", r"\1\n", "\n\n".join(found)) + "\n"


def _blocks_as_markdown(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        match block:
            case Text(paragraphs):
                yield from paragraphs
            case Table():
                yield from (f"{block.title}.", as_markdown(block).rstrip())
                yield from filter(None, [block.note])
            case Details(summary, inner):
                yield f"### {summary}"
                yield from _blocks_as_markdown(inner)
            case Beside(inner):
                yield from _blocks_as_markdown(inner)


def as_latex(table: Table) -> str:
    """Return LaTeX in the style of the package booktabs."""
    alignment = "".join("r" if number else "l" for number in _is_numeric(table))
    found = [
        r"\begin{table}",
        rf"\caption{{{tex(table.title)}}}\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        " & ".join(map(tex, table.columns)) + r" \\",
        r"\midrule",
    ]
    in_references = False
    for line in lines(table):
        if line.reference and not in_references and found[-1] != r"\midrule":
            found.append(r"\midrule")
        in_references = line.reference
        cells = [
            rf"\textbf{{{tex(cell)}}}" if best else tex(cell)
            for cell, best in zip(line.cells, line.best, strict=True)
        ]
        found.append(" & ".join(cells) + r" \\")
    return "\n".join([*found, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def as_rich(table: Table) -> rich.table.Table:
    """Return a table for the terminal, without its note."""
    found = rich.table.Table(
        title=RichText(table.title, style="bold"), title_justify="left", title_style=""
    )
    for name, number in zip(table.columns, _is_numeric(table), strict=True):
        found.add_column(RichText(name), justify="right" if number else "left")
    for line in lines(table):
        cells = [
            RichText(cell, style="bold" if best else "red" if fails else "")
            for cell, best, fails in zip(line.cells, line.best, line.fails, strict=True)
        ]
        found.add_row(*cells, style="dim" if line.reference else None)
    return found


def sides(table: Table) -> list[str]:
    """Return the CSS class of each column: "number", "words" for long text, or none."""
    longest = [
        max((len(str(row[k])) for row in table.rows), default=0) for k in range(len(table.columns))
    ]
    return [
        "number" if number else "words" if length > _LONG_CELL else ""
        for number, length in zip(_is_numeric(table), longest, strict=True)
    ]


def is_wide(table: Table) -> bool:
    """Return whether a table is wider than a phone; long text counts for three columns."""
    return len(table.columns) + 2 * sum(side == "words" for side in sides(table)) > _PHONE_COLUMNS


def _is_numeric(table: Table) -> list[bool]:
    """Return which columns hold numbers alone, and are aligned to the right."""
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


def _choice(choice: T | Mapping[str, T] | None, name: str) -> T | None:
    return choice.get(name) if isinstance(choice, Mapping) else choice


def _format(cell: Cell, form: str) -> str:
    """Format a cell: '95.1 ± 0.1', a true minus sign, a dash for NaN."""
    match cell:
        case None:
            return ""
        case str():
            return " ".join(cell.split())
        case bool():
            return "yes" if cell else "no"
        case Measured(mean, error):
            if math.isnan(mean) or math.isnan(error):
                return _format(mean, form)
            large = abs(mean) >= _GROUPED or error >= _LARGE_ERROR
            if not form and large and max(abs(mean), error) < 1e15:
                places = max(1 - math.floor(math.log10(error)), 0) if error > 1e-6 else 0
                return f"{mean:,.{places}f} ± {error:,.{places}f}".replace("-", "−")
            return f"{_format(mean, form)} ± {_format(error, form or '.2g')}"
    if math.isnan(cell):
        return GAP
    if not form:
        small = isinstance(cell, float) and abs(cell) < 10_000
        form = ".4g" if small or math.isinf(cell) or abs(cell) >= 1e15 else ",.0f"
    text = _EXPONENT.sub(_power_of_ten, format(cell, form)).replace("-", "−")
    return f"{text[:-1]} %" if form.endswith("%") else text


_EXPONENT = re.compile(r"(.*)e([+-]\d+)")
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _power_of_ten(found: re.Match[str]) -> str:
    """Format 4.6e-09 as 4.6·10⁻⁹."""
    mantissa, power = found[1], str(int(found[2])).translate(_SUPERSCRIPTS)
    return f"10{power}" if mantissa == "1" else f"{mantissa}·10{power}"


def _digits(cell: object) -> object:
    """Return a cell for a program; csv writes the shortest text that reads back the same."""
    return str(cell).lower() if isinstance(cell, bool) else cell


def _bar(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|~$])", r"\\\1", " ".join(text.split()))


# ── text for LaTeX ───────────────────────────────────────────────────────────────────────────────

_TEX_CHARACTERS = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}",
    "–": "--", "…": r"\ldots{}", "\u200b": "",
    **{sign: "\\" + sign for sign in "{}&%$#_"},
}  # fmt: skip
_TEX_SYMBOLS = {
    "±": r"\pm", "−": "-", "×": r"\times", "≤": r"\leq", "≥": r"\geq", "≈": r"\approx",
    "∞": r"\infty", "·": r"\cdot", "∇": r"\nabla", "‖": r"\Vert", "½": r"\frac{1}{2}",
    "→": r"\to", "∂": r"\partial", "∈": r"\in", "∑": r"\sum", "√": r"\surd",
}  # fmt: skip
_TEX_ACCENTS = {"\u0304": "bar", "\u0302": "hat", "\u0303": "tilde"}
_LATIN_SHAPES = frozenset("ΑΒΕΖΗΙΚΜΝΟΡΤΧο")  # Greek letters without a LaTeX command of their own


def tex(text: str) -> str:
    r"""Escape text for LaTeX; Greek letters and mathematical signs become mathematics.

    >>> print(tex("ξ̄ ± 5 %, λ_1 ≥ 10⁻⁶"))
    $\bar{\xi}$ $\pm$ 5 \%, $\lambda$\_1 $\geq$ 10$^{-6}$
    """
    text = unicodedata.normalize("NFC", " ".join(text.split()))
    pattern = r"(.)([\u0302-\u0304])|([⁰¹²³⁴-⁹⁺⁻]+)|([₀-₉₊₋]+)|(.)"
    return re.sub(pattern, _tex_glyphs, text)


def _tex_glyphs(found: re.Match[str]) -> str:
    base, accent, above, below, single = found.groups()
    if accent:
        return rf"$\{_TEX_ACCENTS[accent]}{{{_tex_symbol(base) or base}}}$"
    if above or below:
        level = unicodedata.normalize("NFKC", above or below).replace("−", "-")
        return f"${'^' if above else '_'}{{{level}}}$"
    symbol = _tex_symbol(single)
    return f"${symbol}$" if symbol else _TEX_CHARACTERS.get(single, single)


def _tex_symbol(character: str) -> str:
    """Return the command of a mathematical character, or an empty text."""
    words = unicodedata.name(character, "").replace("LAMDA", "LAMBDA").split()
    if words[:1] == ["GREEK"] and words[-2] == "LETTER" and character not in _LATIN_SHAPES:
        return "\\" + (words[-1].lower() if "SMALL" in words else words[-1].title())
    return _TEX_SYMBOLS.get(character, "")
