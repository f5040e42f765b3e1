"""Arguments shared by the commands that take a model folder and a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dorfl.study.model import Model
    from dorfl.study.rows import Rows

ModelFolder = Annotated[
    Path, typer.Argument(help="A folder that `dorfl train` wrote.", show_default=False)
]
NewTable = Annotated[
    Path, typer.Argument(help="A table: CSV, CSV.gz or Parquet.", show_default=False)
]
Client = Annotated[
    str | None,
    typer.Option("--client", help="Whose row it is: another column than in training."),
]
Site = Annotated[str | None, typer.Option("--site", help="All rows are of this client or site.")]


def labelled_rows(
    model: Model, data: Path, client: str | None = None, site: str | None = None
) -> Rows:
    """Rows of a table with labels, by client as the model was trained, or as is said here."""
    from dorfl.data import tables  # noqa: PLC0415 - slow to import, and --help need not wait
    from dorfl.study.rows import rows_for  # noqa: PLC0415

    names = tables.column_names(data)
    by = client or (model.client if model.client in names and site is None else None)
    parts = [part.name for part in model.transform.parts]
    wanted = [tables.find_column(names, name, "the model needs") for name in parts]
    wanted.append(tables.find_column(names, model.label, "label"))
    if by is not None:
        wanted.append(tables.find_column(names, by, "client"))
    text = [name for name in (by, model.label if model.classifies else None) if name is not None]
    table = tables.read(data, wanted, text=text, missing=model.transform.missing)
    rows = rows_for(model, tables.by_client(table, by, least=1))
    return replace(rows, names=(site,)) if site is not None and by is None else rows
