"""What a client computes of its own rows for a study, the same at a site and in one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from dorfl.certificates import bound, certificate
from dorfl.certificates.bound import Told
from dorfl.data import preprocessing, robust, sketch
from dorfl.data.preprocessing import Numeric, Transform, cells, summaries
from dorfl.data.preprocessing.columns import numbers
from dorfl.data.robust import LocationReport
from dorfl.data.sketch import Sketch
from dorfl.linear.group import Group
from dorfl.linear.problem import Problem
from dorfl.protocol import constant_baseline, guard, labels, resolution
from dorfl.protocol.messages import Agreement, Columns, Finished, Spreads
from dorfl.selection import constants, outliers
from dorfl.site.consent import Refused
from dorfl.support.threads import each
from dorfl.support.types import Array

EDGES = (0.0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # of rows' weights
_CERTIFIED = 20_000_000  # numbers; the worst case of more takes more memory than training does
_BLOCK = 65_536
BIWEIGHT = 4.685  # scales: Tukey's biweight with 95 % efficiency (Maronna et al. 2019, 2.3.3)
_LEAST_WEIGHT = 1e-5  # of a row with an outlying label: a client's weights must not all vanish


def columns(rows: pa.Table, agreement: Agreement) -> Columns:
    """What a site tells of its columns, and of what is predicted."""
    study = agreement.study
    label = labels.summarise(rows.column(study.data.label), study)
    return Columns(
        preprocessing.summarise(rows.select(agreement.columns), resolution.plan_of(study)), label
    )


def spreads(rows: pa.Table, agreement: Agreement) -> Spreads:
    """How far numbers are from the middles agreed on; so for what is predicted, if it is one."""
    study, target, told = agreement.study, agreement.target, None
    assert agreement.transform is not None
    if target is not None:
        told = summaries.deviation(rows.column(study.data.label), target, labels.unit_plan(study))
    plan = resolution.plan_of(study)
    return Spreads(preprocessing.deviations(rows, agreement.transform, plan), told)


def features(rows: pa.Table, agreement: Agreement) -> tuple[Array, Array]:
    """A site's rows as the agreed transformation makes them, and its labels as they are trained."""
    study, name = agreement.study, agreement.study.data.label
    assert agreement.transform is not None
    try:
        y, _ = labels.encode(rows.column(name), name, agreement.classes, agreement.target)
    except labels.UnknownClassError:  # its words name a value of the rows
        raise Refused(
            "some rows have a label that is not among the study's classes; name them all: "
            "[data] classes = [...]"
        ) from None
    X = agreement.transform.apply(rows, resolution.dtype_of(study)).X
    # With noise a row must not change others, and needs no others to hide among.
    if study.privacy.epsilon is None:
        X = guard.settle(X, study.privacy.least)
    return X, labels.for_training(y, resolution.loss_of(study, len(agreement.classes)))


def gaps(table: Any, transform: Transform, bounds: Array) -> Array:
    """How many values are missing of each client in every column that the model sees.

    Not those of categories, where a missing value is a level like others.
    """
    found = np.zeros((len(bounds) - 1, len(transform.names)), dtype=np.int64)
    for at, part in _numeric(transform):
        if not part.missing:
            continue
        column = cells.without(table.column(part.name), transform.missing)
        missing = np.isnan(numbers(column, part.name))
        found[:, at] = np.add.reduceat(missing, bounds[:-1], dtype=int)
    return found


def _numeric(transform: Transform) -> Iterator[tuple[int, Numeric]]:
    """The numeric columns, and which of the features each is."""
    at = 0
    for part in transform.parts:
        if isinstance(part, Numeric):
            yield at, part
        at += len(part.features)


def place(
    X: Array, y: Array, agreement: Agreement | Any, missing: Array | None = None
) -> LocationReport:
    """Where a client's rows lie, and how far apart; so for what is predicted, if it is a number.

    Of classes, where each of them does. So many values of the columns stand for `missing` ones.
    """
    transform, target = agreement.transform, agreement.target
    assert transform is not None
    fills = np.zeros(len(transform.names))
    for at, part in _numeric(transform):
        fills[at] = (part.fill - part.center) / part.spread
    middle = None
    if not agreement.apart:  # the middles agreed on, which most columns are scaled to have at 0
        middle = np.append(fills, 0.0) if target is not None else fills
    stand_ins = None if missing is None else np.array([fills.astype(X.dtype), missing])
    classes = resolution.centered_classes(agreement)
    told = y if classes or target is not None else None
    least = agreement.study.privacy.least
    return robust.report(X, told, classes=classes, middle=middle, least=least, imputed=stand_ins)


