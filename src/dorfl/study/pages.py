"""What a person looks at after a study: a model, a comparison, suspects, as pages and figures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

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
from dorfl.study import promise_pages
from dorfl.study.audit import Audit
from dorfl.study.comparison import Comparison
from dorfl.study.model import Model, tables
from dorfl.study.model.facts import Guarantee, Served, Weights
from dorfl.study.settings import Study

_SHOWN = 15  # features: as many as have room for their names
_POINTS = 5000  # of a picture
_ROOM = promise_pages.ROOM
_ACROSS = 3  # clients whose columns have room beside each other
_COLOURS = 7  # that can be told apart
_LONG = 16  # letters of a name below a picture


def of_model(model: Model) -> Page:
    """A model on one page."""
    facts, fit = model.facts, model.fit
    scores = [served.score for served in facts.clients if served.score is not None]
    cards = [Finding(words, "rows left out", False) for words in facts.warnings]
    for words, verdict in (
        (model.shortfall, "not converged"),
        (model.useless, "learnt nothing"),
        (model.idle, "no better than a constant"),
    ):
        if words:
            cards.append(Finding(words, verdict, False))
    sound = not cards  # what did not get there is ticked off nowhere
    if sound:
        tick = "✓ " * (fit.status == "converged")
        cards.append(Finding(f"in {fit.rounds} exchanges of messages", tick + fit.status))
    cards.append(Finding("method", fit.problem.method.name))
    if facts.held_out:
        own = facts.held_out[0]
        cards.append(
            Finding(f"{model.measure} on rows held out of training", model.scored(own.overall))
        )
        cards.append(
            Finding(f"… of the worst served client, {own.client}", model.scored(own.worst))
        )
    elif scores:
        worst = min(scores) if model.classifies else max(scores)
        cards.append(Finding(f"{model.measure} of the worst served client", model.scored(worst)))
    certificate, promise = facts.certificate, facts.promise
    if promise:
        card = promise_pages.promised(promise)
        cards.append(card if sound else card._replace(holds=None))
    sections = []
    if facts.held_out:
        sections.append(Section("Rows held out of training", [tables.held_out(model)]))
    sections.append(Section("Clients", _clients(model)))
    if not model.network:
        sections.append(Section("What it learnt", [_coefficients(model)]))
    if facts.weights:
        sections.append(Section("Rows and their weights", [_rows(facts.weights)]))
    told: list[Block] = []
    if promise:
        told = [Text([facts.promised, promise.assumption]), *promise_pages.curves({"": promise})]
        told += promise_pages.certified({"": promise})
    if certificate:
        told.append(Details("The certificate as the paper has it", _guarantee(certificate)))
    if told:
        sections.append(Section("What it guarantees", told))
    sections.append(Section("How it was made", _making(model)))
    what = f"tells apart {_few(model.classes)}" if model.classifies else "estimates a number"
    kind = "network" if model.network else "linear model"
    lead = f"A {kind} that {what}, trained over {len(fit.clients)} client(s)."
    return Page(f"A model of {model.label}", lead, cards, sections)


def _clients(model: Model) -> list[Block]:
    served = {told.name: told for told in model.facts.clients}
    shares = dict(zip(model.fit.clients, model.fit.lam.tolist(), strict=True))
    table = tables.clients(model)._replace(
        note="λ is how much a client counted: see it beside its loss.",
    )
    if len(shares) > _ROOM:
        return _many(table, shares, served)
    losses = {name: told.loss for name, told in served.items() if told.loss is not None}
    drawn = [
        Figure(name, title, "", axis, [Series(axis, list(heights), list(heights.values()))], "dots",
               alt=f"A dot for every client's {axis}.",
               y_range=(0.0, 1.05 * max(heights.values()) or 1.0))
        for name, title, axis, heights in (
            ("mixture", "How much each client counts", "λ", shares),
            ("losses", "How each client is served", "loss", losses),
        )
        if heights
    ]  # fmt: skip
    return [*([table] if served else []), Beside(drawn)]


def _many(table: Table, shares: dict[str, float], served: dict[str, Served]) -> list[Block]:
    """Many clients: those with the largest loss, every loss beside its weight, the rest folded."""
    known = [name for name in shares if name in served and served[name].loss is not None]
    worst = sorted(known, key=lambda name: -(served[name].loss or 0.0))[:_ROOM]
    rows = {str(row[0]): row for row in table.rows}
    shown = table._replace(
        name="worst-clients", title=f"{table.title}: the {len(worst)} with the largest loss",
        rows=[rows[name] for name in worst],
    )  # fmt: skip
    every = Details(f"All {len(rows)} clients", [table])
    if not worst:
        return [every]
    known.sort(key=lambda name: served[name].loss or 0.0)
    losses, lam = [served[n].loss for n in known], [shares[n] for n in known]
    if max(lam) - min(lam) < 1e-6:  # nothing to see but rounding
        figure = Figure(
            "losses", "Loss of every client", "clients, the best served first", "loss",
            [Series("clients", range(1, len(known) + 1), losses, hover=known)], "points",
            note=f"Every client counts alike, λ = {lam[0]:.3g}.",
            alt="Points: the mean loss of every client, in order.",
        )  # fmt: skip
    else:
        figure = Figure(
            "mixture", "Loss and weight of every client", "loss", "λ",
            [Series("clients", losses, lam, hover=known)], "points",
            note="Further right: served worse. Higher up: counted more.",
            alt="Points: every client's weight λ against its mean loss.",
        )  # fmt: skip
    return [shown, figure, every]


def _few(names: Sequence[str], most: int = 8) -> str:
    """Names in a sentence; of many the first, and how many there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{len(names)} classes ({shown}, …)"


