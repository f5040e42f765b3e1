"""`dorfl outliers`: which rows a model holds for wrong, and why."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dorfl.cli.folders import Client, ModelFolder, NewTable, Site, labelled_rows
from dorfl.cli.screen import Screen

if TYPE_CHECKING:
    from dorfl.study.audit import Audit
    from dorfl.study.model import Model
    from dorfl.study.rows import Rows
    from dorfl.support.types import Array


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
    """List every row's weight, the most suspicious first, and the values that make it so.

    A weight of 1 is that of an ordinary row, nearly 0 that of a row the training disregarded. Then
    the rows whose label does not fit, by models that did not see them; training may count them all
    the same.

    Example: dorfl outliers model data.csv --out audit
    """
    import numpy as np  # noqa: PLC0415 - slow to import, and --help need not wait

    from dorfl.study.audit import COUNTS, audit, trusting  # noqa: PLC0415
    from dorfl.study.model import load  # noqa: PLC0415

    screen, loaded = Screen(), load(model)
    rows = labelled_rows(loaded, data, client, site)
    for note in rows.notes:
        screen.note(note)
    why, told = trusting(loaded), dict[str, Any]()
    if why and loaded.fit.problem.method.name == "dorfl":  # an answer: others never look
        screen.say(why)
        told, counted = {"disregarded": 0, "top": [], "why": why}, None
    else:
        found = audit(loaded, rows)
        told = _rows(screen, found, top, out)
        counted = np.isin(rows.order + 1, found.row[found.weight >= COUNTS])
    told["labels"] = _labels(screen, loaded, rows, counted, top, out)
    screen.give({"rows": len(rows.y), **told})


def _rows(screen: Screen, found: Audit, top: int, out: Path | None) -> dict[str, Any]:
    """Rows by their weight."""
    from dorfl.report.content import Table  # noqa: PLC0415

    lines = zip(
        found.row.tolist(), found.client, found.weight.tolist(), found.distance.tolist(),
        found.columns, strict=True,
    )  # fmt: skip
    names = ("row", "client", "weight", "distance", "columns")
    listed = [dict(zip(names, line, strict=True)) for line in lines]
    title = f"The most suspicious of {len(listed):,} rows"
    forms = {"row": "d", "weight": ".3g", "distance": ".3g"}
    cells = [tuple(entry.values()) for entry in listed[:top]]
    screen.table(Table("suspects", title, names, cells, forms))
    disregarded = int((found.weight < 0.1).sum())
    screen.say(
        "  a percentage is a column's part in how far out the row is; usual is the middle 95 %"
    )
    screen.say(f"{disregarded:,} row(s) have less than a tenth of an ordinary row's weight")
    if out is not None:
        from dorfl.report.figures import draw  # noqa: PLC0415
        from dorfl.study.pages import suspects  # noqa: PLC0415

        _write(out / "outliers.csv", names, listed)
        draw(suspects(found), out)
        screen.say(f"outliers.csv and the picture in {out}")
    return {"disregarded": disregarded, "top": listed[:top]}


def _labels(
    screen: Screen, model: Model, rows: Rows, counted: Array | None, top: int, out: Path | None
) -> list[dict[str, Any]]:
    """Rows whose label does not fit, where that was not asked in training already."""
    from dorfl.report.content import Table  # noqa: PLC0415
    from dorfl.study import misfits  # noqa: PLC0415

    if model.network or model.facts.reference:
        return []
    names = ("row", "client", "label", "rows like it")
    found = misfits.misfits(model, rows, counted)
    lines = misfits.listed(model, rows, found)
    listed = [dict(zip(names, line, strict=True)) for line in lines]
    if not lines:
        return listed
    title = f"Labels that do not fit, the most surprising of {len(lines):,}"
    screen.table(Table("labels", title, names, lines[:top], {"row": "d"}))
    screen.say(
        f"{len(lines):,} row(s) have a label that does not fit, by models that did not see them: "
        "look whether it is wrong; training counts them like others"
    )
    if out is not None:
        _write(out / "labels.csv", names, listed)
        screen.say(f"labels.csv in {out}")
    return listed


def _write(path: Path, names: tuple[str, ...], lines: list[dict[str, Any]]) -> None:
    from dorfl.support import files  # noqa: PLC0415

    with (
        files.replacing(path) as draft,
        draft.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(lines)
