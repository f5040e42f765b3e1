"""From a table to what a model sees: clients' rows as numbers, in one float32 array."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dorfl.data import tables
from dorfl.data.preprocessing import columns
from dorfl.data.tables import DataError, Split
from dorfl.protocol import labels, meaning
from dorfl.protocol.settings import Study
from dorfl.support.text import percent
from dorfl.support.types import Array
from dorfl.tabular.model import Model

_MANY = 0.05  # of a table's rows: so many are not left out quietly


@dataclass(frozen=True, eq=False)
class Rows:
    """Clients' rows, one after the other: client i has bounds[i] … bounds[i + 1].

    `y` holds class numbers or, for a regression, scaled labels; `order` is each row's place in the
    file, and `gaps` says of every client and column how many values are missing, if known. `split`
    is the table that the rows are from, if it is still open.
    """

    names: tuple[str, ...]
    bounds: Array
    X: Array
    y: Array
    order: Array
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    gaps: Array | None = None
    split: Split | None = None

    def only(self, part: Rows) -> Rows:
        """Return the rows that `part` has, in its order, as numbers of these columns."""
        places = np.argsort(self.order)
        places = places[np.searchsorted(self.order[places], part.order)]
        return Rows(part.names, part.bounds, self.X[places], self.y[places], part.order)

    @property
    def places(self) -> list[slice]:
        """Where the rows of every client are."""
        return [slice(a, b) for a, b in pairwise(self.bounds.tolist())]

    @property
    def clients(self) -> dict[str, tuple[Array, Array]]:
        """As `dorfl.train` takes them: views, not copies."""
        owned = zip(self.names, self.places, strict=True)
        return {name: (self.X[part], self.y[part]) for name, part in owned}


def open_split(study: Study) -> Split:
    """The table of a study, its rows in the clients' order."""
    if study.data.file is None:
        raise ValueError('[data] file is missing: which table? Or name it: --table "data.csv"')
    if study.privacy.summed:
        raise ValueError(
            'privacy.reports = "summed": is for sites elsewhere; of one table nothing is hidden'
        )
    if study.privacy.known:
        raise ValueError(
            "privacy.known: is for sites elsewhere; a table's columns are read without noise"
        )
    client, label = study.data.client, study.data.label
    text = [*study.columns.category, *([client] if client else [])]
    if meaning.task_of(study) == "classification":
        text.append(label)
    table = tables.read(study.data.file, text=text, missing=study.columns.missing)
    names = table.column_names
    tables.find_column(names, study.data.label, "label")
    for name in (*study.kinds, *study.columns.use, *study.columns.frozen):
        tables.find_column(names, name, "columns")
    if study.data.label == client:
        raise DataError(f"label and client are both {client!r}; name two columns")
    split = tables.by_client(
        table, client, least=study.privacy.minimum_rows, small=study.data.small
    )
    return split.only(study.sites) if study.sites else split


def left_out(split: Split, used: Array, label: str, client: str | None) -> str | None:
    """What to say where many of a table's rows are not used: whose they are, and of which class."""
    total = split.table.num_rows
    if total - len(used) <= _MANY * total:
        return None
    gone = np.ones(total, dtype=bool)
    gone[used] = False
    share = percent(1 - len(used) / total, 0)
    said = [f"{total - len(used):,} of {total:,} rows ({share}) are not used"]
    for what, name in (("class", label), ("client", client)):
        if name is None or columns.kind_of(split.table.column(name)) not in ("numeric", "category"):
            continue
        found = columns.levels(split.table.column(name), name)
        if len(found.names) <= labels.MOST_CLASSES or what == "client":
            counts = np.bincount(found.codes[gone] + 1, minlength=len(found.names) + 1)
            listed = sorted(zip(counts.tolist(), ["none", *found.names], strict=True), reverse=True)
            shown = [f"{level} {count:,}" for count, level in listed[:8] if count]
            said.append(f"by {what}: {', '.join(shown)}{', …' if listed[8:9] > [(0, '')] else ''}")
    return "; ".join(said)


def rows_for(model: Model, split: Split) -> Rows:
    """Rows of another table as a model sees them, with its labels."""
    label = tables.find_column(split.column_names, model.label, "label")
    try:
        y, known = labels.encode(split.column(label), label, model.classes, model.target)
    except ValueError as error:
        raise DataError(f"label: {error}") from None
    notes = list(split.notes)
    if not known.all():
        notes.append(f"{int((~known).sum())} row(s) without a label left out")
        split, y = split.keep(known), y[known]
    if not split.num_rows:
        raise DataError(f"label: column {label!r} is empty")
    try:
        X = model.transform.apply(split, np.float32).X
    except ValueError as error:
        raise DataError(str(error)) from None
    lost = left_out(split, split.order, label, None)
    warnings = () if lost is None else (lost,)
    return Rows(split.names, split.bounds, X, y, split.order, tuple(notes), warnings)
