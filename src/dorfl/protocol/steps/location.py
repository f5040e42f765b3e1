"""Steps `location` and `cutoff`: agree on scales, centres, and distances within which inliers lie.

In a summed study the step `class centers` follows if every client has a centre of its own: it shows
whether classes differ in location. A client's own centre is known to the client alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dorfl.data import robust, sketch
from dorfl.data.preprocessing import Numeric, Transform, cells
from dorfl.data.preprocessing.columns import numbers
from dorfl.data.robust import SUBSAMPLE, LocationReport
from dorfl.data.sketch import BLOCKS, Sketch
from dorfl.protocol import resolution
from dorfl.protocol.messages import NOT_ASKED, Agreement, Refused, Request
from dorfl.protocol.reply_validation import MAX_NUMBER, check_sketch, limit_sketch
from dorfl.protocol.state import State
from dorfl.protocol.step import NEXT, Answers, LocalSite, Reasons, Step
from dorfl.selection.defaults import cutoff_of
from dorfl.support.types import Array

_MAX_LOCATION = 1e6  # largest entry of a centre, in standard deviations


class Location(Step):
    """Agree on column scales and centres from the location of every client's rows."""

    name = "location"
    answer = LocationReport
    sends = "the location and scale of the rows"
    is_summed = True

    def is_due(self, state: State) -> bool:
        """Return whether the method needs scales or centres, and sites may report them."""
        return resolution.measures_location(state.study)

    def local(self, site: LocalSite, request: Request) -> LocationReport:
        """Report the location of the site's rows."""
        agreement = request.agreement
        if not resolution.measures_location(agreement.study):
            raise Refused(NOT_ASKED)
        rows = site.rows(agreement)
        X, y = site.features(agreement)
        missing = count_missing(rows, agreement.transform, np.array([0, rows.num_rows]))[0]
        return report(X, y, agreement, missing)

    def validate(self, state: State, site: str, answer: LocationReport) -> str | None:
        """Check shapes, ranges and order."""
        agreed, dims = state.agreed, len(state.agreed.transform.names)
        width, classes = dims + (agreed.target is not None), resolution.centered_classes(agreed)
        return check(answer, state.rows_of(site), dims, width, classes)

    def limit_rows(self, answer: LocationReport, rows: int, most: float) -> LocationReport:
        """Scale the weights of the report."""
        share, used = most / rows, min(answer.rows, int(most))
        return answer._replace(rows=used, kept=answer.kept * share, by=answer.by * share)

    def combine(self, state: State, answers: Answers[LocationReport], refused: Reasons) -> State:
        """Settle the scales of columns and, if the method has a score, the centres."""
        reports = list(answers.values())
        scales = robust.column_scales(reports, resolution.measured_of(state.study))
        state = state.agree(scales=scales)._replace(step=NEXT)
        own, shape = resolution.keeps_center(state.agreed), resolution.shape_of(state.agreed)
        if not (state.study.method.scores and shape.any()):
            return state
        return state._replace(centers=robust.client_centers(reports, own, shape))

    def size(self, state: State) -> int:
        """Return the numbers of the centre and of all histograms."""
        agreed = state.agreed
        return 1 + len(agreed.transform.names) + sketch.ONE_SIDED * len(_measured(agreed))

    def encode(self, site: LocalSite, request: Request, answer: LocationReport) -> Array:
        """Return the weighted centre and histograms of distances."""
        away = sketch.histogram_table(answer.away[:, _measured(request.agreement)], answer.rows)
        return np.concatenate([[answer.kept], answer.kept * answer.mean, away])

    def decode(self, state: State, total: Array) -> tuple[State, LocationReport]:
        """Return the location of all rows."""
        dims = len(state.agreed.transform.names)
        parts = total[1 + dims :].reshape(-1, sketch.ONE_SIDED)
        sketches = [sketch.from_histogram(part) for part in parts]
        rows = max((one.rows for one in sketches), default=0)
        blocks = max((len(one.means) for one in sketches), default=0)
        away = np.zeros((blocks, dims + (state.agreed.target is not None)))
        for k, one in zip(_measured(state.agreed), sketches, strict=True):
            away[:, k] = one.means
        kept = float(total[0])
        return state, LocationReport(rows, kept, total[1 : 1 + dims] / kept, away)


