"""Data sets and cells of the benchmark of networks, for `python -m experiments benchmark`.

A cell tunes one method on one kind of training rows, or trains the setting that tuning chose.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from dorfl.data.datasets.base import Clients
from dorfl.federated import registry
from experiments import candidates, cells, corruption, tables
from experiments.candidates import CLEAN, CONSTANT, NAMES, Setup
from experiments.cells import Cell
from experiments.corruption import PLAIN, SHARES, Columns, Task
from experiments.data import fashion_mnist, public
from experiments.fashion import THREE
from experiments.rows import pooled

if TYPE_CHECKING:
    import pandas as pd

KINDS = tuple(SHARES)
EVERY = (CONSTANT, *NAMES, CLEAN)
TUNING = 3  # a candidate is tuned for so many times fewer rounds


class Loaded(NamedTuple):
    """Clean clients, and the kinds of their columns."""

    clients: Clients
    test: Clients
    columns: Columns = PLAIN


class Data(NamedTuple):
    """A data set, its network and the rounds of training."""

    about: str
    load: Callable[[int], Loaded]
    setup: Setup
    rounds: int


def _three(_: int) -> Loaded:
    data = fashion_mnist(THREE)
    return Loaded(data.clients, data.test)


def _compas() -> pd.DataFrame:
    frame = public.compas()
    large = frame["race"].isin(["African-American", "Caucasian", "Hispanic"])
    return frame.assign(race=frame["race"].where(large, "Other"))


def _stays() -> pd.DataFrame:
    frame = public.stays()
    return frame.assign(long=frame["los"] > 8).drop(columns="los")


def _table(about: str, frame: Callable[[], pd.DataFrame], label: str, client: str) -> Data:
    """Return a table whose clients are in a column; one row in five is a test row."""

    def load(seed: int) -> Loaded:
        made = tables.numbers(frame(), label, client, seed=seed)
        X, _ = pooled(made.clients)
        spread = np.median(np.abs(X - np.median(X, 0)), 0)
        shown = tuple(k for k in np.flatnonzero(spread).tolist() if k not in made.frozen)
        return Loaded(made.clients, made.test, Columns(shown, made.frozen))

    return Data(about, load, Setup((32,)), 400)


SETS: dict[str, Data] = {
    "three": Data(
        "Fashion-MNIST, three classes, one per client; network 784-128-3", _three, Setup(), 300
    ),
    "compas": _table(
        "COMPAS, clients by race; two-layer network", _compas, "two_year_recid", "race"
    ),
    "hospitals": _table("Stays of more than 8 days, by hospital", _stays, "long", "hospital"),
}


def data_set(name: str) -> Data:
    """Return a data set of the benchmark, or a registered one, trained like a table."""
    if name in SETS:
        return SETS[name]

    def load(seed: int) -> Loaded:
        found = registry.dataset(name, seed)
        return Loaded(found.clients, found.test)

    return Data(f"{name}; two-layer network", load, Setup((32,)), 400)


@cache
def _loaded(data: str, seed: int) -> Loaded:
    return data_set(data).load(seed)


def task(data: str, kind: str, seed: int) -> Task:
    """Return the rows of a cell."""
    found = _loaded(data, seed)
    return corruption.make(found.clients, found.test, kind, seed, found.columns)


def tune(data: str, kind: str, method: str, rounds: int, seed: int = 0) -> dict[str, Any]:
    """Choose the candidate of a method that is best on held-out training rows."""
    if method == CONSTANT:
        return {"chosen": 0, "words": ""}
    with _quietly():
        setup, rows = data_set(data).setup, task(data, kind, seed)
        return candidates.tune(method, rows, setup, seed, max(1, rounds // TUNING))


def train(data: str, kind: str, method: str, rounds: int, seed: int, chosen: int) -> dict[str, Any]:
    """Train the chosen candidate on all training rows, and measure it on test rows."""
    setup, rows = data_set(data).setup, task(data, kind, seed)
    if method == CONSTANT:
        return candidates.constant(rows)
    tried = candidates.candidates(method, setup, rows.columns)
    with _quietly():
        return candidates.measure(tried[chosen], rows, setup, seed, rounds, clean=method == CLEAN)


def both(data: str, kind: str, method: str, rounds: int, seed: int) -> dict[str, Any]:
    """Tune a method, then train it."""
    chosen = tune(data, kind, method, rounds, seed)["chosen"]
    return train(data, kind, method, rounds, seed, chosen)


class Asked(NamedTuple):
    """The cells of a benchmark: data set, kinds of rows, methods and seeds."""

    data: str
    kinds: Sequence[str]
    methods: Sequence[str]
    seeds: int
    rounds: int
    load: tuple[str, ...] = ()  # Python files that register methods or data sets

    def pairs(self) -> list[tuple[str, str]]:
        """Return pairs of kind and method; clean rows have no outliers to leave out."""
        return [
            (kind, method)
            for kind in self.kinds
            for method in self.methods
            if method != CLEAN or SHARES[kind] > 0
        ]

    @property
    def size(self) -> int:
        """Return the number of cells."""
        return len(self.pairs()) * (1 + self.seeds)


def ask(
    data: str, kinds: Sequence[str] = (), methods: Sequence[str] = (), seeds: int = 3,
    rounds: int | None = None, load: Sequence[str | Path] = (),
) -> Asked:  # fmt: skip
    """Check what a benchmark is asked for; registered methods and data sets count."""
    files = tuple(str(file) for file in load)
    cells.register(files)
    every = (*EVERY, *registry.method_names())
    sets = (*SETS, *registry.dataset_names())
    for word, given, known in (
        ("data", [data], sets), ("wrong", kinds, KINDS), ("method", methods, every),
    ):  # fmt: skip
        for one in given:
            if one not in known:
                raise ValueError(f"--{word} {one!r}: choose one of {', '.join(known)}")
    return Asked(
        data, kinds or KINDS, methods or every, seeds, rounds or data_set(data).rounds, files
    )


REDUCED = Asked("three", ("clean", "negate"), ("FedAvg", "AFL", "WAFL", "DOR-FL", CLEAN), 1, 300)


def reduced() -> list[Cell]:
    """Return the cells of the study's page, which tune and train in one (two minutes)."""
    common = {"data": REDUCED.data, "rounds": REDUCED.rounds, "seed": 0}
    return [
        Cell("benchmark", "both", {**common, "kind": kind, "method": method})
        for kind, method in REDUCED.pairs()
    ]


