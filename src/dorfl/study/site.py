"""A site's side: rows stay here; what the coordinator asks is checked before it is answered.

A site answers studies that a person there has approved, for columns it has released, never from
fewer rows than its own minimum, and only questions that the study implies: the coordinator sends
numbers and names, never code. What each question may be is :mod:`dorfl.study.guard`'s business,
what all of them together may be that of :mod:`dorfl.study.ledger`. The reason a site gives for not
answering is written by us and holds no value; other errors stay in its own log.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

import dorfl
from dorfl.certificates import bound
from dorfl.certificates.bound import Told
from dorfl.data import robust, validation
from dorfl.data.preprocessing import cells
from dorfl.data.preprocessing import columns as reading
from dorfl.federated import training
from dorfl.federated.client import TooFewError, enough, respond
from dorfl.federated.messages import Broadcast, Report
from dorfl.federated.privacy import Gaussian
from dorfl.linear.curvature import RESOLUTIONS, coarser
from dorfl.linear.group import Group
from dorfl.selection import outliers
from dorfl.selection.outliers import HeldOut
from dorfl.solvers.base import Task
from dorfl.study import guard, labels, masking, meaning, private, serving, updating
from dorfl.study.budget import FINISHED, ahead_of, foresee, share_of
from dorfl.study.consent import MOST_ROUNDS, Policy, Refused, objection
from dorfl.study.ledger import Ledger, mark_of
from dorfl.study.limits import DEFAULT, Limits
from dorfl.study.memory import Memory
from dorfl.study.messages import (
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
from dorfl.support import wire
from dorfl.support.types import Array

_GROUPS = 3  # problems whose rows are kept at the same time: one for each candidate


@dataclass
class Site:
    """One site: its table, what of it is released, and what it has been asked so far.

    By default no column is released and no study approved: name the columns, and studies by a rule
    on their names (`approve=("heart-*",)`) or one by one (`ledger.approve`). `least` is the site's
    own lower bound on rows behind a statistic. `done(agreement, group, outcome, places)` is called
    with a finished model, and where each of the group's rows is in the table; what it makes of them
    stays at the site. `secret` is where the noise of differential privacy comes from; kept from one
    start to the next, a question asked again gets the same noise.
    """

    name: str
    table: Any
    released: tuple[str, ...] = ()
    least: int = 5
    approve: tuple[str, ...] = ()
    done: Callable[[Agreement, Group, Outcome, Array], object] | None = None
    note: Callable[[str], object] = lambda _: None
    told: Callable[[Request, bytes], object] = lambda *_: None  # what was answered
    memory: Memory = field(default_factory=Memory)
    ledger: Ledger = field(default_factory=Ledger)
    limits: Limits = DEFAULT
    epsilon: float | None = None  # the most a row may show in all runs together; nothing: any
    curvature: str = "full"  # the finest that is told of ∇²F, whatever is asked for
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    key: Any = field(default=None, repr=False)  # the registered private key, which secure sums need
    own: updating.Own | None = field(default=None, repr=False)  # for a network's rounds
    _groups: dict[str, tuple[Group, Array]] = field(default_factory=dict, repr=False)
    _kept: tuple[Any, ...] = ()
    _vouched: str = ""  # the transformation that was looked at

    def __post_init__(self) -> None:
        self.table = reading.table_of(self.table)
        if self.curvature not in RESOLUTIONS:
            listed = ", ".join(RESOLUTIONS)
            raise ValueError(f"curvature={self.curvature!r}: choose one of {listed}")

    def respond(self, data: bytes) -> bytes:
        """The reply to a request, whatever the request is."""
        run, step = "", ""
        try:
            request = wire.decode(data, Request)
            run, step = request.agreement.run, request.step
            answer: Answer = self.answer(request)
        except (Refused, TooFewError, masking.Unsafe) as refusal:
            answer = Refusal(str(refusal))
        except Exception as error:  # whatever is asked, the site stays up
            self.note(f"{step or 'request'}: {type(error).__name__}: {error}")
            answer = Refusal("what was asked does not fit this site; its own log says why")
        reply = wire.encode(Reply(run, self.name, step, answer))
        if isinstance(answer, Refusal):
            self.note(f"refused {step or 'a request'}: {answer.reason}")
        else:
            self.told(request, reply)
        return reply

    def answer(self, request: Request) -> Answer:
        """The answer to a request; Refused or ValueError if there is none."""
        agreement, step = request.agreement, request.step
        self.consent(agreement)
        needs = partial(foresee, agreement, self.rows(agreement), self._columns(agreement))
        self.ledger.meet(agreement.study, agreement.run, needs)
        if not self.ledger.allows(agreement.study, self.approve):
            raise Refused(
                f"study {agreement.study.name[:60]!r} waits for approval by a person at this site "
                f"(there: dorfl site approve, study {mark_of(agreement.study)[:12]})"
            )
        summing = request.summing
        which = step[:20] if summing is None else f"{step[:20]} {summing.number}"
        self._unless(self.memory.agreed(which, agreement))
        if agreement.study.privacy.secure_sum and step not in ("enrol", "finish"):
            return masking.answer(self, request)
        return self.plainly(request)

    def plainly(self, request: Request) -> Answer:
        """The answer in the open, by all the site's rules but those on who may ask."""
        agreement, step = request.agreement, request.step
        rows, study = self.rows(agreement), agreement.study
        self._unless(guard.reread(study, rows.column_names, self._mark, self.ledger, self.limits))
        self._unless(guard.few(study, rows.num_rows, self.least))
        if step == "enrol":
            return Enrolled(rows.num_rows, tuple(self._columns(agreement)), dorfl.__version__)
        if study.privacy.known and step in private.STEPS:
            return private.STEPS[step](rows, agreement, self._noise(agreement))
        if step == "columns":
            return serving.columns(rows, agreement)
        if agreement.transform is None:
            raise Refused(f"step {step[:20]!r} comes before the columns are agreed on")
        self._transform(agreement, rows)
        if agreement.decay is not None:
            return updating.answer(self, request)
        if step == "spreads":
            target = agreement.target
            parts = agreement.transform.numeric + ((target,) if target is not None else ())
            middles = {part.name: float(part.center) for part in parts}
            self._unless(self.ledger.measure(middles, self.limits.middles))
            return serving.spreads(rows, agreement)
        if step == "center" and meaning.asks_where(study):
            X, y = self._features(agreement)
            far, _ = robust.find_far_rows(
                robust.subsample(X), least=max(study.privacy.least, self.least)
            )
            if 2 * int(far.sum()) <= len(far):
                self._unless(self.ledger.average(self._mark, ~far, self.least))
            missing = serving.gaps(rows, agreement.transform, np.array([0, rows.num_rows]))[0]
            place = serving.place(X, y, agreement, missing)
            if place.by.any():
                self._count(agreement, step, place.means[place.by > 0].size, place.means)
            return place
        if step == "edge" and agreement.spread is not None and agreement.center is not None:
            X, y = self._features(agreement)
            away = serving.distances(X, y, self._centered(agreement, X, y), agreement)
            self._count(agreement, step, rows.num_rows // study.privacy.least, away)
            return away
        if step == "round" and request.broadcast is not None:
            return self._report(agreement, request.broadcast)
        if step == "select" and request.broadcasts:
            return self._select(request)
        if step == "compare" and request.models is not None:
            return self._compare(request)
        if step == "finish" and request.outcome is not None:
            return self._finish(agreement, request.outcome)
        if step == "certify" and request.outcome is not None and meaning.certifies(study):
            return self._certify(agreement, request.outcome, request.thin)
        raise Refused("is no question of this protocol")

    def consent(self, agreement: Agreement) -> None:
        """Raise Refused where the study asks for what this site does not give."""
        policy = Policy(self.name, self.released, self.least, self.epsilon, self.limits)
        self._unless(objection(agreement, policy))
        if agreement.study.privacy.secure_sum:
            self._unless(masking.objection(agreement.study, self.name, self.key))

    def group(self, agreement: Agreement) -> Group:
        """Return the site's rows as the agreed model sees them; made once for each agreement."""
        return self._group_and_fill(agreement)[0]

    def _group_and_fill(self, agreement: Agreement) -> tuple[Group, Array]:
        """Return the group, and for every row a number that marks its imputed cells."""
        key = hashlib.sha256(wire.encode(agreement)).hexdigest()
        if key not in self._groups:
            X, y = self._features(agreement)
            checked = validation.clients({self.name: serving.seen(X, y, agreement)})
            center, problem = self._centered(agreement, X, y)[None], meaning.problem_of(agreement)
            if agreement.reference is not None:
                self._asked(agreement, agreement.reference)
            mass = serving.mass(problem, *checked[self.name], agreement)
            made = training.stack(problem, checked, center, mass=mass)
            self._unless(guard.rare(made, self.limits.support(agreement.study)))
            kept = list(self._groups.items())[-_GROUPS + 1 :]
            filled = guard.filled(agreement, self.rows(agreement), y, self.secret)
            self._groups = {**dict(kept), key: (made, filled)}
        return self._groups[key]

    def _centered(self, agreement: Agreement, X: Array, y: Array) -> Array:
        """The site's ξ̄, which may be anything where there is no score."""
        assert agreement.transform is not None
        dims, spread = len(agreement.transform.names), agreement.spread
        center = np.zeros(dims) if agreement.center is None else agreement.center
        fits = center.shape in ((dims,), (meaning.centered_classes(agreement), dims))
        if not fits or (spread is not None and spread.units.shape != (dims,)):
            raise Refused("centre and spread do not fit the columns agreed on")
        own = None if agreement.center is None else serving.own_center(X, y, agreement)
        known = own is None or np.array_equal(center, own)
        if not known and not agreement.study.privacy.secure_sum:  # there nobody is told of it
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
                    agreement._replace(candidate=request.candidates[int(place)]),
                    sent,
                    f"candidate-{place}",
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
        self._asked(agreement, *models)
        asked = mark_of((agreement._replace(run=""), models))[:16]
        self._unless(self.ledger.judge(self._mark, asked, self.limits.judged))
        X, y = self._features(agreement)
        problem = meaning.problem_of(agreement)
        center = self._centered(agreement, X, y) if agreement.cutoffs else None
        losses = serving.candidate_losses(problem, models, X, y, agreement, center)
        found = outliers.compare_losses(request.candidates, losses, agreement.study.privacy.least)
        self._count(agreement, "compare", sum(part.size for part in found), found, models)
        return found

    def _known_candidates(self, request: Request) -> None:
        """Refuse candidates that the selection of outliers does not have."""
        known = outliers.default_candidates()
        allowed = {*known, *(candidate._replace(labels=True) for candidate in known)}
        if not (request.agreement.row_limit and set(request.candidates) <= allowed):
            raise Refused("the candidates are none that the study implies")

    def _report(self, agreement: Agreement, sent: Broadcast, of: str = "round") -> Report:
        (group, filled), task = self._group_and_fill(agreement), sent.task
        study = agreement.study
        size = group.problem.layout.size
        if task.theta.shape != (size,) or task.theta.dtype != np.float64:
            raise Refused("θ has another shape than the model agreed on")
        self._unless(guard.unasked(task, study.training.curvature))
        if not 1 <= sent.round <= MOST_ROUNDS:
            raise Refused("the round's number is out of range")
        # The same question may come again (a coordinator that restarted); another one under a
        # number that was used, or an earlier one that was not, is no part of a training.
        self._unless(self.memory.asked(agreement.run, sent, of))
        noise = self._noise(agreement)
        if noise is not None:
            return respond(group, sent, 0, noise)[0]
        wish = coarser(task.curvature, self.curvature) if group.problem.bends else "none"
        marks = guard.questions(agreement, task.theta, wish)
        most, about = self._most(agreement), guard.about(agreement)
        task = task._replace(curvature=self.ledger.affordable(marks, about, group, most))
        self._unless(guard.steep(group, task.theta, self.limits, self.secret))
        seen = enough(group, task, self.least)
        pulled = guard.pull(group, seen, filled)
        part = len(group.rows) < self.rows(agreement).num_rows
        rows = f"candidates{len(group.rows)}-{self._mark}" if part else self._mark
        before = self.ledger.pulls(rows, pulled.slope.shape)
        self._unless(guard.telling(group, pulled, before, self.limits))
        if seen.curvature is None and task.curvature != "none":
            self.note(f"round {sent.round}: a few rows make up the curvature; it is left out")
            task = task._replace(curvature="none")
        report = respond(group, sent, 0, seen=seen)[0]
        told = 1 + group.problem.layout.size + group.problem.layout.numbers(task.curvature)
        if self._count(agreement, "round", told, report[3:], task.theta, marks[task.curvature]):
            self.ledger.pulled(rows, pulled.marked)
        return report

    def _noise(self, agreement: Agreement) -> Gaussian | None:
        """The noise of a study that is private, once the ledger has it."""
        seed = int.from_bytes(hashlib.sha256(self.secret + agreement.run.encode()).digest())
        noise = meaning.mechanism_of(agreement.study, seed)
        if noise is not None:
            self._unless(self.ledger.spend(agreement.run, noise, self.epsilon, self.limits))
        return noise

    def _count(
        self, agreement: Agreement, step: str, numbers: int, answer: Any, theta: Any = None,
        asked: str = "",
    ) -> bool:  # fmt: skip
        """Enter what is to be told into the ledger, so many numbers, or refuse: whether it is new.

        The same numbers about the same model are told once, whatever run or study asks for them.
        """
        mark = mark_of((step, theta, answer))
        assert agreement.transform is not None
        size = self.rows(agreement).num_rows * len(agreement.transform.names)
        entry = {
            "run": agreement.run, "study": mark_of(agreement.study), "step": step, "asked": asked,
            "numbers": numbers, "share": numbers / size, "about": guard.about(agreement),
        }  # fmt: skip
        known, most = mark in self.ledger.questions, self._most(agreement, step)
        if not known and most < self.limits.told and numbers / size > most - self.ledger.told:
            raise Refused("it would leave too little of what this site may tell in trainings")
        problem = self.group(agreement).problem if step == "round" else None
        more = ahead_of(agreement.study, problem) / size
        self._unless(self.ledger.ask(mark, entry, self.limits.told, more))
        return not known

    def _most(self, agreement: Agreement, step: str = "round") -> float:
        """The share of its numbers that a site may have told, but for what it keeps in reserve."""
        spare = self.ledger.reserve(agreement, step)
        rows = self.rows(agreement).num_rows
        problem = self.group(agreement).problem if spare else None
        return self.limits.told - spare * share_of(agreement.study, problem, rows)

    def _transform(self, agreement: Agreement, rows: pa.Table) -> None:
        mark = mark_of(agreement._replace(run="", center=None))
        if mark != self._vouched:
            known, has = agreement.study.privacy.known, (rows, self.ledger, self.limits)
            self._unless(private.strange(agreement) if known else guard.strange(agreement, *has))
            self._vouched = mark

    def _asked(self, agreement: Agreement, *models: Array) -> None:
        if not all(self.memory.knows(agreement.run, theta) for theta in models):
            raise Refused("the model is none of those that the rounds asked about")

    @staticmethod
    def _unless(reason: str | None) -> None:
        if reason is not None:
            raise Refused(reason)

    @property
    def _mark(self) -> str:
        """What stands for the rows that take part: which of the table's they are."""
        return hashlib.sha256(self._kept[3].tobytes()).hexdigest()

    def _ended(self, agreement: Agreement, outcome: Outcome) -> Group:
        group = self.group(agreement)
        if outcome.theta.shape != (group.problem.size,):
            raise Refused("θ has another shape than the model agreed on")
        if self.memory.finished(agreement.run, outcome) is not None:
            raise Refused("this run has ended before, with another model")
        return group

    def _finish(self, agreement: Agreement, outcome: Outcome) -> Finished:
        group = self._ended(agreement, outcome)
        if self.done is not None:
            self.done(agreement, group, outcome, self.places(agreement))
        hidden = agreement.study.privacy
        if hidden.epsilon is not None or hidden.secure_sum:
            raise Refused("the study is private: a site's exact figures are not sent")
        self._asked(agreement, outcome.point)
        enough(group, Task(outcome.theta, outcome.lam), self.least)
        told = serving.finish(group, outcome.theta, agreement.target, hidden.least)[0]
        self._count(agreement, "finish", FINISHED, told, outcome.theta)
        return told

    def _certify(self, agreement: Agreement, outcome: Outcome, thin: int) -> Told:
        group = self._ended(agreement, outcome)
        self._unless(None if 1 <= thin <= MOST_ROUNDS else "is no question of this protocol")
        self._asked(agreement, outcome.point)
        told = serving.certify(group, outcome.theta, agreement, thin)[0]
        less = bound.shortened(told, *meaning.certificates(agreement, thin))
        # All of it is made of two numbers a row: its output, and its distance from the centre.
        sizes = [min(sum(part.size for part in one), 2 * len(group.rows)) for one in (told, less)]
        try:
            self._count(agreement, "certify", sizes[0], told, outcome.theta)
        except Refused:  # the same bound for one share of outliers alone
            if agreement.study.privacy.secure_sum:  # answers that are summed have one form
                raise
            self._count(agreement, "certify", sizes[1], less, outcome.theta)
            return less
        return told

    def _columns(self, agreement: Agreement) -> list[str]:
        """The columns agreed on; before that, those the study names, or all that are released."""
        study = agreement.study
        found = agreement.columns or study.columns.use or self.released
        return [column for column in found if column not in (study.data.label, study.data.client)]

    def rows(self, agreement: Agreement) -> pa.Table:
        """The rows that have a label that enough have, in the columns of the study."""
        names = [*self._columns(agreement), agreement.study.data.label]
        for name in names:
            if name not in self.table.column_names:
                raise Refused(f"column {name[:60]!r} is not in this site's table")
        missing, study = agreement.study.columns.missing, agreement.study
        support = self.limits.support(study)
        read_as = (study.data.task, missing, support, study.privacy.known and study.data.classes)
        if (names, read_as) != self._kept[:2]:
            columns = {name: cells.without(self.table.column(name), missing) for name in names}
            table = pa.table(columns)
            known = labels.usable(table.column(names[-1]), study, support)
            rows = table if known.all() else table.filter(pa.array(known))
            self._kept = (names, read_as, rows, np.flatnonzero(known))
        return self._kept[2]

    def places(self, agreement: Agreement) -> Array:
        """Where the rows that take part are in the table."""
        self.rows(agreement)
        return np.asarray(self._kept[3])

    def _features(self, agreement: Agreement) -> tuple[Array, Array]:
        return serving.features(self.rows(agreement), agreement)
