"""`dorfl certify`: what a model guarantees."""

from __future__ import annotations

from typing import Annotated

import typer

from dorfl.cli.folders import Client, ModelFolder, NewTable, Site, labelled_rows
from dorfl.cli.screen import Screen, heading


def certify(
    model: ModelFolder,
    data: NewTable,
    client: Client = None,
    site: Site = None,
    radius: Annotated[
        list[float] | None, typer.Option("--radius", help="Also at this UW distance (repeatable).")
    ] = None,
) -> None:
    """Bound the worst-case risk over all distributions near the data.

    Example: dorfl certify model data.csv --radius 0.1 --radius 0.5
    """
    from dorfl.data.tables import DataError  # noqa: PLC0415
    from dorfl.guarantees.certificate import certify as certificate_of  # noqa: PLC0415 - slow to import
    from dorfl.study.model import load  # noqa: PLC0415

    screen, loaded = Screen(), load(model)
    rows = labelled_rows(loaded, data, client, site)
    for note in rows.notes:
        screen.note(note)
    strange = [name for name in rows.names if name not in loaded.fit.clients]
    if strange:
        raise DataError(
            f"client {strange[0]!r} was not trained with; certify the clients that were, and say "
            "whose rows these are: --client COLUMN or --site NAME"
        )
    found = certificate_of(loaded.fit, rows.clients)
    asked = {r: found.at(r) for r in radius or []}
    screen.say(str(found))
    if asked:
        table = heading("Certified worst-case risk", "UW distance", "at most")
        for r, bound in asked.items():
            table.add_row(f"{r:g}", f"{bound:.6g}")
        screen.table(table)
    screen.give(
        {
            "radius": found.radius,
            "bound": found.bound,
            "attained": found.attained,
            "is_certificate": found.is_certificate,
            "error": found.error if found.is_certificate else None,
            "at": [{"radius": r, "bound": bound} for r, bound in asked.items()],
            "words": str(found),
        }
    )
