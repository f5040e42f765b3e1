"""Estimate how a study's method predicts rows to come: train on four fifths of a table's rows.

The method, ERM and a constant prediction are scored on the other fifth, as
:mod:`dorfl.tabular.evaluation` says. The method's decisions are those of the model that was trained
on all rows: nothing is selected again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dorfl.data.tables import Split
from dorfl.federated.simulation import Round
from dorfl.protocol import training_rows
from dorfl.protocol.settings import Study, Words, linear
from dorfl.selection.outliers import Decision
from dorfl.support.types import Array
from dorfl.tabular import evaluation, results, table
from dorfl.tabular.audit import is_inlier
from dorfl.tabular.model import Model
from dorfl.tabular.model.facts import HeldOutScores
from dorfl.tabular.rows import Prepared, Rows, open_split, prepare, rows_for, split_folds

_FIFTH = 5  # one row in five is held out
_CONSTANT = {True: "majority class", False: "median"}


def train_models(
    study: Study,
    model: Model,
    tick: Callable[[], object] = lambda: None,
    rows: Rows | None = None,
) -> tuple[dict[str, Model], Prepared, Split]:
    """Train the study's method and ERM on four fifths of every client's rows.

    Both are trained with the ridge, and the method with the outlier share and the weights of
    labels, that were decided for `model`; nothing is selected again. If the decided method is plain
    training, it is ERM and trained once. Returned are the models by name, the study's method first,
    the rows that they were trained on, and the held-out rows.
    """
    settings = study.changed(
        data_task="classification" if model.classifies else "regression",
        data_classes=model.classes or None,
        method_outliers=model.facts.outliers,
    )
    split = rows.split if rows is not None and rows.split is not None else open_split(settings)
    fold, counts = split_folds(split, _FIFTH, study.training.seed), np.diff(split.bounds)
    few = counts - -(-counts // _FIFTH) < study.privacy.least  # clients that can spare no row
    fold[np.repeat(few, counts)] = 1
    tick()
    training, rest = split.keep(fold != 0), split.keep(fold == 0)
    prepared = prepare(settings, training, with_notes=False)
    decided = Decision(model.facts.outliers or 0.0, ridge=model.facts.ridge)
    prepared = replace(prepared, state=prepared.state.agree(decision=decided))
    mass = _label_weights(model, training, prepared.rows)
    return _models(settings, prepared, mass, lambda _: tick()), prepared, rest


def evaluate_methods(
    study: Study,
    model: Model,
    trained: Rows,
    tick: Callable[[], object] = lambda: None,
    keep: Callable[[Model, Rows, Rows], object] = lambda *_: None,
) -> tuple[HeldOutScores, ...]:
    """Estimate how the study's method, ERM and a constant predict rows not trained with.

    A held-out row is an inlier if `model`, which was trained on the rows `trained`, gives it at
    least half of an ordinary row's weight. `tick` is called before every round, and `keep` with the
    model trained on four fifths of the rows, these rows, and the held-out rows.
    """
    models, prepared, rest = train_models(study, model, tick, trained)
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
    weights = training_rows.label_weights(model.fit.problem, reference, seen.X, seen.y)
    places = np.argsort(seen.order)
    return weights[places[np.searchsorted(seen.order[places], rows.order)]]


def _scored(
    name: str, scores: Array, brier: Array | None, rows: Rows, inlier: Array
) -> HeldOutScores:
    """Return the scores of a method, of which a row that is no inlier counts in `all_rows` only."""
    part = (rows.owner, rows.names)
    found = evaluation.summarise(scores, *part, inlier)
    loss = None if brier is None else evaluation.summarise(brier, *part, inlier).overall
    every = None if inlier.all() else evaluation.summarise(scores, *part).overall
    return HeldOutScores(name, found.overall, found.clients, loss, every)
