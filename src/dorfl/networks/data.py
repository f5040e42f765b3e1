"""Clients' rows, read a batch at a time: arrays and tensors without a copy, data sets lazily.

A row of a data set is a pair (x, y). x is a tensor, a tuple of tensors (arguments of the model) or
a dict of tensors (keyword arguments). A data set is read whenever a batch needs its rows, so random
augmentation is drawn anew in every epoch, and it may be larger than memory.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from dorfl.data import validation
from dorfl.networks.device import mapped, seeded
from dorfl.support.types import Array

BLOCK = 4096  # rows at a time when all are read
LAZY_BLOCK = 8_000_000  # inputs of a data set at a time, 32 MB: a row may be large
MAX_KNOWN = 5_000  # rows of a lazy client that centres and scores are found from, at most
MAX_NUMBERS = 4_000_000  # inputs of these rows together, at most: 16 MB
Collate: TypeAlias = Callable[[list[Any]], tuple[Any, Any]]  # rows → (x, y) of a batch


class Batch(NamedTuple):
    """Rows of some clients, on the device."""

    clients: Sequence[int]  # Numbers of the clients
    x: Any  # (clients, n, …) inputs, or a tuple or dict of such tensors
    y: Tensor  # (clients, n, …) class numbers, or values
    mask: Tensor  # (clients, n) 1 for a row, 0 for padding


class ArrayRows(NamedTuple):
    """Rows of a client in memory; labels are class numbers or values."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def read(self, places: Array) -> tuple[Any, Any]:
        """Return some of the rows."""
        at = torch.from_numpy(places)  # index_select is twice as fast as indexing
        return self.x.index_select(0, at.to(self.x.device)), self.y.index_select(0, at)


class LazyRows(NamedTuple):
    """Rows of a client that are read when they are needed."""

    rows: Any  # has a length and rows by number
    collate: Collate
    workers: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, places: Array) -> tuple[Any, Any]:
        """Return some of the rows."""
        return self.collate([self.rows[int(i)] for i in places])


