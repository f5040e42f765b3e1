"""Validate statistics in replies before they are aggregated.

The wire checks types, and that numbers are finite. Here statistics that several steps have are
checked against the number of rows of their site. Each function returns a reason, or None.
"""

from __future__ import annotations

from itertools import pairwise

from dorfl.data.preprocessing import Column, Deviation
from dorfl.data.sketch import BLOCKS, Sketch
from dorfl.protocol.state import State
from dorfl.support import wire

MAX_NUMBER = 1e300  # largest number in a statistic: sums of such numbers are finite
MAX_RISK = 1e20  # largest risk or loss
_KINDS = ("numeric", "date", "category", "empty", "other")
_MAX_LEVELS = 1000
_MAX_FLOATS = 64  # floats that add up to an exact sum
# Bytes of an honest answer: of any, for each column, and for each site.
_ANY, _PER_COLUMN, _PER_SITE = 2**22, 2**16, 2**13


def max_bytes(state: State) -> int:
    """Return the largest size of an honest answer to the step, in bytes; no more is read.

    A number takes up to 11 bytes in a report and 30 in a sketch of at most 256; levels have names.
    """
    numbers = 0
    if state.server is not None:
        setting = state.server.solving.setting
        shape = setting.shape
        numbers = shape.size + shape.numbers(setting.resolution)
    elif state.network_training is not None:
        numbers = state.network_training.theta.size
    each = _PER_COLUMN * (len(state.agreed.columns) + 1) + _PER_SITE * len(state.sites)
    return min(_ANY + each + 16 * numbers, wire.LIMIT)


def check_column(column: Column, rows: int) -> str | None:
    """Check the summary of a column with at most `rows` rows."""
    if column.kind not in _KINDS:
        return "a column is of an unknown kind"
    if column.rows < 0 or column.missing < 0 or column.rows + column.missing > rows:
        return "a column has more or fewer values than the site has rows"
    counts = column.levels.values()
    if len(counts) > _MAX_LEVELS or min(counts, default=1) < 1 or sum(counts) > column.rows:
        return "the levels of a column do not add up"
    return _check_sum(column.total) or check_sketch(column.values, column.rows)


def check_deviation(deviation: Deviation, rows: int, *, has_noise: bool) -> str | None:
    """Check the deviations of a column; a sum with noise may be negative."""
    if not 0 <= deviation.rows <= rows:
        return "a column has more or fewer values than the site has rows"
    if sum(deviation.squares) < 0.0 and not has_noise:
        return "a sum of squares is negative"
    distances = check_sketch(deviation.distances, deviation.rows, lowest=0.0)
    return _check_sum(deviation.squares) or distances


def check_sketch(sketch: Sketch, rows: int, lowest: float = -MAX_NUMBER) -> str | None:
    """Check a sketch of `rows` values that are at least `lowest`."""
    means = sketch.means
    if sketch.rows not in (0, rows) or len(means) > min(BLOCKS, sketch.rows):
        return "a sketch does not fit the number of rows"
    if sketch.rows and not means:
        return "a sketch has no blocks"
    if means and not (lowest <= min(means) and max(means) <= MAX_NUMBER):
        return "a sketch is out of range"
    if any(second < first for first, second in pairwise(means)):
        return "a sketch is not in order"
    return None


def limit_sketch(sketch: Sketch, most: float) -> Sketch:
    """Return a sketch as if it were of at most so many rows."""
    return sketch._replace(rows=min(sketch.rows, int(most)))


def limit_count(count: int, share: float) -> int:
    """Return a share of a count, at least 1 unless the count is 0."""
    return max(int(count * share), 1) if count else 0


def _check_sum(parts: tuple[float, ...]) -> str | None:
    if len(parts) > _MAX_FLOATS or any(abs(part) > MAX_NUMBER for part in parts):
        return "a sum is out of range"
    return None
