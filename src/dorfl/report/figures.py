"""Figures for papers: every one as PNG and SVG, in colours that remain apart for everyone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from dorfl.experiments.theory import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito
_LINES = ("-", "--", ":", "-.")


def draw(figure: Figure, folder: Path) -> list[Path]:
    """Draw the curves of a figure into `folder`; axes are logarithmic where the values allow."""
    with plt.rc_context({"svg.hashsalt": figure.name, "font.size": 10}):
        canvas, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
        for k, curve in enumerate(figure.curves):
            axes.plot(
                curve.x,
                curve.y,
                label=curve.label,
                color=COLOURS[k % len(COLOURS)],
                linestyle=_LINES[k % len(_LINES)],
                marker="o",
                markersize=3,
            )
        if all((curve.x > 0).all() for curve in figure.curves):
            axes.set_xscale("log")
        if all((curve.y > 0).all() for curve in figure.curves):
            axes.set_yscale("log")
        axes.set(title=figure.title, xlabel=figure.x_label, ylabel=figure.y_label)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        paths = [folder / f"{figure.name}.png", folder / f"{figure.name}.svg"]
        canvas.savefig(paths[0], dpi=160, metadata={"Software": None})
        canvas.savefig(paths[1], metadata={"Date": None})  # the same file for the same figures
        plt.close(canvas)
    return paths
