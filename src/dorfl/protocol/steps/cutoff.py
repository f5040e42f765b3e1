"""Step `cutoff`: agree on the distance from the centre within which inliers lie."""

from __future__ import annotations

from dorfl.data import robust, sketch
from dorfl.data.robust import SUBSAMPLE
from dorfl.data.sketch import Sketch
from dorfl.protocol import resolution
from dorfl.protocol.messages import NOT_ASKED, Agreement, Refused, Request
from dorfl.protocol.reply_validation import check_sketch, limit_sketch
from dorfl.protocol.state import State
from dorfl.protocol.step import NEXT, Answers, LocalSite, Reasons, Step
from dorfl.selection.defaults import cutoff_of
from dorfl.support.types import Array


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
