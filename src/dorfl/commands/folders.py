"""Arguments shared by the commands that take a model folder and a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dorfl.model import Model
    from dorfl.studies.rows import Rows

ModelFolder = Annotated[
    Path, typer.Argument(help="A folder that `dorfl train` wrote.", show_default=False)
]
NewTable = Annotated[
    Path, typer.Argument(help="A table: CSV, CSV.gz or Parquet.", show_default=False)
]


def labelled_rows(model: Model, data: Path, client: str | None = None) -> Rows:
    """Rows of a table with labels, by client as the model was trained (or as `client` says)."""
    from dorfl import tables  # noqa: PLC0415 - slow to import, and --help need not wait
    from dorfl.studies.rows import rows_for  # noqa: PLC0415

    table = tables.read(data)
    by = client or (model.client if model.client in table.column_names else None)
    return rows_for(model, tables.by_client(table, by, least=1))
