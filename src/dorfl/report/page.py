"""One page that says it all: a single file that opens offline and sends nothing anywhere.

>>> from dorfl.report.content import Page, Section, Text
>>> page = Page("A <study>", "In short.", sections=[Section("First", [Text(["Words."])])])
>>> "<h1>A &lt;study&gt;</h1>" in render(page)
True
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from plotly.offline import get_plotlyjs

from dorfl.report import content, figures, tables
from dorfl.report.content import Beside, Block, Details, Figure, Finding, Page, Series, Table, Text
from dorfl.report.looks import Look, has_markers, looks
from dorfl.report.plots import plot
from dorfl.support.files import write_whole

_SHORT = 8  # letters of a card's value that have room in large type
_LINE = 12  # that are kept on one line
_LINES = 12  # of a heat map that have room as it is
MOST_ROWS = 200  # of a figure's numbers that a page shows; the rest is in its CSV
_CHARTS = {
    "lines": "Line chart", "points": "Scatter plot", "bars": "Bar chart", "dots": "Dot plot",
    "heat": "Heat map",
}  # fmt: skip


def write(page: Page, path: Path) -> Path:
    """Write the page to `path`, whole or not at all."""
    write_whole(path, render(page).encode())
    return path


def render(page: Page) -> str:
    """The page as HTML, with its style, its scripts and its pictures inside."""
    for _ in content.blocks(page):  # its names must be good before they become ids
        pass
    ids = _ids([section.title for section in page.sections])
    script, plotly = f"{_asset('page.js')}\n{_asset('ambiguity.js')}", _plotly()
    sections = zip(ids, page.sections, strict=True)
    return Template(_asset("page.html")).substitute(
        policy=_policy(script, plotly),
        title=escape(page.title),
        style=_asset("page.css"),
        script=script,
        lead=_paragraphs([page.lead]),
        contents=_contents(ids, [section.title for section in page.sections]),
        cards=_cards(page.cards),
        opening=f'<div class="opening">{_blocks(page.opening)}</div>' if page.opening else "",
        sections="\n".join(
            f'<section id="{name}" aria-labelledby="{name}-title">\n'
            f'<h2 id="{name}-title">{escape(section.title)}</h2>\n'
            f"{_blocks(section.blocks)}\n</section>"
            for name, section in sections
        ),
        footer=escape("One file, made by dorfl. It opens offline and sends nothing anywhere."),
        plotly=plotly,
    )


def _policy(*scripts: str) -> str:
    """Only our own scripts run, and nothing is fetched: even a slip in escaping leaks nothing."""
    allowed = " ".join(f"'sha256-{_base64(hashlib.sha256(s.encode()).digest())}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _contents(ids: Sequence[str], titles: Sequence[str]) -> str:
    links = (
        f'<li><a href="#{name}">{escape(title)}</a></li>'
        for name, title in zip(ids, titles, strict=True)
    )
    return f"<ol>{''.join(links)}</ol>"


def _cards(cards: Sequence[Finding]) -> str:
    if not cards:
        return ""
    found = []
    for card in cards:
        verdict = ""
        if card.holds is not None:
            kind, words = ("holds", "✓ holds") if card.holds else ("fails", "✗ does not hold")
            whose = f" (claim: {escape(card.whose)})" if card.whose else ""
            verdict = f'<span class="verdict {kind}">{words}{whose}</span>'
        found.append(
            f'<li><span class="value{" long" * (len(card.value) > _SHORT)}">'
            f"{_whole(card.value)}</span>"
            f'<span class="claim">{_inline(card.claim)}</span>{verdict}</li>'
        )
    return f'<ul class="cards" aria-label="In short">{"".join(found)}</ul>'


def _whole(value: str) -> str:
    """A figure and its sign on one line: ≥ 60.9 %."""
    return escape(value).replace(" ", "&nbsp;") if len(value) <= _LINE else escape(value)


def _blocks(blocks: Sequence[Block]) -> str:
    return "\n".join(_block(block) for block in blocks)


def _block(block: Block) -> str:
    match block:
        case Text(paragraphs):
            return _paragraphs(paragraphs)
        case Table():
            note = f'<p class="note">{_inline(block.note)}</p>' if block.note else ""
            return f'<div class="block">{_scroll(block)}{note}{_take(block)}</div>'
        case Details(summary, blocks):
            return (
                f'<details class="fold"><summary>{escape(summary)}</summary>\n'
                f"{_blocks(blocks)}\n</details>"
            )
        case Beside(blocks):
            return f'<div class="beside">{_blocks(blocks)}</div>'
    return _figure(block)


def _figure(figure: Figure) -> str:
    """The interactive plot, a picture for paper and for readers without scripts, its numbers."""
    alt = escape(figure.alt or description(figure))
    drawn = json.loads(plot(figure).to_json())
    if figure.live:
        drawn["live"] = {"script": figure.live.script, "data": figure.live.data}
    data = re.sub("[<>&]", lambda sign: rf"\u{ord(sign[0]):04x}", json.dumps(drawn))
    picture = f"data:image/svg+xml;base64,{_base64(figures.svg(figure))}"
    numbers = content.numbers(figure)
    left = len(numbers.rows) - MOST_ROWS
    more = f'<p class="note">{left} more rows in the CSV file.</p>' if left > 0 else ""
    note = f'<p class="note">{_inline(figure.note)}</p>' if figure.note else ""
    height = _height(figure)
    tall = f' style="height: {height:g}rem"' if height else ""
    return (
        f'<figure class="block" id="figure-{figure.name}">\n'
        f"<figcaption>{escape(figure.title)}</figcaption>\n{_legend(figure)}{_sliders(figure)}"
        f'<div class="plot" role="img" aria-label="{alt}"{tall}></div>\n'
        f'<img class="static" alt="{alt}" src="{picture}">\n'
        f'<script type="application/json">{data}</script>\n{note}'
        f'<details class="numbers"><summary>Show the numbers</summary>\n'
        f"{_scroll(numbers, MOST_ROWS)}{more}{_take(numbers)}</details>\n</figure>"
    )


def _height(figure: Figure) -> float | None:
    """What a plot needs in rem, if that depends on what is in it."""
    if figure.kind == "dots":
        return max(14.0, 5.0 + 0.75 * figures.lines_of(figure))
    if figure.kind == "heat" and len(figure.series) > _LINES:
        return 9.0 + 1.1 * len(figure.series)
    return 28.0 if figure.square else None


def _sliders(figure: Figure) -> str:
    """What a reader may change; without scripts the picture is as it was first."""
    if figure.live is None:
        return ""
    each = "".join(
        f"<label>{escape(one.label)} <output>{one.value:.3g}</output>"
        f'<input type="range" min="{math.log(one.low):.4f}" max="{math.log(one.high):.4f}" '
        f'step="0.01" value="{math.log(one.value):.4f}"></label>'
        for one in figure.live.sliders
    )
    return f'<div class="sliders">{each}</div>\n'


def description(figure: Figure) -> str:
    """What a figure is, for those who cannot see it: its kind, its axes, its series."""
    names = ", ".join(one.label for one in figure.series)
    axes = f"{figure.y_label} against {figure.x_label}" if figure.x_label else figure.y_label
    return f"{_CHARTS[figure.kind]}: {figure.title}. {axes}, for {names}."


def _legend(figure: Figure) -> str:
    """Buttons that show and hide a series: within reach of a keyboard, as Plotly's are not."""
    if len(figure.series) < 2 or figure.kind == "heat":
        return ""
    styles = looks([one.label for one in figure.series])
    buttons = "".join(
        f'<button type="button" aria-pressed="true">{_swatch(figure, one, look)}'
        f"{escape(one.label)}</button>"
        for one, look in zip(figure.series, styles, strict=True)
    )
    return f'<div class="legend" role="group" aria-label="Series shown">{buttons}</div>\n'


