"""The state of a study: everything that the coordinator, or a site's copy of it, carries along."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dorfl.certificates.bound import CertificateReport
from dorfl.federated.pooled import LevelSearch, SumSettings
from dorfl.federated.server import Server
from dorfl.federated.simulation import Round
from dorfl.protocol.messages import Agreement, Columns, Finished, Masked, Outcome, Released
from dorfl.protocol.settings import Study
from dorfl.selection import outliers
from dorfl.selection.outliers import Candidate, HeldOut
from dorfl.support.types import Array

ALL_SITES = "all sites"  # the name of the sum over sites, in place of a site's name
_MAX_ROWS_RATIO = 4  # most rows that a site counts for, in rows of the median site


class NetworkTraining(NamedTuple):
    """The training of a network: :class:`dorfl.networks.server.ServerState` as plain arrays."""

    round: int
    theta: Array
    mean: Array
    carried: tuple[Array, ...]
    lam: Array
    risks: Array
    usual: tuple[float, float] = (0.0, 1.0)  # length of the update and risk of the median site
    answered: dict[str, int] = {}  # noqa: RUF012 - the last round that each site replied to


class ColumnSums(NamedTuple):
    """Columns of a summed study, while their statistics are added up."""

    named: dict[str, Columns] = {}  # noqa: RUF012 - kinds and names of levels, by site
    units: dict[str, float] = {}  # noqa: RUF012 - of distances, by column
    medians: dict[str, float] = {}  # noqa: RUF012 - last estimates of those not found yet
    found: Columns | None = None  # so far, as one site with all rows would report them
    turns: int = 0  # sums that the medians took


class PooledTraining(NamedTuple):
    """Training from sums: see :mod:`dorfl.protocol.pooled_rounds`."""

    tilt: SumSettings = SumSettings()  # how the reports of a round are weighted
    tried: LevelSearch = LevelSearch()  # levels in this round
    among: tuple[str, ...] = ()  # sites in the sum that the solver received last
    upper: float = np.inf  # least known upper bound of the worst risk
    best: Array | None = None  # θ with this bound
    lower: float = -np.inf  # lower bound of the worst risk


class SecureSum(NamedTuple):
    """The secure sum at hand."""

    of: str = ""  # step whose replies are summed
    label: bytes = b""  # of the sum that is being opened; empty before masked numbers arrived
    masked: dict[str, Masked] = {}  # noqa: RUF012 - masked numbers by site
    refused: dict[str, str] = {}  # noqa: RUF012 - by site, why it is not in the sum
    voids: int = 0  # sums in a row that could not be opened


class Selection(NamedTuple):
    """Candidates for the outlier share, while they are trained and compared."""

    candidates: tuple[Candidate, ...] = outliers.default_candidates()
    servers: tuple[Server | None, ...] = ()  # of candidates in training
    models: tuple[Array | None, ...] = ()  # θ of those trained; empty if none is compared
    compared: HeldOut | None = None  # statistics of held-out losses, of all clients
    start: Array | None = None  # θ of the selected candidate: the final training starts there

    @property
    def untrained(self) -> list[int]:
        """Return the places of candidates that have no model yet."""
        return [k for k, model in enumerate(self.models) if model is None]


class State(NamedTuple):
    """Everything that a coordinator carries through a study, in the order of its phases."""

    agreed: Agreement  # what sites know too: each request brings it
    sites: tuple[str, ...]  # in the order of all arrays
    step: str = "enrol"  # the step at hand
    number: int = 0  # of steps that are closed
    head: bytes = b""  # digest of all replies so far: see dorfl.protocol.transcript
    absences: dict[str, int] = {}  # noqa: RUF012 - steps that went on without a site
    here: bool = False  # whether all rows are in this process: nothing is a site's word alone
    sizes: tuple[float, ...] = ()  # weights of clients, if rows do not count alike
    network: bool = False  # whether a network follows although the study does not say so
    rows: tuple[int, ...] = ()  # of each site
    keys: dict[str, bytes] = {}  # noqa: RUF012 - public keys of sites that sum
    sum: SecureSum = SecureSum()
    column_sums: ColumnSums = ColumnSums()
    pooled: PooledTraining = PooledTraining()
    centers: Array | None = None  # ξ̄ by site, or by site and class, if the score has one
    selection: Selection = Selection()
    spent: int = 0  # rounds that are not of the final training
    server: Server | None = None  # in training: see `running`
    network_training: NetworkTraining | None = None
    history: tuple[Round, ...] = ()
    trained: Outcome | None = None  # see `outcome`
    finished: dict[str, Finished] = {}  # noqa: RUF012 - statistics under the model
    released: dict[str, Released] = {}  # noqa: RUF012 - in a summed study, if a site releases them
    bounds: dict[str, CertificateReport] = {}  # noqa: RUF012 - parts of the certificate
    withheld: dict[str, str] = {}  # noqa: RUF012 - sites without a part, and why
    results: dict[str, Array] = {}  # noqa: RUF012 - that no other step uses, by step

    @property
    def run(self) -> str:
        """Return the name of the run."""
        return self.agreed.run

    @property
    def study(self) -> Study:
        """Return the text of the study."""
        return self.agreed.study

    @property
    def running(self) -> Server:
        """Return the server of the rounds; of candidates, that of the first in training."""
        server = self.server
        if self.step == "select":
            server = next(one for one in self.selection.servers if one is not None)
        if server is None:
            raise ValueError(f"step {self.step!r}: no linear model is in training")
        return server

    @property
    def outcome(self) -> Outcome:
        """Return the trained model."""
        if self.trained is None:
            raise ValueError(f"step {self.step!r}: the model is not trained yet")
        return self.trained

    def agree(self, **fields: Any) -> State:
        """Return the state with other fields of the agreement."""
        return self._replace(agreed=self.agreed._replace(**fields))

    def for_site(self, site: str) -> Agreement:
        """Return the agreement as `site` gets it, with its own centre."""
        at = 0 if self.study.privacy.summed else self.sites.index(site)  # of all, or its own
        center = None if self.centers is None else self.centers[at]
        return self.agreed._replace(site=site, center=center)

    def rows_of(self, site: str) -> int:
        """Return the number of rows of a site."""
        return self.rows[self.sites.index(site)]

    @property
    def is_optional(self) -> bool:
        """Return whether the study can go on without this step: the comparison of candidates."""
        return self.agreed.candidate is not None or self.step in ("select", "compare")

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