class ClassCenters(Location):
    """Give every class a centre of its own if the classes differ in location."""

    name = "class centers"
    sum_only = True

    def is_due(self, state: State) -> bool:
        """Return whether the sums so far have no centres by class."""
        own = state.centers is not None and resolution.keeps_center(state.agreed)
        return state.study.privacy.summed and own and resolution.centered_classes(state.agreed) > 0

    def combine(self, state: State, answers: Answers[Any], refused: Reasons) -> State:
        """Replace the common centre by centres of classes, if these differ."""
        (total,) = answers.values()
        agreed = state.agreed
        classes, shape = resolution.centered_classes(agreed), resolution.shape_of(agreed)
        by, far = total[:classes], total[classes : 2 * classes]
        state = state._replace(step=NEXT)
        differs, common = far / np.maximum(by, 1.0), state.centers
        if common is None or differs.max() < robust.CLASS_DIFFERS * np.count_nonzero(shape):
            return state
        found = total[2 * classes :].reshape(classes, -1) / np.maximum(by, 1.0)[:, None]
        return state._replace(centers=np.where(by[:, None] > 0, found, common[0])[None])

    def size(self, state: State) -> int:
        """Return the numbers of all classes."""
        return resolution.centered_classes(state.agreed) * (2 + len(state.agreed.transform.names))

    def encode(self, site: LocalSite, request: Request, answer: LocationReport) -> Array:
        """Return rows, distances from the site's centre, and centres, by class."""
        shape = resolution.shape_of(request.agreement)
        found = robust.class_centers(answer, shape)
        far = (found - answer.mean) ** 2 @ shape
        return np.concatenate([answer.by, answer.by * far, (answer.by[:, None] * found).ravel()])

    def decode(self, state: State, total: Array) -> tuple[State, Any]:
        """Return the sums."""
        return state, total


def report(
    X: Array, y: Array, agreement: Agreement, missing: Array | None = None
) -> LocationReport:
    """Report the location of a client's standardised rows, of its classes, and of a numeric label.

    `missing` has (d,) numbers of missing values, for which imputation values stand in `X`.
    """
    transform, target = agreement.transform, agreement.target
    fills = np.zeros(len(transform.names))
    for at, part in _numeric(transform):
        fills[at] = (part.fill - part.center) / part.spread
    middle = None
    if not agreement.own_centers:  # distances are from the centres of columns, mostly 0 once scaled
        middle = np.append(fills, 0.0) if target is not None else fills
    imputed = None if missing is None else np.array([fills.astype(X.dtype), missing])
    classes = resolution.centered_classes(agreement)
    used = y if classes or target is not None else None
    least = agreement.study.privacy.least
    return robust.report(
        X, used, classes=classes, common_medians=middle, least=least, imputed=imputed
    )


def own_center(X: Array, y: Array, agreement: Agreement) -> Array | None:
    """Return the client's own centre, or those of its classes; None if all share one centre.

    Distances from another centre would be distances along a column.
    """
    by_class = np.asarray(agreement.center).ndim == 2
    if not (by_class or resolution.keeps_center(agreement)):
        return None
    found = report(X, y, agreement)
    shape = resolution.shape_of(agreement)
    return robust.class_centers(found, shape) if by_class else found.mean


def count_missing(table: Any, transform: Transform, bounds: Array) -> Array:
    """Return (clients, d) numbers of missing values in numeric columns.

    Client i has the rows bounds[i] … bounds[i + 1]. A missing category is a level like others.
    """
    found = np.zeros((len(bounds) - 1, len(transform.names)), dtype=np.int64)
    for at, part in _numeric(transform):
        if not part.missing:
            continue
        column = cells.without(table.column(part.name), transform.missing)
        missing = np.isnan(numbers(column, part.name))
        found[:, at] = np.add.reduceat(missing, bounds[:-1], dtype=int)
    return found


