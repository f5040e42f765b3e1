"""Rows given to an estimator: numbers, or a data frame that is read as `dorfl train` reads a file.

A frame whose columns are all plain numbers without gaps is an array to scikit-learn, and to us. Any
other has words, dates or empty cells: those are encoded and filled as in a table, so that the same
rows give the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dorfl.data.preprocessing import Category, Numeric, Transform, columns
from dorfl.data.tables import FileTable
from dorfl.study import given
from dorfl.study.arrays import LABEL
from dorfl.study.settings import Used
from dorfl.support.types import Array


class Taken(NamedTuple):
    """Rows as a study takes them, with what is predicted: the table, and how it is used."""

    table: columns.Table
    used: Used


def of_frame(X: Any, whatever: bool = False) -> pa.Table | None:
    """A data frame that is not all numbers (or `whatever` it holds), as a table.

    >>> import pandas as pd
    >>> of_frame(pd.DataFrame({"age": [31, 45], "sex": ["f", "m"]})).column_names
    ['age', 'sex']
    >>> of_frame(pd.DataFrame({"age": [31, 45]})) is None
    True
    """
    if not (hasattr(X, "columns") and (hasattr(X, "iloc") or hasattr(X, "__arrow_c_stream__"))):
        return None
    try:
        table: Any = columns.table_of(X) if hasattr(X, "iloc") else pa.table(X)
    except (pa.ArrowException, TypeError, ValueError) as error:
        if all(getattr(kind, "kind", "O") in "iufcb" for kind in getattr(X, "dtypes", "O")):
            return None  # two columns of one name: scikit-learn takes numbers by their place
        raise ValueError(
            f"X: the data frame cannot be read as a table ({error}); give every column a name of "
            "its own and values of one type"
        ) from None
    return None if not whatever and all(map(_plain, table.columns)) else table


def taken(table: pa.Table, y: Any, frozen: Sequence[int | str] | None) -> Taken:
    """A data frame with its label; columns of pandas' type "category" are so."""
    names = list(table.column_names)
    if LABEL in names:
        raise ValueError(f"X: no column may be called {LABEL!r}; rename it")
    fixed = [names[k] for k in given.frozen(frozen or (), names)]
    levels = [f.name for f in table.schema if pa.types.is_dictionary(f.type)]
    whole = table.append_column(LABEL, y if isinstance(y, pa.Array) else pa.array(y))
    read = FileTable(whole, text=frozenset([*levels, LABEL]))
    return Taken(read, Used(category=tuple(levels), frozen=tuple(fixed)))


def seen(transform: Transform, X: Array | pa.Table, dtype: Any = np.float32) -> Array:
    """Rows of X as the model sees them."""
    table: Any
    if isinstance(X, np.ndarray):
        table = {f"x{k}": column for k, column in enumerate(X.T)}
    else:
        levels = frozenset(part.name for part in transform.parts if isinstance(part, Category))
        table = FileTable(X, text=levels)
    return np.asarray(transform.apply(table, dtype).X)


def units(transform: Transform) -> tuple[Array, Array]:
    """The spread and the centre of every column of what the model sees."""
    own = [
        (part.spread, part.center) if isinstance(part, Numeric) and not k else (1.0, 0.0)
        for part in transform.parts
        for k in range(len(part.features))
    ]
    spread, center = np.array(own).T
    return spread, center


def raw(transform: Transform, X: pa.Table) -> Array:
    """Rows of X as the model sees them, but in the units of the table."""
    parts = tuple(
        part._replace(center=0.0, spread=1.0) if isinstance(part, Numeric) else part
        for part in transform.parts
    )
    return seen(replace(transform, parts=parts), X, np.float64)


def _plain(column: Any) -> bool:
    """Whether a column is numbers, all of them there."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    return not column.null_count and any(is_kind(column.type) for is_kind in kinds)
