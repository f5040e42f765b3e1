"""Clients' rows as tensors: arrays, tensors and PyTorch's data sets alike, checked once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from dorfl.data import validation
from dorfl.support.types import Array


class Rows(NamedTuple):
    """The rows of all clients, one client after the other."""

    names: tuple[str, ...]
    x: Tensor  # (n, …)
    y: Tensor  # (n,): class numbers, or values
    bounds: Array  # (clients + 1,) where each client's rows begin and end
    classes: Array  # what the class numbers stand for; empty for a regression

    @property
    def counts(self) -> Array:
        """How many rows each client has."""
        return np.diff(self.bounds)

    @property
    def dims(self) -> int:
        """How many numbers a row has."""
        return int(np.prod(self.x.shape[1:]))

    def client(self, i: int) -> slice:
        """Where the rows of one client are."""
        return slice(int(self.bounds[i]), int(self.bounds[i + 1]))

    def take(self, indices: Sequence[Array]) -> Rows:
        """Only the given rows of every client."""
        parts = [self.bounds[i] + np.asarray(part) for i, part in enumerate(indices)]
        return self._only(self.names, parts)

    def select(self, clients: Sequence[int]) -> Rows:
        """Only some of the clients."""
        parts = [np.arange(self.bounds[i], self.bounds[i + 1]) for i in clients]
        return self._only(tuple(self.names[i] for i in clients), parts)

    def _only(self, names: tuple[str, ...], parts: list[Array]) -> Rows:
        at = torch.from_numpy(np.concatenate(parts))
        bounds = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        return Rows(names, self.x[at], self.y[at], bounds, self.classes)


def gather(clients: Any, dtype: torch.dtype, *, classify: bool, classes: Any = None) -> Rows:
    """Clients, given as name → (X, y) or a list of these, or of data sets, as :class:`Rows`.

    >>> rows = gather([([[0.0], [1.0]], ["no", "yes"])], torch.float32, classify=True)
    >>> rows.y.tolist(), rows.classes.tolist()
    ([0, 1], ['no', 'yes'])
    """
    if isinstance(clients, Mapping):
        pairs = {name: _pair(name, given) for name, given in clients.items()}
    elif isinstance(clients, Sequence):
        pairs = {f"client-{i}": _pair(i, given) for i, given in enumerate(clients, 1)}
    else:
        raise ValueError("clients: give a list of (X, y) or a mapping of name to (X, y)")
    flat = {n: (X.reshape(len(X), math.prod(X.shape[1:])), y) for n, (X, y) in pairs.items()}
    checked = validation.clients(flat)
    shapes = {X.shape[1:] for X, _ in pairs.values()}
    if len(shapes) > 1:
        raise ValueError(f"clients: rows have the shapes {sorted(shapes)}; give all the same")
    labels = np.concatenate([y for _, y in checked.values()])
    known = np.empty(0)
    if classify:
        known = np.unique(labels) if classes is None else np.unique(np.asarray(classes))
        strange = np.setdiff1d(labels, known)
        if len(strange):
            raise ValueError(f"y has the label {strange[0]!r}, which is not among classes")
        labels = np.searchsorted(known, labels)
    elif labels.dtype.kind not in "fiub":
        raise ValueError(
            "y is not numeric, which this loss needs; for classes use loss='softmax', or give "
            "`classes` with a loss of your own"
        )
    x = torch.cat([torch.from_numpy(X).to(dtype) for X, _ in checked.values()])
    bounds = np.concatenate([[0], np.cumsum([len(y) for _, y in checked.values()])])
    target = torch.from_numpy(labels.astype(np.int64) if classify else labels.astype(np.float64))
    y = target if classify else target.to(dtype)
    return Rows(tuple(checked), x.view(-1, *shapes.pop()), y, bounds, known)


def inputs(X: Any, dtype: torch.dtype) -> Tensor:
    """Rows to predict for."""
    return torch.as_tensor(np.asarray(X)).to(dtype)


def _pair(name: object, given: Any) -> tuple[Array, Array]:
    if isinstance(given, DataLoader):
        raise ValueError(f"client {name!r}: give the loader's data set; `batch` says how it is cut")
    if isinstance(given, Dataset):
        given = _stacked(name, given)
    try:
        X, y = given
    except (TypeError, ValueError):
        raise ValueError(f"client {name!r}: give a pair (X, y) or a torch data set") from None
    try:
        table = _array(X)
    except ValueError:  # arrays of several widths
        raise ValueError(
            f"client {name!r}: X must be one array of rows; where a model takes several inputs, "
            "put them side by side and let it take them apart"
        ) from None
    if table.ndim < 2:
        raise ValueError(f"client {name!r}: X must be rows of numbers, not of shape {table.shape}")
    labels = _array(y)
    return table, labels[:, 0] if labels.shape[1:] == (1,) else labels


def _stacked(name: object, given: Any) -> tuple[Array, Array]:
    """All rows of a data set."""
    endless = isinstance(given, IterableDataset)  # it has no length, but an end
    rows = list(given) if endless else [given[i] for i in range(len(given))]
    for row in rows:
        if not isinstance(row, tuple | list) or len(row) != 2:
            raise ValueError(
                f"client {name!r}: the data set gives a {type(row).__name__} for a row, and a pair "
                "(x, y) is needed; wrap it in a data set that gives pairs, or give arrays (X, y)"
            )
    if not rows:
        raise ValueError(f"client {name!r}: the data set has no rows")
    return np.stack([_array(x) for x, _ in rows]), np.array([_array(y) for _, y in rows])


def _array(values: Any) -> Array:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
