"""What a person looks at after a study: a model, a comparison, suspects, as pages and figures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from dorfl.report.content import (
    Block,
    Cell,
    Details,
    Figure,
    Finding,
    Page,
    Section,
    Series,
    Table,
    Text,
    measured,
)
from dorfl.study.audit import Audit
from dorfl.study.comparison import Comparison
from dorfl.study.model import Model
from dorfl.study.model.facts import Guarantee, Weights
from dorfl.study.settings import Study

_SHOWN = 15  # features: as many as have room for their names
_POINTS = 5000  # of a picture


def of_model(model: Model) -> Page:
    """A model on one page."""
    facts, fit = model.facts, model.fit
    scores = [served.score for served in facts.clients if served.score is not None]
    measure = "accuracy" if model.classifies else "mean absolute error"
    cards = [Finding("method", fit.problem.method.name)]
    if scores:
        worst = min(scores) if model.classifies else max(scores)
        cards.append(Finding(f"{measure} of the worst served client", f"{worst:.4g}"))
    certificate = facts.certificate
    if certificate:
        claim = f"worst-case risk within UW distance {certificate.radius:.3g}"
        cards.append(Finding(claim, f"≤ {certificate.bound:.4g}", certificate.firm))
    if model.shortfall:
        cards.append(Finding(model.shortfall, "not converged", False))
    if model.useless:
        cards.append(Finding(model.useless, "learnt nothing", False))
    sections = [Section("Clients", _clients(model, measure))]
    sections.append(Section("What it learnt", [_coefficients(model)]))
    if facts.weights:
        sections.append(Section("Rows and their weights", [_weights(facts.weights)]))
    if certificate:
        sections.append(Section("What it guarantees", _guarantee(certificate)))
    sections.append(Section("How it was made", _making(model)))
    what = f"tells apart {', '.join(model.classes)}" if model.classifies else "estimates a number"
    lead = f"A linear model that {what}, trained over {len(fit.clients)} client(s)."
    return Page(f"A model of {model.label}", lead, cards, sections)


def _clients(model: Model, measure: str) -> list[Block]:
    served = {told.name: told for told in model.facts.clients}
    names, lam = model.fit.clients, model.fit.lam.tolist()
    rows = [
        (name, told.rows, share, told.loss, told.score)
        for name, share in zip(names, lam, strict=True)
        if (told := served.get(name))
    ]
    table = Table(
        "clients", "How each client is served", ("client", "rows", "λ", "loss", measure), rows,
        {"rows": ",d", "λ": ".3f", "loss": ".4f", measure: ".4g"},
        note="On the rows trained with. λ is how much a client counted: see it beside its loss.",
    )  # fmt: skip
    losses = {name: told.loss for name, told in served.items() if told.loss is not None}
    series = [Series("λ", names, lam)]
    if losses:
        series.append(Series("loss", tuple(losses), list(losses.values())))
    figure = Figure(
        "mixture", "Loss and weight of each client", "client", "", series, "bars",
        alt="Bars of every client's weight λ and mean loss.",
    )  # fmt: skip
    return [table, figure] if served else [figure]


def _coefficients(model: Model) -> Figure:
    problem = model.fit.problem
    weights, _ = problem.split(model.fit.theta)
    size = np.abs(weights).max(axis=0)
    top = np.argsort(-size, kind="stable")[:_SHOWN]
    names = [model.transform.names[k] for k in top]
    labels = model.classes if problem.outputs > 1 else (f"towards {_towards(model)}",)
    series = [Series(label, names, row[top]) for label, row in zip(labels, weights, strict=True)]
    return Figure(
        "coefficients", "What pushes the answer", "feature", "coefficient", series, "bars",
        note="Per robust standard deviation of a number, or for having a level; the largest first.",
        alt=f"Bars of the {len(names)} largest coefficients.",
    )  # fmt: skip


def _towards(model: Model) -> str:
    return model.classes[-1] if model.classifies else f"more {model.label}"


def _weights(histogram: Weights) -> Figure:
    edges = histogram.edges
    names = [*(f"{a:g}–{b:g}" for a, b in pairwise(edges)), f"≥ {edges[-1]:g}"]
    return Figure(
        "weights", "How much rows count", "weight (1: an ordinary row)", "rows",
        [Series("rows", names, histogram.rows)], "bars",
        note="Rows near 0 are held for wrong: `dorfl outliers` lists them. "
        "Bars of fewer than five rows are left out.",
        alt="Bars of how many rows have which weight.",
    )  # fmt: skip


def _guarantee(certificate: Guarantee) -> list[Block]:
    curve = np.array(certificate.curve, dtype=float).reshape(-1, 2)
    blocks: list[Block] = [Text([certificate.words])]
    if len(curve):
        blocks.append(
            Figure(
                "certificate",
                "Certified worst-case risk",
                "UW distance",
                "risk at most",
                [Series("bound", curve[:, 0], curve[:, 1])],
                x_log=True,
                alt="The certified risk rises with the distance from the data.",
            )
        )
    return blocks


def _making(model: Model) -> list[Block]:
    facts, fit = model.facts, model.fit
    words = [*facts.choice, f"{fit.message}, in {fit.rounds} exchanges of messages."]
    used = [
        (p.name, type(p).__name__.lower(), len(p.features), 100 * p.missing)
        for p in model.transform.parts
    ]
    left = [(name, f"not used: {why}", None, None) for name, why in model.transform.ignored.items()]
    table = Table(
        "columns", "Columns", ("column", "kind", "features", "missing in %"), [*used, *left],
        {"features": "d", "missing in %": ".1f"},
    )  # fmt: skip
    settings = Table(
        "settings", "Settings", ("setting", "value"),
        [(name, _shown(value)) for name, value in _flat(facts.settings).items()],
    )  # fmt: skip
    return [
        Text([*words, *facts.notes]),
        Details("Columns", [table]),
        Details("Settings", [settings]),
    ]


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by section and name, in one list."""
    return {
        f"{section}.{name}" if isinstance(entries, dict) else section: value
        for section, entries in settings.items()
        for name, value in (entries.items() if isinstance(entries, dict) else [("", entries)])
    }


