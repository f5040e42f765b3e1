"""Methods of the field on the same network, rows, rounds and tuning.

Every method has the same number of candidates, :data:`TRIES`. Each is trained on four in five of
the training rows, wrong ones included, and scored on the fifth (:func:`held_out_score`). The best
is trained again on all training rows and measured on test rows, which nothing else sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch

from dorfl.data.datasets.base import Clients
from dorfl.federated import registry
from dorfl.networks.aggregation import geometric_median, trimmed_mean
from dorfl.networks.data import gather
from dorfl.networks.model import mlp
from dorfl.networks.optimizers import Optimizer, adam, sgd
from dorfl.networks.plan import Plan
from dorfl.networks.scores import Distance, distance
from dorfl.networks.supremum import LOSSES, RowScore
from dorfl.networks.training import NetworkFit, train
from dorfl.objective import methods, mixture
from dorfl.objective.costs import Cost, squared
from dorfl.objective.methods import Method
from dorfl.objective.mixture import Mixture
from dorfl.support.types import Array
from experiments.baselines import CVaR, Proximal, Term
from experiments.corruption import PLAIN, Columns, Task
from experiments.rows import hold_out, pooled

TRIES = 6  # candidates of every method
TEMPERATURE = 20.0  # of DOR-FL's tilt, and the bound on its loss
PRICES = (2.0, 10.0, 50.0)  # ρ
CLIMBS = (0.01, 0.03, 0.1)  # rates of λ
LOCAL_RATES = (0.03, 0.1)  # of methods with several local steps
WORSE = 0.05  # by more of the bulk's loss, trusting suspects is wrong: as for linear models
LEFT_OUT = 0.2  # of the rows held out, those furthest from the middle of their class
FEWEST = 20  # test rows of a client whose accuracy counts
NAMES = (
    "FedAvg", "FedProx", "q-FFL", "TERM", "CVaR", "DORO", "trimmed mean", "RFA", "AFL", "DRFA",
    "WAFL", "GDRFL", "DOR-FL", "DOR-FL, capped", "DOR-FL, by size",
)  # fmt: skip
CAP = 0.5  # most that one client may have of λ, where the mixture is capped
MIXTURES = {  # how DOR-FL weighs clients: the paper's worst mixture first
    "DOR-FL": mixture.agnostic(by="loss"),
    "DOR-FL, capped": mixture.capped(CAP, by="loss"),
    "DOR-FL, by size": mixture.fixed(by="loss"),
}
CONSTANT = "constant"  # predicts the commonest label of the training rows
CLEAN = "AFL, clean rows"  # trained without the outliers: what a perfect filter would give


@dataclass(frozen=True)
class Setup:
    """The network, and the learning rates, that all methods share on a data set."""

    hidden: tuple[int, ...] = (128,)
    rates: tuple[float, ...] = (3e-4, 6e-4, 1e-3, 2e-3, 3e-3, 6e-3)

    @property
    def pair(self) -> tuple[float, float]:
        """Return the two learning rates of methods that also tune an option of their own."""
        return self.rates[2], self.rates[4]


class Candidate(NamedTuple):
    """One setting of a method."""

    words: str
    method: Method | str  # a registered one by its name
    plan: dict[str, Any]
    score: Distance | RowScore | None = None
    trusts: bool = False  # all rows, where others of the same method set suspects aside


def candidates(name: str, setup: Setup, columns: Columns = PLAIN) -> list[Candidate]:
    """Return the settings of a method, as many for each method.

    >>> {len(candidates(name, Setup())) for name in (*NAMES, CLEAN)}
    {6}
    """
    pair = setup.pair
    if name == "FedAvg":
        return [_plain(rate, "", methods.erm()) for rate in setup.rates]
    if name == "FedProx":
        return [
            _local(rate, f"μ = {mu:g}", partial(Proximal, mu=mu))
            for rate, mu in product(LOCAL_RATES, (0.01, 0.1, 1.0))
        ]
    if name == "TERM":
        return [
            _plain(rate, f"t = {t:g}", methods.erm(), row_risk=Term(t))
            for rate, t in product(pair, (-1.0, 0.5, 2.0))
        ]
    if name == "CVaR":
        return [
            _plain(rate, f"share {share:g}", methods.erm(), row_risk=CVaR(share))
            for rate, share in product(pair, (0.3, 0.5, 0.8))
        ]
    if name == "trimmed mean":  # of three clients a share of 0.4 leaves the middle one
        return [
            _plain(rate, f"share {share:g}", methods.erm(), aggregator=trimmed_mean(share))
            for rate, share in product(pair, (0.1, 0.25, 0.4))
        ]
    if name == "RFA":
        return [
            _plain(rate, "", methods.erm(), aggregator=geometric_median()) for rate in setup.rates
        ]
    if name == "q-FFL":
        return [
            _plain(rate, f"q = {q:g}", methods.erm(), fairness=q)
            for rate, q in product(pair, (0.2, 1.0, 5.0))
        ]
    if name == "DORO":
        return [
            _plain(
                rate, f"ε = {trim:g}" + ("" if np.isinf(tau) else f", τ = {tau:g}"),
                methods.method(temperature=tau, mixture="fixed", name="doro"), trim=trim,
            )
            for rate, (trim, tau) in product(pair, ((0.1, np.inf), (0.2, np.inf), (0.2, 1.0)))
        ]  # fmt: skip
    if name in ("AFL", CLEAN):
        return [
            _plain(rate, f"rate of λ {climb:g}", methods.afl(), mixture_lr=climb)
            for rate, climb in product(pair, CLIMBS)
        ]
    if name == "DRFA":
        return [_drfa(rate, climb) for rate, climb in product(LOCAL_RATES, CLIMBS)]
    if name == "WAFL":
        return [
            _plain(rate, f"ρ = {rho:g}", methods.wafl(rho, cost=_cost(columns)))
            for rate, rho in product(pair, PRICES)
        ]
    if name == "GDRFL":
        return [
            _plain(
                rate, f"ρ = {rho:g}, rate of λ {climb:g}",
                methods.gdrfl(rho, cost=_cost(columns)), mixture_lr=climb,
            )
            for rate, (rho, climb) in product(pair, ((10.0, 0.1), (50.0, 0.03), (50.0, 0.1)))
        ]  # fmt: skip
    if name in MIXTURES:
        rule = MIXTURES[name]
        return [
            made
            for rate in pair
            for made in (
                _dorfl(rate, 20.0, columns, rule),
                _dorfl(rate, np.inf, columns, rule),
                _plain(
                    rate, "all rows trusted", methods.method(mixture=rule),
                    mixture_lr=CLIMBS[-1],
                )._replace(trusts=True),
            )
        ]  # fmt: skip
    if name in registry.method_names():
        options = registry.method(name).options
        return [_plain(rate, "", name, **options) for rate in setup.rates]
    raise ValueError(f"{name!r}: choose one of {', '.join((*NAMES, CLEAN))}")


@dataclass(frozen=True, eq=False)
class Reweighted(Mixture):
    """Weights of clients by a registered rule, from the risks of the round before."""

    name: str = ""
    rows: tuple[tuple[str, int], ...] = ()  # clients in their order, with their numbers of rows

    def shares(self, risks: Array, lam: Array, temperature: float) -> Array:
        """Return the rule's weights, normalised."""
        del lam, temperature
        return registry.weights_of(self.name, dict(self.rows), risks)