def _coefficients(model: Model) -> Figure:
    problem = model.fit.problem
    weights, _ = problem.split(model.fit.theta)
    size = np.abs(weights).max(axis=0)
    top = np.argsort(-size, kind="stable")[:_SHOWN]
    names = [model.transform.names[k] for k in top]
    towards = model.classes[-1] if model.classifies else f"more {model.label}"
    labels = model.classes if problem.outputs > 1 else (f"towards {towards}",)
    series = [Series(label, names, row[top]) for label, row in zip(labels, weights, strict=True)]
    many = len(series) > _COLOURS
    if many:  # features across, a class a line
        names = [name if len(name) < _LONG else f"{name[: _LONG - 1]}…" for name in names]
    return Figure(
        "coefficients", "What pushes the answer", "feature", "coefficient", series,
        "heat" if many else "dots",
        note="Per robust standard deviation of a number, or for having a level; the largest first.",
        alt=f"{'A heat map' if many else 'Dots'} of the {len(names)} largest coefficients.",
    )  # fmt: skip


def _rows(histogram: Weights) -> Block:
    """How much rows count, drawn where they do not all count alike."""
    if sum(rows > 0 for rows in histogram.rows) < 2:
        return Text(["All rows count alike: nothing is held for wrong."])
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
    settings = Table(
        "settings", "Settings", ("setting", "value"),
        [(name, _shown(value)) for name, value in _flat(facts.settings).items()],
    )  # fmt: skip
    return [
        Text([*words, *facts.notes]),
        Details("Columns", [tables.columns(model)]),
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


def compared(found: Comparison, most: int | None = None) -> Table:
    """Every method's score, overall and by client, with its standard error over folds.

    More than a few clients are rows, the worst served first; at most `most` of them.
    """
    percent = 100.0 if found.classifies else 1.0
    folds = found.scores.shape[1]
    title = "Accuracy in %" if found.classifies else "Mean absolute error"
    title = f"{title} on rows not trained with, {folds} folds"
    form = ".1f" if found.classifies else ".4g"
    names = [n + " ✗" * found.fell_short(i) for i, n in enumerate(found.methods)]
    if len(found.clients) > _ACROSS:
        return _transposed(found, title, names, percent, form, most)
    rows: list[Sequence[Cell]] = []
    for i, name in enumerate(names):
        columns = np.column_stack([found.overall[i], found.scores[i]]) * percent
        rows.append((name, *map(measured, columns.T), found.clients[found.worst(i)]))
    columns_ = ("method", "overall", *found.clients, "worst served")
    return Table(
        "methods", title, columns_, rows, form,
        best=dict.fromkeys(columns_[1:-1], "max" if found.classifies else "min"),
        note=_note(found),
    )  # fmt: skip


def _note(found: Comparison) -> str:
    short = (
        " ✗ marks a method of which a training is not to be trusted." if found.shortfalls else ""
    )
    return f"± is the standard error over folds.{short}"


def _transposed(
    found: Comparison, title: str, names: list[str], percent: float, form: str, most: int | None
) -> Table:
    """Methods across, clients down: all rows, then the worst, the middle and the best served."""
    scores = percent * found.scores  # (methods, folds, clients)
    mean, order, low = np.nanmean(scores, axis=1), found.order, 1 if found.classifies else -1
    rows: list[Sequence[Cell]] = [("all rows", *map(measured, percent * found.overall))]
    ranked = low * np.sort(low * mean, axis=1)
    for what, k in (("worst", 0), ("middle", len(order) // 2), ("best", -1)):
        rows.append((f"({what})", *ranked[:, k].tolist()))
    for k in order[:most]:
        rows.append((found.clients[k], *(measured(scores[i, :, k]) for i in range(len(names)))))
    left = len(order) - len(order[:most])
    rest = f"; {left} more are not shown." if left else "."
    note = f"{_note(found)} Clients from the worst served on{rest}"
    return Table("methods", title, ("client", *names), rows, form, note=note)


def of_comparison(found: Comparison, study: Study) -> Page:
    """A comparison on one page."""
    mean = found.scores.mean(axis=1) * (100.0 if found.classifies else 1.0)
    measure = found.measure + " in %" * found.classifies
    best = found.methods[found.best]
    cards = [Finding(words, "not to be trusted", False) for words in found.shortfalls[:3]]
    cards.append(Finding("serves its worst served client best", best))
    words = [
        f"`{name}` serves `{found.clients[found.worst(i)]}` worst: "
        f"{mean[i, found.worst(i)]:.4g} ({measure})."
        for i, name in enumerate(found.methods)
    ]
    rest: list[Block] = []
    if len(found.clients) > _ROOM:
        every = compared(found)._replace(name="all-clients")
        rest = [Details(f"All {len(found.clients)} clients", [every])]
    sections = [
        Section("Methods", [compared(found, most=_ROOM), _dots(found, measure), *rest]),
        Section("Worst served", [Text(words)]),
    ]
    label = study.data.label
    lead = f"Five ways to learn {label} across {len(found.clients)} clients, cross-validated."
    return Page(f"Methods compared on {label}", lead, cards, sections)


def _dots(found: Comparison, measure: str) -> Figure:
    """A dot with its standard error for every method and client; of many, those served worst."""
    scores = found.scores * (100.0 if found.classifies else 1.0)
    mean = np.nanmean(scores, axis=1)
    order, folds = found.order[:_ROOM], scores.shape[1]
    names = [found.clients[k] for k in order]
    errors = np.nanstd(scores, axis=1, ddof=1) / np.sqrt(folds) if folds > 1 else None
    series = [
        Series(name, names, mean[i, order], None if errors is None else errors[i, order])
        for i, name in enumerate(found.methods)
    ]
    which = "" if len(order) == len(found.clients) else f": the {len(names)} served worst"
    return Figure(
        "clients-served", f"Who is served how by which method{which}", "", measure, series, "dots",
        note="The worst served first; ± is a standard error over folds.",
        alt="A dot for every method's score of every client.",
    )  # fmt: skip


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
