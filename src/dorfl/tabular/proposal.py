"""Propose a study for a table by guessing its label and its clients."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from dorfl.data import tables
from dorfl.data.preprocessing import columns
from dorfl.data.tables import DataError
from dorfl.protocol.settings import Data, Study

_LABELS = ("label", "target", "class", "outcome", "y")
_CLIENTS = ("client", "site", "hospital", "centre", "center", "group", "region", "country", "ward")
_MAX_CLIENTS = 50  # values of a column that may be a label or a client


def propose(
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
