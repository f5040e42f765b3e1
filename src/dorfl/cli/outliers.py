"""`dorfl outliers`: which rows a model down-weights, and why."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from dorfl.cli.options import Client, ModelFolder, NewTable, Site, labelled_rows
from dorfl.cli.screen import ResultLine, Screen
from dorfl.report.content import Table
from dorfl.support import files
from dorfl.support.text import counted_rows, percent
from dorfl.support.types import Array
from dorfl.tabular import label_errors
from dorfl.tabular.audit import MIN_WEIGHT, Audit, audit, why_none
from dorfl.tabular.model import Model, load
from dorfl.tabular.pages import weights_by_distance
from dorfl.tabular.rows import Rows


def outliers(
    model: ModelFolder,
    data: NewTable,
    client: Client = None,
    site: Site = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the CSV and the picture.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=0, help="How many to show here.")] = 20,
) -> None:
    """List rows by ascending weight, and the values that make them outliers.

    A weight of 1 is that of an ordinary row; a row below 0.5 is down-weighted. "pressure 15 (usual
    105 to 155) 67 %" means: the row's pressure is 15, 95 % of its client's inliers lie between 105
    and 155, and pressure accounts for 67 % of the row's squared distance. Then the rows whose
    label does not fit are listed, by models that were not trained with them; training may give
    these rows full weight.

    Example: dorfl outliers model data.csv --out audit
    """
    from dorfl.report.figures import draw  # slow to import

    screen, loaded = Screen(), load(model)
    rows = labelled_rows(loaded, data, client, site)
    screen.notes(rows.notes)
    why, inliers = why_none(loaded), None
    if why and loaded.fit.problem.method.name == "dorfl":  # other methods have no score: an error
        answer, tables = {"down_weighted": 0, "top": [], "why": why}, []
        lines = [ResultLine("Outliers", why)]
    else:
        found = audit(loaded, rows)
        listed = _listed(found)
        answer, tables = {"down_weighted": found.low, "top": listed[:top]}, [_weighed(listed, top)]
        share = percent(found.low / len(listed))
        lines = [
            ResultLine("Outliers", f"{found.low:,} of {len(listed):,} rows ({share}) down-weighted")
        ]
        inliers = np.isin(rows.order + 1, found.row[found.weight >= MIN_WEIGHT])
        if out is not None:
            _write(out / "outliers.csv", listed)
            draw(weights_by_distance(found), out)
    labels = _labels(loaded, rows, inliers)
    if labels:
        have = "has" if len(labels) == 1 else "have"
        text = (
            f"{counted_rows(len(labels))} {have} a label that does not fit, at full weight in "
            "training"
        )
        lines.append(ResultLine("Labels", text))
        tables.append(_labelled(labels, top))
        if out is not None:
            _write(out / "labels.csv", labels)
    if out is not None and tables:
        lines.append(ResultLine("Saved", f"{out}/"))
    screen.lines(*lines)
    for table in tables:
        screen.table(table)
    screen.give({"rows": len(rows.y), **answer, "labels": labels})


def _listed(found: Audit) -> list[dict[str, Any]]:
    """Return the rows by ascending weight."""
    columns = (found.row, found.client, found.weight, found.distance, found.columns)
    names = ("row", "client", "weight", "distance", "columns")
    lines = zip(*(c if isinstance(c, list) else c.tolist() for c in columns), strict=True)
    return [dict(zip(names, line, strict=True)) for line in lines]


def _weighed(listed: list[dict[str, Any]], top: int) -> Table:
    """Return the table of the rows with the lowest weight."""
    *names, _ = listed[0]
    return Table(
        "outliers",
        f"Rows with the lowest weight, of {len(listed):,}",
        (*names, "columns, with shares of the squared distance"),
        [tuple(entry.values()) for entry in listed[:top]],
        {"row": "d", "weight": ".3g", "distance": ".3g"},
        note="Down-weighted rows have less than half of an ordinary row's weight, which is 1. A "
        "percentage is a column's share of the squared distance; usual is the middle 95 % of the "
        "client's inliers.",
    )


def _labels(model: Model, rows: Rows, inliers: Array | None) -> list[dict[str, Any]]:
    """Return the rows whose label does not fit, unless training down-weighted them."""
    if model.network or model.facts.reference:
        return []
    names = ("row", "client", "label", "rows like it")
    found = label_errors.find_label_errors(model, rows, inliers)
    lines = label_errors.describe(model, rows, found)
    return [dict(zip(names, line, strict=True)) for line in lines]


def _labelled(labels: list[dict[str, Any]], top: int) -> Table:
    """Return the table of labels that do not fit."""
    return Table(
        "labels",
        f"Labels that do not fit, the most surprising of {len(labels):,}",
        tuple(labels[0]),
        [tuple(entry.values()) for entry in labels[:top]],
        {"row": "d"},
        note="By models that were not trained with these rows. Check whether the labels are wrong: "
        "training gives these rows full weight.",
    )


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    with (
        files.replacing(path) as draft,
        draft.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)
