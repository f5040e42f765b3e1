"""Certificates as parts of a page: curves over drift and outliers, bounds by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dorfl.certificates.certified import ceiled, down, floored, up
from dorfl.report.content import (
    Beside,
    Block,
    Details,
    Figure,
    Finding,
    Page,
    Section,
    Series,
    Table,
    Text,
)
from dorfl.tabular.model.facts import Promise, Promised

ROOM = 16  # clients in a table


def of_promises(found: dict[str, Promise], label: str) -> Page:
    """Return a page with the certificates of several models."""
    words = [
        Text([f"{name}: {promise.words}", promise.assumption]) for name, promise in found.items()
    ]
    sections = [
        Section("What is certified", [*words, *certified(found)]),
        Section("Over drift and outliers", curves(found)),
    ]
    lead = "Bounds, not estimates, if some rows are outliers and inliers drift."
    cards = [promised(promise, name) for name, promise in found.items()]
    return Page(f"Certificates of {label}", lead, cards, sections)


def promised(promise: Promise, name: str = "") -> Finding:
    """Return the headline: the bound, with its confidence, share of outliers and drift."""
    at, of = promise.overall[0], f"{name}: " if name else ""
    form = "on the rows trained with" if promise.confidence is None else _confidence(promise)
    measure = "accuracy" if at.accuracy is not None else "mean absolute error"
    claim = f"{of}{measure} guaranteed {form}, {conditions(promise)}"
    if at.accuracy is not None:
        return Finding(claim, f"≥ {floored(at.accuracy)}")
    return Finding(claim, "no bound" if at.error is None else f"≤ {ceiled(at.error)}")


def conditions(promise: Promise) -> str:
    """Return under which outliers and drift a certificate holds."""
    share = f"up to {100 * promise.outliers:.3g} % of rows are outliers"
    wrong = share if promise.outliers else "no row is an outlier"
    return f"if {wrong} and inputs drift by up to {promise.drift:.3g} sd"


def _confidence(promise: Promise) -> str:
    return f"with {100 * (promise.confidence or 0.0):.4g} % confidence"


def curves(found: dict[str, Promise]) -> list[Block]:
    """Return figures of certified score and loss over the drift and over the share of outliers."""
    first = next(iter(found.values()))
    classifies = first.overall[0].accuracy is not None
    score = "accuracy" if classifies else "mean absolute error"
    least = "accuracy at least, in %" if classifies else "mean absolute error at most"
    blocks: list[Block] = []
    share, drift = f"{100 * first.outliers:.3g} % outliers", f"a drift of {first.drift:.3g}"
    for part, x_label, scale, at in (
        ("over_drift", "drift in standard deviations", 1.0, share),
        ("over_outliers", "outliers in %", 100.0, drift),
    ):
        figures = []
        for kind, what, y_label in (("score", score, least), ("loss", "loss", "loss at most")):
            series = [
                Series(name or "certified", [x for x, _ in known], [y for _, y in known])
                for name, promise in found.items()
                if (known := _known(getattr(promise, part), kind, scale))
            ]
            figure = Figure(
                f"{part.replace('_', '-')}-{kind}", f"Certified {what}, {at}", x_label, y_label,
                series, alt=f"{y_label} against {x_label}.",
            )  # fmt: skip
            figures += [figure] if series else []
        blocks.append(Beside(figures))
    return blocks


def _known(lines: Sequence[Promised], kind: str, scale: float) -> list[tuple[float, float]]:
    """Return the points of a curve at which there is a bound."""
    heights = [(scale * float(line.name), _height(line, kind)) for line in lines]
    return [(x, y) for x, y in heights if y is not None]


def _height(line: Promised, kind: str) -> float | None:
    if kind == "loss":
        return line.loss
    return line.error if line.accuracy is None else float(np.floor(1e4 * line.accuracy)) / 1e2


def certified(found: dict[str, Promise]) -> list[Block]:
    """Return a table of all clients; if there are many, of the worst, with the rest folded."""
    table, room = by_client(found), ROOM
    first = next(iter(found.values()))
    if len(first.clients) <= room:
        return [table]
    clients, overall = table.rows[: len(first.clients)], table.rows[len(first.clients) :]
    sign = 1.0 if first.overall[0].accuracy is not None else -1.0
    known = [row for row in clients if isinstance(row[1], float)]
    worst = sorted(known, key=lambda row: sign * float(str(row[1])))[:room]
    shown = table._replace(
        name="least-certified", rows=[*overall, *worst],
        title=f"What is certified: over all, and the {len(worst)} clients with the least",
    )  # fmt: skip
    return [shown, Details(f"All {len(clients)} clients", [table])]


def by_client(found: dict[str, Promise]) -> Table:
    """Return a table of certified score and loss by client and for mixtures of clients."""
    first = next(iter(found.values()))
    note = (
        f"At most {100 * first.outliers:.3g} % outliers, a drift of at most {first.drift:.3g} "
        "standard deviations (root mean square); columns of categories and flags do not move. "
    )
    note += (
        "In sample: about the rows at hand, not about rows to come."
        if first.confidence is None
        else f"For rows to come, {_confidence(first)}; each line by itself."
    )
    lines = {name: (*promise.clients, *promise.overall) for name, promise in found.items()}
    table = bounds("certified", "What is certified, by client", "client", lines)
    return table._replace(note=note)


def bounds(name: str, title: str, head: str, found: Mapping[str, Sequence[Promised]]) -> Table:
    """Return a table of certified score and, where it is bounded, loss; bounds are rounded safely.

    Parameters
    ----------
    name, title, head : str
        Name and title of the table, and the head of its first column.
    found : mapping of str to sequence of Promised
        The lines of every model, by its name.
    """
    every = [line for lines in found.values() for line in lines]
    classifies = every[0].accuracy is not None
    score = "accuracy ≥" if classifies else "mean absolute error ≤"
    measures = (score, "loss ≤") if any(line.loss is not None for line in every) else (score,)
    heads = [f"{what} {model}".rstrip() for model in found for what in measures]
    rows = [
        (at[0].name, *(value for line in at for value in _rounded(line)[: len(measures)]))
        for at in zip(*found.values(), strict=True)
    ]
    forms = {h: ".1%" if h.startswith("accuracy") else "" for h in heads}
    return Table(name, title, (head, *heads), rows, forms)


def _rounded(line: Promised) -> tuple[float | None, float | None]:
    if line.accuracy is not None:
        score: float | None = down(line.accuracy)
    else:
        score = None if line.error is None else up(line.error)
    return score, None if line.loss is None else up(line.loss)
