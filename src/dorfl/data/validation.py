"""What users bring, checked once: errors say which client, what, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from scipy import sparse

from dorfl.objective.kinds import Loss
from dorfl.support.types import Array

Clients = dict[str, tuple[Array, Array]]


def clients(given: Any) -> Clients:
    """Clients as name → (X, y), from a mapping or a list, every one checked."""
    if isinstance(given, Mapping):
        named = {str(name): pair for name, pair in given.items()}
        if len(named) < len(given):
            names = [str(name) for name in given]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"clients: two are called {twice!r}; rename one of them")
    else:
        try:
            named = {f"client-{i + 1}": pair for i, pair in enumerate(given)}
        except TypeError:
            raise ValueError(
                "clients: give a list of (X, y) or a mapping of name to (X, y)"
            ) from None
    if not named:
        raise ValueError("clients: there are none; give at least one (X, y)")
    checked = {name: _client(name, pair) for name, pair in named.items()}
    widths = {name: X.shape[1] for name, (X, _) in checked.items()}
    first, width = next(iter(widths.items()))
    for name, other in widths.items():
        if other != width:
            raise ValueError(
                f"client {name!r}: X has {other} columns, client {first!r} has {width}; "
                "all clients need the same columns"
            )
    return checked


def rows(X: Any, what: str) -> Array:
    """A table of finite numbers, float32 kept and everything else made float64; sparse: CSR."""
    if sparse.issparse(X):
        table = sparse.csr_array(X)
        if table.dtype.kind not in "fiub":
            raise ValueError(f"{what}: X is not numeric but {table.dtype}; turn it into numbers")
        if not np.isfinite(table.data).all():
            raise ValueError(
                f"{what}: X has values that are NaN or infinite; remove or impute them"
            )
        return cast("Array", table if table.dtype == np.float32 else table.astype(np.float64))
    table = _array(X, what, "X")
    if table.ndim != 2:
        raise ValueError(f"{what}: X must be a table (rows × columns), not of shape {table.shape}")
    if table.dtype.kind in "cmM":
        raise ValueError(f"{what}: X is not numeric but {table.dtype}; turn it into real numbers")
    if table.dtype.kind not in "fiub":
        table = _numbers(table, what)
    if table.dtype != np.float32:
        table = table.astype(np.float64, copy=False)
    # The sum is finite exactly when nothing is NaN or infinite, and needs no second table.
    with np.errstate(invalid="ignore", over="ignore"):
        total = table.sum(dtype=np.float64)
    if not np.isfinite(total):
        bad = np.argwhere(~np.isfinite(table))
        if len(bad):
            row, column = bad[0]
            raise ValueError(
                f"{what}: X has {len(bad)} value(s) that are NaN or infinite, the first in row "
                f"{row}, column {column}; remove or impute them"
            )
    return np.ascontiguousarray(table)


def joined(tables: list[Array]) -> Array:
    """The tables one below the other; no copy where they are pieces of one table, in order."""
    if len(tables) == 1:
        return tables[0]
    if any(map(sparse.issparse, tables)):
        return cast("Array", sparse.vstack(tables, format="csr"))
    whole = tables[0].base
    if not isinstance(whole, np.ndarray) or whole.shape[1:] != tables[0].shape[1:]:
        return np.concatenate(tables)
    row = tables[0].strides[0]
    first = place = (tables[0].ctypes.data - whole.ctypes.data) // row
    for X in tables:
        at = whole.ctypes.data + place * row
        if X.base is not whole or X.dtype != whole.dtype or X.ctypes.data != at:
            return np.concatenate(tables)
        place += len(X)
    return np.ascontiguousarray(whole[first:place])


def _array(values: Any, what: str, name: str) -> Array:
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(f"{what}: the rows of {name} have different lengths") from None


def _numbers(table: Array, what: str) -> Array:
    for k in range(table.shape[1]):
        try:
            table[:, k].astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"{what}: column {k} of X is not numeric; encode it as numbers first"
            ) from None
    return table.astype(np.float64)


def _client(name: str, pair: Any) -> tuple[Array, Array]:
    try:
        X, y = pair
    except (TypeError, ValueError):
        raise ValueError(f"client {name!r}: give a pair (X, y)") from None
    table, labels = rows(X, f"client {name!r}"), _array(y, f"client {name!r}", "y")
    if labels.ndim != 1:
        raise ValueError(
            f"client {name!r}: y must be one label per row, not of shape {labels.shape}"
        )
    if table.shape[0] != len(labels):
        raise ValueError(f"client {name!r}: X has {table.shape[0]} rows and y has {len(labels)}")
    if not len(labels):
        raise ValueError(f"client {name!r}: has no rows; leave it out")
    if not table.shape[1]:
        raise ValueError(f"client {name!r}: X has no columns")
    if labels.dtype == object and any(v is None or v != v for v in labels):  # noqa: PLR0124 - NaN
        raise ValueError(f"client {name!r}: y has missing values; remove those rows")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError(f"client {name!r}: y has NaN or infinite values; remove those rows")
    return table, labels


def classes(checked: Clients, loss: Loss, known: Any = None) -> Array:
    """The labels a classifier tells apart, over all clients; empty for a regression."""
    if not loss.classifies:
        for name, (_, y) in checked.items():
            if y.dtype.kind not in "fiub":
                raise ValueError(
                    f"client {name!r}: y is not numeric, which {loss.name} loss needs; "
                    'for classes use loss="logistic" or "softmax"'
                )
        return np.empty(0)
    try:
        found = np.unique(np.concatenate([np.unique(y) for _, y in checked.values()]))
        given = found if known is None else np.unique(np.asarray(known))
    except TypeError:
        raise ValueError("y mixes labels that cannot be ordered; use one type of label") from None
    strange = np.setdiff1d(found, given)
    if len(strange):
        raise ValueError(f"y has the label {strange[0]!r}, which is not among classes={given!r}")
    found = given
    if len(found) < 2:
        where = ", ".join(repr(name) for name in checked)
        raise ValueError(
            f"y has one class only ({found[0]!r}) in client(s) {where}; "
            "a classifier needs rows of at least two"
        )
    if len(found) > 2 and loss.outputs(len(found)) == 1:
        raise ValueError(
            f'loss="{loss.name}" tells two classes apart, y has {len(found)}; use loss="softmax"'
        )
    return found