Results = dict[tuple[str, str], list[dict[str, Any]]]


def run(
    asked: Asked, folder: Path, tick: Callable[[Cell, bool], object] | None = None,
    workers: int | None = None,
) -> Results:  # fmt: skip
    """Tune every method on every kind of rows once, then train it with every seed.

    Cells with a result in the folder are not run again. Returns a list over seeds for each kind
    and method.
    """
    pairs, common = asked.pairs(), {"data": asked.data, "rounds": asked.rounds}
    tuning = [
        Cell("benchmark", "tune", {**common, "kind": kind, "method": method}, asked.load)
        for kind, method in pairs
    ]
    chosen = [one["chosen"] for one in cells.run(tuning, folder, tick, workers)]
    training = [
        Cell(
            "benchmark", "train",
            {**common, "kind": kind, "method": method, "seed": seed, "chosen": best}, asked.load,
        )
        for (kind, method), best in zip(pairs, chosen, strict=True)
        for seed in range(asked.seeds)
    ]  # fmt: skip
    found = iter(cells.run(training, folder, tick, workers))
    return {pair: [next(found) for _ in range(asked.seeds)] for pair in pairs}


@contextmanager
def _quietly() -> Iterator[None]:
    """Use one thread, because there is a process for each core, and hide warnings."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
