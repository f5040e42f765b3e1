"""Command `dorfl init`: write a study file for a table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from dorfl.cli import options
from dorfl.cli.options import NewTable
from dorfl.cli.screen import Screen
from dorfl.data import tables
from dorfl.data.preprocessing import columns
from dorfl.data.tables import DataError
from dorfl.protocol.settings import Data, Study
from dorfl.protocol.toml import to_toml
from dorfl.support import files

_LABELS = ("label", "target", "class", "outcome", "y")
_CLIENTS = ("client", "site", "hospital", "centre", "center", "group", "region", "country", "ward")
_MAX_CLIENTS = 50  # values of a column that may be a label or a client


@options.takes("label", "client")
def init(
    data: NewTable,
    settings: dict[str, Any],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write it.")] = Path(
        "study.toml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Write over an older one.")] = False,
) -> None:
    """Look at a table and write a commented study for it; `dorfl train study.toml` runs it.

    Without --label and --client, the last column with few values becomes the label and another one
    the client: check both before training.

    Examples:
      dorfl init adult.csv --label income --client race
      dorfl train study.toml
    """
    if out.exists() and not force:
        raise typer.BadParameter(f"{out} exists; --force writes over it")

    screen = Screen()
    study, notes = _propose(data, settings["label"], settings["client"], out.parent)
    files.write_whole(out, to_toml(study, notes).encode())
    by = f"clients by {study.data.client!r}" if study.data.client else "all rows one client"
    screen.say(f"{out}: predicts {study.data.label!r}, {by}")
    for what in ("label", "client"):
        if what in notes:
            screen.note(f"--{what} was {notes[what].replace('GUESSED', 'guessed')}")
    if not study.data.client:
        screen.note(
            "no column looks like clients; --client names the column with the client of each row"
        )
    screen.say(f"read it, change what you know better, then: dorfl train {out}")
    screen.give({"study": str(out), "guessed": notes, **study.to_json()})


def _propose(
    data: Path, label: str | None, client: str | None, home: Path
) -> tuple[Study, dict[str, str]]:
    """Return a study of a table, and comments on its entries by name.

    A label or client that is None is guessed. The table's path is relative to the folder `home`.
    """
    table = tables.read(data)
    names = table.column_names
    notes: dict[str, str] = {}
    # Columns with few values: how many, the rows of the rarest, and the column's kind.
    few: dict[str, tuple[int, int, str]] = {}
    for name in names:
        column = table.column(name)
        if columns.kind_of(column) in ("numeric", "category"):
            found = columns.levels(column, name)
            counts = np.bincount(found.codes[found.codes >= 0])
            if 2 <= len(counts) <= _MAX_CLIENTS:
                few[name] = (len(counts), int(counts.min()), columns.kind_of(column))
    if label is None:
        label = _guess(list(few), _LABELS) or next(reversed(few), names[-1])
        others = [name for name in reversed(few) if name != label]
        notes["label"] = "GUESSED: the column to predict" + _candidates(others, few)
    tables.find_column(names, label, "label")
    if client is None:
        able = [n for n, (_, least, kind) in few.items() if n != label and least >= 10]
        texts = [n for n in able if few[n][2] == "category"]
        client = _guess(able, _CLIENTS) or next(iter(texts), None)
        others = [name for name in able if name != client]
        if client:
            guessed = "GUESSED: the column with the client of each row"
            notes["client"] = guessed + _candidates(others, few)
    else:
        tables.find_column(names, client, "client")
    if label == client:
        raise DataError(f"label and client are both {label!r}; name two columns")
    place = os.path.relpath(data, home) if not data.is_absolute() else str(data)
    rest = ", ".join(n for n in names if n not in (label, client))
    notes["ignore"] = f"columns to leave out, of: {rest}"
    return Study(Data(label, Path(place).as_posix(), client)), notes


def _candidates(names: list[str], few: dict[str, tuple[int, int, str]]) -> str:
    """List other candidates with their numbers of values, to append to a comment."""
    listed = ", ".join(f"{name} ({few[name][0]} values)" for name in names[:5])
    return f"; it could also be {listed}" if names else ""


def _guess(names: list[str], usual: tuple[str, ...]) -> str | None:
    """Return the column that has the first of the usual names; None if there is none."""
    known = {name.casefold(): name for name in reversed(names)}
    return next((known[name] for name in usual if name in known), None)