_MARKERS = {
    "circle": "M14 3a4 4 0 1 0 .01 0Z", "square": "M10.5 3.5h7v7h-7Z",
    "diamond": "M14 2l5 5-5 5-5-5Z", "triangle-up": "M14 2.5l4.5 8h-9Z",
    "x": "M10 5l2-2 2 2 2-2 2 2-2 2 2 2-2 2-2-2-2 2-2-2 2-2Z",
    "triangle-down": "M14 11.5l4.5-8h-9Z", "cross": "M12.5 2.5h3v3h3v3h-3v3h-3v-3h-3v-3h3Z",
}  # fmt: skip


def _swatch(figure: Figure, series: Series, look: Look) -> str:
    """A sample of what the plot shows: a bar, a point, or a line with or without its points."""
    dashes = {
        "dash": "6 3", "dot": "2 3", "dashdot": "6 3 2 3", "longdash": "10 3",
        "longdashdot": "10 3 2 3",
    }.get(look.dash, "none")  # fmt: skip
    marker = f'<path d="{_MARKERS[look.marker]}"/>'
    line = f'<path d="M0 7h28" stroke-width="{look.width}" stroke-dasharray="{dashes}"/>'
    shape = {
        "bars": f'<path d="M7 0h14v14h-14Z" opacity="{look.alpha}"/>',
        "points": marker, "dots": marker,
    }.get(figure.kind, line * (len(series.x) > 1) + marker * has_markers(series))  # fmt: skip
    return (
        f'<svg viewBox="0 0 28 14" fill="{look.colour}" stroke="{look.colour}" stroke-width="0" '
        f'aria-hidden="true">{shape}</svg>'
    )


def _scroll(table: Table, most: int | None = None) -> str:
    """A table in a box of its own, so that a wide one does not widen the page."""
    long = " long" if most else ""
    html = tables.as_html(table, most)
    return (
        f'<div class="scroll{long}" role="region" aria-label="{escape(table.title)}">{html}</div>'
    )


def _take(table: Table) -> str:
    data = _base64(tables.as_csv(table).encode())
    return (
        f'<p class="take"><a download="{table.name}.csv" '
        f'href="data:text/csv;charset=utf-8;base64,{data}">Save as CSV'
        f'<span class="unseen">: {escape(table.title)}</span></a></p>'
    )


def _paragraphs(paragraphs: Sequence[str]) -> str:
    return "\n".join(f"<p>{_inline(text)}</p>" for text in paragraphs)


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _ids(titles: Sequence[str]) -> list[str]:
    """An address for every section, the same from run to run."""
    ids: list[str] = []
    for title in titles:
        plain = re.sub(r"[^a-z0-9]+", "-", title.casefold()).strip("-") or "section"
        ids.append(f"{plain}-{len(ids)}" if f"section-{plain}" in ids else f"section-{plain}")
    return ids


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@cache
def _asset(name: str) -> str:
    return (resources.files("dorfl.report") / "assets" / name).read_text(encoding="utf-8").strip()


@cache
def _plotly() -> str:
    return str(get_plotlyjs()).replace("</script", r"<\/script")
