"""Style of a series: a method has the same colour in every figure.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart; dashes and markers
tell lines apart without any colour.

>>> looks(["DOR-FL", "dorfl (per client)"])[1].colour == looks(["DOR-FL"])[0].colour
True
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from colorsys import hls_to_rgb
from typing import Any, NamedTuple

from dorfl.report.content import Series

GREY = "#7a7a7a"
METHODS = {
    "dorfl": "#0072b2",
    "erm": "#e69f00",
    "afl": "#009e73",
    "wafl": "#cc79a7",
    "gdrfl": "#d55e00",
    "dorflsdefaults": "#56b4e9",
}
REFERENCES = ("oracle", "constant", "bayesrule", "paper")
_ALIASES = {"cleanrowsonly": "oracle", "chance": "constant"}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MORE = ("#56b4e9", "#8c6d1f", "#882255", "#5b4bb5", "#117733", "#999933", "#aa4466", "#44555f")
MARKED = 12  # most points of a line that have a marker
_OPACITIES = (1.0, 0.6, 0.35)


class Dash(NamedTuple):
    """Pattern of a line."""

    plotly: str
    matplotlib: Any
    svg: str


class Marker(NamedTuple):
    """Symbol of a point; `svg` is a path in a box of 28 by 14."""

    plotly: str
    matplotlib: str
    svg: str


_DASHES = (
    Dash("solid", "-", "none"),
    Dash("dash", "--", "6 3"),
    Dash("dot", ":", "2 3"),
    Dash("dashdot", "-.", "6 3 2 3"),
    Dash("longdash", (0, (8, 3)), "10 3"),
    Dash("longdashdot", (0, (8, 3, 1, 3)), "10 3 2 3"),
)
_MARKERS = (
    Marker("circle", "o", "M14 3a4 4 0 1 0 .01 0Z"),
    Marker("square", "s", "M10.5 3.5h7v7h-7Z"),
    Marker("diamond", "D", "M14 2l5 5-5 5-5-5Z"),
    Marker("triangle-up", "^", "M14 2.5l4.5 8h-9Z"),
    Marker("x", "X", "M10 5l2-2 2 2 2-2 2 2-2 2 2 2-2 2-2-2-2 2-2-2 2-2Z"),
    Marker("triangle-down", "v", "M14 11.5l4.5-8h-9Z"),
    Marker("cross", "P", "M12.5 2.5h3v3h3v3h-3v3h-3v-3h-3v-3h3Z"),
)


class Look(NamedTuple):
    """Style of a series."""

    colour: str  # hexadecimal
    dash: Dash
    marker: Marker
    width: float  # of the line, in pixels
    alpha: float  # opacity of bars


def looks(labels: Sequence[str]) -> list[Look]:
    """Return a style for each label.

    Methods have fixed colours, references are grey, and other labels get a free colour. Text after
    a colon names a variant, for methods also text after a comma or a bracket: variants share the
    colour and differ in dash, marker and opacity.
    """
    heads = [_head(label) for label in labels]
    taken = {METHODS[head] for head in heads if head in METHODS}
    free = [colour for colour in (*COLOURS, *_MORE) if colour not in taken]
    free = list(dict.fromkeys(free))
    others = list(dict.fromkeys(h for h in heads if h not in METHODS and h not in REFERENCES))
    free += [_hue(k) for k in range(len(others) - len(free))]
    found = []
    for place, head in enumerate(heads):
        variant = heads[:place].count(head)
        width = 2.0
        if head in REFERENCES:
            colour, width, first = GREY, 1.6, 1 + REFERENCES.index(head)
        elif head in METHODS:
            colour, first = METHODS[head], list(METHODS).index(head)
            width = 3.2 if head.startswith("dorfl") else 2.0
        else:
            first = others.index(head)
            colour = free[first]
        weaker = variant + (first - 1 if head in REFERENCES else 0)
        dash = _DASHES[(first + variant) % len(_DASHES)]
        marker = _MARKERS[(first + variant) % len(_MARKERS)]
        found.append(Look(colour, dash, marker, width, _OPACITIES[weaker % len(_OPACITIES)]))
    return found


def _hue(place: int) -> str:
    """Return a colour for the k-th label; steps of the golden angle keep neighbours distinct."""
    light, angle = (0.42, 0.6)[place % 2], (0.11 + 0.618033988749895 * place) % 1.0
    return "#" + "".join(f"{round(255 * c):02x}" for c in hls_to_rgb(angle, light, 0.55))


def has_markers(series: Series) -> bool:
    """Return whether a line has markers: not if it is a reference or a closed outline."""
    ends = [(series.x[k], series.y[k]) for k in (0, -1)]
    closed = len(series.x) > 2 and ends[0] == ends[1]
    return not closed and _head(series.label) not in REFERENCES


def _head(label: str) -> str:
    """Return the name without its variant, spelled alike: 'DOR-FL (ρ = 20)' is 'dorfl'."""
    short = re.sub(r"[^a-z0-9]", "", re.split(r"[,:(]", label.casefold())[0])
    short = _ALIASES.get(short, short)
    return short if short in METHODS or short in REFERENCES else label.partition(":")[0]
