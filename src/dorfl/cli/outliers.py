"""`dorfl outliers`: which rows a model down-weights, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from dorfl.cli.options import Client, ModelFolder, NewTable, Site, labelled_rows
from dorfl.cli.screen import ResultLine, Screen
from dorfl.report.content import Table
from dorfl.support import files
from dorfl.support.text import counted_rows, percent
from dorfl.support.types import Array
from dorfl.tabular import label_errors
from dorfl.tabular.audit import MIN_WEIGHT, audit, why_none
from dorfl.tabular.model import Model, load
from dorfl.tabular.rows import Rows

if TYPE_CHECKING:
    import pandas as pd


def outliers(
    model: ModelFolder,
    data: NewTable,
    client: Client = None,
    site: Site = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for outliers.csv and labels.csv.")
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
    import pandas as pd  # slow to import

    screen, loaded = Screen(), load(model)
    rows = labelled_rows(loaded, data, client, site)
    screen.notes(rows.notes)
    why, inliers = why_none(loaded), None
    answer: dict[str, Any] = {"rows": len(rows.y), "down_weighted": 0, "top": []}
    shown, saved = [], {}
    if why and loaded.fit.problem.method.name == "dorfl":  # other methods have no score: an error
        lines, answer["why"] = [ResultLine("Outliers", why)], why
    else:
        found = audit(loaded, rows)
        saved["outliers"] = pd.DataFrame(found._asdict())
        shown = [_weighed(saved["outliers"], top)]
        answer["down_weighted"] = found.low
        answer["top"] = saved["outliers"].head(top).to_dict("records")
        share = percent(found.low / len(rows.y))
        lines = [
            ResultLine("Outliers", f"{found.low:,} of {len(rows.y):,} rows ({share}) down-weighted")
        ]
        inliers = np.isin(rows.order + 1, found.row[found.weight >= MIN_WEIGHT])
    labels = _labels(loaded, rows, inliers)
    if len(labels):
        have = "has" if len(labels) == 1 else "have"
        text = f"{counted_rows(len(labels))} {have} a label that does not fit"
        lines.append(ResultLine("Labels", f"{text}, at full weight in training"))
        shown.append(_labelled(labels, top))
        saved["labels"] = labels
    if out is not None and saved:
        for name, frame in saved.items():
            files.write_whole(out / f"{name}.csv", frame.to_csv(index=False).encode())
        lines.append(ResultLine("Saved", f"{out}/"))
    screen.lines(*lines)
    for table in shown:
        screen.table(table)
    screen.give({**answer, "labels": labels.to_dict("records")})


def _weighed(listed: pd.DataFrame, top: int) -> Table:
    """Return the table of the rows with the lowest weight."""
    return Table(
        "outliers",
        f"Rows with the lowest weight, of {len(listed):,}",
        (*listed.columns[:-1], "columns, with shares of the squared distance"),
        list(listed.head(top).itertuples(index=False, name=None)),
        {"row": "d", "weight": ".3g", "distance": ".3g"},
        note="Down-weighted rows have less than half of an ordinary row's weight, which is 1. A "
        "percentage is a column's share of the squared distance; usual is the middle 95 % of the "
        "client's inliers.",
    )


def _labels(model: Model, rows: Rows, inliers: Array | None) -> pd.DataFrame:
    """Return the rows whose label does not fit, unless training down-weighted them."""
    import pandas as pd

    lines = []
    if not model.network and not model.facts.reference:
        found = label_errors.find_label_errors(model, rows, inliers)
        lines = label_errors.describe(model, rows, found)
    return pd.DataFrame(lines, columns=["row", "client", "label", "rows like it"])


def _labelled(labels: pd.DataFrame, top: int) -> Table:
    """Return the table of labels that do not fit."""
    return Table(
        "labels",
        f"Labels that do not fit, the most surprising of {len(labels):,}",
        tuple(labels.columns),
        list(labels.head(top).itertuples(index=False, name=None)),
        {"row": "d"},
        note="By models that were not trained with these rows. Check whether the labels are wrong: "
        "training gives these rows full weight.",
    )