def _registered(name: str, task: Task) -> Method:
    """Return a registered method as networks train it: a rule for weights, or a choice of parts."""
    parts = registry.method(name).parts
    if isinstance(parts, Method):
        return parts
    rows = tuple((client, len(y)) for client, (_, y) in task.clients.items())
    return methods.method(mixture=Reweighted("fixed", name=name, rows=rows), name=name)


def fitted(candidate: Candidate, task: Task, setup: Setup, seed: int, rounds: int) -> NetworkFit:
    """Train a network on the training rows at one setting."""
    known = np.unique(np.concatenate([y for _, y in (*task.clients.values(), *task.test.values())]))
    columns = next(iter(task.clients.values()))[0].shape[1]
    method = candidate.method
    if isinstance(method, str):
        method = _registered(method, task)
    return train(
        task.clients,
        method,
        lambda: mlp(columns, setup.hidden, len(known)),
        Plan(rounds=rounds, batch_size=64, local_steps=1, seed=seed).changed(**candidate.plan),
        score=candidate.score,
        classes=known,
    )


def tune(name: str, task: Task, setup: Setup, seed: int, rounds: int) -> dict[str, Any]:
    """Score every candidate of a method on held-out training rows, and choose the best."""
    if name == CLEAN:
        task = without_wrong(task)
    kept, held = hold_out(task.clients, 0.2, seed)
    pairs = list(zip(task.clients.items(), kept, held, strict=True))
    learn = task._replace(
        clients={n: (X[k], y[k]) for (n, (X, y)), k, _ in pairs},
        test={n: (X[h], y[h]) for (n, (X, y)), _, h in pairs if len(h)},
    )
    tried = candidates(name, setup, task.columns)
    score = tried[0].score
    if isinstance(score, Distance):  # the same for all: found once
        score = score.find(gather(learn.clients, torch.float32, classify=True))
    judges, scores, losses = bulk(learn), [], []
    for candidate in tried:
        try:
            own = None if candidate.trusts else score
            fit = fitted(candidate._replace(score=own), learn, setup, seed, rounds)
            scores.append(held_out_score(fit, judges))
            losses.append(held_out_loss(fit, judges))
        except ValueError as error:  # "the training diverged"
            if "diverged" not in str(error):
                raise
            scores.append(0.0)
            losses.append(np.inf)
    best = choose([candidate.trusts for candidate in tried], scores, losses)
    return {"scores": scores, "losses": losses, "chosen": best, "words": tried[best].words}


