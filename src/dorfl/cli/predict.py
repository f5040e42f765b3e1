"""Command `dorfl predict`: predictions for new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from pyarrow import csv

from dorfl.cli.options import ModelFolder, NewTable
from dorfl.cli.screen import Screen
from dorfl.data import tables
from dorfl.data.preprocessing import Numeric
from dorfl.data.tables import DataError
from dorfl.support import files
from dorfl.tabular.model import Model, load


def predict(
    model: ModelFolder,
    data: NewTable,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="What to write: .csv or .parquet.", show_default=False),
    ],
    keep: Annotated[
        list[str] | None, typer.Option("--keep", help="A column to carry over (repeatable).")
    ] = None,
) -> None:
    """Score new rows, a few at a time: the table may be larger than memory.

    The file has one line per row, in the order of the table: the prediction and, for classes, the
    probability of each. It is written whole or not at all.

    Examples:
      dorfl predict model new.csv -o scored.parquet
      dorfl predict model new.parquet -o scored.csv --keep id
    """
    if out.suffix not in (".csv", ".parquet"):
        raise typer.BadParameter("-o: write a .csv or a .parquet file")
    if out.exists() and data.exists() and out.samefile(data):
        raise typer.BadParameter("-o: is the table to score, which would be lost; name another")

    screen, loaded = Screen(), load(model)
    names = tables.column_names(data)
    kinds = {}
    for part in loaded.transform.parts:
        kinds[tables.find_column(names, part.name, "column of the model")] = (
            "numeric" if isinstance(part, Numeric) else "category"
        )
    for name in keep or ():
        kinds.setdefault(tables.find_column(names, name, "--keep"), "as it is")
    rows, writer = 0, None
    strange = {part.name: np.zeros(2, dtype=int) for part in loaded.transform.parts}
    with files.replacing(out) as draft, screen.progress("scoring") as step:
        try:
            for batch in tables.batches(data, kinds, missing=loaded.transform.missing):
                scored = _scored(loaded, batch, keep or [])
                for name, counts in loaded.transform.strange(batch).items():
                    strange[name] += counts
                if writer is None:
                    kind = csv.CSVWriter if out.suffix == ".csv" else pq.ParquetWriter
                    writer = kind(str(draft), scored.schema)
                writer.write_table(scored)
                rows += scored.num_rows
                step(f"{rows:,} rows")
            if writer is None:
                raise tables.DataError(f"{data.name}: has no rows")
        finally:
            if writer is not None:
                writer.close()
    missing, unseen = ({n: int(c[k]) for n, c in strange.items()} for k in (0, 1))
    for what, found in (("missing", missing), ("a level the model has not seen", unseen)):
        most = sorted(
            ((n, count) for n, count in found.items() if count), key=lambda pair: -pair[1]
        )
        if most:
            listed = ", ".join(f"{n} {count:,}" for n, count in most[:8])
            screen.note(f"{what}, in rows: {listed}{', …' if most[8:] else ''}")
    screen.say(f"{rows:,} rows scored into {out}")
    screen.give({"rows": rows, "out": str(out), "missing": missing, "unseen": unseen})


def _scored(model: Model, batch: Any, keep: list[str]) -> Any:
    columns = {name: batch.column(name) for name in keep}
    try:
        if not model.classifies:
            columns["prediction"] = pa.array(model.predict(batch))
            return pa.table(columns)
        chances = model.probabilities(batch)
    except ValueError as error:
        raise DataError(str(error)) from None
    best = chances.argmax(axis=1)
    columns["prediction"] = pa.array([model.classes[k] for k in best.tolist()])
    for k, name in enumerate(model.classes):
        columns[f"probability={name}"] = pa.array(chances[:, k])
    return pa.table(columns)
