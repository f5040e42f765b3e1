"""`dorfl outliers`: which rows a model holds for wrong, and why."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import typer

from dorfl.cli.folders import Client, ModelFolder, NewTable, Site, labelled_rows
from dorfl.cli.screen import Screen


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

    A weight of 1 is that of an ordinary row, nearly 0 that of a row the training disregarded.

    Example: dorfl outliers model data.csv --out audit
    """
    from dorfl.report.content import Table  # noqa: PLC0415
    from dorfl.study.audit import audit, trusting  # noqa: PLC0415
    from dorfl.study.model import load  # noqa: PLC0415
    from dorfl.support import files  # noqa: PLC0415 - slow to import, and --help need not wait

    screen, loaded = Screen(), load(model)
    rows = labelled_rows(loaded, data, client, site)
    for note in rows.notes:
        screen.note(note)
    why = trusting(loaded)
    if why and loaded.fit.problem.method.name == "dorfl":  # an answer: others never look
        screen.say(why)
        screen.give({"rows": len(rows.y), "disregarded": 0, "top": [], "why": why})
        return
    found = audit(loaded, rows)
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

        with (
            files.replacing(out / "outliers.csv") as draft,
            draft.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(listed)
        draw(suspects(found), out)
        screen.say(f"outliers.csv and the picture in {out}")
    screen.give({"rows": len(listed), "disregarded": disregarded, "top": listed[:top]})
