"""Make notes on a table's columns and labels that affect what a model learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dorfl.data.preprocessing import Category, Numeric, Transform, cells, columns
from dorfl.data.tables import Split
from dorfl.protocol.settings import Study
from dorfl.support.text import percent
from dorfl.support.types import Array

_MUCH_MISSING = 0.2  # share of missing or rare values from which a column is noted
_FEW = 30  # distinct integers of a numeric label up to which it may hold classes
_ODD_SHARE = 0.5  # share of text among numbers up to which a column is named as one of numbers
_WHOLE = 2**53  # integers beyond it are not all representable as floats


def note_numbers(column: pa.ChunkedArray, name: str) -> list[str]:
    """Return notes on numbers of a column that are too large."""
    notes = []
    if many := columns.beyond(column):
        notes.append(
            f"column {name!r} has {many:,} value(s) that are infinite or beyond 1e100: "
            "they count as missing"
        )
    if pa.types.is_integer(column.type) and max(map(abs, _ends(column))) > _WHOLE:
        notes.append(
            f"column {name!r} has whole numbers beyond 2^53, whose last digits are lost; if it "
            "numbers something, leave it out (--ignore) or make it a category (--category)"
        )
    return notes


def note_columns(split: Split, transform: Transform) -> list[str]:
    """Return notes on missing and rare values, and on text read as numbers or as a category."""
    known = getattr(split.table, "remarks", {})
    notes = [f"column {p.name!r} {known[p.name]}" for p in transform.parts if p.name in known]
    for part in transform.parts:
        if part.missing > _MUCH_MISSING:
            done = "filled and flagged" if isinstance(part, Numeric) else "a level of its own"
            share = percent(part.missing, 0)
            notes.append(f"column {part.name!r} is missing in {share} of rows: {done}")
    for part in _categories(split, transform):
        rare = part.strange(split.column(part.name))[1] / max(split.num_rows, 1)
        if rare > _MUCH_MISSING:
            notes.append(
                f"column {part.name!r}: {percent(rare, 0)} of rows have a level that too few rows "
                "of any client have, and are alike to the model; put such levels together"
            )
        found = [level for level in part.levels if not level.startswith("(")]
        numeric = sum(map(_is_number, found))
        if len(found) >= 10 and numeric >= 0.9 * len(found):
            notes.append(
                f"column {part.name!r} is used as a category because some of its cells are not "
                f"numbers ({cells.look(split.column(part.name))}); if it holds numbers, leave "
                "those cells empty"
            )
    return notes


def note_labels(split: Split, transform: Transform, study: Study, y: Array) -> list[str]:
    """Return notes on similar names of classes or clients, and on columns that leak the label."""
    notes = []
    for what, names in (("classes", study.data.classes), ("clients", split.names)):
        seen: dict[str, str] = {}
        for name in names:
            other = seen.setdefault(" ".join(name.split()).casefold(), name)
            if other != name:
                notes.append(
                    f"{other!r} and {name!r} count as two {what}; if they are one, write them alike"
                )
    if not study.data.classes:
        return notes
    for part in _categories(split, transform):
        found = columns.levels(split.column(part.name), part.name)
        pairs = np.unique(np.stack([found.codes, y.astype(np.int64)]), axis=1)
        held = np.bincount(found.codes[found.codes >= 0], minlength=len(found.names))
        alone = len(pairs[0]) == len(np.unique(pairs[0])) and len(np.unique(pairs[1])) > 1
        if alone and (held >= study.privacy.least).all():
            notes.append(
                f"column {part.name!r} gives the class away: all rows with one value have one "
                f"class; will it be known when {study.data.label!r} is not? Else --ignore it"
            )
    return notes


def note_numeric_label(split: Split, label: str) -> list[str]:
    """Return a note if a numeric label may hold classes."""
    values = np.unique(columns.numbers(split.column(label), label))
    if len(values) > _FEW or (values != np.rint(values)).any():
        return []
    return [
        f"label {label!r} has {len(values)} whole values and is learnt as a number; "
        "--task classification makes them classes"
    ]


def explain_ignored(split: Split, transform: Transform) -> Transform:
    """Return the transform with examples of cells in the reasons for not using text columns."""
    reasons = dict(transform.ignored)
    for name, why in reasons.items():
        column = split.table.column(name)  # rows that are left out may have made it text
        if "of its values" not in why or not cells.is_text(column):
            continue
        odd, look = cells.count_non_numeric(column), cells.look(column)
        if odd < _ODD_SHARE * (len(column) - column.null_count):
            reasons[name] = (
                f"all but {odd:,} of its cells are numbers; correct those others (they look like "
                f"{look}), leave them empty or name them (--missing)"
            )
        else:
            reasons[name] = f"{why}; its cells look like {look}"
    return replace(transform, ignored=reasons)


def _categories(split: Split, transform: Transform) -> list[Category]:
    parts = [part for part in transform.parts if isinstance(part, Category)]
    return [part for part in parts if part.name in split.column_names]


def _ends(column: pa.ChunkedArray) -> tuple[int, int]:
    found = pc.min_max(column).as_py()
    return found["min"] or 0, found["max"] or 0


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
