"""Pictures of a fit, on axes of Matplotlib: `dorfl.plot.weights(fit)`.

Every function draws on `ax`, or on new axes, and returns them, so that titles, sizes and whatever
else is wanted are set with Matplotlib. `dorfl report` makes whole pages.

>>> import dorfl, matplotlib
>>> matplotlib.use("agg")
>>> data = dorfl.datasets.synthetic(seed=0)
>>> fit = dorfl.train(data.clients, dorfl.methods.paper())
>>> dorfl.plot.path(fit).get_xlabel()
'round'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dorfl.certificates.certificate import Certificate, paper
from dorfl.data import validation
from dorfl.federated.fit import Fit
from dorfl.report.looks import COLOURS, GREY
from dorfl.support.types import Array

_NAMED = 6  # clients with a colour of their own; of more, the weightiest
_DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))


def weights(fit: Any, ax: Axes | None = None, *, wrong: Mapping[str, Any] | None = None) -> Axes:
    """How much rows count: a histogram of n_i p_j, 1 for an ordinary row and 0 for a suspect.

    Args:
        fit: a :class:`~dorfl.Fit`, or a fitted estimator.
        ax: where to draw.
        wrong: for each client, which of its rows are known to be wrong: drawn apart.
    """
    axes = _axes(ax)
    if isinstance(fit, Fit):
        if not fit.sample_weights:
            raise ValueError("plot.weights: a loaded fit has no sample weights; train it here")
        found = {name: len(p) * p for name, p in fit.sample_weights.items()}
    else:
        found = {"all": np.asarray(fit.sample_weights_)}
    value = np.concatenate(list(found.values()))
    bad = np.zeros(len(value), dtype=bool)
    if wrong is not None:
        bad = np.concatenate([np.asarray(wrong[name], dtype=bool) for name in found])
    edges = np.linspace(0.0, max(float(value.max()), 1.0) * 1.0001, 41).tolist()
    label = f"rows ({int((~bad).sum()):,})" if wrong is None else f"right ({int((~bad).sum()):,})"
    axes.hist(value[~bad], edges, color=COLOURS[0], label=label)
    if wrong is not None:
        name = f"wrong ({int(bad.sum()):,})"
        axes.hist(value[bad], edges, color=COLOURS[1], alpha=0.8, hatch="//", label=name)
        axes.legend(frameon=False)
    axes.set(xlabel="weight of a row (1: an ordinary one)", ylabel="rows", yscale="log")
    return axes


def path(fit: Fit, ax: Axes | None = None, *, of: str = "gap") -> Axes:
    """How training went, by round: the relative "gap", the clients' "risks", or their λ ("lam").

    The gap is a bound on how far above the best possible the objective is, in units of it; training
    ends where it falls below `tol`.
    """
    axes, history = _axes(ax), fit.history
    if of not in ("gap", "risks", "lam"):
        raise ValueError(f'plot.path: of={of!r}: choose "gap", "risks" or "lam"')
    if not history:
        raise ValueError("plot.path: this fit has no history; `Fit.save` keeps it, models do not")
    rounds = [line.round for line in history]
    if of == "gap":
        gaps = np.array([line.gap / max(abs(line.objective), 1e-300) for line in history])
        gaps[~np.isfinite(gaps) | (gaps <= 0)] = np.nan
        axes.plot(rounds, gaps, "o-", color=COLOURS[0], markersize=4)
        axes.set(yscale="log", ylabel="gap, relative to the objective")
    else:
        table = np.array([getattr(line, of) for line in history])
        _lines(axes, rounds, table, fit)
        axes.set_ylabel("robust risk" if of == "risks" else "weight λ of a client")
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return axes


def certificate(
    fit: Fit | Certificate, given: Any = None, ax: Axes | None = None, *, radii: Any = None
) -> Axes:
    """The most the risk can be, by how far a distribution is from the rows: Proposition 2.

    Args:
        fit: a fit, or a certificate that :func:`dorfl.certificate.paper` gave.
        given: the clients' rows, as `dorfl.train` takes them; a certificate has them.
        ax: where to draw.
        radii: where to evaluate the bound; by default around the certificate's own radius.
    """
    axes = _axes(ax)
    found = fit if isinstance(fit, Certificate) else paper(fit, given)
    at = found.radius * np.geomspace(0.1, 10.0, 13) if radii is None else np.asarray(radii)
    at = np.sort(np.append(at.astype(float), found.radius))
    sure = found.is_certificate
    axes.plot(at, found.curve(at), color=COLOURS[0], label="bound" if sure else "estimate")
    axes.plot(found.radius, found.attained, "o", color=COLOURS[1], label="attained")
    axes.set(
        xscale="log", xlabel="radius r (unbalanced Wasserstein)",
        ylabel="worst-case risk, " + ("at most" if sure else "estimated"),
    )  # fmt: skip
    axes.legend(frameon=False)
    return axes


def clients(
    fit: Fit, given: Any, ax: Axes | None = None, *, beside: Mapping[str, Fit] | None = None
) -> Axes:
    """How well each client is served: its accuracy, or mean loss, worst below; a dot a client.

    Args:
        fit: a fit.
        given: rows to judge it by, as `dorfl.train` takes them; better ones not trained with.
        ax: where to draw.
        beside: other fits, by name, judged on the same rows.
    """
    axes, checked = _axes(ax), validation.clients(given)
    fits = {fit.problem.method.name: fit, **(beside or {})}
    sign = 1.0 if fit.problem.loss.classifies else -1.0
    scores = {
        name: np.array([sign * one.score(X, y) for X, y in checked.values()])
        for name, one in fits.items()
    }
    own = next(iter(scores.values()))
    order = np.argsort(sign * own, kind="stable")
    place = np.arange(len(order))
    for k, (name, values) in enumerate(scores.items()):
        marker, colour = "osD^vX"[k % 6], COLOURS[k % len(COLOURS)]
        face = colour if k == 0 else "none"
        axes.plot(values[order], place, marker, color=colour, markerfacecolor=face, label=name)
    names = np.array(list(checked), dtype=object)[order]
    if len(names) <= 30:
        axes.set_yticks(place, labels=names.tolist())
    else:
        axes.set_ylabel(f"{len(names)} clients, the worst served below")
        axes.set_yticks([])
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    axes.set_xlabel("accuracy" if sign > 0 else "mean loss")
    if len(fits) > 1:
        axes.legend(frameon=False)
    return axes


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    return plt.subplots(figsize=(6.4, 3.6), layout="constrained")[1]


def _lines(axes: Axes, rounds: list[int], table: Array, fit: Fit) -> None:
    """A line for every client; beyond a few, the weightiest have names and the others are grey."""
    order = np.argsort(-fit.lam, kind="stable")
    rest = order[_NAMED:]
    if len(rest):
        axes.plot(rounds, table[:, rest], color=GREY, linewidth=0.6, alpha=0.6)
        axes.plot([], [], color=GREY, linewidth=0.6, label=f"{len(rest)} others")
    for k, i in enumerate(order[:_NAMED]):
        axes.plot(rounds, table[:, i], color=COLOURS[k], linestyle=_DASHES[k], label=fit.clients[i])
    axes.legend(frameon=False)