def own_center(X: Array, y: Array, agreement: Agreement | Any) -> Array | None:
    """The centre that is the client's own: of its rows, or of its classes; None if one is of all.

    From another middle distances would be those along a column, and those of a few rows if these
    alone had another.
    """
    several = np.asarray(agreement.center).ndim == 2
    if not (several or resolution.keeps_center(agreement)):
        return None
    told = place(X, y, agreement)
    return robust.class_centers(told, resolution.shape_of(agreement)) if several else told.mean


def distances(X: Array, y: Array, center: Array, agreement: Agreement | Any) -> Sketch:
    """How far a client's rows lie from their centre, or that of their class."""
    shape, least = resolution.shape_of(agreement), agreement.study.privacy.least
    return robust.distance_sketch(X, robust.row_centers(center, y), shape, least)


def seen(X: Array, y: Array, agreed: Agreement | Any) -> tuple[Array, Array]:
    """Return the rows that a client trains with: all, or the training rows of candidates."""
    if agreed.candidate is None:
        return X, y
    places, _ = outliers.split_rows(len(y), agreed.row_limit, y if agreed.classes else None)
    return guard.settle(X[places], agreed.study.privacy.least), y[places]


def mass(problem: Problem, X: Array, y: Array, agreed: Agreement | Any) -> Any:
    """Return the weights of rows by their labels, or None if labels are not down-weighted."""
    if agreed.reference is None or not resolution.labels_of(agreed):
        return None
    return label_weights(problem, agreed.reference, X, y)


def label_weights(problem: Problem, reference: Array, X: Array, y: Array) -> Array:
    """Return Tukey's biweights of residuals: the reweighting step of an MM-estimator.

    Parameters
    ----------
    problem
        The regression's problem.
    reference
        θ of an M-estimate with Huber's loss, followed by its scale σ.
    X, y
        (n, d) rows and (n,) labels.

    References
    ----------
    Yohai, V. J. (1987). High breakdown-point and high efficiency robust estimates for regression.
    """
    theta, scale = reference[:-1], float(reference[-1])
    away = (outputs(problem, theta, X) - y) / (BIWEIGHT * scale)
    return np.asarray(np.maximum(np.maximum(1.0 - away**2, 0.0) ** 2, _LEAST_WEIGHT))


def candidate_losses(
    problem: Problem,
    models: Array,
    X: Array,
    y: Array,
    agreed: Agreement | Any,
    center: Array | None,
) -> list[Array]:
    """Return the losses of every candidate on a client's held-out rows.

    Parameters
    ----------
    problem
        The problem of any candidate.
    models
        (candidates, parameters) models of the candidates.
    X, y
        All rows of the client, of which a third is held out.
    agreed
        What is agreed on: the limit on rows, cutoffs, and the least rows behind a statistic.
    center
        ξ̄ of the client, or of its classes; None if no row can be an outlier.
    """
    least = agreed.study.privacy.least
    _, held = outliers.split_rows(len(y), agreed.row_limit, y if agreed.classes else None)
    if agreed.cutoffs and center is not None:
        offset = X[held].astype(np.float64) - robust.row_centers(center, y[held])
        away = offset**2 @ resolution.shape_of(agreed)
        held = held[outliers.compared_rows(away, max(agreed.cutoffs)[1], least)]
    if agreed.reference is not None:  # labels are compared: only rows whose label fits
        fitting = label_weights(problem, agreed.reference, X[held], y[held])
        held = held[outliers.compared_rows(1.0 - fitting, 0.5 / constants.COMPARED, least)]
    return [
        outliers.held_out_losses(problem, theta[: problem.size], X[held], y[held])
        for theta in models
    ]


