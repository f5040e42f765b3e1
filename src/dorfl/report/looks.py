"""How a series looks: the same method has the same colour in every figure, drawn or interactive.

Colours are Okabe and Ito's, which stay apart for everyone; dashes and markers tell lines apart
without any colour.

>>> looks(["DOR-FL", "dorfl (per client)"])[1].colour == looks(["DOR-FL"])[0].colour
True
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from dorfl.report.content import Series

GREY = "#7a7a7a"
METHODS = {
    "dorfl": "#0072b2",
    "erm": "#e69f00",
    "afl": "#009e73",
    "wafl": "#cc79a7",
    "gdrfl": "#d55e00",
}
REFERENCES = ("oracle", "bayesrule", "paper", "chance")
_ALIASES = {"cleanrowsonly": "oracle"}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MORE = ("#56b4e9", "#8c6d1f", "#882255", "#5b4bb5")  # where the methods have taken the others
_MANY = 40  # points from which on a line goes without markers
_DASHES = ("solid", "dash", "dot", "dashdot")
_STRENGTHS = (1.0, 0.6, 0.35)
_MARKERS = ("circle", "square", "diamond", "triangle-up", "x")


class Look(NamedTuple):
    """Colour, dash and marker (by Plotly's names), width of the line and strength of a surface."""

    colour: str
    dash: str
    marker: str
    width: float
    alpha: float


def looks(labels: Sequence[str]) -> list[Look]:
    """A look for each label: the methods' own, grey for what they are compared with, or a free one.

    What follows a colon is a variant, and with a method also what follows a comma or a bracket:
    the colour stays, the dash, the marker and the strength change.
    """
    heads = [_head(label) for label in labels]
    taken = {METHODS[head] for head in heads if head in METHODS}
    free = [colour for colour in COLOURS if colour not in taken]
    free += [colour for colour in _MORE if colour not in free] if taken else []
    others = list(dict.fromkeys(h for h in heads if h not in METHODS and h not in REFERENCES))
    found = []
    for place, head in enumerate(heads):
        variant = heads[:place].count(head)
        if head in REFERENCES:
            colour, width, first = GREY, 1.6, REFERENCES.index(head)
        elif head in METHODS:
            colour, first = METHODS[head], list(METHODS).index(head)
            width = 3.2 if head == "dorfl" else 2.0
        else:
            first = others.index(head)
            colour, width = free[first % len(free)], 2.0
        weaker = variant + (first if head in REFERENCES else 0)
        dash = (_DASHES[1:] if head in REFERENCES else _DASHES)[weaker % 3]
        marker = _MARKERS[(first + variant) % len(_MARKERS)]
        found.append(Look(colour, dash, marker, width, _STRENGTHS[weaker % len(_STRENGTHS)]))
    return found


def has_markers(series: Series) -> bool:
    """Whether a line shows its points: not when it has many, nor when it is only a reference."""
    return len(series.x) <= _MANY and _head(series.label) not in REFERENCES


def _head(label: str) -> str:
    """The name a variant belongs to, however it is spelled: 'DOR-FL (ρ = 20)' is 'dorfl'."""
    short = re.sub(r"[^a-z0-9]", "", re.split(r"[,:(]", label.casefold())[0])
    short = _ALIASES.get(short, short)
    return short if short in METHODS or short in REFERENCES else label.partition(":")[0]