def choose(trusts: Sequence[bool], scores: Sequence[float], losses: Sequence[float]) -> int:
    """Return the candidate with the best score, of those that trust all rows if that costs little.

    All rows are trusted unless that raises the loss on held-out inliers by more than :data:`WORSE`,
    as `outliers="auto"` does for linear models. Accuracies alone would choose by chance if both
    are right.

    >>> choose([False, False, True], [0.82, 0.83, 0.81], [0.44, 0.43, 0.45])
    2
    >>> choose([False, False, True], [0.82, 0.83, 0.81], [0.44, 0.43, 0.47])
    1
    """
    kinds = {kind: [k for k, own in enumerate(trusts) if own == kind] for kind in set(trusts)}
    least = {kind: min(losses[k] for k in own) for kind, own in kinds.items()}
    trusted = len(kinds) == 2 and not least[True] > (1.0 + WORSE) * least[False]
    return max(kinds.get(trusted, range(len(scores))), key=scores.__getitem__)


def bulk(held: Task) -> dict[str, tuple[Array, Array]]:
    """Return the held-out rows without a fifth of each client's.

    Those left out are furthest from the median of their class, whatever a model predicts, so that
    no model gains by having learnt outliers. Wrong labels stay in, and count as they are.
    """
    rows = gather(held.test, torch.float32, classify=True)
    score = _distance(1.0, held.columns, slack=0.0, cap=np.inf)
    measured = None if score is None else score.find(rows)
    kept = {}
    for i, (name, (X, y)) in enumerate(held.test.items()):
        far = torch.zeros(len(y)) if measured is None else measured(*rows.known(i))
        near = far.argsort(stable=True).numpy()
        near = near[: max(1, round((1.0 - LEFT_OUT) * len(y)))]
        kept[name] = (X[near], y[near])
    return kept


def held_out_score(fit: NetworkFit, judges: Clients) -> float:
    """Return ½ (mean + worst client) accuracy."""
    right = [fit.score(X, y) for X, y in judges.values()]
    return 0.5 * float(np.mean(right) + min(right))


def held_out_loss(fit: NetworkFit, judges: Clients) -> float:
    """Return the mean over clients of their mean loss, bounded by row as DOR-FL bounds it."""
    found = []
    for X, y in judges.values():
        target = torch.from_numpy(np.searchsorted(fit.classes, y))
        each = LOSSES["softmax"](torch.from_numpy(fit.decision(X)), target)
        found.append(float(each.clamp(max=TEMPERATURE).mean()))
    return float(np.mean(found))


