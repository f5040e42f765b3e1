"""`dorfl evaluate`: how well a model serves each client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorfl.cli.folders import Client, ModelFolder, NewTable, Site, labelled_rows
from dorfl.cli.screen import Screen
from dorfl.support.text import percent

if TYPE_CHECKING:
    from dorfl.study.evaluation import Classes

_FEW = 30  # clients that are listed one by one
_CLASSES = 8  # of a confusion matrix that has room


def evaluate(model: ModelFolder, data: NewTable, client: Client = None, site: Site = None) -> None:
    """Measure a model on rows with labels, client by client.

    Example: dorfl evaluate model test.csv
    """
    from dorfl.report.content import Table  # noqa: PLC0415 - slow to import: --help need not wait
    from dorfl.study.evaluation import auc, by_class, constant  # noqa: PLC0415
    from dorfl.study.model import load, tables  # noqa: PLC0415
    from dorfl.study.rows import measure  # noqa: PLC0415

    screen, loaded = Screen(), load(model)
    rows = labelled_rows(loaded, data, client, site)
    for note in rows.notes:
        screen.note(note)
    areas = auc(loaded, rows)
    served: list[dict[str, Any]] = [
        {**told._asdict(), **({"auc": areas[told.name]} if told.name in areas else {})}
        for told in measure(loaded, rows)
    ]
    total = sum(entry["rows"] for entry in served)
    overall = {
        key: sum(entry["rows"] * entry[key] for entry in served) / total
        for key in ("loss", "score")
    }
    overall |= {"auc": areas[None]} if None in areas else {}
    # The worst first: by what a person cares for, and of those alike by the loss.
    sign = 1.0 if loaded.classifies else -1.0
    order = sorted(served, key=lambda entry: (sign * entry["score"], -entry["loss"]))
    score = loaded.measure
    columns = ["client", "rows", "loss", score] + ["AUC"] * (len(loaded.classes) == 2)
    listed = served if len(served) <= _FEW else order[: _FEW // 2]
    more = "" if len(served) <= _FEW else f": the worst {len(listed)} of {len(served)} clients"
    keys = ("name", "rows", "loss", "score", "auc")[: len(columns)]
    cells = [
        [entry.get(key) for key in keys]
        for entry in [*listed, {"name": "all rows", "rows": total, **overall}]
    ]
    forms = {"rows": ",d", "loss": ".4f", score: tables.form(loaded), "AUC": ".4f"}
    title = f"{loaded.label} in {data.name}{more}"
    screen.table(Table("clients", title, columns, cells, forms))
    answer = {"measure": score, "clients": served, "overall": overall, "worst": order[0]["name"]}
    name, simple = constant(loaded, rows)
    answer["constant"] = {"name": name, "score": simple}
    if loaded.classifies:
        found = by_class(loaded, rows)
        _tell(screen, found)
        answer["classes"] = found._asdict()
    screen.say(f"worst served: {order[0]['name']}")
    simply, ours = loaded.scored(simple), loaded.scored(overall["score"])
    screen.say(f"always {name}: {score} {simply}; the model {ours}")
    screen.give(answer)
    for warning in rows.warnings:
        screen.alarm(warning)
    if sign * overall["score"] <= sign * simple:
        screen.alarm(f"the model does no better here than always {name}")


def _tell(screen: Screen, found: Classes) -> None:
    """Recall and precision by class, what is taken for what, and whether probabilities hold."""
    from dorfl.report.content import Table  # noqa: PLC0415

    confused = len(found.names) <= _CLASSES
    columns = ["class", "rows", "recall", "precision"]
    columns += [f"said {name}" for name in found.names] if confused else []
    rows = [
        (name, sum(taken), found.recall[k], found.precision[k], *(taken if confused else ()))
        for k, (name, taken) in enumerate(zip(found.names, found.confusion, strict=True))
    ]
    forms = {name: ".1%" if name in ("recall", "precision") else ",d" for name in columns}
    screen.table(Table("classes", "By class", columns, rows, forms))
    for k, (name, recall) in enumerate(zip(found.names, found.recall, strict=True)):
        if recall is not None and recall < 0.5:
            total = sum(found.confusion[k])
            screen.note(f"of {total:,} rows of class {name}, {found.confusion[k][k]:,} are found")
    lines = [
        (f"{100 * line.low:.0f} to {100 * line.high:.0f} %", line.rows, line.said, line.right)
        for line in found.calibration
    ]
    columns = ["said probability", "rows", "mean said", "right"]
    forms = {"rows": ",d", "mean said": ".1%", "right": ".1%"}
    screen.table(Table("calibration", "Calibration", columns, lines, forms))
    screen.say(f"said and seen differ by {percent(found.error)} on average (calibration error)")
