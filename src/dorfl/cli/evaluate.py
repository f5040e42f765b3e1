"""`dorfl evaluate`: scores of a model on labelled rows, by client and by class."""

from __future__ import annotations

from typing import Any

import numpy as np

from dorfl.cli import summary
from dorfl.cli.options import Client, ModelFolder, NewTable, Site, labelled_rows
from dorfl.cli.screen import ResultLine, Screen
from dorfl.report.content import Cell, Table
from dorfl.support.text import counted_rows, percent
from dorfl.support.types import Array
from dorfl.tabular import evaluation
from dorfl.tabular.audit import MIN_WEIGHT, row_weights
from dorfl.tabular.evaluation import Classes, by_class
from dorfl.tabular.model import Model, load, views
from dorfl.tabular.model.facts import MIN_ROWS, Estimate
from dorfl.tabular.model.views import few_rows
from dorfl.tabular.rows import Rows

_FEW = 30  # clients that are listed one by one
_CLASSES = 8  # classes whose confusion matrix is shown


def evaluate(model: ModelFolder, data: NewTable, client: Client = None, site: Site = None) -> None:
    """Measure a model on rows with labels, client by client.

    Scores are given over inliers, which the model gives at least half of an ordinary row's weight,
    and over all rows. With --verbose: classes, confusion matrix and calibration.

    Example: dorfl evaluate model test.csv
    """
    screen, loaded = Screen(), load(model)
    rows = labelled_rows(loaded, data, client, site)
    screen.notes(rows.notes)
    answer = _measure(loaded, rows, _weights(screen, loaded, rows))
    several = len(rows.names) > 1
    clients = {one["name"]: Estimate(**one["inliers"]) for one in answer["clients"]}
    counted = summary.counted(len(rows.y), len(rows.names), None)
    found = by_class(loaded, rows) if loaded.classifies else None
    lines = [
        ResultLine("Data", f"{counted} of {data.name}, label {loaded.label}"),
        ResultLine("Outliers", f"{counted_rows(answer['down_weighted'])} down-weighted"),
        ResultLine("Score", _score(loaded, answer)),
    ]
    if several:
        lines.append(ResultLine("Worst", summary.worst(loaded, clients, answer["worst"])))
    if found:
        text = f"probability and accuracy differ by {percent(found.error)} on average"
        lines.append(ResultLine("Calibration", text))
    screen.lines(*lines)
    if several:
        screen.table(_table(loaded, answer, data.name))
        screen.explain(few_rows(clients))
    if found:
        _say_classes(screen, found)
        answer["classes"] = found._asdict()
    screen.give(answer)
    for warning in rows.warnings:
        screen.alarm(warning)
    _compare_to_constant(screen, loaded, answer)


def _score(model: Model, answer: dict[str, Any]) -> str:
    """Return the score over inliers beside a constant's, and both with outliers."""
    own, constant = answer["overall"], answer["constant"]
    inliers = Estimate(**own["inliers"])
    text = f"{model.measure} {summary.scored(model, inliers)}"
    text += f", constant {model.scored(constant['inliers'])}"
    if answer["down_weighted"]:
        pair = (model.scored(one["score"]).removesuffix(" %") for one in (own, constant))
        text += f" (with outliers: {', '.join(pair)})"
    return f"{text}; AUC {own['auc']:.3f}" if "auc" in own else text


def _weights(screen: Screen, model: Model, rows: Rows) -> Array | None:
    """Return the rows' weights; None if the model down-weights none or PyTorch is missing."""
    try:
        return row_weights(model, rows)
    except ModuleNotFoundError:
        screen.note(
            "PyTorch is missing: scores of a neural network are over all rows, outliers included"
        )
        return None


def _measure(model: Model, rows: Rows, weights: Array | None) -> dict[str, Any]:
    """Return the scores overall and by client, and those of a constant prediction."""
    part = (rows.owner, rows.names)
    weights = np.ones(len(rows.y)) if weights is None else weights
    inlier = weights >= MIN_WEIGHT
    scores, areas = evaluation.row_scores(model, rows), evaluation.auc(model, rows)
    every, inliers = (evaluation.summarise(scores, *part, used) for used in (None, inlier))
    losses = evaluation.summarise(weights * evaluation.row_losses(model, rows), *part)

    def entry(name: str | None) -> dict[str, Any]:
        found, own, loss = (
            of.overall if name is None else of.clients[name] for of in (every, inliers, losses)
        )
        return {
            **({} if name is None else {"name": name}),
            "rows": found.rows,
            "loss": loss.mean,
            "score": found.mean,
            "error": found.error,
            "inliers": own._asdict(),
            **({"auc": areas[name]} if name in areas else {}),
        }

    clients = [entry(name) for name in rows.names]
    known = [one for one in clients if one["inliers"]["rows"] >= MIN_ROWS]
    answer: dict[str, Any] = {
        "measure": model.measure,
        "clients": clients,
        "overall": entry(None),
        "down_weighted": int((~inlier).sum()),
        "worst": _worst_first(model, known)[0]["name"] if known else None,
    }
    simple, brier = evaluation.constant_scores(model, rows.y, rows)
    used = inlier if inlier.any() else slice(None)
    answer["constant"] = {
        "name": "the median",
        "score": float(simple.mean()),
        "inliers": float(simple[used].mean()),
    }
    if brier is not None:
        most = int(np.bincount(rows.y.astype(int), minlength=len(model.classes)).argmax())
        answer["constant"]["name"] = f"the most frequent class, {model.classes[most]!r}"
        answer["constant"]["brier"] = float(brier[inlier].mean())
        answer["overall"]["brier"] = float(evaluation.brier_scores(model, rows)[inlier].mean())
    return answer


