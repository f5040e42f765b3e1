"""`dorfl outliers`: which rows a model down-weights, and why."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dorfl.cli.options import Client, ModelFolder, NewTable, Site, labelled_rows
from dorfl.cli.screen import Screen

if TYPE_CHECKING:
    from dorfl.support.types import Array
    from dorfl.tabular.audit import Audit
    from dorfl.tabular.model import Model
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

    A weight of 1 is that of an ordinary row; a row below 0.5 is down-weighted. Then the rows whose
    label does not fit are listed, by models that were not trained with them; training may give
    these rows full weight.

    Example: dorfl outliers model data.csv --out audit
    """
    import numpy as np  # noqa: PLC0415 - slow to import, and --help need not wait

    from dorfl.tabular.audit import MIN_WEIGHT, audit, why_none  # noqa: PLC0415
    from dorfl.tabular.model import load  # noqa: PLC0415

    screen, loaded = Screen(), load(model)
    rows = labelled_rows(loaded, data, client, site)
    for note in rows.notes:
        screen.note(note)
    why, answer = why_none(loaded), dict[str, Any]()
    if why and loaded.fit.problem.method.name == "dorfl":  # other methods have no score: an error
        screen.say(why)
        answer, inliers = {"down_weighted": 0, "top": [], "why": why}, None
    else:
        found = audit(loaded, rows)
        answer = _rows(screen, found, top, out)
        inliers = np.isin(rows.order + 1, found.row[found.weight >= MIN_WEIGHT])
    answer["labels"] = _labels(screen, loaded, rows, inliers, top, out)
    screen.give({"rows": len(rows.y), **answer})


def _rows(screen: Screen, found: Audit, top: int, out: Path | None) -> dict[str, Any]:
    """Print and write the rows by weight; return the answer for scripts."""
    from dorfl.report.content import Table  # noqa: PLC0415

    lines = zip(
        found.row.tolist(),
        found.client,
        found.weight.tolist(),
        found.distance.tolist(),
        found.columns,
        strict=True,
    )
    names = ("row", "client", "weight", "distance", "columns")
    listed = [dict(zip(names, line, strict=True)) for line in lines]
    title = f"Rows with the lowest weight, of {len(listed):,}"
    forms = {"row": "d", "weight": ".3g", "distance": ".3g"}
    cells = [tuple(entry.values()) for entry in listed[:top]]
    screen.table(Table("outliers", title, names, cells, forms))
    screen.say(
        "  A percentage is a column's share of the squared distance; usual is the middle 95 % of "
        "the client's inliers."
    )
    screen.say(
        f"{found.low:,} of {len(listed):,} rows are down-weighted: each has less than half of an "
        "ordinary row's weight"
    )
    if out is not None:
        from dorfl.report.figures import draw  # noqa: PLC0415
        from dorfl.tabular.pages import weights_by_distance  # noqa: PLC0415

        _write(out / "outliers.csv", names, listed)
        draw(weights_by_distance(found), out)
        screen.say(f"outliers.csv and the picture in {out}")
    return {"down_weighted": found.low, "top": listed[:top]}


def _labels(
    screen: Screen, model: Model, rows: Rows, inliers: Array | None, top: int, out: Path | None
) -> list[dict[str, Any]]:
    """Print and write the rows whose label does not fit, unless training down-weighted them."""
    from dorfl.report.content import Table  # noqa: PLC0415
    from dorfl.tabular import label_errors  # noqa: PLC0415

    if model.network or model.facts.reference:
        return []
    names = ("row", "client", "label", "rows like it")
    found = label_errors.find_label_errors(model, rows, inliers)
    lines = label_errors.describe(model, rows, found)
    listed = [dict(zip(names, line, strict=True)) for line in lines]
    if not lines:
        return listed
    title = f"Labels that do not fit, the most surprising of {len(lines):,}"
    screen.table(Table("labels", title, names, lines[:top], {"row": "d"}))
    screen.say(
        f"{len(lines):,} row(s) have a label that does not fit, by models that were not trained "
        "with them: check whether it is wrong; training gives these rows full weight"
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
