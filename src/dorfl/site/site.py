"""A site: it replies to the coordinator's requests within its policy, and rows stay here.

A site replies to studies that a person there has approved, for columns it has released, in a mode
that it allows, within its disclosure rules (:mod:`dorfl.site.rules`). All of that is checked
before the first statistic. What it computes is a step's local part (:mod:`dorfl.protocol.steps`).
In a summed study the site replies only to requests that it computes itself
(:mod:`dorfl.site.replica`). The reason for a refusal holds no value; other errors stay in the
site's own log.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dorfl.data import validation
from dorfl.data.preprocessing import cells
from dorfl.data.preprocessing import columns as reading
from dorfl.federated import training
from dorfl.federated.privacy import Gaussian
from dorfl.linear.group import Group
from dorfl.protocol import (
    coordinator,
    labels,
    private_columns,
    resolution,
    steps,
    sums,
    training_rows,
    transcript,
)
from dorfl.protocol.messages import (
    NOT_ASKED,
    Agreement,
    Answer,
    Outcome,
    Refusal,
    Refused,
    Reply,
    Request,
)
from dorfl.protocol.settings import check_values
from dorfl.protocol.state import State
from dorfl.protocol.step import Step, unless
from dorfl.protocol.steps import location, network
from dorfl.protocol.transcript import Relay, SignedReply, UnfitError
from dorfl.site import approval, replica, rules
from dorfl.site.journal import Journal
from dorfl.site.ledger import Ledger, mark_of
from dorfl.site.policy import Policy
from dorfl.support import wire
from dorfl.support.types import Array

_MAX_GROUPS = 3  # problems whose rows are kept at the same time: one for each candidate


class _Selected(NamedTuple):
    """Rows of the table that take part, and what they depend on."""

    names: list[str]
    read_as: tuple[Any, ...]
    rows: pa.Table
    places: Array


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
    answered
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
    answered: Callable[[Request, bytes], object] = lambda *_: None
    ledger: Ledger = field(default_factory=Ledger)
    journal: Journal = field(default_factory=Journal)
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    key: Any = field(default=None, repr=False)
    cache: dict[str, Any] = field(default_factory=dict, repr=False)  # of steps
    replicas: dict[str, State] = field(default_factory=dict, repr=False)  # of the last two runs
    _groups: dict[str, Group] = field(default_factory=dict, repr=False)
    _selected: _Selected | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.table = reading.table_of(self.table)
        check_values(self.policy, "policy.")

    def respond(self, data: bytes) -> bytes:
        """Return the reply to a message of the coordinator, whatever it is."""
        try:
            message = wire.decode(data, Relay | Request)  # type: ignore[arg-type]
        except ValueError as error:
            self.note(f"request: {error}")
            refusal = Refusal("what was asked does not fit this site; its own log says why")
            return wire.encode(Reply("", self.name, "", refusal))
        if isinstance(message, Relay):
            return self._respond_to_relay(message)
        return self.reply(message, self.answer)

    def _respond_to_relay(self, relay: Relay) -> bytes:
        """Return the signed reply to a relayed request, or an unsigned one with a reason.

        A site that was restarted asks for the replies from the first step on and replays them.
        """
        agreement, step = relay.request.agreement, relay.request.step
        try:
            self.consent(agreement)
            state = replica.follow(self.replicas, self.journal, relay)
            return wire.encode(self._signed(replica.agree(state, self.name, relay.request)))
        except replica.BehindError as behind:
            refusal = Refusal("needs earlier replies", behind.number)
        except (UnfitError, Refused) as error:
            self.note(f"refused {step[:20] or 'a request'}: {error}")
            refusal = Refusal(str(error))
        except Exception as error:  # replies of other sites, which may be made up
            self.note(f"{step[:20] or 'request'}: {type(error).__name__}: {error}")
            refusal = Refusal("what was asked does not fit this site; its own log says why")
        reply = Reply(agreement.run, self.name, step, refusal)
        return wire.encode(SignedReply(self.name, wire.encode(reply)))

    def _signed(self, state: State) -> SignedReply:
        """Return the signed reply: the one given before, if this step was answered already."""
        place, mark = replica.place_of(state), state.head.hex()
        given = self.journal.recall(state.run, place, mark)
        if given:
            return wire.decode(given, SignedReply)
        reply = self.reply(coordinator.request(state, self.name), self.add_up)
        signed = transcript.sign(self.key, state.head, self.name, reply)
        if not isinstance(wire.decode(reply, Reply).answer, Refusal):  # a refusal has no content
            self.journal.record(state.run, place, mark, wire.encode(signed))
        return signed

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
            self.answered(request, reply)
        return reply

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request in an open or private study, or raise Refused."""
        agreement = request.agreement
        self.consent(agreement)
        if agreement.study.privacy.summed:
            raise Refused(
                "the study is a summed one: this site answers only what it computes itself from "
                "the signed replies of all sites"
            )
        self.admit(agreement)
        step = steps.find(request.step)
        if step is None or step.sum_only:
            raise Refused(NOT_ASKED)
        if agreement.study.privacy.mode == "private":
            if not step.in_private:
                raise Refused(NOT_ASKED)
            self._once(request)
        return self.local(step, request)

    def add_up(self, request: Request) -> Answer:
        """Return the answer to a request of a summed study that the site computed itself."""
        self.admit(request.agreement)
        if request.summing is not None and request.agreement.transform.parts:
            self._saturation(request.agreement, request.summing.rows, "the sites'")
        return sums.local(self, request)

    def consent(self, agreement: Agreement) -> None:
        """Raise Refused if the study asks for what the policy does not allow."""
        unless(rules.study_objection(agreement, self.name, self.policy))
        if agreement.study.privacy.summed:
            unless(rules.sum_objection(agreement.study, self.name, self.key))

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
        unless(self.ledger.begin(study, agreement.run, self.policy))
        mark = mark_of(study)
        if self.journal.recall(agreement.run, "begin", mark) is None:
            self.journal.record(agreement.run, "begin", mark)
        rows = self.rows(agreement)
        unless(rules.rows_objection(study, self.policy, rows.num_rows))
        unless(rules.identifier_objection(study, rows.column_names, rows))

    def local(self, step: Step, request: Request) -> Answer:
        """Return the site's own answer to a step, which a summed study masks before it is sent."""
        agreement, study = request.agreement, request.agreement.study
        if step.needs_columns:
            if not agreement.transform.parts:
                raise Refused(f"step {step.name!r} comes before the columns are agreed on")
            if study.privacy.known:
                unless(private_columns.strange(agreement))
            if not study.privacy.summed:
                self._saturation(agreement, self.rows(agreement).num_rows, "this site's")
        unless(network.objection(agreement, step.name))
        return step.local(self, request)

    def group(self, agreement: Agreement) -> Group:
        """Return the site's rows with the model's problem; made once for each agreement."""
        key = hashlib.sha256(wire.encode(agreement)).hexdigest()
        if key not in self._groups:
            X, y = self.features(agreement)
            checked = validation.clients({self.name: training_rows.select(X, y, agreement)})
            center, problem = self.center(agreement, X, y), resolution.problem_of(agreement)
            mass = training_rows.weights(problem, *checked[self.name], agreement)
            made = training.stack(problem, checked, center[None], mass=mass)
            kept = list(self._groups.items())[-_MAX_GROUPS + 1 :]
            self._groups = {**dict(kept), key: made}
        return self._groups[key]

    def keep(self, agreement: Agreement, group: Group, outcome: Outcome) -> None:
        """Write the finished model and the site's results here."""
        if self.done is not None:
            self.done(agreement, group, outcome, self.places(agreement))

    def rows(self, agreement: Agreement) -> pa.Table:
        """Return the rows with a label that enough have, in the columns of the study."""
        return self._select(agreement).rows

    def places(self, agreement: Agreement) -> Array:
        """Return the places in the table of the rows that take part."""
        return self._select(agreement).places

    def _select(self, agreement: Agreement) -> _Selected:
        """Return the rows that take part; kept until another study reads the table otherwise."""
        names = [*self.column_names(agreement), agreement.study.data.label]
        for name in names:
            if name not in self.table.column_names:
                raise Refused(f"column {name[:60]!r} is not in this site's table")
        missing, study = agreement.study.columns.missing, agreement.study
        support = self.policy.support(study)
        read_as = (study.data.task, missing, support, study.privacy.known and study.data.classes)
        kept = self._selected
        if kept is None or (names, read_as) != kept[:2]:
            columns = {name: cells.without(self.table.column(name), missing) for name in names}
            table = pa.table(columns)
            known = labels.usable(table.column(names[-1]), study, support)
            rows = table if known.all() else table.filter(pa.array(known))
            kept = self._selected = _Selected(names, read_as, rows, np.flatnonzero(known))
        return kept

    def _once(self, request: Request) -> None:
        """Raise Refused if a private run asks again at one place: the noise would cancel."""
        sent = request.broadcast if request.step == "round" else None
        place = request.step if sent is None else f"round {sent.round}"
        run, mark = request.agreement.run, mark_of(request)
        if self.journal.recall(run, place, mark) is None:
            self.journal.record(run, place, mark)

    def _saturation(self, agreement: Agreement, rows: int, whose: str) -> None:
        if agreement.study.training.model == "linear":
            problem = resolution.problem_of(agreement)
            unless(rules.parameters_objection(problem, self.policy, rows, whose))

    def center(self, agreement: Agreement, X: Array, y: Array) -> Array:
        """Return the site's ξ̄, anything if there is no score; raise Refused if it is another's."""
        dims, spread = len(agreement.transform.names), agreement.scales
        center = np.zeros(dims) if agreement.center is None else agreement.center
        fits = center.shape in ((dims,), (resolution.centered_classes(agreement), dims))
        if not fits or (spread is not None and spread.units.shape != (dims,)):
            raise Refused("centre and scales do not fit the columns agreed on")
        own = None if agreement.center is None else location.own_center(X, y, agreement)
        known = own is None or np.array_equal(center, own)
        if not known and not agreement.study.privacy.summed:
            raise Refused("the centre is not the one that this site reported")
        return center if own is None else own

    def noise(self, agreement: Agreement) -> Gaussian | None:
        """Return the noise of a private study, once the ledger has it."""
        seed = int.from_bytes(hashlib.sha256(self.secret + agreement.run.encode()).digest())
        noise, policy = resolution.mechanism_of(agreement.study, seed), self.policy
        if noise is not None:
            unless(self.ledger.spend(agreement.run, noise, policy.epsilon, policy.delta))
        return noise

    def column_names(self, agreement: Agreement) -> list[str]:
        """Return the columns agreed on; before that, those the study names, or all released."""
        study = agreement.study
        found = agreement.columns or study.columns.use or self.policy.released
        return [column for column in found if column not in (study.data.label, study.data.client)]

    def features(self, agreement: Agreement) -> tuple[Array, Array]:
        """Return (n, d) standardised rows and (n,) labels as they are trained on."""
        rows = self.rows(agreement)
        if agreement.study.privacy.mode != "private":
            unless(rules.transform_objection(agreement.transform, rows))
        return training_rows.features(rows, agreement)
