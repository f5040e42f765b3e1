"""Interactive figures for pages, drawn with Plotly; :mod:`~dorfl.report.figures` draws for paper.

>>> from dorfl.report.content import Figure, Series
>>> curve = Series("DOR-FL", [1, 2, 3], [0.5, 0.2, 0.1])
>>> plot(Figure("gap", "Gap", "rounds", "gap", [curve], y_log=True)).layout.yaxis.type
'log'
"""

from __future__ import annotations

import math
import textwrap
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dorfl.report.content import (
    Figure,
    Series,
    Values,
    categories,
    heights,
    log_axes,
    nesting,
    plain,
)
from dorfl.report.style import GREY, MARKED, Look, has_markers, looks


def plot(figure: Figure) -> go.Figure:
    """Return an interactive figure with a transparent background, for light and dark pages."""
    styles = looks([one.label for one in figure.series])
    if figure.kind == "heat":
        traces = [_heat(figure)]
    elif figure.kind == "dots":
        traces = [_dots(figure, k, look) for k, look in enumerate(styles)]
    else:
        parts = zip(figure.series, styles, nesting(figure), strict=True)
        traces = [_trace(figure, *part) for part in parts]
    layout: dict[str, Any] = {
        "template": None,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 8, "r": 8, "t": 32, "b": 8, "pad": 2},
        "hovermode": "x unified" if figure.kind == "lines" else "closest",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hoverlabel": {"namelength": -1},
        "showlegend": len(traces) > 1,
        **_axes(figure),
    }
    if figure.kind == "bars":
        layout |= {"barmode": "group", "bargap": 0.22, "bargroupgap": 0.08}
    return go.Figure(data=traces, layout=layout)


def _trace(figure: Figure, series: Series, look: Look, nested: int) -> dict[str, Any]:
    marker: dict[str, Any] = {"symbol": look.marker.plotly, "size": 7 + 4 * nested}
    colour = _faint(look.colour, 0.45) if nested else look.colour
    marker["color"] = colour
    line = {"color": colour, "dash": look.dash.plotly, "width": look.width + 3.5 * nested}
    trace: dict[str, Any] = {"name": escape(series.label, quote=False)}
    if series.hover is not None:
        trace["text"] = [escape(words, quote=False) for words in series.hover]
    x = [_wrap(value) if isinstance(value, str) else value for value in plain(series.x)]
    trace |= {"x": x, "y": plain(series.y)}
    if series.error is not None:
        trace["error_y"] = {"array": plain(series.error), "thickness": 1.2, "width": 3}
    if figure.kind == "bars":
        trace["x"] = [str(value) for value in x]
        trace |= {"type": "bar", "marker": {"color": look.colour, "opacity": look.alpha}}
        return trace
    mode = "lines+markers" if has_markers(series) else "lines"
    if figure.kind == "points":
        mode, marker["opacity"] = "markers", 0.75
    elif len(series.x) > 1:
        marker["maxdisplayed"] = MARKED
    else:
        mode, marker["size"] = "markers", 11
    if series.fill:
        trace |= {"fill": "toself", "fillcolor": _faint(look.colour, 0.15), "hoverinfo": "skip"}
    return trace | {"type": "scatter", "mode": mode, "line": line, "marker": marker}


def _faint(colour: str, strength: float) -> str:
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},{strength})"


def _dots(figure: Figure, place: int, look: Look) -> dict[str, Any]:
    """Return points to the right of the category's name; series are offset vertically."""
    names, series = categories(figure), figure.series[place]
    below = (place + 0.5) / len(figure.series) - 0.5
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "name": escape(series.label, quote=False),
        "x": plain(series.y),
        "y": [names.index(str(x)) + 0.7 * below for x in series.x],
        "text": [escape(str(x), quote=False) for x in series.x],
        "hovertemplate": "%{text}: %{x:.4~g}",
        "marker": {"color": look.colour, "symbol": look.marker.plotly, "size": 8},
    }
    if series.error is not None:
        trace["error_x"] = {"array": plain(series.error), "thickness": 1.2, "width": 3}
    return trace


def _heat(figure: Figure) -> dict[str, Any]:
    names = categories(figure)
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": [_wrap(name) for name in names],
        "y": [_wrap(one.label) for one in figure.series],
        "z": heights(figure, names).tolist(),
        "colorscale": "Cividis",
        "colorbar": {"thickness": 12, "outlinewidth": 0, "title": {"text": figure.y_label}},
    }
    if figure.y_range:
        trace["zmin"], trace["zmax"] = figure.y_range
    return trace


def _axes(figure: Figure) -> dict[str, Any]:
    common = {"automargin": True, "zeroline": False, "ticks": "outside", "ticklen": 4}
    x: dict[str, Any] = common | _title(figure.x_label)
    y: dict[str, Any] = common | _title(figure.y_label, 36)
    if figure.kind == "lines":
        x |= {"spikethickness": 1, "spikedash": "dot", "spikecolor": GREY}
        x["unifiedhovertitle"] = {"text": f"{_wrap(figure.x_label, 50)} %{{x}}"}
    if figure.kind == "dots":
        names = categories(figure)
        rows = {"tickvals": list(range(len(names))), "ticktext": [_wrap(n) for n in names]}
        rows |= {"range": [len(names) - 0.5, -0.5], "showgrid": len(names) > 1}
        across = common | _title(figure.y_label) | {"zeroline": True, "zerolinecolor": GREY}
        if figure.y_range:
            across["range"] = list(figure.y_range)
        return {"xaxis": across, "yaxis": common | _title(figure.x_label, 36) | rows}
    if figure.kind in {"bars", "heat"}:
        x |= {"type": "category", "showgrid": False}
    if figure.kind == "heat":
        rows = {"type": "category", "autorange": "reversed", "dtick": 1, "title": None}
        return {"xaxis": x, "yaxis": y | rows}
    x_log, y_log = log_axes(figure)
    if x_log:
        x |= _decades([one.x for one in figure.series])
    if y_log:
        y |= _decades([one.y for one in figure.series])
    if figure.y_range:
        y["range"] = [math.log10(end) if y_log else end for end in figure.y_range]
    if figure.square:
        y |= {"scaleanchor": "x", "scaleratio": 1, "constrain": "domain"}
        x["constrain"] = "domain"
    return {"xaxis": x, "yaxis": y}


def _decades(values: list[Values]) -> dict[str, Any]:
    """Return a logarithmic axis that labels powers of ten alone if it spans enough of them."""
    logs = np.log10(np.concatenate([np.asarray(part, dtype=float) for part in values]))
    span = float(np.ptp(logs))
    ticks = {"dtick": math.ceil(span / 6.0)} if span >= 1.5 else {}
    return {"type": "log", "exponentformat": "power", **ticks}


def _wrap(text: str, width: int = 24) -> str:
    """Wrap text and escape markup."""
    return "<br>".join(escape(line, quote=False) for line in textwrap.wrap(text, width))


def _title(label: str, width: int = 50) -> dict[str, Any]:
    return {"title": {"text": _wrap(label, width), "standoff": 8}} if label else {}
