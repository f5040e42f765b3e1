"""Messages between a coordinator and its sites, field by field; `docs/privacy.md` explains them.

A request has what is agreed on so far and what one step needs. A reply has one answer, never rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dorfl.certificates.certificate import Part
from dorfl.data.preprocessing import Column, Deviation, Numeric, Transform
from dorfl.data.robust import ColumnScales
from dorfl.federated.messages import Broadcast, Report
from dorfl.federated.pooled import SumSettings
from dorfl.protocol.constant_baseline import Learnt
from dorfl.protocol.settings import Study
from dorfl.selection.outliers import Candidate, Decision
from dorfl.support.types import Array

NO_COLUMNS = Transform((), {})  # before columns are agreed on
NOT_ASKED = "is not a request of this protocol"
MAX_ROUNDS = 10_000  # rounds of a run that a site takes part in


class Refused(Exception):  # noqa: N818 - a decision, not an error
    """A request cannot be answered; the text holds no value of a row and may be sent."""


class Agreement(NamedTuple):
    """What is agreed on so far; it goes with every request, for sites that were restarted."""

    run: str
    site: str  # that the request is for
    study: Study
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    transform: Transform = NO_COLUMNS
    target: Numeric | None = None  # how the label of a regression is scaled
    own_centers: bool = True  # whether all sites have enough rows for centres of their own
    scales: ColumnScales | None = None  # scales of the columns, if a cost or a score needs them
    center: Array | None = None  # the site's ξ̄, where the score has one; or one a class
    cutoffs: tuple[tuple[float, float], ...] = ()  # (outlier share, squared distance from ξ̄)
    scatter: float | None = None  # scale of the residuals, once the model is trained
    candidate: Candidate | None = None  # while it is trained to be compared with others
    row_limit: int = 0  # rows of a site that candidates see
    decision: Decision | None = None  # what the comparison of candidates came to
    decay: float | None = None  # once a network is trained: ½ decay ‖θ‖² is added to its objective
    reference: Array | None = None  # (θ, σ): rows with labels far from it are down-weighted


class Outcome(NamedTuple):
    """The trained model, and how the training ended."""

    theta: Array
    lam: Array
    risks: Array
    rho: float | None
    objective: float
    gap: float | None
    l2: float
    rounds: int
    status: str
    message: str
    scatter: float | None = None  # scale of the residuals, if it was estimated
    gap_kind: str = "estimate"  # "bound" if the gap is proven

    @property
    def point(self) -> Array:
        """Return all unknowns of the rounds: θ, and the residual scale if it was estimated."""
        return self.theta if self.scatter is None else np.append(self.theta, self.scatter)


class Summing(NamedTuple):
    """Settings of a secure sum, the same for all sites: :mod:`dorfl.federated.secure_sum`."""

    of: str  # step whose answers are summed
    label: bytes  # head of the transcript when the sum began, from which masks are derived
    keys: dict[str, bytes]  # public keys by site
    alive: tuple[str, ...] = ()  # sites whose masked numbers arrived; none in the first exchange
    rows: int = 0  # of all sites, by which weights are divided
    most: int = 0  # rows that a site counts for
    tilt: SumSettings = SumSettings()  # in rounds, how reports are weighted
    levels: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 - counted, by column; the label is ""
    units: dict[str, float] = {}  # noqa: RUF012 - of distances, by column
    medians: dict[str, float] = {}  # noqa: RUF012 - around which rows are counted, by column


class Request(NamedTuple):
    """Coordinator to site."""

    agreement: Agreement
    step: str
    broadcast: Broadcast | None = None
    outcome: Outcome | None = None
    summing: Summing | None = None
    candidates: tuple[Candidate, ...] = ()  # that are trained or compared
    broadcasts: dict[str, Broadcast] = {}  # noqa: RUF012 - of candidates still trained, by place
    models: Array | None = None  # (candidates, parameters): those to be compared
    stride: int = 1  # on the certificate's grid of prices: see :mod:`dorfl.certificates.bound`

    @staticmethod
    def is_tagged() -> bool:
        """Return True: a site accepts a Request or a Relay."""
        return True

    @property
    def sum(self) -> Summing:
        """Return what goes with a secure sum; raise Refused if the request is for none."""
        if self.summing is None:
            raise Refused(NOT_ASKED)
        return self.summing


class Enrolled(NamedTuple):
    """Answer to `enrol`: how many rows take part, and their columns, in the table's order.

    In a summed study `key` is the site's public key for the sums of the run.
    """

    rows: int
    columns: tuple[str, ...]
    version: str
    key: bytes = b""


class Columns(NamedTuple):
    """Answer to `columns`: sums, sketches and levels of the columns and of the label."""

    columns: dict[str, Column]
    label: Column


class Scales(NamedTuple):
    """Answer to `scales`: deviations of numbers from the centres agreed on."""

    columns: dict[str, Deviation]
    label: Deviation | None


class Finished(NamedTuple):
    """Answer to `finish`: statistics of the site under the model, and its part of the certificate.

    `loss` and `score` (accuracy, or mean absolute error) are over all rows. `weights` counts rows
    by their weight; counts of fewer than `least` rows are 0.
    """

    loss: float
    score: float
    learnt: Learnt
    weights: tuple[int, ...]
    part: Part | None


class Released(NamedTuple):
    """Answer to `finish` in a summed study: the site's own loss and score, rounded.

    None if the site does not release them.
    """

    loss: float | None
    score: float | None


class Masked(NamedTuple):
    """Answer to `sum masked`: integers modulo 2⁶⁴ that look like noise, and a digest of a seed."""

    numbers: Array
    promise: bytes


class Opened(NamedTuple):
    """Answer to `sum open`: the seed of the own mask, and pairwise seeds with absent sites."""

    seed: bytes
    pairs: dict[str, bytes]


class Reports(NamedTuple):
    """Answer to `select`: the report of every candidate that is still trained, by its place."""

    reports: dict[str, Report]


class Refusal(NamedTuple):
    """The reason of a site that does not answer.

    `behind` is the step from which it needs the replies of others to go on.
    """

    reason: str
    behind: int | None = None


Answer = Any  # one of ANSWERS
ANSWERS: list[type] = [Refusal, Released, Masked, Opened]  # a step that is registered adds its own


class Reply(NamedTuple):
    """Site to coordinator; the answer is one of :data:`ANSWERS`, tagged with its class name."""

    run: str
    site: str
    step: str
    answer: Answer

    @staticmethod
    def records() -> list[type]:
        """Return the types that the answer may have."""
        return ANSWERS
