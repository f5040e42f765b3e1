"""Turn a table into the rows that a model sees: clients' rows as numbers, in one array.

Columns and label go through the steps of a study (:mod:`dorfl.protocol.coordinator`), so that a
table and the sites of a federation are standardised alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

import dorfl
from dorfl import networks
from dorfl.data import preprocessing, tables, validation
from dorfl.data.preprocessing import ColumnPlan, columns, summaries
from dorfl.data.robust import LocationReport
from dorfl.data.tables import DataError, Split
from dorfl.data.tables.errors import need_memory
from dorfl.federated.client import stream
from dorfl.protocol import coordinator, labels, resolution, training_rows
from dorfl.protocol.messages import Enrolled
from dorfl.protocol.resolution import dtype_of, loss_of, plan_of
from dorfl.protocol.settings import Study
from dorfl.protocol.state import State
from dorfl.protocol.steps import location
from dorfl.support.text import percent
from dorfl.support.types import Array
from dorfl.tabular.model import Model
from dorfl.tabular.notes import (
    explain_ignored,
    note_columns,
    note_labels,
    note_numbers,
    note_numeric_label,
)

_MANY = 0.05  # share of a table's rows from which a warning says that rows are left out


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of clients as numbers, one client after the other."""

    names: tuple[str, ...]  # of the clients
    bounds: Array  # (clients + 1,) client i has the rows bounds[i] … bounds[i + 1]
    X: Array  # (n, features) standardised
    y: Array  # (n,) class numbers, or scaled labels of a regression
    order: Array  # (n,) place of each row in the file
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # what must not be missed
    gaps: Array | None = None  # (clients, features) numbers of missing values, if they are known
    split: Split | None = None  # the table that the rows are from, if it is still open

    def only(self, part: Rows) -> Rows:
        """Return the rows that `part` has, in its order, with the features of this table."""
        places = np.argsort(self.order)
        places = places[np.searchsorted(self.order[places], part.order)]
        return Rows(part.names, part.bounds, self.X[places], self.y[places], part.order)

    @property
    def places(self) -> list[slice]:
        """Return the place of every client's rows."""
        return [slice(a, b) for a, b in pairwise(self.bounds.tolist())]

    @property
    def owner(self) -> Array:
        """Return (n,) the number of each row's client."""
        return np.repeat(np.arange(len(self.names)), np.diff(self.bounds))

    @property
    def clients(self) -> dict[str, tuple[Array, Array]]:
        """Return (X, y) of every client by name, as views."""
        owned = zip(self.names, self.places, strict=True)
        return {name: (self.X[part], self.y[part]) for name, part in owned}


@dataclass(frozen=True, eq=False)
class Prepared:
    """A study after its steps about columns and label, and the rows as numbers.

    Trainings on the same rows share `locations`: reports of where rows lie, by client, number of
    classes, and whether clients have centres of their own.
    """

    state: State
    rows: Rows
    locations: dict[tuple[str, int, bool], LocationReport] = field(default_factory=dict)


def open_split(study: Study) -> Split:
    """Open the table of a study, with its rows in the order of the clients."""
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
    if resolution.task_of(study) == "classification":
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


def prepare(study: Study, split: Split, *, with_notes: bool = True) -> Prepared:
    """Read labels, fit the transformation of columns, and turn all rows into numbers."""
    if study.training.model != "linear":
        networks.require()
        if study.defence.most_rows is not None:
            raise ValueError(
                "defence.most_rows: is for sites elsewhere; a table's rows are counted"
            )
    given, whole = study, split
    study, split, notes = settle_task(study, split)
    skipped = (study.data.label, study.data.client)
    names = tuple(name for name in split.column_names if name not in skipped)
    study = study._replace(sites=split.names)
    # Clients with too few rows were left out when the table was split.
    state = coordinator.begin(study.changed(privacy_minimum_rows=1), "table")._replace(here=True)
    split = split.only(state.sites)
    counts = dict(zip(split.names, np.diff(split.bounds).tolist(), strict=True))
    try:
        state = coordinator.receive(
            state, {name: Enrolled(n, names, dorfl.__version__) for name, n in counts.items()}
        )
        used = [name for name in state.agreed.columns if name not in study.columns.ignore]
        about: dict[str, list[str]] = {}

        def inspect(name: str) -> None:
            about[name] = note_numbers(split.column(name), name)

        transform = preprocessing.fit(
            split.clients(used), plan_of(study), inspect if with_notes else None
        )
        state = _settle_label(state.agree(study=study, transform=transform), split)
        resolution.check_columns(state)
        label = study.data.label
        y, _ = labels.encode(split.column(label), label, state.agreed.classes, state.agreed.target)
    except ValueError as error:
        raise DataError(str(error)) from None
    need_memory(
        Path(study.data.file or "table"),
        3 * split.num_rows * len(transform.names) * 4,
        "use fewer columns or rows, or a larger machine",
    )
    warnings: tuple[str, ...] = ()
    if with_notes:
        notes += [note for name in used for note in about.get(name, ())]
        notes += note_columns(split, transform)
        notes += note_labels(split, transform, study, y)
        if given.data.task == "auto" and not study.data.classes:
            notes += note_numeric_label(split, study.data.label)
        state = state.agree(transform=explain_ignored(split, transform))
        if not given.sites:
            warnings = left_out(split, study.data.label, study.data.client)
    y = labels.for_training(y, loss_of(study, len(state.agreed.classes)))
    X = transform.apply(split, dtype_of(study)).X
    private = study.privacy.epsilon is not None  # then a row must not change others
    places = [] if private else pairwise(split.bounds.tolist())
    for first, stop in places:  # as a site does, or models would differ
        settled = training_rows.hold_constant(X[first:stop], study.privacy.least)
        if settled.base is not X:
            X[first:stop] = settled
    pa.default_memory_pool().release_unused()  # what reading took, training may need
    gaps = location.count_missing(split, transform, split.bounds)
    notes = [*split.notes, *notes]
    rows = Rows(split.names, split.bounds, X, y, split.order, tuple(notes), warnings, gaps, whole)
    return Prepared(state, rows)


