"""Validation of clients and weights: errors name the client, the problem and the remedy.

With weights w the distribution of a client is P̂_i = Σ_j w_j δ(ζ_j) / Σ_j w_j in place of 1/n_i per
row: F_i = ρβ log Σ_j w_j exp(f_j/ρβ) / Σ_j w_j, and the sample weights of the fit are
p_j ∝ w_j exp(f_j/ρβ). The size of a client is Σ_j w_j. An integer weight k is equivalent to k
copies of the row; weight 0 drops the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import numpy as np
from scipy import sparse

from dorfl.objective.base import Loss
from dorfl.support.types import Array

Clients = dict[str, tuple[Array, Array]]
MAX_NUMBERS = 10  # whole numbers with at most so many different values are classes
MAX_CLASSES = 50  # more are trained only if they are asked for
_COPIES = 4  # copies of a row of mean weight if weights are not integers
_MAX_COPIES = 16  # largest mean number of copies


def clients(given: Any) -> Clients:
    """Return (X, y) by name from a list of (X, y), or from a mapping.

    A ValueError names the client whose table, label or name cannot be used.
    """
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
    """Return a table as contiguous float32 if it is so, else float64; sparse tables as CSR.

    `what` names it in the ValueError if it is no table of finite numbers.
    """
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
    # A finite sum shows that no value is NaN or infinite, and needs no second table.
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
    """Stack tables (n_i, d); consecutive slices of one table are not copied."""
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
    if labels.dtype.kind in "mM":
        raise ValueError(f"client {name!r}: y has dates or times; make them numbers or classes")
    if labels.dtype == object and any(v is None or v != v for v in labels):  # noqa: PLR0124 - NaN
        raise ValueError(f"client {name!r}: y has missing values; remove those rows")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError(f"client {name!r}: y has NaN or infinite values; remove those rows")
    return table, labels


def loss_name(checked: Clients) -> str:
    """Return the name of the loss that fits the labels of all checked clients.

    Two classes are "logistic", more are "softmax", and numbers that are no classes are "huber".

    >>> loss_name(clients([([[1.0], [2.0], [3.0]], ["a", "b", "c"])]))
    'softmax'
    """
    labels = [y for _, y in checked.values()]
    mixed = any(y.dtype == object for y in labels)  # such labels may have no order
    distinct = {value for y in labels for value in (y if mixed else np.unique(y)).tolist()}
    if len(distinct) == 1:
        raise ValueError(f"y has one value only ({distinct.pop()!r}); there is nothing to learn")
    if all(y.dtype.kind in "fiub" for y in labels) and not are_classes(np.array([*distinct])):
        return "huber"
    if len(distinct) > MAX_CLASSES:
        raise ValueError(
            f"y has {len(distinct):,} different values, more than {MAX_CLASSES} classes; make them "
            'numbers for a regression, or give loss="softmax" for so many classes'
        )
    return "logistic" if len(distinct) <= 2 else "softmax"


def are_classes(values: Array) -> bool:
    """Return whether these numbers are classes: two of them, or a few whole ones."""
    distinct = np.unique(values)
    whole = bool((distinct == np.rint(distinct)).all())
    return len(distinct) <= 2 or (whole and len(distinct) <= MAX_NUMBERS)


def classes(checked: Clients, loss: Loss, known: Any = None) -> Array:
    """Return the classes of all clients, `known` or those that occur; empty for a regression.

    A ValueError says that the labels do not fit the loss.
    """
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
            f"y has one class only ({found.tolist()[0]!r}) in client(s) {where}; "
            "a classifier needs rows of at least two"
        )
    if len(found) > 2 and loss.outputs(len(found)) == 1:
        raise ValueError(
            f'loss="{loss.name}" is for two classes, y has {len(found)}; use loss="softmax"'
        )
    return found


# ── sample weights and class weights ─────────────────────────────────────────────────────────────


class Weighted(NamedTuple):
    """Clients without their rows of weight 0."""

    clients: Any  # (X, y) by name; as they were given if there are no weights
    mass: dict[str, Array] | None = None  # (n,) weights of the rows left, all positive
    kept: dict[str, Array] | None = None  # mask of the rows left among all rows of each client

    def expand(self, name: str, values: Array) -> Array:
        """Return values of a client's rows left as values of all its rows, 0 for the others."""
        if self.kept is None:
            return values
        out = np.zeros(len(self.kept[name]))
        out[self.kept[name]] = values
        return out


