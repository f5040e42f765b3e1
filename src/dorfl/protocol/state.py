"""The state of a study: everything that the coordinator, or a site's copy of it, carries along."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dorfl.certificates.bound import CertificateReport
from dorfl.data import robust
from dorfl.data.preprocessing import Numeric, Transform
from dorfl.data.robust import ColumnScales
from dorfl.federated.pooled import LevelSearch, SumSettings
from dorfl.federated.server import Server
from dorfl.federated.simulation import Round
from dorfl.protocol.messages import NO_COLUMNS, Columns, Finished, Masked, Outcome, Released
from dorfl.protocol.settings import Study
from dorfl.selection import outliers
from dorfl.selection.outliers import Candidate, Decision, HeldOut
from dorfl.support.types import Array

ALL_SITES = "all sites"  # the name of the sum over sites, in place of a site's name
_MAX_ROWS_RATIO = 4  # most rows that a site counts for, in rows of the median site


class NetworkTraining(NamedTuple):
    """The training of a network, as plain arrays: see :class:`dorfl.networks.server.ServerState`.

    Attributes
    ----------
    decay
        Weight decay of the network.
    usual
        Length of the update and risk of the median site.
    answered
        The last round that each site replied to.
    """

    round: int
    theta: Array
    mean: Array
    carried: tuple[Array, ...]
    lam: Array
    risks: Array
    before: Array
    decay: float
    usual: tuple[float, float] = (0.0, 1.0)
    answered: dict[str, int] = {}  # noqa: RUF012 - replaced, never changed in place


class ColumnSums(NamedTuple):
    """Columns of a summed study, while their statistics are added up.

    Attributes
    ----------
    levels
        Levels by column that are counted; the label is "".
    named
        By site, the kinds of columns and the names of their levels.
    units
        By column, the unit of distances.
    medians
        By column, the last estimate of a median that is not found yet.
    found
        The columns so far, as one site with all rows would report them.
    turns
        How many sums the medians took.
    """

    named: dict[str, Columns] = {}  # noqa: RUF012 - replaced, never changed in place
    units: dict[str, float] = {}  # noqa: RUF012
    medians: dict[str, float] = {}  # noqa: RUF012
    found: Columns | None = None
    turns: int = 0


class PooledTraining(NamedTuple):
    """Training from sums: see :mod:`dorfl.protocol.pooled_rounds`.

    Attributes
    ----------
    tilt
        How the reports of a round are weighted.
    tried
        Levels that were tried in this round.
    among
        Sites in the sum that the solver received last.
    upper, best
        Least known upper bound of the worst risk, and the θ that has it.
    lower
        Lower bound of the worst risk.
    """

    tilt: SumSettings = SumSettings()
    tried: LevelSearch = LevelSearch()
    among: tuple[str, ...] = ()
    upper: float = np.inf
    best: Array | None = None
    lower: float = -np.inf


class SecureSum(NamedTuple):
    """The secure sum at hand.

    Attributes
    ----------
    of
        The step whose replies are summed.
    label
        Label of the sum that is being opened; empty until sites have sent masked numbers.
    masked
        Masked numbers by site.
    refused
        By site, why it is not in the sum.
    voids
        How many sums in a row could not be opened.
    """

    of: str = ""
    label: bytes = b""
    masked: dict[str, Masked] = {}  # noqa: RUF012 - replaced, never changed in place
    refused: dict[str, str] = {}  # noqa: RUF012
    voids: int = 0


class State(NamedTuple):
    """Everything that a coordinator carries through a study."""

    run: str
    study: Study
    sites: tuple[str, ...]
    step: str = "enrol"
    rows: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    transform: Transform = NO_COLUMNS
    target: Numeric | None = None
    scales: ColumnScales | None = None
    centers: Array | None = None  # ξ̄ by site, or by site and class
    cutoffs: tuple[tuple[float, float], ...] = ()  # (outlier share, squared distance from ξ̄)
    candidates: tuple[Candidate, ...] = outliers.default_candidates()  # that are compared
    row_limit: int = 0  # rows of a client that candidates see
    candidate: Candidate | None = None  # that is trained now
    servers: tuple[Server | None, ...] = ()  # of candidates, while they are trained
    models: tuple[Array | None, ...] = ()  # θ of candidates that are trained
    spent: int = 0  # rounds of candidates
    compared: HeldOut | None = None  # of all clients: statistics of held-out losses
    decision: Decision | None = None
    start: Array | None = None  # θ that the final training starts from
    reference: Array | None = None  # (θ, σ): rows with labels far from it are down-weighted
    scatter: float | None = None  # scale of the residuals
    server: Server | None = None
    history: tuple[Round, ...] = ()
    outcome: Outcome | None = None
    finished: dict[str, Finished] = {}  # noqa: RUF012 - replaced, never changed in place
    released: dict[str, Released] = {}  # noqa: RUF012 - so are these
    bounds: dict[str, CertificateReport] = {}  # noqa: RUF012
    withheld: dict[str, str] = {}  # noqa: RUF012 - sites without a part of the certificate, and why
    sum: SecureSum = SecureSum()  # of a summed study; so are the next four
    column_sums: ColumnSums = ColumnSums()
    pooled: PooledTraining = PooledTraining()
    keys: dict[str, bytes] = {}  # noqa: RUF012 - public keys of sites
    head: bytes = b""  # digest of all replies so far: see dorfl.protocol.transcript
    number: int = 0  # steps that are closed
    absences: dict[str, int] = {}  # noqa: RUF012 - steps that went on without a site
    here: bool = False  # whether all rows are in this process: nothing is a site's word alone
    sizes: tuple[float, ...] = ()  # weights of clients, if rows do not count alike
    network_training: NetworkTraining | None = None
    network: bool = False  # whether a network follows although the study does not say so
    results: dict[str, Array] = {}  # noqa: RUF012 - of steps that no other step uses, by step

    @property
    def decay(self) -> float | None:
        """Return the weight decay of the network, or None while none is trained."""
        return None if self.network_training is None else self.network_training.decay

    def rows_of(self, site: str) -> int:
        """Return the number of rows of a site."""
        return self.rows[self.sites.index(site)]

    @property
    def own_centers(self) -> bool:
        """Return whether all sites have enough rows for centres of their own."""
        return robust.have_own_centers(self.rows)

    @property
    def is_optional(self) -> bool:
        """Return whether the study can go on without this step: the comparison of candidates."""
        return self.candidate is not None or self.step in ("select", "compare")

    @property
    def reported_rows(self) -> dict[str, int]:
        """Return the rows behind every known λ and risk: by site, or those of all sites."""
        if self.study.privacy.summed:
            return {ALL_SITES: sum(self.rows)}
        return dict(zip(self.sites, self.rows, strict=True))

    @property
    def counted_rows(self) -> tuple[float, ...]:
        """Return the rows by which sites are weighted."""
        most = self.study.defence.most_rows
        return self.sizes or limit_rows(self.rows, most, sites=not self.here)


def limit_rows(rows: tuple[int, ...], most: int | None, sites: bool) -> tuple[int, ...]:
    """Return the rows that sites count for: at most `most`, by default four times the median.

    A fixed mixture weights a site by the rows that it reports, which cannot be checked. If the rows
    are in this process (not `sites`) they are counted.

    >>> limit_rows((100, 200, 500, 2**40), None, sites=True)
    (100, 200, 500, 800)
    """
    if most is None:
        if not sites or len(rows) < 3:
            return rows
        most = _MAX_ROWS_RATIO * sorted(rows)[(len(rows) - 1) // 2]
    return tuple(min(own, most) for own in rows)
