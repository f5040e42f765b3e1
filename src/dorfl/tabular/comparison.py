"""Compare methods on held-out rows of one table: by k-fold cross-validation, or on one fifth.

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

from dorfl.data.tables import DataError, Split
from dorfl.federated import registry
from dorfl.federated.client import stream
from dorfl.federated.simulation import Round
from dorfl.protocol.settings import METHODS, Study, Words, linear
from dorfl.site import serving
from dorfl.support.types import Array
from dorfl.tabular import evaluation, results, table
from dorfl.tabular.audit import is_inlier
from dorfl.tabular.evaluation import Scores
from dorfl.tabular.model import Model
from dorfl.tabular.model.facts import Estimate, HeldOut, worst_client
from dorfl.tabular.rows import Rows, open_split, rows_for
from dorfl.tabular.table import Prepared

_FIFTH = 5  # one row in five is held out for the estimate of `dorfl train`
_CONSTANT = {True: "majority class", False: "median"}
TIED = 2.0  # paired standard errors within which two methods tie: about 95 % confidence


class Comparison(NamedTuple):
    """Scores of every method on every row, by a model that was not trained with the row.

    Attributes
    ----------
    methods, clients
        Names.
    owner
        (n,) the number of each row's client.
    scores
        (methods, n) 1 for a correct class and 0 for others, or absolute errors.
    inlier
        (n,) rows with at least half of an ordinary row's weight, by the robust model of the fold.
    classifies
        Whether scores are accuracies.
    folds
        Number of folds.
    shortfalls
        Trainings that did not converge, or that are no better than a constant.
    """

    methods: tuple[str, ...]
    clients: tuple[str, ...]
    owner: Array
    scores: Array
    inlier: Array
    classifies: bool
    folds: int
    shortfalls: tuple[str, ...] = ()

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

    Parameters
    ----------
    study
        The table and its settings.
    folds, methods
        Number of folds, among which every client's rows are divided, and names of methods: by
        default :func:`compared`.
    tick
        Called with a description and the number of trainings that begin: 1, or 0 for a round.
    """
    methods = compared(study) if methods is None else methods
    # Classes are those of all rows: a rare one may be in a single fold.
    study, split, _ = table.task_settled(study, open_split(study))
    counts = np.diff(split.bounds)
    few = int(counts.argmin())
    if counts[few] < folds:
        raise DataError(
            f"client {split.names[few]!r} has {counts[few]} rows, too few for {folds} folds"
        )
    fold = _folds(split, folds, study.training.seed)
    scores, inlier = np.zeros((len(methods), len(fold))), np.ones(len(fold), dtype=bool)
    classifies, short = True, list[str]()
    for k in range(folds):
        prepared = table.prepare(study, split.keep(fold != k), remark=False)
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


