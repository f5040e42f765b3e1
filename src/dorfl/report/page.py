"""HTML page of a report, a single file that opens offline; and its parts as files for a paper.

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
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from dorfl.report import content, figures, tables
from dorfl.report.content import Figure, Page, Series
from dorfl.report.plots import plot
from dorfl.report.style import Look, has_markers, looks
from dorfl.support.files import write_whole

_LARGE_TYPE = 8  # characters of a card's value that fit in large type
_ONE_LINE = 12  # characters of a card's value that are kept on one line
_HEAT_ROWS = 12  # rows of a heat map that fit the default height
MOST_ROWS = 200  # rows of a figure's numbers that a page shows; the CSV file has all
_FORMATS = {"csv": tables.as_csv, "md": tables.as_markdown, "tex": tables.as_latex}
_CHARTS = {
    "lines": "Line chart", "points": "Scatter plot", "bars": "Bar chart", "dots": "Dot plot",
    "heat": "Heat map",
}  # fmt: skip


def write(page: Page, path: Path) -> Path:
    """Write the page to `path` atomically, and return `path`."""
    write_whole(path, render(page).encode())
    return path


def export(page: Page, folder: Path) -> list[Path]:
    """Write `figures/*.png|svg|pdf`, their numbers as CSV, and `tables/*.csv|md|tex`."""
    paths = []
    for block in content.blocks(page):
        if isinstance(block, Figure):
            paths += figures.draw(block, folder / "figures")
            texts = {
                folder / "figures" / f"{block.name}.csv": tables.as_csv(content.numbers(block))
            }
        else:
            texts = {
                folder / "tables" / f"{block.name}.{suffix}": write_table(block)
                for suffix, write_table in _FORMATS.items()
            }
        for path, text in texts.items():
            write_whole(path, text.encode())
        paths += texts
    return paths


def render(page: Page) -> str:
    """Return the page as HTML with its style, scripts and pictures inside."""
    for _ in content.blocks(page):  # checks the names, which become ids
        pass
    ids = _ids([section.title for section in page.sections])
    script, plotly = f"{_asset('page.js')}\n{_asset('ambiguity.js')}", _plotly()
    html = _environment().from_string(_asset("page.html"))
    return html.render(
        page=page,
        policy=Markup(_policy(script, plotly)),
        style=Markup(_asset("page.css")),
        script=Markup(script),
        plotly=Markup(plotly),
        sections=list(zip(ids, page.sections, strict=True)),
        most_rows=MOST_ROWS,
        large_type=_LARGE_TYPE,
    )


@cache
def _environment() -> Environment:
    """Return the template environment; it escapes every value that is not Markup."""
    environment = Environment(autoescape=True)
    environment.policies["json.dumps_kwargs"] = {}  # keep the order of keys
    environment.filters |= {
        "code": _code,
        "csv": lambda table: _base64(tables.as_csv(table).encode()),
        "drawing": _drawing,
        "is_wide": tables.is_wide,
        "keep_on_line": lambda text: _unbreakable(text) if len(text) <= _ONE_LINE else text,
        "keep_together": _keep_together,
        "kind": lambda block: type(block).__name__,
        "lines": tables.lines,
        "log": math.log,
        "sides": tables.sides,
    }
    return environment


def _policy(*scripts: str) -> str:
    """Return a content security policy that runs these scripts alone and fetches nothing."""
    allowed = " ".join(f"'sha256-{_base64(hashlib.sha256(s.encode()).digest())}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _code(text: str) -> Markup:
    """Escape text, and set words in `backticks` as code; numbers keep their units."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(_keep_together(text)))))


def _unbreakable(text: str) -> str:
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _keep_together(text: str) -> str:
    r"""Keep a standard error and a percent sign on the line of their number.

    >>> _keep_together("94.7 ± 0.1 % of 8 rows")
    '94.7 ±\xa00.1\xa0% of 8 rows'
    """
    return re.sub(r"(?<=±) | (?=%)", "\N{NO-BREAK SPACE}", text)


def _drawing(figure: Figure) -> dict[str, Any]:
    """Return what the template needs of a figure: the plot, a picture and its numbers.

    The picture is for paper and for readers without scripts.
    """
    drawn = json.loads(plot(figure).to_json())
    if figure.live:
        drawn["live"] = {"script": figure.live.script, "data": figure.live.data}
    styles = looks([one.label for one in figure.series])
    has_legend = len(figure.series) > 1 and figure.kind != "heat"
    legend = [
        {"label": one.label, "look": look, "swatch": _swatch(figure, one, look)}
        for one, look in zip(figure.series, styles, strict=True)
    ]
    return {
        "name": figure.name,
        "title": figure.title,
        "note": figure.note,
        "alt": figure.alt or description(figure),
        "height": _height(figure),
        "json": drawn,
        "legend": legend if has_legend else [],
        "numbers": content.numbers(figure),
        "sliders": figure.live.sliders if figure.live else (),
        "svg": _base64(figures.svg(figure)),
    }


def _height(figure: Figure) -> str:
    """Return the height of a plot in rem if it depends on the content, else an empty text."""
    if figure.kind == "dots":
        return f"{max(14.0, 5.0 + 0.75 * figures.text_lines(figure)):g}"
    if figure.kind == "heat" and len(figure.series) > _HEAT_ROWS:
        return f"{9.0 + 1.1 * len(figure.series):g}"
    return "28" if figure.square else ""


def description(figure: Figure) -> str:
    """Describe a figure for readers who cannot see it: its kind, axes and series."""
    names = ", ".join(one.label for one in figure.series)
    axes = f"{figure.y_label} against {figure.x_label}" if figure.x_label else figure.y_label
    return f"{_CHARTS[figure.kind]}: {figure.title}. {axes}, for {names}."


def _swatch(figure: Figure, series: Series, look: Look) -> list[dict[str, Any]]:
    """Return the SVG paths of a legend's sample: a bar, a marker, or a line with its markers.

    The page's legend is made of buttons because Plotly's cannot be reached with a keyboard.
    """
    if figure.kind == "bars":
        return [{"d": "M7 0h14v14h-14Z", "opacity": look.alpha}]
    marker = {"d": look.marker.svg}
    if figure.kind in ("points", "dots"):
        return [marker]
    line = {"d": "M0 7h28", "stroke-width": look.width, "stroke-dasharray": look.dash.svg}
    return [line] * (len(series.x) > 1) + [marker] * has_markers(series)


def _ids(titles: Sequence[str]) -> list[str]:
    """Return a unique anchor for every section, equal from run to run."""
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