@dataclass(frozen=True, eq=False)
class ClientRows:
    """The rows of all clients."""

    names: tuple[str, ...]  # Names of the clients
    sources: tuple[ArrayRows | LazyRows, ...]  # Rows by client
    classes: Array  # Labels by class number; empty for a regression
    dtype: torch.dtype  # Of a batch. Integers stay integers if `integers` is set
    device: torch.device
    integers: bool = False

    @cached_property
    def counts(self) -> Array:
        """(clients,) numbers of rows."""
        return np.array([len(source) for source in self.sources])

    @property
    def lazy(self) -> bool:
        """Whether rows of some client are read when they are needed."""
        return any(isinstance(source, LazyRows) for source in self.sources)

    @property
    def plain(self) -> bool:
        """Whether a row is one tensor, of the same shape for all."""
        shapes = set()
        for i, source in enumerate(self.sources):
            if isinstance(source, LazyRows) and source.collate is not pairs:
                return False
            x, _ = self.read(i, np.arange(1))
            if not isinstance(x, Tensor):
                return False
            shapes.add(x.shape[1:])
        return len(shapes) == 1

    @cached_property
    def dims(self) -> int:
        """Number of inputs of a row."""
        return sum(leaf[0].numel() for leaf in tree_leaves(self.read(0, np.arange(1))[0]))

    def read(self, client: int, places: Array) -> tuple[Any, Tensor]:
        """Return inputs and labels of some rows of a client, on the device."""
        source, name = self.sources[client], self.names[client]
        x, y = source.read(places)
        if isinstance(source, ArrayRows):
            return self._on_device(x, y)
        whole = self.integers or source.collate is not pairs  # what a user's function makes is kept
        x, y = tree_map(torch.as_tensor, x), self._encoded(name, y)
        if not all(bool(leaf.isfinite().all()) for leaf in tree_leaves(x)):
            raise ValueError(f"client {name!r}: X has NaN or infinite values")
        kept = (whole and not y.is_floating_point()) or len(self.classes) > 0
        y = y.to(self.device) if kept else y.to(self.device, self.dtype)
        return mapped(lambda leaf: self._placed(leaf, whole), x), y

    def _on_device(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        labels = y.to(self.device) if len(self.classes) else y.to(self.device, self.dtype)
        return self._placed(x, self.integers), labels

    def batch(self, clients: Sequence[int], places: Sequence[Array]) -> Batch:
        """Return rows of several clients; places are row numbers, −1 for padding."""
        if len(clients) == 1:
            kept = places[0][places[0] >= 0]
            x, y = self.read(clients[0], kept)
            one = torch.ones(1, len(kept), dtype=self.dtype, device=self.device)
            return Batch(clients, mapped(lambda leaf: leaf[None], x), y[None], one)
        parts = [self.read(i, np.maximum(own, 0)) for i, own in zip(clients, places, strict=True)]
        x, y = (torch.stack(part) for part in zip(*parts, strict=True))
        mask = torch.as_tensor(np.stack(places) >= 0).to(self.device, self.dtype)
        return Batch(clients, x, y, mask)

    def stream(self, clients: Sequence[int], drawn: Array) -> Iterator[Batch]:
        """Return the batches of a round, for places (clients, steps, n)."""
        source = self.sources[clients[0]]
        if len(clients) == 1 and isinstance(source, ArrayRows):
            yield from self._array_batches(clients, drawn[0])
            return
        if isinstance(source, ArrayRows) or not source.workers or len(clients) > 1:
            for step in range(drawn.shape[1]):
                yield self.batch(clients, list(drawn[:, step]))
            return
        steps = [own[own >= 0] for own in drawn[0]]
        loader = DataLoader(
            source.rows,
            batch_sampler=[own.tolist() for own in steps],
            collate_fn=source.collate,
            num_workers=source.workers,
            generator=torch.Generator().manual_seed(torch.initial_seed()),
        )
        for own, pair in zip(steps, loader, strict=True):
            held = LazyRows([pair], _only)
            part = replace(self, sources=(held,), names=(self.names[clients[0]],))
            yield part.batch([0], [np.zeros(1, dtype=int)])._replace(
                clients=clients, mask=torch.ones(1, len(own), dtype=self.dtype, device=self.device)
            )

    def _array_batches(self, clients: Sequence[int], drawn: Array) -> Iterator[Batch]:
        """Return the batches (steps, n) of a client in memory, gathered some steps at a time."""
        mask = torch.ones(1, drawn.shape[1], dtype=self.dtype, device=self.device)
        steps = max(1, BLOCK // drawn.shape[1])
        for first in range(0, len(drawn), steps):
            part = drawn[first : first + steps]
            there = part >= 0
            x, y = self.read(clients[0], part[there])
            sizes = there.sum(1).tolist()
            for size, own_x, own_y in zip(sizes, x.split(sizes), y.split(sizes), strict=True):
                yield Batch(clients, own_x[None], own_y[None], mask[:, :size])

    def blocks(self, client: int, seed: int) -> Iterator[Batch]:
        """Return all rows of a client, some at a time, with the same augmentation every time."""
        count, size = int(self.counts[client]), BLOCK
        if self.lazy:
            size = int(np.clip(LAZY_BLOCK // self.dims, 1, BLOCK))
        with seeded(seed, client):
            for first in range(0, count, size):
                yield self.batch([client], [np.arange(first, min(first + size, count))])

    def known(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's rows in memory, without a copy, or a sample of those of a data set."""
        source = self.sources[client]
        if isinstance(source, ArrayRows):
            return self._on_device(source.x, source.y)
        count = len(source)
        most = int(np.clip(MAX_NUMBERS // self.dims, 1, MAX_KNOWN))
        places = np.arange(count)
        if count > most:
            places = np.sort(np.random.default_rng(0).permutation(count)[:most])
        return self.read(client, places)

    def take(self, indices: Sequence[Array]) -> ClientRows:
        """Return the clients with only the given rows of each."""
        parts: list[ArrayRows | LazyRows] = []
        for source, places in zip(self.sources, indices, strict=True):
            own = np.asarray(places)
            if isinstance(source, ArrayRows):
                parts.append(ArrayRows(*source.read(own)))
            else:
                parts.append(source._replace(rows=Subset(source.rows, own.tolist())))
        return replace(self, sources=tuple(parts))

    def select(self, clients: Sequence[int]) -> ClientRows:
        """Return only some of the clients."""
        names = tuple(self.names[i] for i in clients)
        return replace(self, names=names, sources=tuple(self.sources[i] for i in clients))

    def digest(self, client: int) -> str:
        """Return a fingerprint: of all numbers in memory, or of a data set's length and labels."""
        source, found = self.sources[client], hashlib.blake2b(digest_size=8)
        if isinstance(source, ArrayRows):
            found.update(np.ascontiguousarray(source.x.cpu().numpy()).data)
        found.update(str(len(source)).encode())
        found.update(np.ascontiguousarray(self.known(client)[1].cpu().numpy()).data)
        return found.hexdigest()

    def _placed(self, leaf: Tensor, whole: bool) -> Tensor:
        kept = whole and not leaf.is_floating_point()
        return leaf.to(self.device) if kept else leaf.to(self.device, self.dtype)

    def _encoded(self, name: str, y: Any) -> Tensor:
        labels = _array(y)
        return encode(name, labels, self.classes) if len(self.classes) else torch.as_tensor(labels)


def gather(
    clients: Any,
    dtype: torch.dtype,
    *,
    classify: bool,
    classes: Any = None,
    collate: Collate | None = None,
    device: torch.device | None = None,
) -> ClientRows:
    """Return clients, as :func:`dorfl.networks.train` takes them, with every one checked.

    Without `classes` every label is read once.

    >>> rows = gather([([[0.0], [1.0]], ["no", "yes"])], torch.float32, classify=True)
    >>> rows.known(0)[1].tolist(), rows.classes.tolist()
    ([0, 1], ['no', 'yes'])
    """
    if isinstance(clients, Mapping):
        named = {str(name): given for name, given in clients.items()}
    elif isinstance(clients, Sequence):
        named = {f"client-{i}": given for i, given in enumerate(clients, 1)}
    else:
        raise ValueError("clients: give a list of (X, y) or a mapping of name to (X, y)")
    if not named:
        raise ValueError("clients: there are none; give at least one (X, y)")
    sources = {name: _source(name, given, collate) for name, given in named.items()}
    for name, source in sources.items():
        if not len(source if isinstance(source, LazyRows) else source[1]):
            raise ValueError(f"client {name!r}: has no rows; leave it out")
    shapes = {s[0].shape[1:] for s in sources.values() if not isinstance(s, LazyRows)}
    if len(shapes) > 1:
        raise ValueError(f"clients: rows have the shapes {sorted(shapes)}; give all the same")
    known = np.empty(0)
    if classify:
        labels = None if classes is None else np.asarray(classes)
        if labels is None:
            labels = np.concatenate([np.unique(_labels(source)) for source in sources.values()])
        known = np.unique(labels)
    made: list[ArrayRows | LazyRows] = []
    for name, source in sources.items():
        if isinstance(source, LazyRows):
            made.append(source)
            continue
        X, y = source
        if not classify and y.dtype.kind not in "fiub":
            raise ValueError(
                "y is not numeric, which this loss needs; for classes use loss='softmax', or give "
                "`classes` with a loss of your own"
            )
        made.append(ArrayRows(X, encode(name, y, known) if classify else torch.as_tensor(y)))
    return ClientRows(tuple(sources), tuple(made), known, dtype, device or torch.device("cpu"))


def encode(name: str, labels: Array, classes: Array) -> Tensor:
    """Return class numbers; ValueError for a label that is not among the classes."""
    codes = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    strange = classes[codes] != labels
    if strange.any():
        label = np.asarray(labels)[strange].ravel()[0]
        raise ValueError(f"client {name!r}: y has the label {label!r}, which is not among classes")
    return torch.from_numpy(codes.astype(np.int64))


def pairs(rows: list[Any]) -> tuple[Any, Any]:
    """Make a batch of pairs (x, y) of one shape: the default `collate`."""
    for row in rows:
        if not isinstance(row, tuple | list) or len(row) != 2:
            raise ValueError(
                f"a data set gives a {type(row).__name__} for a row, and a pair (x, y) is needed; "
                "give arrays (X, y), or a function collate= that makes (x, y) of a list of rows"
            )
    try:
        x = default_collate([_tree(x) for x, _ in rows])
        y = np.stack([_array(y) for _, y in rows])
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(
            f"rows of a data set have different shapes; give a function collate= that pads them "
            f"({error})"
        ) from None
    return x, y


def _only(rows: list[Any]) -> tuple[Any, Any]:
    """Return the batch that a worker has made."""
    (pair,) = rows
    return pair


def _tree(x: Any) -> Any:
    """Return an input as tensors."""
    if isinstance(x, Mapping):
        return {key: _tree(part) for key, part in x.items()}
    if isinstance(x, tuple):
        return tuple(_tree(part) for part in x)
    return x if isinstance(x, Tensor) else torch.as_tensor(_array(x))


def _source(name: str, given: Any, collate: Collate | None) -> tuple[Tensor, Array] | LazyRows:
    """Return a client's arrays, or its data set."""
    workers = 0
    if isinstance(given, DataLoader):
        own = given.collate_fn
        collate = collate or (None if own is default_collate else own)
        given, workers = given.dataset, given.num_workers
    if isinstance(given, TensorDataset) and len(given.tensors) == 2 and collate is None:
        given = given.tensors
    if isinstance(given, IterableDataset):  # it has no length, but an end
        given = list(given)
        return LazyRows(given, collate or pairs)
    readable = hasattr(given, "__getitem__") and hasattr(given, "__len__")
    arrays = isinstance(given, tuple | list | Mapping) or hasattr(given, "__array__")
    if isinstance(given, Dataset) or (readable and not arrays):
        return LazyRows(given, collate or pairs, workers)
    if collate is not None and not isinstance(given, tuple):
        return LazyRows(given, collate, workers)
    try:
        X, y = given
    except (TypeError, ValueError):
        raise ValueError(f"client {name!r}: give a pair (X, y) or a torch data set") from None
    return _table(name, X, y)


def _table(name: str, X: Any, y: Any) -> tuple[Tensor, Array]:
    """Return arrays of a client, checked, without a copy of what is a tensor or array already."""
    try:
        table = X if isinstance(X, Tensor) else np.asarray(X)
    except ValueError:  # arrays of several widths
        raise ValueError(
            f"client {name!r}: X must be one array of rows; for several inputs give a data set "
            "whose rows are pairs ((x1, x2), y)"
        ) from None
    if table.ndim < 2:
        raise ValueError(f"client {name!r}: X must be rows of numbers, not of shape {table.shape}")
    labels = _array(y)
    labels = labels[:, 0] if labels.shape[1:] == (1,) else labels
    flat = table.reshape(len(table), math.prod(table.shape[1:]))
    if isinstance(table, Tensor):
        whole = not table.is_floating_point()
        checked = np.zeros((len(table), 1), np.float32) if whole else _array(flat)
    else:
        whole = table.dtype.kind in "iub"
        checked = np.zeros((len(table), 1), np.float32) if whole else flat
    first = labels.reshape(len(labels), -1)[:, 0] if labels.ndim > 1 else labels
    checked, _ = validation.clients({name: (checked, first)})[name]
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError(f"client {name!r}: y has NaN or infinite values; remove those rows")
    if isinstance(table, Tensor):
        return table, labels
    return torch.as_tensor(table if whole else checked.reshape(table.shape)), labels


def _labels(source: tuple[Tensor, Array] | LazyRows) -> Array:
    """Return all labels of a client."""
    if not isinstance(source, LazyRows):
        return source[1].ravel()
    targets = getattr(source.rows, "targets", None)
    if targets is not None and len(targets) == len(source):
        return _array(targets).ravel()
    parts: Iterable[Array] = (
        _array(source.read(np.arange(k, min(k + 256, len(source))))[1]).ravel()
        for k in range(0, len(source), 256)
    )
    return np.concatenate([np.unique(part) for part in parts])


def _array(values: Any) -> Array:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