def trained_apart(
    study: Study,
    model: Model,
    tick: Callable[[], object] = lambda: None,
    rows: Rows | None = None,
) -> tuple[dict[str, Model], Prepared, Split]:
    """Train the study's method and ERM on four fifths of every client's rows.

    The method is trained with the outlier share, and the weights of labels, that were decided for
    `model`; nothing is selected again. If the decided method is plain training, it is ERM and
    trained once.

    Parameters
    ----------
    study
        The table and its settings.
    model
        The model trained on all rows.
    tick
        Called before every round.
    rows
        The rows that `model` was trained on, if they are still in memory with their table.

    Returns
    -------
    models, prepared, rest
        Models by name, the study's method first; the rows that they were trained on; and the
        held-out rows.
    """
    settings = study.changed(
        data_task="classification" if model.classifies else "regression",
        data_classes=model.classes or None,
        method_outliers=model.facts.outliers,
    )
    split = rows.split if rows is not None and rows.split is not None else open_split(settings)
    fold, counts = _folds(split, _FIFTH, study.training.seed), np.diff(split.bounds)
    few = counts - -(-counts // _FIFTH) < study.privacy.least  # clients that can spare no row
    fold[np.repeat(few, counts)] = 1
    tick()
    training, rest = split.keep(fold != 0), split.keep(fold == 0)
    prepared = table.prepare(settings, training, remark=False)
    mass = _label_weights(model, training, prepared.rows)
    return _models(settings, prepared, mass, lambda _: tick()), prepared, rest


def held_out(
    study: Study,
    model: Model,
    trained: Rows,
    tick: Callable[[], object] = lambda: None,
    keep: Callable[[Model, Rows, Rows], object] = lambda *_: None,
) -> tuple[HeldOut, ...]:
    """Estimate how the study's method, ERM and a constant predict rows not trained with.

    Parameters
    ----------
    study
        The table and its settings.
    model
        The model trained on all rows. A held-out row is an inlier if this model gives it at least
        half of an ordinary row's weight.
    trained
        The rows that `model` was trained on.
    tick
        Called before every round.
    keep
        Called with the model trained on four fifths of the rows, these rows, and the held-out rows.

    Returns
    -------
    tuple of HeldOut
        The method, ERM unless it is the method, and the constant.
    """
    models, prepared, rest = trained_apart(study, model, tick, trained)
    first = next(iter(models.values()))
    own = rows_for(first, rest)  # as all of these models see them
    keep(first, prepared.rows, own)
    rows = trained.only(own)
    inlier, found = is_inlier(model, rows), []
    for name, made in models.items():
        brier = evaluation.brier_scores(made, own) if made.classifies else None
        found.append(_scored(name, evaluation.row_scores(made, own), brier, rows, inlier))
    constant = evaluation.constant_scores(made, prepared.rows.y, own)
    return (*found, _scored(_CONSTANT[model.classifies], *constant, rows, inlier))


def _models(
    study: Study, prepared: Prepared, mass: Array | None, progress: Callable[[Round], object]
) -> dict[str, Model]:
    """Return the study's model and that of linear ERM, by name; one model if they are the same."""
    network, name = study.training.model != "linear", study.method.name
    if mass is None:
        own, state, _ = table.trained(study, prepared, progress)
        plain = results.model_of(state)  # of a network: the linear model trained before it
    else:
        state, _ = table.fit(study, prepared, progress, mass=mass)
        own = plain = results.model_of(state)
    models = {f"{name}, {study.training.model}" if network else name: own}
    if name == "erm" and not network:
        return models
    if mass is not None or not _is_plain(plain):
        erm = linear(study)._replace(method=Words("erm"))
        plain = table.trained(erm, prepared, progress)[0]
    return models | {"erm, linear" if network else "erm": plain}


def _is_plain(model: Model) -> bool:
    """Return whether a linear model was trained by ERM: no transport, tilt, score or λ to adapt."""
    method = model.fit.problem.method
    free = np.isinf(method.rho) and np.isinf(method.temperature)
    return bool(free and method.score is None and not method.mixture.adversarial)


def _label_weights(model: Model, split: Split, rows: Rows) -> Array | None:
    """Return the weights of `rows`, from `split`, by their labels; None if labels do not count."""
    if not model.facts.reference:
        return None
    seen, reference = rows_for(model, split), np.array(model.facts.reference)
    weights = serving.label_weights(model.fit.problem, reference, seen.X, seen.y)
    places = np.argsort(seen.order)
    return weights[places[np.searchsorted(seen.order[places], rows.order)]]


def _scored(name: str, scores: Array, brier: Array | None, rows: Rows, inlier: Array) -> HeldOut:
    """Return the scores of a method, of which a row that is no inlier counts in `all_rows` only."""
    part = (evaluation.owners(rows), rows.names)
    found = evaluation.summarise(scores, *part, inlier)
    loss = None if brier is None else evaluation.summarise(brier, *part, inlier).overall
    every = None if inlier.all() else evaluation.summarise(scores, *part).overall
    return HeldOut(name, found.overall, found.clients, loss, every)


def _folds(split: Split, folds: int, seed: int) -> Array:
    """Return (n,) the fold of each row: equal shares of each client, from its own random stream."""
    parts = []
    for name, rows in zip(split.names, np.diff(split.bounds), strict=True):
        parts.append(stream(seed, name, 0).permutation(np.arange(rows) % folds))
    return np.concatenate(parts)
