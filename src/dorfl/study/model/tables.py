"""What is told of a model in tables, the same ones on screens, cards and pages."""

from __future__ import annotations

from dorfl.report.content import Cell, Direction, Table
from dorfl.study.model.facts import Served
from dorfl.study.model.model import Model


def form(model: Model) -> str:
    """How its scores are written."""
    return ".1%" if model.classifies else ""


def held_out(model: Model) -> Table:
    """What the method and the simplest ones score on rows they were not trained with."""
    told, title = model.facts.held_out, "On rows held out of training"
    rows: list[tuple[Cell, ...]] = [(t.method, t.overall, t.worst, t.client) for t in told]
    columns, note = ["method", model.measure, "worst served", "who"], ""
    if told[0].all_rows is not None:
        rows = [(*row, one.all_rows) for row, one in zip(rows, told, strict=True)]
        columns, title = [*columns, "with those"], f"{title}, but for those furthest out"
        note = " Rows furthest out, as many as may be wrong, are counted in the last column only."
    direction: Direction = "max" if model.classifies else "min"
    return Table(
        "held-out", title, columns, rows, form(model),
        note=f"A fifth of every client's rows, with models trained on the others.{note}",
        best=dict.fromkeys((model.measure, "worst served"), direction),
    )  # fmt: skip


def clients(model: Model) -> Table:
    """How each client is served: on rows held out of training, where that was measured."""
    facts = model.facts
    served, held = {told.name: told for told in facts.clients}, facts.held_out
    scores = dict(held[0].clients) if held else {name: of.score for name, of in served.items()}
    where = "on rows held out of training" if held else "on the rows trained with"
    rows = [
        (name, of.rows or None, share, of.loss, scores.get(name))
        for name, share in zip(model.fit.clients, model.fit.lam.tolist(), strict=True)
        for of in [served.get(name, Served(name, 0))]
    ]
    return Table(
        "clients", f"Clients, {model.measure} {where}",
        ("client", "rows", "λ", "loss in training", model.measure), rows,
        {"rows": ",d", "λ": ".3f", "loss in training": ".4f", model.measure: form(model)},
    )  # fmt: skip


def columns(model: Model) -> Table:
    """What is made of every column, and why some are not used."""
    used = [
        (part.name, "date" if getattr(part, "date", False) else type(part).__name__.lower(),
         len(part.features), part.missing)
        for part in model.transform.parts
    ]  # fmt: skip
    left = [(name, f"not used: {why}", None, None) for name, why in model.transform.ignored.items()]
    return Table(
        "columns", "Columns", ("column", "kind", "features", "missing"), [*used, *left],
        {"features": "d", "missing": ".1%"},
    )  # fmt: skip
