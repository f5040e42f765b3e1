"""Compare methods on one table by k-fold cross-validation.

Scores, inliers and standard errors are those of :mod:`dorfl.tabular.evaluation`. Held-out rows may
contain outliers, whose labels or values are wrong, so every score is given over inliers and over
all rows. Differences between methods are paired by row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from dorfl.data.tables import DataError
from dorfl.federated import registry
from dorfl.federated.simulation import Round
from dorfl.protocol.settings import METHODS, Study
from dorfl.support.types import Array
from dorfl.tabular import evaluation, table
from dorfl.tabular.audit import is_inlier
from dorfl.tabular.evaluation import Scores
from dorfl.tabular.model import Model
from dorfl.tabular.model.facts import Estimate, worst_client
from dorfl.tabular.rows import Prepared, open_split, prepare, rows_for, settle_task, split_folds

TIED = 2.0  # paired standard errors within which two methods tie: about 95 % confidence


class Comparison(NamedTuple):
    """Scores of every method on every row, by a model that was not trained with the row.

    Rows have the scores 1 for a correct class and 0 for others, or absolute errors.
    """

    methods: tuple[str, ...]
    clients: tuple[str, ...]
    owner: Array  # (n,) the number of each row's client
    scores: Array  # (methods, n)
    inlier: Array  # (n,) rows that the robust model of the fold does not down-weight
    classifies: bool
    folds: int
    shortfalls: tuple[str, ...] = ()  # trainings that did not converge, or beat no constant

    @property
    def measure(self) -> str:
        """Name of the score."""
        return "accuracy" if self.classifies else "mean absolute error"

    @property
    def rows(self) -> Array:
        """(clients,) numbers of rows."""
        return np.bincount(self.owner, minlength=len(self.clients))

    def score(self, method: int, *, inliers: bool = True) -> Scores:
        """Return the mean score of a method, overall and by client."""
        used = self.inlier if inliers else None
        return evaluation.summarise(self.scores[method], self.owner, self.clients, used)

    def difference(self, method: int, other: int) -> Estimate:
        """Return the mean paired difference of two methods over inliers: `method` minus `other`."""
        paired = self.scores[method] - self.scores[other]
        return evaluation.estimate(paired[self.inlier], self.owner[self.inlier])

    def worst(self, method: int) -> str | None:
        """Return the client with the worst score; None if every client has few rows."""
        return worst_client(self.score(method).clients, self.classifies)

    @property
    def highest(self) -> int:
        """Number of the method with the best overall score over inliers."""
        mean = self.scores[:, self.inlier].mean(axis=1)
        return int(mean.argmax() if self.classifies else mean.argmin())

    @property
    def tied(self) -> tuple[str, ...]:
        """Methods within `TIED` paired standard errors of the best score, which they include."""
        found = [self.difference(i, self.highest) for i in range(len(self.methods))]
        return tuple(
            name
            for name, d in zip(self.methods, found, strict=True)
            if abs(d.mean) <= TIED * (d.error or 0.0)
        )

    @property
    def best(self) -> str | None:
        """Name of the best method; None if it ties with all others."""
        all_tie = len(self.tied) == len(self.methods)
        return None if all_tie and len(self.methods) > 1 else self.methods[self.highest]

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        if self.best is None:
            return "none: all methods are within two paired standard errors of the best score"
        others = [name for name in self.tied if name != self.best]
        tie = f"; {', '.join(others)} within two paired standard errors" if others else ""
        return f"{self.best} over inliers{tie}"

    @property
    def order(self) -> Array:
        """(clients,) clients by ascending quality: the mean score of all methods over inliers."""
        used = self.owner[self.inlier]
        total = np.bincount(
            used, self.scores[:, self.inlier].mean(axis=0), minlength=len(self.clients)
        )
        mean = total / np.maximum(np.bincount(used, minlength=len(self.clients)), 1)
        return np.argsort(mean if self.classifies else -mean, kind="stable")

    def fell_short(self, method: int) -> bool:
        """Whether a training of this method did not converge or is no better than a constant."""
        return any(line.startswith(f"{self.methods[method]}, ") for line in self.shortfalls)


def compare(
    study: Study,
    folds: int = 5,
    methods: tuple[str, ...] | None = None,
    tick: Callable[[str, int], object] = lambda _words, _steps: None,
) -> Comparison:
    """Train every method on all folds but one and score the rows of that fold, in turn.

    `tick` is called with a description and the number of trainings that begin: 1, or 0 for a round.
    """
    methods = compared(study) if methods is None else methods
    # Classes are those of all rows: a rare one may be in a single fold.
    study, split, _ = settle_task(study, open_split(study))
    counts = np.diff(split.bounds)
    few = int(counts.argmin())
    if counts[few] < folds:
        raise DataError(
            f"client {split.names[few]!r} has {counts[few]} rows, too few for {folds} folds"
        )
    fold = split_folds(split, folds, study.training.seed)
    scores, inlier = np.zeros((len(methods), len(fold))), np.ones(len(fold), dtype=bool)
    classifies, short = True, list[str]()
    for k in range(folds):
        prepared = prepare(study, split.keep(fold != k), with_notes=False)
        part = split.keep(fold == k)
        for i, name in enumerate(methods):
            what = f"fold {k + 1}, {name}"
            tick(what, 1)
            show = partial(_show_round, tick, what, count(1))
            if name in METHODS:
                model = table.trained(study.changed(method_name=name), prepared, show)[0]
            else:
                model = _registered(study, prepared, name)
            classifies = model.classifies
            short += [f"{name}, fold {k + 1}: {w}" for w in (model.shortfall, model.useless) if w]
            held_out = rows_for(model, part)
            scores[i, fold == k] = evaluation.row_scores(model, held_out)
            if name == "dorfl":
                inlier[fold == k] = is_inlier(model, held_out)
    owner = np.repeat(np.arange(len(counts)), counts)
    return Comparison(methods, split.names, owner, scores, inlier, classifies, folds, tuple(short))


def compared(study: Study) -> tuple[str, ...]:
    """Return the methods that are compared: the built-in ones and, if linear, registered ones."""
    return METHODS + (registry.method_names() if study.training.model == "linear" else ())


def _registered(study: Study, prepared: Prepared, name: str) -> Model:
    """Train a registered method on the columns and with the loss and ridge of the study's ERM."""
    plain = table.trained(study.changed(method_name="erm"), prepared)[0]
    problem, rows = plain.fit.problem, prepared.rows.clients
    fit = registry.train(name, rows, loss=problem.loss, l2=plain.fit.l2, tol=study.training.tol)
    return replace(plain, fit=fit)


def _show_round(tick: Callable[[str, int], object], what: str, rounds: Any, _: Round) -> None:
    """Show the number of rounds of a training; those of the selection before it do not count."""
    tick(f"{what}, round {next(rounds)}", 0)
