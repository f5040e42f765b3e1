"""Split of a table by client: rows are ordered by the client they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from dorfl.data.preprocessing.columns import ColumnTable, kind_of, levels
from dorfl.data.tables.errors import DataError, find_column
from dorfl.support.threads import THREADS
from dorfl.support.types import Array

LEAST = 10  # rows of a client
_MAX_CLIENTS = 10_000
_MANY_NAMES = 100  # names beyond which a column of mostly small clients is a wrong choice


@dataclass(frozen=True, eq=False)
class Split:
    """Table with its rows ordered by client; each column is read once for all clients."""

    table: ColumnTable  # the table in the order of the file
    names: tuple[str, ...]  # the clients
    bounds: Array  # (clients + 1,) client i has the rows bounds[i] … bounds[i + 1]
    order: Array  # (n,) place of each row in the file
    notes: tuple[str, ...] = ()  # what was left out or merged
    _read: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_read", lru_cache(THREADS + 1)(self._in_order))

    @property
    def column_names(self) -> list[str]:
        """Return the columns in the order of the file."""
        return self.table.column_names

    @property
    def num_rows(self) -> int:
        """Return the number of rows that belong to a client."""
        return len(self.order)

    def column(self, name: str) -> Any:
        """Return a column, ordered by client."""
        return self._read(name)

    def clients(self, columns: Sequence[str]) -> dict[str, ColumnTable]:
        """Return the rows of each client as a table with these columns."""
        return {
            name: _ClientRows(self, list(columns), int(self.bounds[i]), int(self.bounds[i + 1]))
            for i, name in enumerate(self.names)
        }

    def only(self, names: Sequence[str]) -> Split:
        """Return the rows of these clients, in that order."""
        strange = [name for name in names if name not in self.names]
        if strange:
            raise DataError(f"client: there is no client {strange[0]!r}")
        if tuple(names) == self.names:
            return self
        places = [self.names.index(name) for name in names]
        counts = np.diff(self.bounds)[places]
        order = [self.order[self.bounds[i] : self.bounds[i + 1]] for i in places]
        bounds = np.concatenate([[0], np.cumsum(counts)])
        return Split(self.table, tuple(names), bounds, np.concatenate(order), self.notes)

    def keep(self, rows: Array) -> Split:
        """Return the rows of a mask (n,), which is in the order of this split."""
        owner = np.repeat(np.arange(len(self.names)), np.diff(self.bounds))[rows]
        counts = np.bincount(owner, minlength=len(self.names))
        here = np.flatnonzero(counts)
        bounds = np.concatenate([[0], np.cumsum(counts[here])])
        names = tuple(self.names[i] for i in here)
        return Split(self.table, names, bounds, self.order[rows], self.notes)

    @cached_property
    def _untouched(self) -> bool:
        return bool((np.diff(self.order) == 1).all())

    def _in_order(self, name: str) -> Any:
        column = self.table.column(name)
        if len(self.order) == len(column) and self._untouched:
            return column
        # `pa.array` would import pandas, which takes half a second.
        places = pa.Array.from_buffers(
            pa.int64(), len(self.order), [None, pa.py_buffer(self.order)]
        )
        whole = column if column.num_chunks == 1 else pa.chunked_array([column.combine_chunks()])
        return whole.take(places)


@dataclass(frozen=True)
class _ClientRows:
    """Rows of one client of a split table."""

    split: Split
    column_names: list[str]
    first: int
    stop: int

    @property
    def num_rows(self) -> int:
        return self.stop - self.first

    def column(self, name: str) -> Any:
        return self.split.column(name).slice(self.first, self.num_rows)


def by_client(
    table: ColumnTable, client: str | None, *, least: int = LEAST, small: str = "refuse"
) -> Split:
    """Split a table by the column `client`; without one, all rows are those of the client "all".

    Clients with fewer than `least` rows are refused, dropped, or merged into "(other)", as `small`
    says: "refuse", "drop" or "merge". Rows without a client are left out, with a note.
    """
    if client is None:
        rows = table.num_rows
        return Split(table, ("all",), np.array([0, rows]), np.arange(rows))
    find_column(table.column_names, client, "client")
    column = table.column(client)
    if kind_of(column) == "other":
        raise DataError(f"client: column {client!r} holds {column.type}; name a column of names")
    found = levels(column, client)
    names, codes, notes = list(found.names), found.codes, []
    if not names:
        raise DataError(f"client: column {client!r} is empty")
    missing = int((codes < 0).sum())
    if missing:
        notes.append(f"{missing} row(s) without a value in {client!r} left out")
    counts = np.bincount(codes[codes >= 0], minlength=len(names))
    few = np.flatnonzero(counts < least)
    if len(few):
        if small == "refuse":
            raise DataError(_too_small(client, names, counts, few, least))
        done = "left out" if small == "drop" else "merged as '(other)'"
        notes.append(f"{len(few)} client(s) with fewer than {least} rows {done}")
        become = np.append(np.arange(len(names)), -1)  # the last entry is for rows without a client
        become[few] = -1 if small == "drop" else len(names)
        names.append("(other)")
        codes = become[codes]
    order = np.argsort(codes, kind="stable")[int((codes < 0).sum()) :]
    counts = np.bincount(codes[codes >= 0], minlength=len(names))
    here = np.flatnonzero(counts)
    if not len(here):
        raise DataError(f"client: no client in column {client!r} has {least} rows")
    if len(here) > _MAX_CLIENTS:
        raise DataError(f"client: column {client!r} names more than {_MAX_CLIENTS:,} clients")
    bounds = np.concatenate([[0], np.cumsum(counts[here])])
    return Split(table, tuple(names[i] for i in here), bounds, order, tuple(notes))


def _too_small(client: str, names: list[str], counts: Array, few: Array, least: int) -> str:
    if len(few) > 0.5 * len(names) and len(names) > _MANY_NAMES:
        return (
            f"client: column {client!r} has {len(names):,} values, most of them with fewer than "
            f"{least} rows; name the column with the site or group of each row"
        )
    first = int(few[0])
    others = f" (and {len(few) - 1} more)" if len(few) > 1 else ""
    return (
        f"client {names[first]!r}{others} has {counts[first]} row(s), fewer than {least}: too few "
        "to train with or to keep private; merge such clients (--small merge), drop them (--small "
        "drop), or allow fewer rows (--minimum-rows)"
    )