def measure(
    candidate: Candidate, task: Task, setup: Setup, seed: int, rounds: int, *, clean: bool = False
) -> dict[str, Any]:
    """Train once on all training rows, and measure the network on test rows."""
    fit = fitted(candidate, without_wrong(task) if clean else task, setup, seed, rounds)
    by_client = {name: fit.score(X, y) for name, (X, y) in task.test.items() if len(y) >= FEWEST}
    weights = [
        float(len(bad) * fit.sample_weights[name][bad].mean())  # 1: counts like any other row
        for name, bad in task.wrong.items()
        if bad.any() and not clean
    ]
    return {
        "mean": float(np.mean(list(by_client.values()))),
        "worst": min(by_client.values()),
        "by_client": by_client,
        "lam": fit.lam.tolist(),
        "rounds": fit.rounds,
        "bytes": fit.bytes_up + fit.bytes_down,
        "weight_of_wrong_rows": float(np.mean(weights)) if weights else None,
        "words": candidate.words,
    }


def constant(task: Task) -> dict[str, Any]:
    """Measure the commonest label of the training rows as the prediction for every test row."""
    labels, counts = np.unique(pooled(task.clients)[1], return_counts=True)
    label = labels[counts.argmax()]
    found = {
        name: float(np.mean(y == label)) for name, (_, y) in task.test.items() if len(y) >= FEWEST
    }
    values = list(found.values())
    return {
        "mean": float(np.mean(values)), "worst": min(values), "by_client": found, "lam": [],
        "rounds": 0, "bytes": 0, "weight_of_wrong_rows": None, "words": f"label {label}",
    }  # fmt: skip


def without_wrong(task: Task) -> Task:
    """Return the task without its wrong training rows."""
    right = {n: ~bad for n, bad in task.wrong.items()}
    clients = {n: (X[right[n]], y[right[n]]) for n, (X, y) in task.clients.items()}
    none = {n: np.zeros(len(y), dtype=bool) for n, (_, y) in clients.items()}
    return task._replace(clients=clients, wrong=none)


def _steps(rate: float) -> dict[str, Any]:
    """Return the options of the plan that all methods share: one step, and Adam at the server."""
    return {
        "local_steps": 1,
        "optimizer": sgd(1.0),
        "server_optimizer": adam(rate),
        "average": 0.99,
        "inner_steps": 3,
        "participation": 1.0,
        "weighting": "unbiased",
    }


def _plain(rate: float, words: str, method: Method | str, **plan: Any) -> Candidate:
    said = f"rate {rate:g}" + (f", {words}" if words else "")
    return Candidate(said, method, {**_steps(rate), **plan})


def _drfa(rate: float, climb: float) -> Candidate:
    """Return DRFA: five local steps, and two clients in three drawn by λ."""
    plan = {
        **_steps(rate),
        "local_steps": 5,
        "participation": 0.67,
        "optimizer": sgd(rate),
        "server_optimizer": sgd(1.0),
        "mixture_lr": climb,
    }
    return Candidate(f"rate {rate:g}, rate of λ {climb:g}", methods.afl(), plan)


def _local(rate: float, words: str, optimizer: Callable[[float], Optimizer]) -> Candidate:
    """Return plain training with five local steps."""
    plan = {
        **_steps(rate),
        "local_steps": 5,
        "optimizer": optimizer(rate),
        "server_optimizer": sgd(1.0),
    }
    return Candidate(f"rate {rate:g}, {words}", methods.erm(), plan)


def _dorfl(rate: float, rho: float, columns: Columns, rule: Mixture) -> Candidate:
    """Return DOR-FL with transport or none, a tilt and score, and a rule for λ."""
    made = methods.method(
        rho=rho, cost=_cost(columns), temperature=TEMPERATURE, mixture=rule, name="dorfl"
    )
    plan = {**_steps(rate), "mixture_lr": CLIMBS[-1], "max_loss": TEMPERATURE}
    words = f"rate {rate:g}, {'no transport' if np.isinf(rho) else f'ρ = {rho:g}'}"
    return Candidate(words, made, plan, _distance(TEMPERATURE, columns))


def _distance(
    weight: float, columns: Columns, slack: float = 2.5, cap: float = 30.0
) -> Distance | None:
    """Return the score of distance from the median of a row's class, or None without columns."""
    if columns.measured is None:
        return distance(weight, slack=slack, cap=cap)
    some = list(columns.measured)
    if not some:
        return None
    return distance(weight, slack=slack, cap=cap, features=lambda x: x[:, some])


def _cost(columns: Columns) -> Cost | None:
    return squared(frozen=columns.frozen) if columns.frozen else None