def check(report: LocationReport, rows: int, dims: int, width: int, classes: int) -> str | None:
    """Return why a report cannot be of so many rows, features, sketches and classes, or None."""
    arrays = (report.mean, report.away, report.by, report.means)
    if {array.dtype for array in arrays} != {np.dtype(float)}:
        return "its centre is not made of real numbers"
    blocks, columns = report.away.shape if report.away.ndim == 2 else (0, 0)
    if report.mean.shape != (dims,) or not 0 < report.kept <= rows * (1.0 + 1e-9):
        return "its centre does not fit its rows and columns"
    if report.rows != min(rows, SUBSAMPLE) or columns != width or blocks > min(BLOCKS, report.rows):
        return "a sketch does not fit the number of rows"
    if report.by.shape != (classes,) or report.means.shape != (classes, dims):
        return "its centres do not fit the classes"
    if (report.by < 0.0).any() or report.by.sum() > rows * (1.0 + 1e-9):
        return "the rows of its classes do not add up"
    if max(abs(array).max(initial=0.0) for array in (report.mean, report.means)) > _MAX_LOCATION:
        return "its centre is out of range"
    away = report.away
    if away.size and not (away.min() >= 0.0 and away.max() <= MAX_NUMBER**0.5):
        return "a sketch is out of range"
    return None if (np.diff(away, axis=0) >= 0.0).all() else "a sketch is not in order"


def _numeric(transform: Transform) -> Iterator[tuple[int, Numeric]]:
    """Yield every numeric column with the place of its feature."""
    at = 0
    for part in transform.parts:
        if isinstance(part, Numeric):
            yield at, part
        at += len(part.features)


def _measured(agreed: Agreement) -> list[int]:
    """Return the features whose scale is needed, and the place of a numeric label."""
    dims = len(agreed.transform.names)
    frozen = resolution.frozen_of(agreed.study, agreed.transform)
    free = [k for k in range(dims) if k not in frozen]
    return [*free, *([dims] if agreed.target is not None else [])]


class Cutoff(Step):
    """Agree on a cutoff for every outlier share, from sketches of squared distances."""

    name = "cutoff"
    answer = Sketch
    sends = "a sketch of the distances of rows from their location"
    is_summed = True

    def is_due(self, state: State) -> bool:
        """Return whether rows have centres to be far from."""
        return state.centers is not None

    def local(self, site: LocalSite, request: Request) -> Sketch:
        """Return a sketch of the squared distances of the site's rows."""
        agreement = request.agreement
        if agreement.scales is None or agreement.center is None:
            raise Refused(NOT_ASKED)
        X, y = site.features(agreement)
        return distances(X, y, site.center(agreement, X, y), agreement)

    def validate(self, state: State, site: str, answer: Sketch) -> str | None:
        """Check that the sketch is of the site's rows."""
        rows = state.rows_of(site)
        return check_sketch(answer, min(rows, SUBSAMPLE), lowest=0.0)

    def limit_rows(self, answer: Sketch, rows: int, most: float) -> Sketch:
        """Limit the rows of the sketch."""
        return limit_sketch(answer, most)

    def combine(self, state: State, answers: Answers[Sketch], refused: Reasons) -> State:
        """Settle the cutoffs."""
        sketches, shares = list(answers.values()), resolution.shares_of(state)
        cutoffs = tuple((share, cutoff_of(sketches, share)) for share in shares)
        return state.agree(cutoffs=cutoffs)._replace(step=NEXT)

    def size(self, state: State) -> int:
        """Return the numbers of a histogram."""
        return sketch.ONE_SIDED

    def encode(self, site: LocalSite, request: Request, answer: Sketch) -> Array:
        """Return a histogram of the distances."""
        return sketch.histogram(answer)

    def decode(self, state: State, total: Array) -> tuple[State, Sketch]:
        """Return the sketch of all rows."""
        return state, sketch.from_histogram(total)


def distances(X: Array, y: Array, center: Array, agreement: Agreement) -> Sketch:
    """Return a sketch of squared distances from the centre of the rows, or of their classes."""
    shape, least = resolution.shape_of(agreement), agreement.study.privacy.least
    return robust.distance_sketch(X, robust.row_centers(center, y), shape, least)
