"""What a person looks at after a study: a model, a comparison, suspects, as pages and figures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from dorfl.guarantees.certified import floored
from dorfl.report.content import (
    Beside,
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
from dorfl.study.model.facts import Guarantee, Promise, Promised, Weights
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
    certificate, promise = facts.certificate, facts.promise
    if promise:
        cards.append(_promised(promise))
    if model.shortfall:
        cards.append(Finding(model.shortfall, "not converged", False))
    if model.useless:
        cards.append(Finding(model.useless, "learnt nothing", False))
    sections = [Section("Clients", _clients(model, measure))]
    sections.append(Section("What it learnt", [_coefficients(model)]))
    if facts.weights:
        sections.append(Section("Rows and their weights", [_weights(facts.weights)]))
    told: list[Block] = []
    if promise:
        told = [Text([promise.words, promise.assumption]), *_curves({"": promise})]
        told.append(_by_client({"": promise}))
    if certificate:
        told.append(Details("The certificate as the paper has it", _guarantee(certificate)))
    if told:
        sections.append(Section("What it guarantees", told))
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


def of_promises(found: dict[str, Promise], label: str) -> Page:
    """What models guarantee, beside each other, on one page."""
    words = [
        Text([f"{name}: {promise.words}", promise.assumption]) for name, promise in found.items()
    ]
    sections = [
        Section("What is certified", [*words, _by_client(found)]),
        Section("How far it reaches", _curves(found)),
    ]
    lead = "How bad it can get if some rows are wrong and the others drift: bounds, not estimates."
    cards = [_promised(promise, name) for name, promise in found.items()]
    return Page(f"What is guaranteed for {label}", lead, cards, sections)


def _promised(promise: Promise, name: str = "") -> Finding:
    at, of = promise.overall[0], f"{name}: " if name else ""
    terms = f"{100 * promise.outliers:.3g} % of rows wrong, drift {promise.drift:.3g}"
    if at.accuracy is not None:
        return Finding(f"{of}certified accuracy, {terms}", f"≥ {floored(at.accuracy)}", True)
    error = "no bound" if at.error is None else f"≤ {at.error:.4g}"
    return Finding(f"{of}certified mean absolute error, {terms}", error, at.error is not None)


def _curves(found: dict[str, Promise]) -> list[Block]:
    """Certified score and loss over the drift and over the share of wrong rows."""
    first = next(iter(found.values()))
    classifies = first.overall[0].accuracy is not None
    score = "accuracy" if classifies else "mean absolute error"
    least = "accuracy at least, in %" if classifies else "mean absolute error at most"
    blocks: list[Block] = []
    for part, x_label, scale, at, note in (
        ("over_drift", "drift in standard deviations", 1.0,
         f"{100 * first.outliers:.3g} % of rows wrong", ""),
        ("over_outliers", "wrong rows in %", 100.0, f"a drift of {first.drift:.3g}",
         "With fewer rows held for wrong, far ones count as good and as what is to come."),
    ):  # fmt: skip
        figures = []
        for kind, what, y_label in (("score", score, least), ("loss", "loss", "loss at most")):
            series = [
                Series(name or "certified", *zip(*known, strict=True))
                for name, promise in found.items()
                if (known := _known(getattr(promise, part), kind, scale))
            ]
            figure = Figure(
                f"{part.replace('_', '-')}-{kind}", f"Certified {what}, {at}", x_label, y_label,
                series, note=note, alt=f"{y_label} against {x_label}.",
            )  # fmt: skip
            figures += [figure] if series else []
        blocks.append(Beside(figures))
    return blocks


def _known(lines: Sequence[Promised], kind: str, scale: float) -> list[tuple[float, float]]:
    """The points of a curve, where there is a bound."""
    heights = [(scale * float(line.name), _height(line, kind)) for line in lines]
    return [(x, y) for x, y in heights if y is not None]


def _height(line: Promised, kind: str) -> float | None:
    if kind == "loss":
        return line.loss
    return line.error if line.accuracy is None else float(np.floor(1e4 * line.accuracy)) / 1e2


def _by_client(found: dict[str, Promise]) -> Table:
    first = next(iter(found.values()))
    measure = "mean abs. error ≤" if first.overall[0].accuracy is None else "accuracy ≥ in %"
    lines = [(*promise.clients, *promise.overall) for promise in found.values()]
    rows = [
        (at[0].name, *(value for line in at for value in (_height(line, "score"), line.loss)))
        for at in zip(*lines, strict=True)
    ]
    heads = [f"{what} {name}".rstrip() for name in found for what in (measure, "loss ≤")]
    return Table(
        "certified", "What is certified, by client", ("client", *heads), rows, ".4g",
        note=f"At most {100 * first.outliers:.3g} % of rows wrong, a drift of at most "
        f"{first.drift:.3g} standard deviations (root mean square); columns of categories and "
        "flags do not move.",
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