def finish(group: Group, theta: Array, target: Numeric | None, least: int) -> list[Finished]:
    """How the model serves the clients of a group, and their parts of the certificate.

    Rows are counted by their weight where there are at least so many.
    """
    parts: list[certificate.Part | None] = [None] * len(group.names)
    if np.isfinite(group.problem.method.rho) and group.rows.size <= _CERTIFIED:
        parts = list(certificate.parts(group, theta))
    weights = group.sample_weights(theta)

    def one(i: int) -> Finished:
        rows = slice(int(group.bounds[i]), int(group.bounds[i + 1]))
        told = served(
            group.problem, theta, group.rows[rows], group.target[rows], weights[i], target, least
        )
        return told._replace(part=parts[i])

    return each(one, range(len(parts)))


def served(
    problem: Problem, theta: Array, X: Array, y: Array, p: Array, target: Numeric | None, least: int
) -> Finished:
    """How any model serves a client whose rows have the weights `p`; `y` as encoded."""
    out = outputs(problem, theta, X)
    loss = problem.loss.value(out, y)
    learnt = constant_baseline.measure(problem, loss, y, p)
    score = score_of(problem, out, y, target, least)
    return Finished(float(loss.mean()), score, learnt, histogram(p * len(y), least), None)


def certify(group: Group, theta: Array, agreed: Agreement | Any, thin: int) -> list[Told]:
    """What the clients of a group tell for the certificate, rounded up to four digits.

    A bound stays one, and nobody learns from the last digits of many means what is in one row. A
    client that trains with labels cut short (:func:`labels.for_training`) has no bound to tell.
    """
    units, asked = resolution.certifying(agreed, thin)

    def rounded(mean: Array, unit: float) -> Array:
        return np.asarray(
            np.where(mean < bound.NO_BOUND, np.ceil(mean / unit * 1e4) * 1e-4 * unit, mean)
        )

    found = bound.tell(group, theta, units, asked, agreed.study.privacy.least)
    if not group.problem.loss.classifies:
        far = np.maximum.reduceat(np.abs(group.target), group.bounds[:-1]) >= labels.FARTHEST
        found = [
            told._replace(loss=np.full_like(told.loss, bound.NO_BOUND),
                          error=np.full_like(told.error, bound.NO_BOUND)) if cut else told
            for told, cut in zip(found, far, strict=True)
        ]  # fmt: skip
    return [Told(rounded(loss, asked.loss), rounded(error, asked.error)) for loss, error in found]


def score_of(
    problem: Problem, out: Array, y: Array, target: Numeric | None, least: int = 1
) -> float:
    """Accuracy, or the mean absolute error in the label's own unit; `y` as encoded.

    Exact counts of many models would show where single rows lie, so rows are right or wrong in
    blocks of `least`, by how surely: one block is partly both.
    """
    if not problem.loss.classifies:
        off = np.abs(sketch.levelled(out - y, least)) if least > 1 else np.abs(out - y)
        return float(off.mean() * (target.spread if target else 1.0))
    right = problem.loss.predict(out, problem.classes) == problem.decode(y)
    if least <= 1:
        return float(right.mean())
    top = np.sort(out.reshape(len(out), -1), axis=1)
    sure = np.abs(top[:, 0]) if top.shape[1] == 1 else top[:, -1] - top[:, -2]
    return float((sketch.levelled(np.where(right, sure, -sure), least) > 0.0).mean())


def outputs(problem: Problem, theta: Array, X: Array) -> Array:
    """The model's outputs, some rows at a time: no second table in float64."""
    blocks = [X[start : start + _BLOCK] for start in range(0, max(len(X), 1), _BLOCK)]
    return np.concatenate([problem.predict(theta, block) for block in blocks])


def histogram(relative: Array, least: int) -> tuple[int, ...]:
    """How many rows have which weight, 1 being that of an ordinary one, in blocks of `least`.

    >>> histogram(np.array([1.1] * 7 + [0.0] * 7), least=5)
    (7, 0, 0, 0, 0, 0, 0, 7, 0, 0)
    """
    counts, _ = np.histogram(sketch.levelled(relative, least), [*EDGES, np.inf])
    return tuple(int(count) if count >= least else 0 for count in counts)
