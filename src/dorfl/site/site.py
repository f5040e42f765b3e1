"""A site's side: rows stay here, and what the coordinator asks is answered by the site's policy.

A site answers studies that a person there has approved, for columns it has released, in a mode that
it allows, within its disclosure rules (:mod:`dorfl.site.disclosure`). All of that is settled
before the first statistic. In a summed study the site answers only requests that it computes itself
(:mod:`dorfl.site.replica`). In an open one it has given permission, and answers the
questions that the protocol has. The reason for a refusal holds no value; other errors stay in the
site's own log.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

import dorfl
from dorfl.certificates.bound import Told
from dorfl.data import validation
from dorfl.data.preprocessing import cells
from dorfl.data.preprocessing import columns as reading
from dorfl.federated import training
from dorfl.federated.client import respond
from dorfl.federated.messages import Broadcast, Report
from dorfl.federated.privacy import Gaussian
from dorfl.linear.curvature import RESOLUTIONS, coarser
from dorfl.linear.group import Group
from dorfl.protocol import labels, private_columns, resolution
from dorfl.protocol.coordinator import State
from dorfl.protocol.messages import (
    Agreement,
    Answer,
    Enrolled,
    Finished,
    Outcome,
    Refusal,
    Reply,
    Reports,
    Request,
)
from dorfl.protocol.transcript import Relay
from dorfl.selection import outliers
from dorfl.selection.outliers import HeldOut
from dorfl.site import approval, consent, disclosure, replica, serving, sums, updating
from dorfl.site.consent import MOST_ROUNDS, Refused
from dorfl.site.journal import Journal
from dorfl.site.ledger import Ledger, mark_of
from dorfl.site.policy import Policy
from dorfl.solvers.base import Task
from dorfl.support import wire
from dorfl.support.types import Array

_GROUPS = 3  # problems whose rows are kept at the same time: one for each candidate


@dataclass
class Site:
    """One site: its table, its policy, and its record of studies and answers.

    Attributes
    ----------
    name
        As in the site's certificate.
    table
        What `pyarrow.table` takes.
    policy
        By default no column is released and no study is approved.
    done
        Called as `done(agreement, group, outcome, places)` with a finished model and the places of
        the group's rows in the table. What it makes of them stays at the site.
    note
        Called with lines for the site's log.
    told
        Called with every request that was answered, and the reply.
    ledger, journal
        The studies and runs so far, and what was answered in each.
    secret
        Keys of secure sums and the noise of differential privacy derive from it. Kept from one
        start to the next, a question asked again gets the same answer.
    key
        The registered private key, which signs replies in a summed study.
    """

    name: str
    table: Any
    policy: Policy = Policy()  # noqa: RUF009 - a tuple, never changed
    done: Callable[[Agreement, Group, Outcome, Array], object] | None = None
    note: Callable[[str], object] = lambda _: None
    told: Callable[[Request, bytes], object] = lambda *_: None
    ledger: Ledger = field(default_factory=Ledger)
    journal: Journal = field(default_factory=Journal)
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    key: Any = field(default=None, repr=False)
    own: updating.Own | None = field(default=None, repr=False)  # for a network's rounds
    replicas: dict[str, State] = field(default_factory=dict, repr=False)  # of the last two runs
    _groups: dict[str, Group] = field(default_factory=dict, repr=False)
    _kept: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.table = reading.table_of(self.table)
        if self.policy.curvature not in RESOLUTIONS:
            listed = ", ".join(RESOLUTIONS)
            raise ValueError(f"curvature={self.policy.curvature!r}: choose one of {listed}")

    def respond(self, data: bytes) -> bytes:
        """Return the reply to a message of the coordinator, whatever it is."""
        try:
            message = wire.decode(data, Relay | Request)  # type: ignore[arg-type]
        except ValueError as error:
            self.note(f"request: {error}")
            refusal = Refusal("what was asked does not fit this site; its own log says why")
            return wire.encode(Reply("", self.name, "", refusal))
        if isinstance(message, Relay):
            return replica.respond(self, message)
        return self.reply(message, self.answer)

    def reply(self, request: Request, answer: Callable[[Request], Answer]) -> bytes:
        """Return the bytes of an answer, or of the reason why there is none."""
        run, step = request.agreement.run, request.step
        try:
            given = answer(request)
        except Refused as refusal:
            given = Refusal(str(refusal))
        except Exception as error:  # whatever is asked, the site stays up
            self.note(f"{step or 'request'}: {type(error).__name__}: {error}")
            given = Refusal("what was asked does not fit this site; its own log says why")
        reply = wire.encode(Reply(run, self.name, step, given))
        if isinstance(given, Refusal):
            self.note(f"refused {step or 'a request'}: {given.reason}")
        else:
            self.told(request, reply)
        return reply

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request in an open or private study; Refused if there is none."""
        agreement = request.agreement
        self.consent(agreement)
        if agreement.study.privacy.summed:
            raise Refused(
                "the study is a summed one: this site answers only what it computes itself from "
                "the signed replies of all sites"
            )
        self.admit(agreement)
        if agreement.study.privacy.mode == "private":
            self._once(request)
        return self.plainly(request)

    def add_up(self, request: Request) -> Answer:
        """Return the answer to a request in a summed study, which the site computed itself."""
        self.admit(request.agreement)
        if request.summing is not None and request.agreement.transform is not None:
            self._saturation(request.agreement, request.summing.rows, "the sites'")
        return sums.answer(self, request)

    def consent(self, agreement: Agreement) -> None:
        """Raise Refused if the study asks for what the policy does not allow."""
        self._unless(consent.objection(agreement, self.name, self.policy))
        if agreement.study.privacy.summed:
            self._unless(sums.objection(agreement.study, self.name, self.key))

    def admit(self, agreement: Agreement) -> None:
        """Raise Refused if no person approved the study, or a disclosure rule is against it.

        Nor does a run go on with another table than it began with.
        """
        study = agreement.study
        self.ledger.meet(study, approval.summary(study, self.policy))
        if not self.ledger.allows(study, self.policy.approve):
            raise Refused(
                f"study {study.name[:60]!r} waits for approval by a person at this site "
                f"(there: dorfl site approve, study {mark_of(study)[:12]})"
            )
        self._unless(self.ledger.begin(study, agreement.run, self.policy))
        mark = mark_of(study)
        if self.journal.recall(agreement.run, "begin", mark) is None:
            self.journal.record(agreement.run, "begin", mark)
        rows = self.rows(agreement)
        self._unless(disclosure.rows_objection(study, self.policy, rows.num_rows))
        self._unless(disclosure.identifier_objection(study, rows.column_names, rows))

    def plainly(self, request: Request) -> Answer:
        """Return the site's own answer, which in a summed study is masked before it is sent."""
        agreement, step = request.agreement, request.step
        rows, study = self.rows(agreement), agreement.study
        if step == "enrol":
            return Enrolled(rows.num_rows, tuple(self._columns(agreement)), dorfl.__version__)
        if study.privacy.known and step in private_columns.STEPS:
            return private_columns.STEPS[step](rows, agreement, self._noise(agreement))
        if step == "columns":
            return serving.columns(rows, agreement)
        if agreement.transform is None:
            raise Refused(f"step {step[:20]!r} comes before the columns are agreed on")
        if study.privacy.known:
            self._unless(private_columns.strange(agreement))
        if not study.privacy.summed:
            self._saturation(agreement, rows.num_rows, "this site's")
        if agreement.decay is not None:
            return updating.answer(self, request)
        if step == "spreads":
            return serving.spreads(rows, agreement)
        if step == "center" and resolution.asks_where(study):
            X, y = self._features(agreement)
            missing = serving.gaps(rows, agreement.transform, np.array([0, rows.num_rows]))[0]
            return serving.place(X, y, agreement, missing)
        if step == "edge" and agreement.spread is not None and agreement.center is not None:
            X, y = self._features(agreement)
            return serving.distances(X, y, self._centered(agreement, X, y), agreement)
        if step == "round" and request.broadcast is not None:
            return self._report(agreement, request.broadcast)
        if step == "select" and request.broadcasts:
            return self._select(request)
        if step == "compare" and request.models is not None:
            return self._compare(request)
        if step == "finish" and request.outcome is not None:
            return self._finish(agreement, request.outcome)
        if step == "certify" and request.outcome is not None and resolution.certifies(study):
            return self._certify(agreement, request.outcome, request.thin)
        raise Refused("is no question of this protocol")

    def group(self, agreement: Agreement) -> Group:
        """Return the site's rows as the agreed model sees them; made once for each agreement."""
        key = hashlib.sha256(wire.encode(agreement)).hexdigest()
        if key not in self._groups:
            X, y = self._features(agreement)
            checked = validation.clients({self.name: serving.seen(X, y, agreement)})
            center, problem = (
                self._centered(agreement, X, y)[None],
                resolution.problem_of(agreement),
            )
            mass = serving.mass(problem, *checked[self.name], agreement)
            made = training.stack(problem, checked, center, mass=mass)
            kept = list(self._groups.items())[-_GROUPS + 1 :]
            self._groups = {**dict(kept), key: made}
        return self._groups[key]

    def served(self, agreement: Agreement, outcome: Outcome) -> Finished:
        """Return how the finished model serves the site; its results are written here."""
        group = self._ended(agreement, outcome)
        if self.done is not None:
            self.done(agreement, group, outcome, self.places(agreement))
        least = agreement.study.privacy.least
        return serving.finish(group, outcome.theta, agreement.target, least)[0]

    def rows(self, agreement: Agreement) -> pa.Table:
        """Return the rows with a label that enough have, in the columns of the study."""
        names = [*self._columns(agreement), agreement.study.data.label]
        for name in names:
            if name not in self.table.column_names:
                raise Refused(f"column {name[:60]!r} is not in this site's table")
        missing, study = agreement.study.columns.missing, agreement.study
        support = self.policy.support(study)
        read_as = (study.data.task, missing, support, study.privacy.known and study.data.classes)
        if (names, read_as) != self._kept[:2]:
            columns = {name: cells.without(self.table.column(name), missing) for name in names}
            table = pa.table(columns)
            known = labels.usable(table.column(names[-1]), study, support)
            rows = table if known.all() else table.filter(pa.array(known))
            self._kept = (names, read_as, rows, np.flatnonzero(known))
        return self._kept[2]

    def places(self, agreement: Agreement) -> Array:
        """Return where the rows that take part are in the table."""
        self.rows(agreement)
        return np.asarray(self._kept[3])

    def _once(self, request: Request) -> None:
        """Raise Refused if a private run asks again at one place: the noise would cancel."""
        sent = request.broadcast
        place = request.step[:20] if sent is None else f"{request.step[:20]} {sent.round}"
        run, mark = request.agreement.run, mark_of(request)
        if self.journal.recall(run, place, mark) is None:
            self.journal.record(run, place, mark)

    def _saturation(self, agreement: Agreement, rows: int, whose: str) -> None:
        if agreement.study.training.model == "linear":
            problem = resolution.problem_of(agreement)
            self._unless(disclosure.parameters_objection(problem, self.policy, rows, whose))

    def _centered(self, agreement: Agreement, X: Array, y: Array) -> Array:
        """Return the site's ξ̄, which may be anything if there is no score."""
        assert agreement.transform is not None
        dims, spread = len(agreement.transform.names), agreement.spread
        center = np.zeros(dims) if agreement.center is None else agreement.center
        fits = center.shape in ((dims,), (resolution.centered_classes(agreement), dims))
        if not fits or (spread is not None and spread.units.shape != (dims,)):
            raise Refused("centre and spread do not fit the columns agreed on")
        own = None if agreement.center is None else serving.own_center(X, y, agreement)
        known = own is None or np.array_equal(center, own)
        if not known and not agreement.study.privacy.summed:  # there nobody is told of it
            raise Refused("the centre is not the one that this site told")
        return center if own is None else own

    def _select(self, request: Request) -> Reports:
        """Return the reports on all candidates that are still trained."""
        agreement = request.agreement
        self._known_candidates(request)
        for place in request.broadcasts:
            if not (place.isdecimal() and int(place) < len(request.candidates)):
                raise Refused("the candidates are none that the study implies")
        return Reports(
            {
                place: self._report(
                    agreement._replace(candidate=request.candidates[int(place)]), sent
                )
                for place, sent in request.broadcasts.items()
            }
        )

    def _compare(self, request: Request) -> HeldOut:
        """Return the statistics of the candidates' losses on this site's held-out rows."""
        agreement, models = request.agreement, request.models
        assert models is not None
        self._known_candidates(request)
        if len(models) != len(request.candidates):
            raise Refused("the candidates are none that the study implies")
        X, y = self._features(agreement)
        problem = resolution.problem_of(agreement)
        center = self._centered(agreement, X, y) if agreement.cutoffs else None
        losses = serving.candidate_losses(problem, models, X, y, agreement, center)
        return outliers.compare_losses(request.candidates, losses, agreement.study.privacy.least)

    def _known_candidates(self, request: Request) -> None:
        """Raise Refused for candidates that the selection of outliers does not have."""
        known = outliers.default_candidates()
        allowed = {*known, *(candidate._replace(labels=True) for candidate in known)}
        if not (request.agreement.row_limit and set(request.candidates) <= allowed):
            raise Refused("the candidates are none that the study implies")

    def _report(self, agreement: Agreement, sent: Broadcast) -> Report:
        group, task = self.group(agreement), sent.task
        size = group.problem.layout.size
        if task.theta.shape != (size,) or task.theta.dtype != np.float64:
            raise Refused("θ has another shape than the model agreed on")
        self._unless(_unasked(task, agreement.study.training.curvature))
        if not 1 <= sent.round <= MOST_ROUNDS:
            raise Refused("the round's number is out of range")
        noise = self._noise(agreement)
        if noise is not None:
            return respond(group, sent, 0, noise)[0]
        wish = coarser(task.curvature, self.policy.curvature) if group.problem.bends else "none"
        sent = sent._replace(task=task._replace(curvature=wish))
        return respond(group, sent, 0, least=agreement.study.privacy.least)[0]

    def _noise(self, agreement: Agreement) -> Gaussian | None:
        """Return the noise of a private study, once the ledger has it."""
        seed = int.from_bytes(hashlib.sha256(self.secret + agreement.run.encode()).digest())
        noise, policy = resolution.mechanism_of(agreement.study, seed), self.policy
        if noise is not None:
            self._unless(self.ledger.spend(agreement.run, noise, policy.epsilon, policy.delta))
        return noise

    @staticmethod
    def _unless(reason: str | None) -> None:
        if reason is not None:
            raise Refused(reason)

    def _ended(self, agreement: Agreement, outcome: Outcome) -> Group:
        group = self.group(agreement)
        if outcome.theta.shape != (group.problem.size,):
            raise Refused("θ has another shape than the model agreed on")
        return group

    def _finish(self, agreement: Agreement, outcome: Outcome) -> Finished:
        told = self.served(agreement, outcome)
        if agreement.study.privacy.epsilon is not None:
            raise Refused("the study is private: a site's exact figures are not sent")
        return told

    def _certify(self, agreement: Agreement, outcome: Outcome, thin: int) -> Told:
        group = self._ended(agreement, outcome)
        self._unless(None if 1 <= thin <= MOST_ROUNDS else "is no question of this protocol")
        return serving.certify(group, outcome.theta, agreement, thin)[0]

    def _columns(self, agreement: Agreement) -> list[str]:
        """Return the columns agreed on; before that, those the study names, or all released."""
        study = agreement.study
        found = agreement.columns or study.columns.use or self.policy.released
        return [column for column in found if column not in (study.data.label, study.data.client)]

    def _features(self, agreement: Agreement) -> tuple[Array, Array]:
        rows = self.rows(agreement)
        assert agreement.transform is not None
        if agreement.study.privacy.mode != "private":
            self._unless(disclosure.transform_objection(agreement.transform, rows))
        return serving.features(rows, agreement)


def _unasked(task: Task, wished: str) -> str | None:
    """Return what of a round's task no study with the curvature `wished` implies, or None.

    Minibatches and local steps are in none: few rows, drawn by a seed that others know.
    """
    if task.kind != "evaluate" or task.batch is not None or task.steps != 1:
        return "the task is none that the study implies: all rows, risk and gradient"
    if task.curvature not in RESOLUTIONS or (
        wished != "auto" and coarser(task.curvature, wished) != task.curvature
    ):
        return "the task asks for a curvature that the study does not"
    return None
