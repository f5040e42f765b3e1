"""Data frames as input of an estimator.

A frame of numbers without missing values is an array. Any other is encoded and imputed as
`dorfl train` does with a file, so that the same rows give the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dorfl.data.preprocessing import Category, Numeric, Transform, columns
from dorfl.data.tables import FileTable
from dorfl.protocol.settings import Used
from dorfl.support.types import Array
from dorfl.tabular import given
from dorfl.tabular.arrays import LABEL


class LabelledTable(NamedTuple):
    """Table with the label as a column, and how a study uses its columns."""

    table: columns.Table
    used: Used


def table_of_frame(X: Any, *, with_numbers: bool = False) -> pa.Table | None:
    """Return a data frame as a table, None if it is all numbers or no data frame.

    `with_numbers` returns a frame of numbers as a table, too.

    >>> import pandas as pd
    >>> table_of_frame(pd.DataFrame({"age": [31, 45], "sex": ["f", "m"]})).column_names
    ['age', 'sex']
    >>> table_of_frame(pd.DataFrame({"age": [31, 45]})) is None
    True
    """
    if not (hasattr(X, "columns") and (hasattr(X, "iloc") or hasattr(X, "__arrow_c_stream__"))):
        return None
    try:
        table: Any = columns.table_of(X) if hasattr(X, "iloc") else pa.table(X)
    except (pa.ArrowException, TypeError, ValueError) as error:
        if all(getattr(kind, "kind", "O") in "iufcb" for kind in getattr(X, "dtypes", "O")):
            return None  # repeated names: scikit-learn takes numbers by position
        raise ValueError(
            f"X: the data frame cannot be read as a table ({error}); give every column a name of "
            "its own and values of one type"
        ) from None
    return None if not with_numbers and all(map(_plain, table.columns)) else table


def with_label(table: pa.Table, y: Any, frozen: Sequence[int | str] | None) -> LabelledTable:
    """Return a table with its label; columns of pandas' type "category" are categories."""
    names = list(table.column_names)
    if LABEL in names:
        raise ValueError(f"X: no column may be called {LABEL!r}; rename it")
    fixed = [names[k] for k in given.frozen(frozen or (), names)]
    levels = [f.name for f in table.schema if pa.types.is_dictionary(f.type)]
    whole = table.append_column(LABEL, y if isinstance(y, pa.Array) else pa.array(y))
    read = FileTable(whole, text=frozenset([*levels, LABEL]))
    return LabelledTable(read, Used(category=tuple(levels), frozen=tuple(fixed)))


def features(transform: Transform, X: Array | pa.Table, dtype: Any = np.float32) -> Array:
    """Return the features (n, d) of rows X."""
    table: Any
    if isinstance(X, np.ndarray):
        table = {f"x{k}": column for k, column in enumerate(X.T)}
    else:
        levels = frozenset(part.name for part in transform.parts if isinstance(part, Category))
        table = FileTable(X, text=levels)
    return np.asarray(transform.apply(table, dtype).X)


def units(transform: Transform) -> tuple[Array, Array]:
    """Return the scale and the centre of every feature."""
    own = [
        (part.spread, part.center) if isinstance(part, Numeric) and not k else (1.0, 0.0)
        for part in transform.parts
        for k in range(len(part.features))
    ]
    spread, center = np.array(own).T
    return spread, center


def unscaled_features(transform: Transform, X: pa.Table) -> Array:
    """Return the features of rows X in the units of the table."""
    parts = tuple(
        part._replace(center=0.0, spread=1.0) if isinstance(part, Numeric) else part
        for part in transform.parts
    )
    return features(replace(transform, parts=parts), X, np.float64)


def _plain(column: Any) -> bool:
    """Return whether a column has numbers alone, none of them missing."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    return not column.null_count and any(is_kind(column.type) for is_kind in kinds)