def apply_weights(
    given_clients: Any, sample_weight: Any = None, class_weight: Any = None
) -> Weighted:
    """Check the weights of rows and classes, and drop rows of weight 0.

    `sample_weight` has (n,) weights of each client, in a list or by name; `class_weight` one for
    each label, or is "balanced".

    >>> found = apply_weights([([[1.0], [2.0], [3.0]], [0, 1, 1])], [[1, 0, 2]])
    >>> found.clients["client-1"][1], found.mass["client-1"]
    (array([0, 1]), array([1., 2.]))
    """
    if sample_weight is None and class_weight is None:
        return Weighted(given_clients)
    checked = clients(given_clients)
    given: dict[str, Any] = {name: np.ones(len(y)) for name, (_, y) in checked.items()}
    if isinstance(sample_weight, Mapping):
        given = {str(name): values for name, values in sample_weight.items()}
    elif sample_weight is not None:
        given = dict(zip(checked, sample_weight, strict=False))
        if len(given) < len(checked) or len(given) < len(sample_weight):
            raise ValueError(
                f"sample_weight: {len(sample_weight)} lists of weights for {len(checked)} clients"
            )
    mass: dict[str, Array] = {}
    for name, (_, y) in checked.items():
        if name not in given:
            raise ValueError(f"sample_weight: there are none for client {name!r}")
        mass[name] = check_weights(given[name], len(y), f"client {name!r}")
    if class_weight is not None:
        labels = np.concatenate([y for _, y in checked.values()])
        each = class_weights(labels, np.concatenate(list(mass.values())), class_weight)
        ends = np.cumsum([len(y) for _, y in checked.values()])[:-1]
        mass = {n: w * c for (n, w), c in zip(mass.items(), np.split(each, ends), strict=True)}
    kept = {name: w > 0 for name, w in mass.items()}
    for name, positive in kept.items():
        if not positive.any():
            raise ValueError(f"client {name!r}: all its weights are zero; leave it out")
    rows = {name: (X[kept[name]], y[kept[name]]) for name, (X, y) in checked.items()}
    return Weighted(rows, {name: w[kept[name]] for name, w in mass.items()}, kept)


def check_weights(weights: Any, count: int, what: str) -> Array:
    """Return sample weights as (count,) floats; raise if one is missing, negative or not finite."""
    found = np.asarray(weights, dtype=np.float64)
    if found.shape != (count,):
        raise ValueError(
            f"{what}: sample_weight has shape {found.shape}, X has {count} rows: one weight each"
        )
    if not np.isfinite(found).all() or (found < 0).any():
        raise ValueError(f"{what}: sample_weight must be finite and not negative")
    return found


def class_weights(labels: Array, weights: Array, class_weight: Any) -> Array:
    """Return the class weight of every row: from a mapping, or "balanced" for equal total weights.

    A label that the mapping does not have has the weight 1.

    >>> class_weights(np.array([0, 1, 1, 1]), np.ones(4), "balanced")
    array([2.        , 0.66666667, 0.66666667, 0.66666667])
    """
    classes, at = np.unique(labels, return_inverse=True)
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise ValueError(f'class_weight={class_weight!r}: give "balanced" or a mapping')
        total = np.bincount(at, weights)
        each = np.divide(
            total.sum(), len(classes) * total, out=np.ones(len(total)), where=total > 0
        )
        return np.asarray(each[at])
    strange = [label for label in class_weight if label not in classes.tolist()]
    if strange:
        raise ValueError(f"class_weight: there is no class {strange[0]!r}")
    each = check_weights(
        [class_weight.get(label, 1.0) for label in classes.tolist()], len(classes), "class_weight"
    )
    return np.asarray(each[at])


def copies(weights: Array) -> Array:
    """Return how many copies of each row, one or more, represent its weight in a quantile.

    Integers stay as they are unless they are large; other weights are rounded to a quarter of their
    mean.
    """
    if (weights == np.rint(weights)).all() and weights.sum() <= _MAX_COPIES * len(weights):
        return np.asarray(weights, dtype=np.int64)
    return np.asarray(np.maximum(np.rint(_COPIES * weights / weights.mean()), 1.0), dtype=np.int64)
