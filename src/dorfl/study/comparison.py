"""All methods on one table, by k-fold cross-validation inside every client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dorfl.data.tables import DataError, Split
from dorfl.federation.client import stream
from dorfl.federation.local import Round
from dorfl.study import meaning, serving, suspects, table
from dorfl.study.coordinator import State
from dorfl.study.model import Model
from dorfl.study.model.facts import HeldOut
from dorfl.study.rows import Rows, measure, open_split, rows_for
from dorfl.study.settings import METHODS, Study, linear
from dorfl.support.types import Array

_PARTS = 5  # of which one is held out
_CONSTANT = {True: "majority class", False: "median"}


class Comparison(NamedTuple):
    """What each method scores on rows it has not seen, (methods, folds, clients)."""

    methods: tuple[str, ...]
    clients: tuple[str, ...]
    rows: Array
    scores: Array
    classifies: bool
    shortfalls: tuple[str, ...] = ()  # which trainings did not reach their tolerance

    @property
    def overall(self) -> Array:
        """By rows, over all clients: (methods, folds)."""
        return np.asarray(np.average(self.scores, axis=2, weights=self.rows))

    @property
    def measure(self) -> str:
        """What is scored."""
        return "accuracy" if self.classifies else "mean absolute error"

    @property
    def order(self) -> Array:
        """Clients from the worst served on, by all methods."""
        mean = np.nanmean(self.scores, axis=1).mean(axis=0)
        return np.argsort(mean if self.classifies else -mean, kind="stable")

    def fell_short(self, method: int) -> bool:
        """Whether a training of this method is not to be trusted."""
        return any(line.startswith(f"{self.methods[method]}, ") for line in self.shortfalls)

    def worst(self, method: int) -> int:
        """The client that a method serves worst."""
        mean = np.nanmean(self.scores[method], axis=0)
        return int(np.nanargmin(mean) if self.classifies else np.nanargmax(mean))

    @property
    def best(self) -> int:
        """The method whose worst served client is served best."""
        mean = self.scores.mean(axis=1)
        return int(mean.min(axis=1).argmax() if self.classifies else mean.max(axis=1).argmin())


def compare(
    study: Study, folds: int = 5, methods: tuple[str, ...] = METHODS,
    tick: Callable[[str, int], object] = lambda _words, _steps: None,
) -> Comparison:  # fmt: skip
    """Every method trained on all folds but one and measured on that one, in turn.

    `tick` is told what is done and how many trainings have begun since: with every round none.
    """
    # The classes of all rows: a rare one may be in no fold but that held out.
    study, split, _ = table.task_settled(study, open_split(study))
    counts = np.diff(split.bounds)
    few = int(counts.argmin())
    if counts[few] < folds:
        raise DataError(
            f"client {split.names[few]!r} has {counts[few]} rows, too few for {folds} folds"
        )
    fold = _folds(split, folds, study.training.seed)
    scores: list[list[list[float]]] = [[] for _ in methods]
    classifies, short = True, list[str]()
    for k in range(folds):
        prepared = table.prepare(study, split.keep(fold != k))
        held_out = split.keep(fold == k)
        for i, name in enumerate(methods):
            what = f"fold {k + 1}, {name}"
            tick(what, 1)
            words = study.changed(method_name=name)
            model = table.trained(words, prepared, partial(_sign, tick, what))[0]
            classifies = model.classifies
            short += [f"{name}, fold {k + 1}: {w}" for w in (model.shortfall, model.useless) if w]
            served = {s.name: s.score or 0.0 for s in measure(model, rows_for(model, held_out))}
            scores[i].append([served.get(client, np.nan) for client in split.names])
    return Comparison(methods, split.names, counts, np.array(scores), classifies, tuple(short))


def _sign(tick: Callable[[str, int], object], what: str, seen: Round) -> None:
    """A round's sign of life."""
    tick(f"{what}, round {seen.round}", 0)


