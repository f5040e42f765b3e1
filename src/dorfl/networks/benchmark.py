"""The methods of the field on the same network, rows and budget: clean, and wrong in four ways.

Fashion-MNIST with one class per client (three of them, as in agnostic federated learning, or all
ten), or in clients that differ by a Dirichlet draw. Every method trains the same network from the
same start for the same rounds; test rows are never touched. Reported as found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dorfl.data.datasets import fashion_mnist
from dorfl.data.datasets.base import Clients, pooled
from dorfl.networks.model import mlp
from dorfl.networks.plan import Plan
from dorfl.networks.rules import adam, sgd
from dorfl.networks.scores import distance
from dorfl.networks.training import NetworkFit, train
from dorfl.objective import methods, mixture
from dorfl.objective.methods import Method
from dorfl.support.types import Array

THREE = (0, 2, 6)  # T-shirt, pullover, shirt: the classes of Mohri, Sivek and Suresh
RHO, TEMPERATURE = 20.0, 20.0


class Task(NamedTuple):
    """Clients to train on, clients to test on, and which training rows are wrong."""

    clients: dict[str, tuple[Array, Array]]
    test: dict[str, tuple[Array, Array]]
    wrong: dict[str, Array]


class Entry(NamedTuple):
    """One method of the comparison: what it minimises, and what differs in how it is trained."""

    method: Callable[[], Method]
    plan: dict[str, Any] = {}  # noqa: RUF012 - never changed in place
    score: Any = None
    clean: bool = False  # trained without the wrong rows: what a perfect filter would give


def _dorfl() -> Method:
    """DOR-FL in which no client has more than half of λ: a liar takes over the worst mixture."""
    rule = mixture.capped(0.5, by="loss")
    return methods.method(rho=RHO, temperature=TEMPERATURE, mixture=rule, name="dorfl")


ENTRIES: dict[str, Entry] = {
    "FedAvg": Entry(methods.erm),
    "q-FFL": Entry(methods.erm, {"fairness": 1.0}),
    "DORO": Entry(methods.erm, {"trim": 0.1}),
    "AFL": Entry(methods.afl),
    "DRFA": Entry(
        methods.afl,
        {"steps": 5, "participation": 0.67, "local": sgd(0.05), "server": sgd(1.0)},
    ),
    "WAFL": Entry(lambda: methods.wafl(RHO)),
    "GDRFL": Entry(lambda: methods.gdrfl(RHO)),
    "DOR-FL": Entry(_dorfl, {"most": TEMPERATURE}, distance(TEMPERATURE)),
    "AFL, clean rows": Entry(methods.afl, clean=True),
}
KINDS = ("clean", "outliers", "noise", "labels", "liar")


def task(split: str, kind: str, seed: int, folder: str | None = None) -> Task:
    """Clients of a split ("three", "ten", "dirichlet"), their training rows wrong in one way."""
    data = fashion_mnist(THREE if split == "three" else range(10), folder=folder)
    clients: Clients = data.clients
    test: Clients = data.test
    if split == "dirichlet":
        clients, test = _spread(clients, seed), _spread(test, seed)
    elif split not in ("three", "ten"):
        raise ValueError(f'split={split!r}: choose "three", "ten" or "dirichlet"')
    made = spoil(clients, kind, seed)
    return Task(made[0], dict(test), made[1])


def spoil(
    clients: Clients, kind: str, seed: int
) -> tuple[dict[str, tuple[Array, Array]], dict[str, Array]]:
    """Clients with some rows made wrong, and which those are.

    "outliers": one row in ten times −8. "noise": one in five replaced by noise. "labels": one label
    in five wrong. "liar": 45 % of the labels of the first client wrong.
    """
    known = np.unique(np.concatenate([y for _, y in clients.values()]))
    shares = {"clean": 0.0, "outliers": 0.1, "noise": 0.2, "labels": 0.2, "liar": 0.45}
    if kind not in shares:
        raise ValueError(f"kind={kind!r}: choose one of {', '.join(shares)}")
    made, wrong = {}, {}
    for i, (name, (X, y)) in enumerate(clients.items()):
        rng = np.random.default_rng([seed, 12, i])
        share = shares[kind] if kind != "liar" or i == 0 else 0.0
        bad = np.zeros(len(y), dtype=bool)
        bad[rng.permutation(len(y))[: round(share * len(y))]] = True
        rows, labels = np.array(X, dtype=np.float32), np.array(y)
        if kind == "outliers":
            rows[bad] *= -8.0
        elif kind == "noise":
            rows[bad] = rng.random((int(bad.sum()), X.shape[1]), dtype=np.float32)
        elif bad.any():
            place = np.searchsorted(known, y[bad])
            other = place + rng.integers(1, len(known), len(place))
            labels[bad] = known[other % len(known)]
        made[name], wrong[name] = (rows, labels), bad
    return made, wrong


def measure(
    entry: Entry, split: Task, seed: int, *, rounds: int, hidden: Sequence[int] = (128,)
) -> dict[str, Any]:
    """One training: accuracy on the test rows by client, λ, what travelled, what rows weigh."""
    fit = fitted(entry, split, seed, rounds=rounds, hidden=hidden)
    by_client = {name: fit.score(X, y) for name, (X, y) in split.test.items()}
    suspects = [
        float(len(bad) * fit.sample_weights[name][bad].mean())  # 1: counts like any other row
        for name, bad in split.wrong.items()
        if bad.any() and not entry.clean
    ]
    return {
        "mean": float(np.mean(list(by_client.values()))),
        "worst": min(by_client.values()),
        "by_client": by_client,
        "lam": fit.lam.tolist(),
        "rounds": fit.rounds,
        "bytes": fit.bytes_up + fit.bytes_down,
        "weight_of_wrong_rows": float(np.mean(suspects)) if suspects else None,
    }


def fitted(
    entry: Entry, split: Task, seed: int, *, rounds: int, hidden: Sequence[int] = (128,)
) -> NetworkFit:
    """The network of one entry."""
    clients = split.clients
    if entry.clean:
        clients = {n: (X[~split.wrong[n]], y[~split.wrong[n]]) for n, (X, y) in clients.items()}
    known = np.unique(pooled(split.test)[1])
    columns = next(iter(clients.values()))[0].shape[1]
    base = Plan(
        rounds=rounds, batch=64, steps=1, local=sgd(1.0), server=adam(1e-3),
        ascent=0.02, average=0.99, climb=3, seed=seed,
    )  # fmt: skip
    return train(
        clients,
        entry.method(),
        lambda: mlp(columns, hidden, len(known)),
        base.changed(**entry.plan),
        score=entry.score,
        classes=known,
    )


def _spread(clients: Clients, seed: int, count: int = 20, alpha: float = 0.3) -> Clients:
    """The same rows in clients whose classes are mixed by a Dirichlet draw."""
    X, y = pooled(clients)
    rng = np.random.default_rng([seed, 7])
    known = np.unique(y)
    portions = rng.dirichlet(np.full(count, alpha), len(known))  # the same for train and test
    parts: list[list[Array]] = [[] for _ in range(count)]
    for k, label in enumerate(known):
        own = np.flatnonzero(y == label)
        edges = np.round(np.cumsum(portions[k])[:-1] * len(own)).astype(int)
        for part, piece in zip(parts, np.split(own, edges), strict=True):
            part.append(piece)
    rows = [np.concatenate(part) for part in parts]
    return {f"client-{i}": (X[r], y[r]) for i, r in enumerate(rows, 1) if len(r)}