def settle_task(study: Study, split: Split) -> tuple[Study, Split, list[str]]:
    """Return the study with task and classes, the rows with a label, and a note on the others."""
    name, column = study.data.label, split.column(study.data.label)
    kind = columns.kind_of(column)
    if columns.beyond(column) == len(column) - column.null_count > 0:
        kind = "beyond"
    if kind not in ("numeric", "category"):
        what = {
            "empty": "is empty; name the column to predict",
            "date": "holds dates, which are not predicted; make them a number (of days, of years) "
            "or classes (words), or name another column",
            "beyond": "holds no number that is finite and below 1e100",
        }.get(kind, f"holds {column.type}; name the column to predict")
        raise DataError(f"label: column {name!r} {what}")
    try:
        task, known = labels.task_in(column, study), labels.known(column, study)
    except ValueError as error:
        raise DataError(f"label: {error}; classes need --task classification") from None
    is_open = study.data.task == "auto" and not study.data.classes
    study = study.changed(data_task=task)
    notes: list[str] = []
    if not known.all():
        notes.append(f"{int((~known).sum())} row(s) without a label left out")
        split = split.keep(known)
    if task == "classification" and not study.data.classes:
        study = study.changed(data_classes=tuple(columns.levels(column, name).names))
    _check_label(study, column, is_open)
    return study, split, notes


def _check_label(study: Study, column: pa.Array, is_open: bool) -> None:
    """Raise a DataError if the label has one value, or too many classes for an open task."""
    name, classes = study.data.label, study.data.classes
    if study.data.task == "regression":
        present = columns.present(columns.numbers(column, name))
        if not len(present) or present.min() == present.max():
            raise DataError(f"label: column {name!r} has one value only; there is nothing to learn")
    elif len(classes) < 2:
        raise DataError(
            f"label: column {name!r} has one value only ({classes[0]!r}); a classifier needs two"
        )
    elif len(classes) > validation.MAX_CLASSES and is_open:
        number = "" if columns.kind_of(column) == "category" else "a number (--task regression), "
        raise DataError(
            f"label: column {name!r} has {len(classes):,} different values, more than "
            f"{validation.MAX_CLASSES} classes; is it {number}so many classes (--task "
            "classification), or another column?"
        )


def _settle_label(state: State, split: Split) -> State:
    """Return the state with the classes, or the location and scale of the label."""
    study, name = state.study, state.study.data.label
    if study.data.task == "classification":
        return labels.settle_label(state, {})
    own = {client: table.column(name) for client, table in split.clients([name]).items()}
    state = labels.settle_label(
        state, {client: labels.summarise(column, study) for client, column in own.items()}
    )
    assert state.agreed.target is not None
    plan = ColumnPlan(least=study.privacy.least)
    far = {client: summaries.deviation(c, state.agreed.target, plan) for client, c in own.items()}
    return labels.scale_label(state, far)


def left_out(split: Split, label: str, client: str | None) -> tuple[str, ...]:
    """Return a warning if many of a table's rows are not used, with their classes and clients."""
    total, used = split.table.num_rows, split.order
    if total - len(used) <= _MANY * total:
        return ()
    gone = np.ones(total, dtype=bool)
    gone[used] = False
    share = percent(1 - len(used) / total, 0)
    parts = [f"{total - len(used):,} of {total:,} rows ({share}) are not used"]
    for what, name in (("class", label), ("client", client)):
        if name is None or columns.kind_of(split.table.column(name)) not in ("numeric", "category"):
            continue
        found = columns.levels(split.table.column(name), name)
        if len(found.names) <= validation.MAX_CLASSES or what == "client":
            counts = np.bincount(found.codes[gone] + 1, minlength=len(found.names) + 1)
            listed = sorted(zip(counts.tolist(), ["none", *found.names], strict=True), reverse=True)
            shown = [f"{level} {count:,}" for count, level in listed[:8] if count]
            more = ", …" if listed[8:9] > [(0, "")] else ""
            parts.append(f"by {what}: {', '.join(shown)}{more}")
    return ("; ".join(parts),)


def split_folds(split: Split, folds: int, seed: int) -> Array:
    """Return (n,) the fold of each row: equal shares of each client, from its own random stream."""
    parts = []
    for name, rows in zip(split.names, np.diff(split.bounds), strict=True):
        parts.append(stream(seed, name, 0).permutation(np.arange(rows) % folds))
    return np.concatenate(parts)


def rows_for(model: Model, split: Split) -> Rows:
    """Return the labelled rows of another table as a model sees them."""
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
    warnings = left_out(split, label, None)
    return Rows(split.names, split.bounds, X, y, split.order, tuple(notes), warnings)