def held_out(
    study: Study, model: Model, tick: Callable[[], object] = lambda: None
) -> tuple[HeldOut, ...]:
    """The study's method, plain ERM and a constant, on a fifth of the rows held out of training.

    Of rows that may be wrong nobody knows how well they should be predicted: where the model sets
    rows aside, those that lie far out are left out, or have a label that does not fit; none where
    all rows are trusted. `tick` is called before every round.
    """
    settings = study.changed(data_task="classification" if model.classifies else "regression")
    settings = settings.changed(data_classes=model.classes or None)
    split = open_split(settings)
    fold, counts = _folds(split, _PARTS, study.training.seed), np.diff(split.bounds)
    few = counts - -(-counts // _PARTS) < study.privacy.least  # who can spare none
    fold[np.repeat(few, counts)] = 1
    tick()
    prepared, rest = table.prepare(settings, split.keep(fold != 0)), split.keep(fold == 0)
    own, state, _ = table.trained(settings, prepared, lambda _: tick())
    name, promise = study.method.name, model.facts.promise
    models = {f"{name}, {study.training.model}" if model.network else name: own}
    if model.network or name != "erm":
        plain = linear(settings).changed(method_name="erm")
        simplest = table.trained(plain, prepared, lambda _: tick())[0]
        models["erm, linear" if model.network else "erm"] = simplest
    rows = rows_for(own, rest)
    # What was decided with all rows, where the model tells; else with those trained on here.
    share = meaning.share_of(state) if promise is None else promise.outliers
    usual = _bulk(rows, state) if share > 0 and state.centers is not None else rows

    def scored(part: Rows) -> dict[str, dict[str, float]]:
        found = {
            name: {served.name: served.score or 0.0 for served in measure(made, part)}
            for name, made in models.items()
        }
        return found | {_CONSTANT[model.classifies]: _constant(own, prepared.rows.y, part)}

    worst, few = min if model.classifies else max, len(usual.y) < len(rows.y)
    whole = scored(rows) if few else {}
    return tuple(
        HeldOut(
            name, _overall(found, usual), worst(found.values()),
            worst(found, key=found.__getitem__), found,
            _overall(whole[name], rows) if few else None,
        )
        for name, found in scored(usual).items()
    )  # fmt: skip


def _overall(score: dict[str, float], rows: Rows) -> float:
    counts = dict(zip(rows.names, np.diff(rows.bounds).tolist(), strict=True))
    return float(np.average(list(score.values()), weights=[counts[name] for name in score]))


def _bulk(rows: Rows, state: State) -> Rows:
    """The rows that training did not find far out, each measured as it was there."""
    assert state.centers is not None
    shape, kept = meaning.shape_of(state) / (state.edge or 1.0), []
    problem, labels = meaning.problem_of(state), state.reference
    if labels is not None and not meaning.share_of(state) > 0:
        shape = np.zeros_like(shape)  # labels alone were found to be wrong
    for name, (first, stop) in zip(rows.names, pairwise(rows.bounds.tolist()), strict=True):
        X, y = rows.X[first:stop], rows.y[first:stop]
        bulk = suspects.is_bulk(X, y, state.centers[state.roster.index(name)], shape)
        if labels is not None:
            bulk &= serving.unfit(problem, labels, X, y) <= suspects.REACH
        kept.append(first + np.flatnonzero(bulk if bulk.any() else ~bulk))
    bounds = np.cumsum([0, *map(len, kept)])
    left = np.concatenate(kept)
    order = rows.order[left]
    return replace(rows, X=rows.X[left], y=rows.y[left], order=order, bounds=bounds, gaps=None)


def _constant(model: Model, y: Array, rows: Rows) -> dict[str, float]:
    """What always the majority class scores, or always the median."""
    if not model.classifies:
        unit = model.target.spread if model.target else 1.0
        middle = float(np.median(y))
        far = {name: np.abs(own - middle).mean() for name, (_, own) in rows.clients.items()}
        return {name: float(unit * score) for name, score in far.items()}
    most = int(np.bincount(y.astype(int)).argmax())
    return {name: float((own == most).mean()) for name, (_, own) in rows.clients.items()}


def _folds(split: Split, folds: int, seed: int) -> Array:
    """Which fold each row is in: the same share of every client's, drawn from its own stream."""
    parts = []
    for name, count in zip(split.names, np.diff(split.bounds), strict=True):
        parts.append(stream(seed, name, 0).permutation(np.arange(count) % folds))
    return np.concatenate(parts)
