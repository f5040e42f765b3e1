"""Plots of a fit on Matplotlib axes, for example `dorfl.plot.weights(fit)`.

Every function draws on `ax`, or on new axes, and returns them. `dorfl report` makes whole pages.

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
from dorfl.report.style import COLOURS, GREY
from dorfl.support.types import Array

_NAMED = 6  # clients with a colour of their own: those with the largest λ
_NAMES = 30  # clients that are named on an axis
_DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))


def weights(fit: Any, ax: Axes | None = None, *, wrong: Mapping[str, Any] | None = None) -> Axes:
    """Plot a histogram of sample weights n_i p_j: 1 for an inlier, 0 for an outlier.

    Parameters
    ----------
    fit : Fit or estimator
        A :class:`~dorfl.Fit`, or a fitted estimator.
    ax
        Axes to draw on.
    wrong
        For each client, a mask (n,) of rows known to be wrong, which get a colour of their own.

    Returns
    -------
    Axes
        The axes drawn on.

    Raises
    ------
    ValueError
        If the fit was loaded from a file, which has no sample weights.
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
    label = (
        f"rows ({int((~bad).sum()):,})" if wrong is None else f"other rows ({int((~bad).sum()):,})"
    )
    axes.hist(value[~bad], edges, color=COLOURS[0], label=label)
    if wrong is not None:
        name = f"wrong ({int(bad.sum()):,})"
        axes.hist(value[bad], edges, color=COLOURS[1], alpha=0.8, hatch="//", label=name)
        axes.legend(frameon=False)
    axes.set(xlabel="sample weight (1: inlier, 0: outlier)", ylabel="rows", yscale="log")
    return axes


def path(fit: Fit, ax: Axes | None = None, *, of: str = "gap") -> Axes:
    """Plot the course of training by round.

    Parameters
    ----------
    fit
        A fit with its history.
    ax
        Axes to draw on.
    of
        "gap": the optimality gap relative to the objective, which ends training below `tol`;
        "risks": the robust risk of each client; "lam": the mixture weights λ.

    Returns
    -------
    Axes
        The axes drawn on.

    Raises
    ------
    ValueError
        If `of` is unknown, or the fit has no history.
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
    """Plot the bound on the risk by the radius of the ambiguity set (the paper's Proposition 2).

    Parameters
    ----------
    fit
        A fit, or a certificate from :func:`dorfl.certificate.paper`.
    given
        The clients' rows, as :func:`dorfl.train` takes them; not needed for a certificate.
    ax
        Axes to draw on.
    radii
        Radii at which the bound is computed; by default around the certificate's own.

    Returns
    -------
    Axes
        The axes drawn on.
    """
    axes = _axes(ax)
    found = fit if isinstance(fit, Certificate) else paper(fit, given)
    at = found.radius * np.geomspace(0.1, 10.0, 13) if radii is None else np.asarray(radii)
    at = np.sort(np.append(at.astype(float), found.radius))
    sure = found.is_certificate
    axes.plot(at, found.curve(at), color=COLOURS[0], label="bound" if sure else "estimate")
    axes.plot(found.radius, found.attained, "o", color=COLOURS[1], label="attained")
    axes.set(
        xscale="log",
        xlabel="radius r (unbalanced Wasserstein)",
        ylabel="worst-case risk, " + ("at most" if sure else "estimated"),
    )
    axes.legend(frameon=False)
    return axes


def clients(
    fit: Fit, given: Any, ax: Axes | None = None, *, beside: Mapping[str, Fit] | None = None
) -> Axes:
    """Plot the accuracy, or the mean loss, of every client; the worst client is at the bottom.

    Parameters
    ----------
    fit
        A fit.
    given
        Test rows, as :func:`dorfl.train` takes them; preferably not the training rows.
    ax
        Axes to draw on.
    beside
        Other fits by name, tested on the same rows.

    Returns
    -------
    Axes
        The axes drawn on.
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
    if len(names) <= _NAMES:
        axes.set_yticks(place, labels=names.tolist())
    else:
        axes.set_ylabel(f"{len(names)} clients, the worst at the bottom")
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
    """Draw a line for every client; those with the largest λ are named, the others are grey."""
    order = np.argsort(-fit.lam, kind="stable")
    rest = order[_NAMED:]
    if len(rest):
        axes.plot(rounds, table[:, rest], color=GREY, linewidth=0.6, alpha=0.6)
        axes.plot([], [], color=GREY, linewidth=0.6, label=f"{len(rest)} others")
    for k, i in enumerate(order[:_NAMED]):
        axes.plot(rounds, table[:, i], color=COLOURS[k], linestyle=_DASHES[k], label=fit.clients[i])
    axes.legend(frameon=False)
