"""Split one data set into clients, as papers on federated learning do, or take Flower's partitions.

`data` is a pair of arrays (X, y) or a PyTorch data set of pairs (x, y). The result is a mapping of
client name to rows, as :func:`dorfl.train` takes it. Arrays need no PyTorch.

>>> X, y = np.zeros((40, 3)), np.repeat([0, 1], 20)
>>> {name: set(own.tolist()) for name, (_, own) in shards((X, y), 4, per_client=1).items()}
{'client-1': {0}, 'client-2': {1}, 'client-3': {1}, 'client-4': {0}}

References
----------
.. [1] H. B. McMahan et al., "Communication-efficient learning of deep networks from decentralized
   data", AISTATS 2017.
.. [2] T.-M. H. Hsu, H. Qi, M. Brown, "Measuring the effects of non-identical data distribution for
   federated visual classification", 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from dorfl.support.types import Array

MAX_DRAWS = 1_000  # draws of proportions until every client has `least` rows
Clients: TypeAlias = dict[str, Any]
Column: TypeAlias = str | Callable[[Any], Any]


def iid(data: Any, clients: int = 10, *, seed: int = 0) -> Clients:
    """Split rows at random into clients of equal size, up to one row.

    >>> [len(y) for _, y in iid((np.zeros((10, 1)), np.zeros(10)), clients=3).values()]
    [4, 3, 3]
    """
    order = np.random.default_rng(seed).permutation(_count(data))
    return _clients(data, np.array_split(order, _number(clients)))


def dirichlet(
    data: Any, clients: int = 10, alpha: float = 0.5, *, least: int = 10, seed: int = 0
) -> Clients:
    """Split each class in proportions from a symmetric Dirichlet distribution [2]_.

    Parameters
    ----------
    data
        Rows with class labels.
    clients
        Number of clients.
    alpha
        Concentration: 0.1 gives most clients one or two classes, 100 gives all the same mixture.
    least
        Fewest rows of a client; proportions are drawn again until every client has them.
    seed
        Seed of the proportions and of the rows.

    Raises
    ------
    ValueError
        If `alpha` is not positive, or clients of `least` rows are not found.
    """
    if not 0.0 < alpha < np.inf:
        raise ValueError(f"dirichlet(alpha={alpha}): must be a positive number")
    labels, rng = _labels(data), np.random.default_rng(seed)
    for _ in range(MAX_DRAWS):
        parts: list[list[Array]] = [[] for _ in range(_number(clients))]
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            ends = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1]
            for part, own in zip(
                parts, np.split(rows, (ends * len(rows)).astype(int)), strict=True
            ):
                part.append(own)
        found = [np.concatenate(part) for part in parts]
        if min(map(len, found)) >= least:
            return _clients(data, found)
    raise ValueError(
        f"dirichlet: {clients} clients of {least} rows were not found in {len(labels)} rows; give "
        "fewer clients, a larger alpha or a smaller least"
    )


def shards(data: Any, clients: int = 10, per_client: int = 2, *, seed: int = 0) -> Clients:
    """Sort rows by label, cut them into shards, and give each client `per_client` of them [1]_."""
    labels, rng = _labels(data), np.random.default_rng(seed)
    count = _number(clients) * _number(per_client)
    if count > len(labels):
        raise ValueError(f"shards: {count} shards are more than the {len(labels)} rows")
    order = rng.permutation(len(labels))
    pieces = np.array_split(order[np.argsort(labels[order], kind="stable")], count)
    drawn = rng.permutation(count).reshape(clients, per_client)
    return _clients(data, [np.concatenate([pieces[k] for k in own]) for own in drawn])


def by_column(data: Any, column: Sequence[Any]) -> Clients:
    """Split rows by the values of a column (one per row); clients are named by the values.

    >>> list(by_column((np.zeros((3, 1)), np.zeros(3)), ["b", "a", "b"]))
    ['a', 'b']
    """
    values = np.asarray(column)
    if values.shape != (_count(data),):
        raise ValueError(f"by_column: needs one value for each of the {_count(data)} rows")
    names = np.unique(values)
    return _clients(data, [np.flatnonzero(values == v) for v in names], [str(v) for v in names])


def from_flwr_datasets(federated: Any, x: Column, y: Column, split: str = "train") -> Clients:
    """Return the partitions of a `flwr_datasets.FederatedDataset` as clients, read lazily.

    Parameters
    ----------
    federated
        The data set, with a partitioner for `split`.
    x, y
        Name of a column, or a function of a row (a dict) that returns the input or the label.
    split
        Name of the split.

    Examples
    --------
    ::

        federated = FederatedDataset(dataset="mnist", partitioners={"train": IidPartitioner(10)})
        clients = networks.from_flwr_datasets(
            federated, lambda row: np.asarray(row["image"], np.float32)[None] / 255, "label"
        )
    """
    if split not in federated.partitioners:
        raise ValueError(
            f"split={split!r}: has no partitioner; there is {[*federated.partitioners]}"
        )
    parts = range(federated.partitioners[split].num_partitions)
    load = federated.load_partition
    return {f"client-{k + 1}": ColumnPairs(load(k, split), x, y) for k in parts}


class ColumnPairs:
    """Rows of a Hugging Face data set as pairs (x, y); see :func:`from_flwr_datasets`."""

    def __init__(self, rows: Any, x: Column, y: Column) -> None:
        self.rows, self.x, self.y = rows, x, y

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> tuple[Any, Any]:
        row = self.rows[place]
        x, y = (c(row) if callable(c) else row[c] for c in (self.x, self.y))
        return x, y

    @property
    def targets(self) -> Array:
        """All labels, without reading the inputs if they are a column."""
        if isinstance(self.y, str):
            return np.asarray(self.rows[self.y])
        return np.asarray([self[place][1] for place in range(len(self))])


def _count(data: Any) -> int:
    return len(data[1]) if isinstance(data, tuple | list) else len(data)


def _labels(data: Any) -> Array:
    """Return one label per row: y, `targets` of a data set, or as its rows are read once."""
    if isinstance(data, tuple | list):
        labels = np.asarray(data[1])
    else:
        labels = np.asarray(getattr(data, "targets", None))
        if labels.shape != (len(data),):
            labels = np.asarray([np.asarray(data[place][1]) for place in range(len(data))])
    if labels.ndim != 1:
        raise ValueError(f"labels: one per row is needed, and they have the shape {labels.shape}")
    return labels


def _clients(data: Any, parts: Sequence[Array], names: Sequence[str] | None = None) -> Clients:
    """Return the rows of every part, in their order in `data`."""
    found = {}
    for k, part in enumerate(parts):
        name, own = names[k] if names else f"client-{k + 1}", np.sort(part)
        if isinstance(data, tuple | list):
            X, y = data
            found[name] = (X[own], y[own])
        else:
            from torch.utils.data import Subset  # noqa: PLC0415 - arrays need no PyTorch

            found[name] = Subset(data, own.tolist())
    return found


def _number(value: int) -> int:
    if value < 1:
        raise ValueError(f"{value}: must be at least 1")
    return int(value)
