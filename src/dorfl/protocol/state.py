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
    """The training of a network, as plain arrays: see :class:`dorfl.networks.server.ServerState`.

    Attributes
    ----------
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


class Selection(NamedTuple):
    """Candidates for the outlier share, while they are trained and compared.

    Attributes
    ----------
    candidates
        The candidates.
    servers
        The server of each candidate that is in training.
    models
        θ of each candidate that is trained; empty if none is compared.
    compared
        Statistics of held-out losses, of all clients.
    start
        θ of the selected candidate, from which the final training starts.
    """

    candidates: tuple[Candidate, ...] = outliers.default_candidates()
    servers: tuple[Server | None, ...] = ()
    models: tuple[Array | None, ...] = ()
    compared: HeldOut | None = None
    start: Array | None = None

    @property
    def untrained(self) -> list[int]:
        """Return the places of candidates that have no model yet."""
        return [k for k, model in enumerate(self.models) if model is None]


class State(NamedTuple):
    """Everything that a coordinator carries through a study, in the order of its phases.

    Attributes
    ----------
    agreed
        What sites know too: each request brings it.
    sites
        Names of the sites, in the order of all arrays.
    step, number
        The step at hand, and how many steps are closed.
    head, absences
        Digest of all replies so far (:mod:`dorfl.protocol.transcript`), and by site how many steps
        went on without it.
    here, sizes, network
        In one process: whether all rows are here, so that nothing is a site's word alone; weights
        of clients if rows do not count alike; whether a network follows although the study does
        not say so.
    rows, keys
        Rows of each site, and its public key in a summed study.
    sum, column_sums, pooled
        The sum at hand, of columns and of rounds, in a summed study.
    centers
        ξ̄ by site, or by site and class, if the score has one.
    selection, spent
        Candidates for the outlier share, and rounds that are not of the final training.
    server, network_training, history
        The training of a linear model or a network, and its rounds.
    trained
        The model, once it is trained: see :attr:`outcome`.
    finished, released
        Statistics under the model by site; in a summed study, those that sites release.
    bounds, withheld
        Parts of the certificate by site, and why there is none.
    results
        Results that no other step uses, by step.
    """

    agreed: Agreement
    sites: tuple[str, ...]
    step: str = "enrol"
    number: int = 0
    head: bytes = b""
    absences: dict[str, int] = {}  # noqa: RUF012 - replaced, never changed in place
    here: bool = False
    sizes: tuple[float, ...] = ()
    network: bool = False
    rows: tuple[int, ...] = ()
    keys: dict[str, bytes] = {}  # noqa: RUF012 - so are these
    sum: SecureSum = SecureSum()
    column_sums: ColumnSums = ColumnSums()
    pooled: PooledTraining = PooledTraining()
    centers: Array | None = None
    selection: Selection = Selection()
    spent: int = 0
    server: Server | None = None
    network_training: NetworkTraining | None = None
    history: tuple[Round, ...] = ()
    trained: Outcome | None = None
    finished: dict[str, Finished] = {}  # noqa: RUF012
    released: dict[str, Released] = {}  # noqa: RUF012
    bounds: dict[str, CertificateReport] = {}  # noqa: RUF012
    withheld: dict[str, str] = {}  # noqa: RUF012
    results: dict[str, Array] = {}  # noqa: RUF012

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
