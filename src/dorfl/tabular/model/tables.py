"""Tables about a model, the same on the terminal, on its card and on its page."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dorfl.report.content import Cell, Measured, Table
from dorfl.support.text import percent
from dorfl.tabular.model.facts import MIN_ROWS, ClientStatistics, Estimate, worst_client
from dorfl.tabular.model.model import Model

INLIERS = "Inliers have at least half of an ordinary row's weight in training."
ERRORS = "± is a standard error over rows, overall stratified by client."


def form(classifies: bool) -> str:
    """Return the format of scores: accuracies in per cent have one decimal."""
    return ".1f" if classifies else ""


def measure(classifies: bool) -> str:
    """Return the name of a score with its unit."""
    return "accuracy in %" if classifies else "mean absolute error"


def cell(found: Estimate | None, classifies: bool) -> Cell:
    """Return a score with its standard error as a cell; accuracies in per cent."""
    if found is None:
        return None
    unit = 100.0 if classifies else 1.0
    error = math.nan if found.error is None else unit * found.error
    return Measured(unit * found.mean, error)


def few_rows(clients: Mapping[str, Estimate]) -> str:
    """Return how many clients have too few rows to be named the worst; empty if none."""
    few = sum(found.rows < MIN_ROWS for found in clients.values())
    if not few:
        return ""
    return f"{few} of {len(clients)} clients have fewer than {MIN_ROWS} inliers and are not ranked."


def held_out(model: Model) -> Table:
    """Return the scores of the method, ERM and a constant on held-out rows."""
    methods, classifies = model.facts.held_out, model.classifies
    first, both = methods[0], methods[0].all_rows is not None
    rows: list[tuple[Cell, ...]] = []
    for one in methods:
        worst = worst_client(one.clients, classifies)
        ends = (worst or "–", one.clients.get(worst or ""))
        every = [cell(one.all_rows, classifies)] if both else []
        own = (cell(one.overall, classifies), *every, ends[0], cell(ends[1], classifies))
        rows.append((one.method, *own))
    every_row = first.all_rows or first.overall
    names = [f"all {every_row.rows:,} rows"] if every_row.rows else ["all rows"]
    names = [f"{first.overall.rows:,} inliers", *names] if both else names
    text = "One row in five of every client is held out, models are trained on the others."
    notes = [text, *([INLIERS] if both else []), ERRORS, few_rows(first.clients)]
    return Table(
        "held-out",
        f"On held-out rows, {measure(classifies)}",
        ("method", *names, "worst client", "its inliers" if both else "its rows"),
        rows,
        form(classifies),
        note=" ".join(filter(None, notes)),
    )


def clients(model: Model) -> Table:
    """Return rows, λ, loss and score of each client; the score on held-out rows, if measured."""
    facts, classifies, name = model.facts, model.classifies, measure(model.classifies)
    served, held = {found.name: found for found in facts.clients}, facts.held_out
    rows: list[tuple[Cell, ...]] = []
    for client, share in zip(model.fit.clients, model.fit.lam.tolist(), strict=True):
        of = served.get(client, ClientStatistics(client, 0))
        score, count = None if of.score is None else Estimate(of.score, None, of.rows), []
        if held:
            score = held[0].clients.get(client)
            count = [score.rows or None if score else 0]
        rows.append((client, of.rows or None, share, of.loss, *count, cell(score, classifies)))
    over, where = "all rows trained with", []
    if held:
        over = "held-out inliers" if held[0].all_rows else "held-out rows"
        where = [over]
    note = "Loss: mean over the rows trained with, weighed as in training."
    return Table(
        "clients",
        f"Clients, {name} over {over}",
        ("client", "rows", "λ", "loss", *where, name),
        rows,
        {"rows": ",d", "λ": ".3f", "loss": ".4f", over: ",d", name: form(classifies)},
        note=f"{note} {ERRORS}" if held else note,
    )


def down_weighted(model: Model) -> str | None:
    """Return how many rows have less than half of an ordinary row's weight, in a sentence."""
    weights, rows = model.facts.weights, model.facts.rows
    if weights is None or weights.low is None:
        return None
    if not weights.low:
        return "No row has less than half of an ordinary row's weight."
    return (
        f"{weights.low:,} of {rows:,} rows ({percent(weights.low / max(rows, 1))}) are "
        "down-weighted: each has less than half of an ordinary row's weight."
    )


def columns(model: Model) -> Table:
    """Return how every column is used, and why some are not."""
    used = [
        (
            part.name,
            "date" if getattr(part, "date", False) else type(part).__name__.lower(),
            len(part.features),
            part.missing,
        )
        for part in model.transform.parts
    ]
    left = [(name, f"not used: {why}", None, None) for name, why in model.transform.ignored.items()]
    return Table(
        "columns",
        "Columns",
        ("column", "kind", "features", "missing"),
        [*used, *left],
        {"features": "d", "missing": ".1%"},
    )
