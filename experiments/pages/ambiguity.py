"""The paper's first figure on the page: which populations are near the clients' mixtures."""

from __future__ import annotations

from typing import Any

import numpy as np

from dorfl.report.content import Block, Figure, Live, Section, Series, Slider, Text
from experiments import ambiguity
from experiments.ambiguity import BETA, DIRECTIONS, GOOD, KINDS, RADIUS, SHARE, WRONG


def section(found: dict[str, Any]) -> Section:
    """The figure with sliders, and what it shows."""
    far = found["far"]
    blocks: list[Block] = [
        Text(
            [
                "The model is trained against every population near some mixture of the clients. "
                "Rows are of three kinds here, and a population is drawn at its mean. One row in "
                f"{round(1 / SHARE)} of client 3 is an outlier at ({WRONG[0]:g}, {WRONG[1]:g}), "
                "far outside.",
                "How far are client 3's inliers from all of its rows? By the plain Wasserstein "
                f"distance W {far['W']:.2f}, because the outlier has to be reached; by the "
                f"unbalanced one, UW, {far['UW']:.2f} at β = {BETA:g}, because dropping it costs β "
                f"log 1/(1 − {SHARE:g}). So with r = {RADIUS:g} the set by UW holds the population "
                "that client 3 really has, and the set by W does not.",
            ]
        ),
        _figure(found["outlines"]),
    ]
    return Section("What it guards against", blocks)


def _figure(outlines: dict[str, list[list[float]]]) -> Figure:
    q = ambiguity.clients()
    names = ["within r of a mixture by UW", "within r of a mixture by W"]
    series = [
        Series(name, *_closed(outline), fill=k == 0)
        for k, (name, outline) in enumerate(zip(names, outlines.values(), strict=True))
    ]
    clients, good = q @ np.vstack([KINDS, WRONG]), GOOD @ KINDS
    series += [
        Series("clients, with all rows", clients[:, 0], clients[:, 1]),
        Series("client 3 without its outliers", good[2:, 0], good[2:, 1]),
    ]
    data = {
        "kinds": KINDS.tolist(),
        "cost": ambiguity.costs().tolist(),
        "outlines": [
            {"clients": q.tolist(), "plain": plain} for plain in (False, True)
        ],
        "count": DIRECTIONS,
    }  # fmt: skip
    return Figure(
        "ambiguity", "The ambiguity set, and what an outlier does to it", "mean of x1",
        "mean of x2", series, square=True,
        note="Outlines are computed from the paper's dual, and distances by exact transport.",
        alt="The set by unbalanced Wasserstein distance reaches all three clients' inliers; the "
        "set by plain Wasserstein distance leaves out client 3.",
        live=Live(
            "ambiguity", data, (Slider("β", 0.05, 10.0, BETA), Slider("r", 0.02, 1.0, RADIUS))
        ),
    )  # fmt: skip


def _closed(outline: list[list[float]]) -> tuple[list[float], list[float]]:
    """Along x and y, back to where it began; without any, nowhere."""
    if not outline:
        return [float("nan")], [float("nan")]
    x, y = zip(*outline, outline[0], strict=True)
    return list(x), list(y)