def _shown(value: object) -> str:
    if value is None:
        return "chosen by dorfl"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def compared(found: Comparison) -> Table:
    """Every method's score, overall and by client, with its standard error over folds."""
    percent = 100.0 if found.classifies else 1.0
    folds = found.scores.shape[1]
    rows: list[Sequence[Cell]] = []
    for i, name in enumerate(found.methods):
        columns = np.column_stack([found.overall[i], found.scores[i]]) * percent
        rows.append((name, *map(measured, columns.T), found.clients[found.worst(i)]))
    title = "Accuracy in %" if found.classifies else "Mean absolute error"
    columns_ = ("method", "overall", *found.clients, "worst served")
    return Table(
        "methods", f"{title} on rows not trained with, {folds} folds", columns_, rows,
        ".1f" if found.classifies else ".4g",
        best=dict.fromkeys(columns_[1:-1], "max" if found.classifies else "min"),
        note="± is the standard error over folds.",
    )  # fmt: skip


def of_comparison(found: Comparison, study: Study) -> Page:
    """A comparison on one page."""
    mean = found.scores.mean(axis=1) * (100.0 if found.classifies else 1.0)
    measure = "accuracy in %" if found.classifies else "mean absolute error"
    series = [Series(name, found.clients, mean[i]) for i, name in enumerate(found.methods)]
    radar = Figure(
        "radar", "Who is served how by which method", "client", measure, series,
        "radar" if len(found.clients) > 2 else "bars",
        alt="Every method's score for every client.",
    )  # fmt: skip
    best = found.methods[found.best]
    cards = [Finding("serves its worst served client best", best)]
    words = [
        f"`{name}` serves `{found.clients[found.worst(i)]}` worst: "
        f"{mean[i, found.worst(i)]:.4g} ({measure})."
        for i, name in enumerate(found.methods)
    ]
    sections = [
        Section("Methods", [compared(found), radar]),
        Section("Worst served", [Text(words)]),
    ]
    label = study.data.label
    lead = f"Five ways to learn {label} across {len(found.clients)} clients, cross-validated."
    return Page(f"Methods compared on {label}", lead, cards, sections)


def suspects(found: Audit) -> Figure:
    """Rows by how far out they are and what they count; of many, the first and every k-th."""
    count = len(found.row)
    picked = np.arange(count)
    if count > _POINTS:
        picked = np.unique(np.r_[: _POINTS // 2, : count : 2 * count // _POINTS])
    series = [
        Series(
            str(name),
            np.maximum(found.distance[k := picked[found.client[picked] == name]], 1e-3),
            found.weight[k],
            hover=[f"row {found.row[i]}: {found.columns[i]}" for i in k],
        )
        for name in dict.fromkeys(found.client.tolist())
    ]
    return Figure(
        "outliers", "What rows count, by how far out they are", "distance from the centre",
        "weight (1: an ordinary row)", series, "points", x_log=True,
        note="A row at the bottom was disregarded in training.",
        alt="Points: the further out a row is, the less it counts.",
    )  # fmt: skip
