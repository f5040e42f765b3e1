"""Public ways to split a data set into clients, and the partitions of flwr-datasets."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_network_training import blobs, model
from torch.utils.data import Dataset, TensorDataset

import dorfl
from dorfl import networks

X, Y = np.arange(400.0).reshape(200, 2), np.repeat([0, 1, 2, 3], 50)
SPLITS = {
    "iid": lambda data, **given: networks.iid(data, 5, **given),
    "dirichlet": lambda data, **given: networks.dirichlet(data, 5, alpha=0.5, **given),
    "shards": lambda data, **given: networks.shards(data, 5, per_client=2, **given),
    "by_column": lambda data, **given: networks.by_column(data, np.arange(200) % 5),
}


class Pairs(Dataset):
    """Rows without `targets`."""

    def __len__(self):
        return len(Y)

    def __getitem__(self, place):
        return X[place], Y[place]


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_every_row_goes_to_one_client_and_data_sets_are_split_like_arrays(split):
    parts = split((X, Y))
    assert len(parts) == 5
    assert np.array_equal(np.sort(np.concatenate([x[:, 0] for x, _ in parts.values()])), X[:, 0])
    for x, y in parts.values():
        assert np.array_equal(y, Y[(x[:, 0] / 2).astype(int)])
    for data in (TensorDataset(torch.tensor(X), torch.tensor(Y)), Pairs()):
        lazy = split(data)
        for name, (x, _) in parts.items():
            assert np.array_equal(np.array([np.asarray(row) for row, _ in lazy[name]]), x)
    if split is not SPLITS["by_column"]:
        again, other = split((X, Y)), split((X, Y), seed=1)
        one, two = next(iter(parts.values()))[0], next(iter(other.values()))[0]
        assert np.array_equal(one, next(iter(again.values()))[0])
        assert not np.array_equal(one, two)


def mean_classes(parts):
    return np.mean([len(np.unique(y)) for _, y in parts.values()])


def test_dirichlet_goes_from_single_classes_to_the_mixture_of_all():
    few = networks.dirichlet((X, Y), 4, alpha=0.01, least=1)
    many = networks.dirichlet((X, Y), 4, alpha=1e4)
    assert mean_classes(few) < 2.5
    assert mean_classes(many) == 4
    assert [len(y) for _, y in many.values()] == pytest.approx([50] * 4, abs=4)
    assert min(len(y) for _, y in networks.dirichlet((X, Y), 5, alpha=0.1).values()) >= 10


def test_shards_give_a_client_few_classes_and_columns_name_clients():
    parts = networks.shards((X, Y), 10, per_client=2)
    assert max(len(np.unique(y)) for _, y in parts.values()) <= 3
    assert {len(y) for _, y in parts.values()} == {20}
    wards = networks.by_column((X, Y), np.where(Y > 1, "east", "west"))
    assert {name: len(y) for name, (_, y) in wards.items()} == {"east": 100, "west": 100}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: networks.dirichlet((X, Y), alpha=0.0), "positive"),
        (lambda: networks.dirichlet((X, Y), 30, least=10), "fewer clients"),
        (lambda: networks.shards((X, Y), 300), "more than the 200 rows"),
        (lambda: networks.iid((X, Y), 0), "at least 1"),
        (lambda: networks.by_column((X, Y), [1, 2]), "one value for each of the 200 rows"),
        (lambda: networks.shards((X, X)), "one per row"),
    ],
)
def test_what_cannot_be_split_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        wrong()


class Part:
    """What a partition of flwr-datasets has: rows by number, columns by name."""

    def __init__(self, X, y):
        self.columns = {"image": X, "label": y}

    def __len__(self):
        return len(self.columns["label"])

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.columns[key]
        return {name: values[key] for name, values in self.columns.items()}


class Partitioner:
    num_partitions = 3


class Federated:
    """The interface of `flwr_datasets.FederatedDataset`."""

    partitioners = {"train": Partitioner()}  # noqa: RUF012

    def load_partition(self, partition_id, split=None):
        assert split == "train"
        return Part(*list(blobs().values())[partition_id])


def test_partitions_of_flwr_datasets_train_like_their_arrays():
    given = {"model": model, "rounds": 10, "batch_size": 16}
    arrays = {f"client-{k}": rows for k, rows in enumerate(blobs().values(), 1)}
    fit = dorfl.train(arrays, "erm", max_parameters=1, **given)
    for x in ("image", lambda row: row["image"]):
        clients = networks.from_flwr_datasets(Federated(), x, "label")
        assert np.array_equal(dorfl.train(clients, "erm", **given).theta, fit.theta)
    with pytest.raises(ValueError, match="has no partitioner"):
        networks.from_flwr_datasets(Federated(), "image", "label", split="test")


def test_the_real_flwr_datasets_if_it_is_installed():
    partitioner = pytest.importorskip("flwr_datasets.partitioner")
    datasets = pytest.importorskip("datasets")
    rng = np.random.default_rng(0)
    table = datasets.Dataset.from_dict({"x": rng.normal(size=(60, 2)), "y": rng.integers(0, 2, 60)})

    split = partitioner.IidPartitioner(3)
    split.dataset = table  # as FederatedDataset does with what it downloads
    local = SimpleNamespace(
        partitioners={"train": split}, load_partition=lambda k, _: split.load_partition(k)
    )
    clients = networks.from_flwr_datasets(local, "x", "y")
    assert [len(part) for part in clients.values()] == [20, 20, 20]
    dorfl.train(clients, "erm", model=lambda: networks.mlp(2, (4,), 2), rounds=2, batch_size=8)