def _worst_first(model: Model, clients: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return clients by their score over inliers, the worst first; of equals, the larger loss."""
    sign = 1.0 if model.classifies else -1.0
    return sorted(clients, key=lambda one: (sign * one["inliers"]["mean"], -one["loss"]))


def _table(model: Model, answer: dict[str, Any], file: str) -> Table:
    """Return the table of clients; of many, the worst ones."""
    clients, classifies = answer["clients"], model.classifies
    both, two = bool(answer["down_weighted"]), len(model.classes) == 2
    few = len(clients) <= _FEW
    listed = clients if few else _worst_first(model, clients)[: _FEW // 2]
    more = "" if few else f": the worst {len(listed)} of {len(clients)} clients"

    def line(entry: dict[str, Any]) -> list[Cell]:
        every = Estimate(entry["score"], entry["error"], entry["rows"])
        own = [entry["inliers"]["rows"], views.cell(Estimate(**entry["inliers"]), classifies)]
        cells = [*(own if both else []), views.cell(every, classifies)]
        return [entry["name"], entry["rows"], entry["loss"], *cells, *([entry.get("auc")] * two)]

    columns = ["client", "rows", "loss", *(["inliers", "over inliers"] if both else [])]
    columns += ["over all rows", *(["AUC"] * two)]
    forms = {"rows": ",d", "inliers": ",d", "loss": ".4f", "AUC": ".4f"}
    notes = ["Loss: rows weighed as in training."]
    notes += [views.INLIERS] if both else []
    notes += ["AUC: over all rows."] * two
    return Table(
        "clients",
        f"{model.label} in {file}, {views.measure(classifies)}{more}",
        columns,
        [line(entry) for entry in [*listed, {"name": "all clients", **answer["overall"]}]],
        forms | dict.fromkeys(("over inliers", "over all rows"), views.form(classifies)),
        note=" ".join([*notes, views.ERRORS]),
    )


def _compare_to_constant(screen: Screen, model: Model, answer: dict[str, Any]) -> None:
    """Warn if the model is no better than a constant, for classes by the Brier score."""
    own, constant = answer["overall"], answer["constant"]
    sign = 1.0 if model.classifies else -1.0
    level = sign * own["score"] <= sign * constant["score"]
    if not model.classifies:
        if level:
            screen.alarm(f"the model is no better here than always {constant['name']}")
        return
    scores = f"Brier score {own['brier']:.4g} against {constant['brier']:.4g}"
    if own["brier"] >= constant["brier"]:
        screen.alarm(f"the model is no better here than a constant prediction: {scores}")
    elif level:
        screen.note(
            f"accuracy is no higher than always {constant['name']}, but the probabilities are "
            f"better ({scores})"
        )


def _say_classes(screen: Screen, found: Classes) -> None:
    """Note classes that are missed; if verbose, print them, their confusion and calibration."""
    for k, (name, recall) in enumerate(zip(found.names, found.recall, strict=True)):
        if recall is not None and recall < 0.5:
            total = sum(found.confusion[k])
            screen.note(f"of {total:,} rows of class {name}, {found.confusion[k][k]:,} are found")
    if not screen.verbose:
        return

    confused = len(found.names) <= _CLASSES
    columns = ["class", "rows", "recall", "precision"]
    columns += [f"predicted {name}" for name in found.names] if confused else []
    rows = [
        (name, sum(taken), found.recall[k], found.precision[k], *(taken if confused else ()))
        for k, (name, taken) in enumerate(zip(found.names, found.confusion, strict=True))
    ]
    forms = {name: ".1%" if name in ("recall", "precision") else ",d" for name in columns}
    screen.table(Table("classes", "By class, over all rows", columns, rows, forms))
    lines = [
        (f"{100 * line.low:.0f} to {100 * line.high:.0f} %", line.rows, line.said, line.right)
        for line in found.calibration
    ]
    columns = ["probability", "rows", "mean probability", "accuracy"]
    forms = {"rows": ",d", "mean probability": ".1%", "accuracy": ".1%"}
    screen.table(Table("calibration", "Calibration, over all rows", columns, lines, forms))
