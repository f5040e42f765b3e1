"""Figures for papers, drawn with Matplotlib: PNG, SVG and PDF with reproducible bytes."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import NullFormatter

from dorfl.report.content import Figure, categories, heights, log_axes, nesting
from dorfl.report.style import MARKED, Look, has_markers, looks
from dorfl.support.files import write_whole

# Dates and versions are left out, so that equal figures give equal files.
_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def draw(figure: Figure, folder: Path) -> list[Path]:
    """Draw a figure into `folder`, once for each format, and return the paths."""
    paths = []
    with _settings(figure):
        canvas = _canvas(figure)
        for suffix in _METADATA:
            paths.append(folder / f"{figure.name}.{suffix}")
            write_whole(paths[-1], _save(canvas, suffix))
    return paths


def svg(figure: Figure) -> bytes:
    """Return the figure as SVG without its title, for print and for readers without scripts."""
    with _settings(figure):
        return _save(_canvas(figure._replace(title="")), "svg")


@contextmanager
def _settings(figure: Figure) -> Iterator[None]:
    settings: Any = {
        "svg.hashsalt": figure.name,  # ids in an SVG are random by default
        "font.size": 10,
        "axes.titleweight": "bold",
        "axes.titlesize": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#666666",
        "grid.color": "#dddddd",
        "axes.axisbelow": True,
    }
    with mpl.rc_context(settings), warnings.catch_warnings():
        # Names may be long and in any script; a less neat picture is better than none.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        yield


def _save(canvas: Canvas, suffix: str) -> bytes:
    file = io.BytesIO()
    canvas.savefig(file, format=suffix, dpi=160, metadata=_METADATA[suffix])
    return file.getvalue()


def _canvas(figure: Figure) -> Canvas:
    dots = figure.kind == "dots"
    height = 4.2
    if dots or figure.kind == "heat":
        height = max(height, 1.2 + 0.16 * (text_lines(figure) if dots else len(figure.series)))
    canvas = Canvas(figsize=(6.4, height), layout="constrained")
    axes: Any = canvas.add_subplot()
    paint = {"lines": _lines, "points": _points, "bars": _bars, "dots": _dots, "heat": _heat}
    handles = paint[figure.kind](axes, figure, looks([one.label for one in figure.series]))
    axes.set_title(_wrap(figure.title, 60), loc="left")
    names = figure.x_label, figure.y_label
    across, up = names[::-1] if dots else names
    axes.set(xlabel=_wrap(across, 60), ylabel="" if figure.kind == "heat" else _wrap(up, 40))
    x_log, y_log = log_axes(figure)
    if x_log:
        axes.set_xscale("log")
        _thin(axes.xaxis)
    if y_log:
        axes.set_yscale("log")
        _thin(axes.yaxis)
    if figure.y_range and figure.kind != "heat":
        (axes.set_xlim if dots else axes.set_ylim)(*figure.y_range)
    if figure.square:
        axes.set_aspect("equal", adjustable="datalim")
    if figure.kind != "heat":
        axes.grid(visible=True, axis="y" if figure.kind == "bars" else "both")
    if len(handles) > 1:
        labels = [_wrap(one.label) for one in figure.series]
        if len(handles) > 5 or dots or figure.square:  # no room inside the axes
            canvas.legend(handles, labels, frameon=False, loc="outside lower center", ncols=3,
                          fontsize=9)  # fmt: skip
        else:
            axes.legend(handles, labels, frameon=False, loc="best")
    canvas.draw_without_rendering()  # the layout takes most of the time: compute it once
    canvas.set_layout_engine("none")
    return canvas


def text_lines(figure: Figure) -> int:
    """Return how many lines of text a dot plot needs for the longest name or the most dots."""
    names = categories(figure)
    tallest = max(2 * len(textwrap.wrap(name, 24)) for name in names)
    return len(names) * max(tallest, len(figure.series))


def _lines(axes: Any, figure: Figure, styles: list[Look]) -> list[Any]:
    handles = []
    for one, look, nested in zip(figure.series, styles, nesting(figure), strict=True):
        few = len(one.x) > 1
        handles.append(
            axes.errorbar(
                one.x, one.y, one.error, color=look.colour, capsize=2, elinewidth=0.8,
                linewidth=look.width * 0.75 + 2.5 * nested, linestyle=look.dash.matplotlib,
                markersize=4 + 3 * nested if few else 8,
                marker=look.marker.matplotlib if has_markers(one) else None,
                markevery=max(1, len(one.x) // MARKED), alpha=0.45 if nested else 1.0,
            )
        )  # fmt: skip
        if one.fill:
            axes.fill(one.x, one.y, color=look.colour, alpha=0.12, linewidth=0)
    return handles


def _points(axes: Any, figure: Figure, styles: list[Look]) -> list[Any]:
    return [
        axes.scatter(
            one.x, one.y, 16, color=look.colour, marker=look.marker.matplotlib, alpha=0.75,
            linewidths=0,
        )
        for one, look in zip(figure.series, styles, strict=True)
    ]  # fmt: skip


def _bars(axes: Any, figure: Figure, styles: list[Look]) -> list[Any]:
    names = categories(figure)
    width = 0.8 / len(figure.series)
    handles = []
    for k, (one, look) in enumerate(zip(figure.series, styles, strict=True)):
        places = [names.index(str(x)) + (k + 0.5) * width - 0.4 for x in one.x]
        handles.append(
            axes.bar(
                places, one.y, width * 0.92, yerr=one.error, color=look.colour, alpha=look.alpha,
                error_kw={"elinewidth": 0.8, "capsize": 2},
            )
        )  # fmt: skip
    axes.set_xticks(range(len(names)), [_wrap(name) for name in names])
    return handles


def _dots(axes: Any, figure: Figure, styles: list[Look]) -> list[Any]:
    names = categories(figure)
    handles = []
    for k, (one, look) in enumerate(zip(figure.series, styles, strict=True)):
        below = 0.7 * ((k + 0.5) / len(figure.series) - 0.5)
        places = [names.index(str(x)) + below for x in one.x]
        handles.append(
            axes.errorbar(
                one.y, places, xerr=one.error, color=look.colour, linestyle="none", capsize=2,
                elinewidth=0.8, marker=look.marker.matplotlib, markersize=5,
            )
        )  # fmt: skip
    axes.set_yticks(range(len(names)), [_wrap(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    return handles


def _heat(axes: Any, figure: Figure, _: list[Look]) -> list[Any]:
    names = categories(figure)
    low, high = figure.y_range or (None, None)
    image = axes.imshow(heights(figure, names), cmap="cividis", aspect="auto", vmin=low, vmax=high)
    axes.set_xticks(range(len(names)), [_wrap(name) for name in names])
    axes.set_yticks(range(len(figure.series)), [_wrap(one.label) for one in figure.series])
    axes.figure.colorbar(image, ax=axes, label=_wrap(figure.y_label, 40))
    return []


def _thin(axis: Any) -> None:
    """Label powers of ten alone if the axis spans more than one."""
    low, high = axis.get_view_interval()
    if high > 10.0 * low:
        axis.set_minor_formatter(NullFormatter())


def _wrap(text: str, width: int = 24) -> str:
    """Wrap text; a dollar sign starts no formula, a leading underscore hides no label."""
    text = textwrap.fill(text, width, max_lines=3, placeholder=" …").replace("$", r"\$")
    return (" " if text.startswith("_") else "") + text
