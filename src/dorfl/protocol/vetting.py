"""What is wrong with what a site tells of its rows, before anything is made of it.

Types and finiteness are the wire's business; here is whether the numbers can be true of a site with
so many rows. A report of a round is vetted by :func:`dorfl.federated.server.refuse`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dorfl.certificates.bound import NO_BOUND, Question, Told
from dorfl.data.preprocessing import Column, Deviation
from dorfl.data.robust import SUBSAMPLE, LocationReport
from dorfl.data.sketch import BLOCKS, Sketch
from dorfl.federated import server as serving
from dorfl.federated.messages import Report
from dorfl.federated.server import Server
from dorfl.protocol.messages import Answer, Columns, Enrolled, Finished, Spreads
from dorfl.selection.outliers import HeldOut, pairs_of
from dorfl.support import wire

if TYPE_CHECKING:
    from dorfl.protocol.coordinator import State

_KINDS = ("numeric", "date", "category", "empty", "other")
_LEVELS = 1000
_LARGEST = 1e300  # so that sums of them are finite
_ROWS = 2**40
_FAR = 1e6  # standard deviations
_RISK = 1e20
_FLOATS = 64  # that add up to an exact sum
_TIMES = 4  # the rows of the median site
_ANY, _PER_COLUMN, _PER_SITE = 2**22, 2**16, 2**13  # bytes of an answer
_APART = 1e3  # risks with and without the score's level, in units of a risk


def wrong(
    answer: Answer, rows: int, widths: tuple[int, int, int], server: Server | None, site: str = "",
    *, noisy: bool = False,
) -> str | None:  # fmt: skip
    """Why an answer of a site that enrolled with `rows` rows cannot be used, or nothing.

    Its `widths`: how many features rows have, the same with what is predicted, if that is a number,
    and how many classes it tells the middle of. A `noisy` sum may be less than any can be.
    """
    if isinstance(answer, Enrolled):
        return None if 1 <= answer.rows <= _ROWS else "enrols with an impossible number of rows"
    if isinstance(answer, Columns):
        columns = [*answer.columns.values(), answer.label]
        return next((reason for column in columns if (reason := _column(column, rows))), None)
    if isinstance(answer, Spreads):
        far = [*answer.spreads.values(), *([answer.label] if answer.label else [])]
        return next((reason for told in far if (reason := _deviation(told, rows, noisy))), None)
    if isinstance(answer, LocationReport):
        return _place(answer, rows, *widths)
    if isinstance(answer, Sketch):
        return _sketch(answer, min(rows, SUBSAMPLE), lowest=0.0)
    if isinstance(answer, Report):
        assert server is not None
        return serving.refuse(server, serving.broadcast(server), serving.bare(answer))
    if isinstance(answer, HeldOut):
        return _held_out(answer, rows)
    if isinstance(answer, Finished):
        last = server.last.get(site) if server is not None else None
        return _finished(answer, rows, None if last is None else last[1])
    return None


def unsound(told: Any, rows: int) -> str | None:
    """Why a sum over sites that have so many rows together cannot be one of theirs, or nothing."""
    if isinstance(told, Columns):
        parts = [*told.columns.values(), told.label]
        bare = [part._replace(values=Sketch(0, ())) for part in parts]
        return next((reason for part in bare if (reason := _column(part, rows))), None)
    if isinstance(told, Spreads):
        far = [*told.spreads.values(), *([told.label] if told.label else [])]
        odd = any(not 0 <= part.rows <= rows for part in far)
        return "a column has more or fewer values than there are rows" if odd else None
    return _held_out(told, rows) if isinstance(told, HeldOut) else None


def longest(state: State) -> int:
    """The most bytes that any honest answer to the step at hand has: no more is read of a site.

    Numbers take up to 11 bytes in a report, and 30 in a sketch of at most 256; levels have names.
    """
    numbers = 0
    if state.server is not None:
        setting = state.server.solving.setting
        shape = setting.shape
        numbers = shape.size + shape.numbers(setting.resolution)
    elif state.learning is not None:
        numbers = state.learning.theta.size
    each = _PER_COLUMN * (len(state.columns) + 1) + _PER_SITE * len(state.roster)
    return min(_ANY + each + 16 * numbers, wire.LIMIT)


def believed(rows: tuple[int, ...], most: int | None, sites: bool) -> tuple[int, ...]:
    """What sites are taken to have: no more than `most`; by default four times the median's.

    A fixed mixture weighs a site by its rows, and by nobody's word but its own. Where the rows are
    all here (not `sites`) they are counted.

    >>> believed((100, 200, 500, 2**40), None, sites=True)
    (100, 200, 500, 800)
    """
    if most is None:
        if not sites or len(rows) < 3:
            return rows
        most = _TIMES * sorted(rows)[(len(rows) - 1) // 2]
    return tuple(min(own, most) for own in rows)


def discounted(state: State, answers: dict[str, Any]) -> dict[str, Any]:
    """What sites tell of their rows before training, as if they had those that they weigh by.

    Medians and sums are of all sites' rows together: who claims to have most of them would choose
    in which units everybody's columns are.
    """
    if state.here or not state.rows:
        return answers
    held = dict(zip(state.roster, zip(state.rows, state.believed, strict=True), strict=True))
    return {site: _fewer(answer, *held[site]) for site, answer in answers.items()}


def _fewer(answer: Any, rows: int, most: float) -> Any:
    if most >= rows:
        return answer
    share = most / rows

    def few(count: int) -> int:
        return max(int(count * share), 1) if count else 0

    def blocks(told: Sketch) -> Sketch:
        return told._replace(rows=min(told.rows, int(most)))

    if isinstance(answer, Column):
        return answer._replace(
            rows=few(answer.rows), missing=few(answer.missing), values=blocks(answer.values),
            total=tuple(part * share for part in answer.total),
            levels={level: few(count) for level, count in answer.levels.items()},
        )  # fmt: skip
    if isinstance(answer, Deviation):
        squares = tuple(part * share for part in answer.squares)
        return Deviation(few(answer.rows), squares, blocks(answer.distances))
    if isinstance(answer, Columns | Spreads):
        ways = {name: _fewer(one, rows, most) for name, one in answer[0].items()}
        return type(answer)(ways, _fewer(answer.label, rows, most))
    if isinstance(answer, LocationReport):
        looked = min(answer.rows, int(most))
        return answer._replace(rows=looked, kept=answer.kept * share, by=answer.by * share)
    return blocks(answer) if isinstance(answer, Sketch) else answer


def _place(told: LocationReport, rows: int, dims: int, wide: int, classes: int) -> str | None:
    if {told.mean.dtype, told.away.dtype, told.by.dtype, told.means.dtype} != {np.dtype(float)}:
        return "its centre is not made of real numbers"
    blocks, width = told.away.shape if told.away.ndim == 2 else (0, 0)
    if told.mean.shape != (dims,) or not 0 < told.kept <= rows * (1.0 + 1e-9):
        return "its centre does not fit its rows and columns"
    if told.rows != min(rows, SUBSAMPLE) or width != wide or blocks > min(BLOCKS, told.rows):
        return "a sketch does not fit the number of rows"
    if told.by.shape != (classes,) or told.means.shape != (classes, dims):
        return "its centres do not fit the classes"
    if (told.by < 0.0).any() or told.by.sum() > rows * (1.0 + 1e-9):
        return "the rows of its classes do not add up"
    if max(abs(told.mean).max(initial=0.0), abs(told.means).max(initial=0.0)) > _FAR:
        return "its centre is out of range"
    if told.away.size and not (told.away.min() >= 0.0 and told.away.max() <= _LARGEST**0.5):
        return "a sketch is out of range"
    return None if (np.diff(told.away, axis=0) >= 0.0).all() else "a sketch is not in order"


def _finished(told: Finished, rows: int, last: Report | None) -> str | None:
    if max(abs(told.loss), abs(told.score), abs(told.learnt.loss), told.learnt.middle) > _RISK:
        return "how it is served is out of range"
    if any(not 0 <= share <= 1 + 1e-9 for share in told.learnt.classes):
        return "the shares of its classes are out of range"
    if any(count < 0 for count in told.weights) or sum(told.weights) > rows:
        return "its rows by weight do not add up"
    part = told.part
    if part is not None:
        sizes = (part.value, part.spent, part.attained, part.error or 0.0)
        if max(map(abs, sizes)) > _RISK or part.spent < 0.0 or (part.error or 0.0) < 0.0:
            return "its part of the certificate is out of range"
        # What it reported while training is the same risk but for the level of its score.
        if last is not None and abs(part.value - last.value) > _APART * (1.0 + abs(last.value)):
            return "its part of the certificate does not fit the risk that it reported"
    return None


def _held_out(told: HeldOut, rows: int) -> str | None:
    pairs, count = told.rows.shape, len(told.losses)
    shaped = {part.shape for part in told[:4]} == {pairs} and len(told.rows) == len(pairs_of(count))
    if not shaped or {part.dtype for part in told} != {np.dtype(float)}:
        return "its held-out statistics do not fit the candidates"
    if told.rows.min(initial=0.0) < 0.0 or (told.rows > rows).any():
        return "its number of held-out rows is out of range"
    if (np.r_[told.variances, told.errors] < 0.0).any():
        return "its held-out statistics do not add up"
    largest = max(np.abs(part).max(initial=0.0) for part in told)
    return "its held-out losses are out of range" if largest > _RISK else None


def untold(told: Told, asked: Question, less: Question) -> str | None:
    """Why what a site tells for the certificate cannot answer what was asked, or nothing.

    Nor what is enough of who may tell `less`.
    """
    if told.loss.shape == (len(less.points), len(less.shares)):
        asked = less
    shape = (len(asked.points), len(asked.shares))
    if told.loss.shape != shape or told.error.shape != shape:
        return "its part of the certificate does not answer what was asked"
    if not all((part >= 0.0).all() and (part <= NO_BOUND).all() for part in told):
        return "its part of the certificate is out of range"
    return None


def _column(told: Column, rows: int) -> str | None:
    if told.kind not in _KINDS:
        return "a column is of an unknown kind"
    if told.rows < 0 or told.missing < 0 or told.rows + told.missing > rows:
        return "a column has more or fewer values than the site has rows"
    counts = told.levels.values()
    if len(counts) > _LEVELS or min(counts, default=1) < 1 or sum(counts) > told.rows:
        return "the levels of a column do not add up"
    return _sum(told.total) or _sketch(told.values, told.rows)


def _deviation(told: Deviation, rows: int, noisy: bool) -> str | None:
    if not 0 <= told.rows <= rows:
        return "a column has more or fewer values than the site has rows"
    if sum(told.squares) < 0.0 and not noisy:
        return "a sum of squares is negative"
    return _sum(told.squares) or _sketch(told.distances, told.rows, lowest=0.0)


def _sum(told: tuple[float, ...]) -> str | None:
    if len(told) > _FLOATS or any(abs(part) > _LARGEST for part in told):
        return "a sum is out of range"
    return None


def _sketch(told: Sketch, rows: int, lowest: float = -_LARGEST) -> str | None:
    means = told.means
    if told.rows not in (0, rows) or len(means) > min(BLOCKS, told.rows):
        return "a sketch does not fit the number of rows"
    if told.rows and not means:
        return "a sketch has no blocks"
    if means and not (lowest <= min(means) and max(means) <= _LARGEST):
        return "a sketch is out of range"
    if any(second < first for first, second in pairwise(means)):
        return "a sketch is not in order"
    return None
