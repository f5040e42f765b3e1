"""From a table to what a model trains on: clients' rows as numbers, in one float32 array."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dorfl import preprocessing, tables
from dorfl.model import Model
from dorfl.preprocessing import Numeric, Plan, Transform, columns
from dorfl.studies.study import Study
from dorfl.tables import DataError, Split
from dorfl.tables.errors import need_memory
from dorfl.types import Array

_MOST_CLASSES = 50
_FEW_NUMBERS = 10  # whole numbers with at most so many different values are classes
_MUCH_MISSING = 0.2


@dataclass(frozen=True, eq=False)
class Rows:
    """Clients' rows, one after the other: client i has bounds[i] … bounds[i + 1].

    `y` holds class numbers or, for a regression, scaled labels; `order` is each row's place in the
    file.
    """

    names: tuple[str, ...]
    bounds: Array
    X: Array
    y: Array
    order: Array
    notes: tuple[str, ...] = ()

    @property
    def clients(self) -> dict[str, tuple[Array, Array]]:
        """As `dorfl.train` takes them: views, not copies."""
        parts = [slice(a, b) for a, b in zip(self.bounds, self.bounds[1:], strict=False)]
        return {
            name: (self.X[part], self.y[part]) for name, part in zip(self.names, parts, strict=True)
        }


@dataclass(frozen=True, eq=False)
class Ready:
    """Rows to train on, and how labels and columns became numbers."""

    rows: Rows
    transform: Transform
    classes: tuple[str, ...]
    target: Numeric | None


def open_split(study: Study) -> Split:
    """The table of a study, its rows in the clients' order."""
    table = tables.read(study.data)
    names = table.column_names
    tables.find_column(names, study.label, "label")
    for name in study.kinds:
        tables.find_column(names, name, "columns")
    if study.label == study.client:
        raise DataError(f"label and client are both {study.label!r}; name two columns")
    return tables.by_client(table, study.client, least=study.least, small=study.small)


def ready(study: Study, split: Split) -> Ready:
    """Labels read, columns fitted federatedly, everything as numbers."""
    split, y, classes, target, notes = _labels(study, split)
    used = split.clients(without=_not_features(study.label, study.client))
    plan = Plan(study.scaling, study.kinds)
    try:
        transform = preprocessing.fit(used, plan)
    except ValueError as error:
        raise DataError(str(error)) from None
    if not transform.names:
        reasons = "; ".join(f"{name!r}: {why}" for name, why in transform.ignored.items())
        raise DataError(f"no column is left to learn from ({reasons})")
    need_memory(
        Path(study.data),
        3 * split.num_rows * len(transform.names) * 4,
        "use fewer columns or rows, or a larger machine",
    )
    for part in transform.parts:
        if part.missing > _MUCH_MISSING:
            done = "filled and flagged" if isinstance(part, Numeric) else "a level of its own"
            notes.append(f"column {part.name!r} is missing in {part.missing:.0%} of rows: {done}")
    notes += _nearly_numbers(split, transform)
    X = transform.apply(split, np.float32).X
    pa.default_memory_pool().release_unused()  # what reading took, training may need
    rows = Rows(split.names, split.bounds, X, y, split.order, (*split.notes, *notes))
    return Ready(rows, transform, classes, target)


def _nearly_numbers(split: Split, transform: Transform) -> list[str]:
    """A word on every category that would be numbers but for a few cells."""
    notes = []
    for part in transform.parts:
        if isinstance(part, Numeric) or part.name not in split.column_names:
            continue
        found = [level for level in part.levels if not level.startswith("(")]
        numeric = sum(map(_is_number, found))
        if len(found) >= 10 and numeric >= 0.9 * len(found):
            notes.append(
                f"column {part.name!r} is used as a category because some of its cells are not "
                "numbers; if it holds numbers, leave those cells empty"
            )
    return notes


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def rows_for(model: Model, split: Split) -> Rows:
    """Rows of another table as a model sees them, with its labels."""
    label = tables.find_column(split.column_names, model.label, "label")
    y, known = encode_labels(split.column(label), label, model.classes, model.target)
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
    return Rows(split.names, split.bounds, X, y, split.order, tuple(notes))


def encode_labels(
    column: Any, name: str, classes: tuple[str, ...], target: Numeric | None
) -> tuple[Array, Array]:
    """Labels as numbers, and where there is one."""
    if target is not None:
        values = _numbers(column, name)
        return (values - target.center) / target.spread, ~np.isnan(values)
    found = columns.levels(column, name)
    strange = [level for level in found.names if level not in classes]
    if strange:
        raise DataError(
            f"label: column {name!r} has the value {strange[0]!r}; the model only knows "
            f"{', '.join(map(repr, classes))}"
        )
    place = np.array([classes.index(level) for level in found.names] + [-1], dtype=np.int64)
    codes = place[found.codes]
    return codes, codes >= 0


def _labels(
    study: Study, split: Split
) -> tuple[Split, Array, tuple[str, ...], Numeric | None, list[str]]:
    column, name = split.column(study.label), study.label
    kind = columns.kind_of(column)
    if kind in ("empty", "other"):
        what = "is empty" if kind == "empty" else f"holds {column.type}"
        raise DataError(f"label: column {name!r} {what}; name the column to predict")
    task = study.task if study.task != "auto" else _task(column, kind, name)
    classes: tuple[str, ...] = ()
    target = None
    if task == "classification":
        classes = tuple(columns.levels(column, name).names)
        _check_classes(classes, name)
    else:
        values = _numbers(column, name)
        present = values[~np.isnan(values)]
        if not len(present) or present.min() == present.max():
            raise DataError(f"label: column {name!r} has one value only; there is nothing to learn")
        target = _scale_of(split, name)
    y, known = encode_labels(column, name, classes, target)
    notes: list[str] = []
    if not known.all():
        notes.append(f"{int((~known).sum())} row(s) without a label left out")
        split, y = split.keep(known), y[known]
    return split, y, classes, target, notes


def _scale_of(split: Split, name: str) -> Numeric:
    """The label of a regression in robust units, found as any other column's."""
    others = tuple(n for n in split.column_names if n != name)
    transform = preprocessing.fit(split.clients(without=others), Plan(kinds={name: "numeric"}))
    if not transform.numeric:
        raise DataError(f"label: column {name!r} {transform.ignored[name]}")
    return transform.numeric[0]._replace(flagged=False, missing=0.0)


def _task(column: Any, kind: str, name: str) -> str:
    if kind == "category":
        return "classification"
    values = _numbers(column, name)
    distinct = np.unique(values[~np.isnan(values)])
    whole = bool((distinct == np.rint(distinct)).all())
    few = len(distinct) <= 2 or (whole and len(distinct) <= _FEW_NUMBERS)
    return "classification" if few else "regression"


def _check_classes(classes: tuple[str, ...], name: str) -> None:
    if len(classes) < 2:
        raise DataError(
            f"label: column {name!r} has one value only ({classes[0]!r}); a classifier needs two"
        )
    if len(classes) > _MOST_CLASSES:
        raise DataError(
            f"label: column {name!r} has {len(classes):,} different values, more than "
            f"{_MOST_CLASSES} classes; is it a number (task regression), or another column?"
        )


def _numbers(column: Any, name: str) -> Array:
    try:
        return columns.numbers(column, name)
    except ValueError as error:
        raise DataError(f"label: {error}; classes need the task classification") from None


def _not_features(label: str, client: str | None) -> tuple[str, ...]:
    return (label,) if client is None else (label, client)
