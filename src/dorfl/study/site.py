"""A site's side: rows stay here; what the coordinator asks is checked before it is answered.

A site answers only for columns it has released, never from fewer rows than its own minimum, and
only questions of this protocol: the coordinator sends numbers and names, never code. The reason a
site gives for not answering is written by us and holds no value; other errors stay in its own log.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

import dorfl
from dorfl.data import preprocessing, spread, validation
from dorfl.data.preprocessing import Plan, cells, summaries
from dorfl.data.preprocessing import columns as reading
from dorfl.data.preprocessing.sketch import Sketch
from dorfl.federation import training
from dorfl.federation.client import TooFewError, enough, respond
from dorfl.federation.messages import Broadcast, Report
from dorfl.guarantees.bound import Told
from dorfl.oracle.curvature import RESOLUTIONS, coarser
from dorfl.oracle.group import Group
from dorfl.solvers.base import Task
from dorfl.study import labels, meaning, serving
from dorfl.study.memory import Memory
from dorfl.study.messages import (
    Agreement,
    Answer,
    Columns,
    Enrolled,
    Finished,
    Outcome,
    Refusal,
    Reply,
    Request,
    Spreads,
)
from dorfl.support import wire
from dorfl.support.types import Array

MOST_ROUNDS = 10_000
_KINDS = ("evaluate", "local")


class Refused(Exception):  # noqa: N818 - a decision, not an error
    """What is asked cannot be answered; the text holds no value and may be sent."""


@dataclass
class Site:
    """One site: its table, what of it is released, and what it has been asked so far.

    `least` is the site's own lower bound on rows behind a statistic. `done(agreement, group,
    outcome, places)` is called with a finished model, and where each of the group's rows is in the
    table; what it makes of them stays at the site. `secret` is where the noise of differential
    privacy comes from; kept from one start to the next, a question asked again gets the same noise.
    """

    name: str
    table: Any
    released: tuple[str, ...] | None = None  # none named: all columns of the table
    least: int = 5
    done: Callable[[Agreement, Group, Outcome, Array], object] | None = None
    note: Callable[[str], object] = lambda _: None
    told: Callable[[Request, bytes], object] = lambda *_: None  # what was answered
    memory: Memory = field(default_factory=Memory)
    epsilon: float | None = None  # the most a study may let a row show in a run; nothing: any
    curvature: str = "full"  # the finest that is told of ∇²F, whatever is asked for
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _groups: dict[str, Group] = field(default_factory=dict)
    _kept: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.table = reading.table_of(self.table)
        if self.curvature not in RESOLUTIONS:
            listed = ", ".join(RESOLUTIONS)
            raise ValueError(f"curvature={self.curvature!r}: choose one of {listed}")
        if self.released is None:
            self.released = tuple(self.table.column_names)

    def respond(self, data: bytes) -> bytes:
        """The reply to a request, whatever the request is."""
        run, step = "", ""
        try:
            request = wire.decode(data, Request)
            run, step = request.agreement.run, request.step
            answer: Answer = self.answer(request)
        except (Refused, TooFewError) as refusal:
            answer = Refusal(str(refusal))
        except Exception as error:  # whatever is asked, the site stays up
            self.note(f"{step or 'request'}: {type(error).__name__}: {error}")
            answer = Refusal("what was asked does not fit this site; its own log says why")
        if isinstance(answer, Refusal):
            self.note(f"refused {step or 'a request'}: {answer.reason}")
        reply = wire.encode(Reply(run, self.name, step, answer))
        if not isinstance(answer, Refusal):
            self.told(request, reply)
        return reply

    def answer(self, request: Request) -> Answer:
        """The answer to a request; Refused or ValueError if there is none."""
        agreement, step = request.agreement, request.step
        self.consent(agreement)
        refined = "" if agreement.scatter is None else "refined "
        odd = self.memory.agreed(refined + step[:20], agreement)
        if odd == "table":
            raise Refused("this site's table has changed since the run began")
        if odd is not None:
            raise Refused(f"the {odd} is not what this run said before")
        rows, study = self._rows(agreement), agreement.study
        if step == "enrol":
            return Enrolled(rows.num_rows, tuple(self._columns(agreement)), dorfl.__version__)
        if step == "columns":
            label = rows.column(study.data.label)
            return Columns(
                preprocessing.summarise(rows.select(agreement.columns), meaning.plan_of(study)),
                labels.summarise(label, study),
            )
        if agreement.transform is None:
            raise Refused(f"step {step[:20]!r} comes before the columns are agreed on")
        if step == "spreads":
            told, target = None, agreement.target
            if target is not None:
                plan = Plan(least=study.privacy.least)
                told = summaries.deviation(rows.column(study.data.label), target, plan)
            spreads = preprocessing.deviations(rows, agreement.transform, meaning.plan_of(study))
            return Spreads(spreads, told)
        if step == "center" and meaning.asks_where(study):
            return serving.place(*self._features(agreement), agreement)
        if step == "edge" and agreement.spread is not None and agreement.center is not None:
            X, _ = self._features(agreement)
            return spread.distances(
                X, self._centered(agreement), meaning.shape_of(agreement), study.privacy.least
            )
        if step == "round" and request.broadcast is not None:
            return self._report(agreement, request.broadcast)
        if step == "residuals" and request.outcome is not None and agreement.scatter is None:
            return self._residuals(agreement, request.outcome)
        if step == "finish" and request.outcome is not None:
            return self._finish(agreement, request.outcome)
        if step == "certify" and request.outcome is not None and meaning.certifies(study):
            return self._certify(agreement, request.outcome, request.thin)
        raise Refused("is no question of this protocol")

    def consent(self, agreement: Agreement) -> None:
        """Raise Refused where the study asks for what this site does not give."""
        study = agreement.study
        if not re.fullmatch(r"\w[\w.-]{0,119}", agreement.run):
            raise Refused("the run's name is not one that a folder can have")
        if agreement.site != self.name:
            raise Refused(
                f"the key of this site is registered for {agreement.site[:60]!r}, "
                f"but the site is called {self.name!r}"
            )
        try:
            meaning.check(study)
        except ValueError as error:
            raise Refused(f"the study cannot be run: {error}") from None
        assert self.released is not None
        wanted = (study.data.label, *study.columns.use, *agreement.columns)
        for column in wanted:
            if column not in self.released:
                raise Refused(f"column {column[:60]!r} is not released by this site")
        if agreement.transform is not None:
            used = {part.name for part in agreement.transform.parts}
            if not used <= set(agreement.columns):
                raise Refused("the transformation uses columns that were not agreed on")
        shown = study.privacy.epsilon
        if self.epsilon is not None and (shown is None or shown > self.epsilon):
            raise Refused(
                f"this site takes part with differential privacy of ε ≤ {self.epsilon:g} only"
            )
        if study.privacy.least < self.least:
            raise Refused(
                f"the study would tell of groups of {study.privacy.least} rows; "
                f"this site tells of {self.least} at least"
            )
        if self._rows(agreement).num_rows < max(study.privacy.minimum_rows, self.least):
            raise Refused("has fewer rows than the study's minimum")

    def group(self, agreement: Agreement) -> Group:
        """The site's rows as the agreed model sees them; made once for each agreement."""
        key = hashlib.sha256(wire.encode(agreement)).hexdigest()
        if key not in self._groups:
            checked = validation.clients({self.name: self._features(agreement)})
            center = self._centered(agreement)[None]
            self._groups = {key: training.stack(meaning.problem_of(agreement), checked, center)}
        return self._groups[key]

    def _centered(self, agreement: Agreement) -> Array:
        """The site's ξ̄, which may be anything where there is no score."""
        assert agreement.transform is not None
        dims = len(agreement.transform.names)
        spread, center = agreement.spread, agreement.center
        if center is None:
            center = np.zeros(dims)
        if center.shape != (dims,) or (spread is not None and spread.units.shape != (dims,)):
            raise Refused("centre and spread do not fit the columns agreed on")
        return center

    def _report(self, agreement: Agreement, sent: Broadcast) -> Report:
        group, task = self.group(agreement), sent.task
        size = group.problem.size + group.problem.constrained
        if task.theta.shape != (size,) or task.theta.dtype != np.float64:
            raise Refused("θ has another shape than the model agreed on")
        known = task.kind in _KINDS and task.curvature in RESOLUTIONS
        if not known or not 1 <= task.steps <= 1000:
            raise Refused("the task is none that this site takes on")
        if task.batch is not None and task.batch < self.least:
            raise Refused(
                f"a batch of {task.batch} rows would show them; {self.least} is the least"
            )
        if not 1 <= sent.round <= MOST_ROUNDS:
            raise Refused("the round's number is out of range")
        # The same question may come again (a coordinator that restarted); another one under a
        # number that was used, or an earlier one that was not, is no part of a training.
        odd = self.memory.asked(agreement.run, sent)
        if odd is not None:
            raise Refused(odd)
        study = agreement.study
        if study.privacy.epsilon is None:
            allowed = coarser(task.curvature, self.curvature)
            sent = sent._replace(task=task._replace(curvature=allowed))
        seed = int.from_bytes(hashlib.sha256(self.secret + agreement.run.encode()).digest())
        noise = meaning.mechanism_of(study, seed)
        told = respond(group, sent, study.training.seed, noise, self.least, strict=noise is None)
        if told[0].curvature is None and sent.task.curvature != "none" and group.problem.bends:
            self.note(f"round {sent.round}: a few rows make up the curvature; it is left out")
        return told[0]

    def _residuals(self, agreement: Agreement, outcome: Outcome) -> Sketch:
        group = self.group(agreement)
        if not meaning.refines(agreement.study, group.problem):
            raise Refused("is no question of this protocol")
        if outcome.theta.shape != (group.problem.size,):
            raise Refused("θ has another shape than the model agreed on")
        out = serving.outputs(group.problem, outcome.theta, group.rows)
        return spread.residuals(out, group.target, agreement.study.privacy.least)

    def _finish(self, agreement: Agreement, outcome: Outcome) -> Finished:
        group = self.group(agreement)
        if outcome.theta.shape != (group.problem.size,):
            raise Refused("θ has another shape than the model agreed on")
        if self.memory.finished(agreement.run, outcome) is not None:
            raise Refused("this run has ended before, with another model")
        if self.done is not None:
            self._rows(agreement)
            self.done(agreement, group, outcome, self._kept[3])
        if agreement.study.privacy.epsilon is not None:
            raise Refused("the study is differentially private: exact figures are not sent")
        enough(group, Task(outcome.theta, outcome.lam), self.least)
        return serving.finish(
            group, outcome.theta, agreement.target, agreement.study.privacy.least
        )[0]

    def _certify(self, agreement: Agreement, outcome: Outcome, thin: int) -> Told:
        group = self.group(agreement)
        if outcome.theta.shape != (group.problem.size,) or not 1 <= thin <= MOST_ROUNDS:
            raise Refused("θ has another shape than the model agreed on")
        if self.memory.finished(agreement.run, outcome) is not None:
            raise Refused("this run has ended before, with another model")
        return serving.certify(group, outcome.theta, agreement, thin)[0]

    def _columns(self, agreement: Agreement) -> list[str]:
        """The columns agreed on; before that, those the study names, or all that are released."""
        study = agreement.study
        assert self.released is not None
        found = agreement.columns or study.columns.use or self.released
        return [column for column in found if column not in (study.data.label, study.data.client)]

    def _rows(self, agreement: Agreement) -> pa.Table:
        """The rows that have a label, in the columns of the study."""
        names = [*self._columns(agreement), agreement.study.data.label]
        for name in names:
            if name not in self.table.column_names:
                raise Refused(f"column {name[:60]!r} is not in this site's table")
        missing = agreement.study.columns.missing
        read_as = (agreement.study.data.task, missing)
        if (names, read_as) != self._kept[:2]:
            columns = {name: cells.without(self.table.column(name), missing) for name in names}
            table = pa.table(columns)
            known = labels.known(table.column(names[-1]), agreement.study)
            rows = table if known.all() else table.filter(pa.array(known))
            self._kept = (names, read_as, rows, np.flatnonzero(known))
        return self._kept[2]

    def _features(self, agreement: Agreement) -> tuple[Array, Array]:
        assert agreement.transform is not None
        rows, name = self._rows(agreement), agreement.study.data.label
        try:
            y, _ = labels.encode(rows.column(name), name, agreement.classes, agreement.target)
        except labels.UnknownClassError:
            raise Refused(
                "some rows have a label that is not among the study's classes; name them all: "
                "[data] classes = [...]"
            ) from None
        loss = meaning.loss_of(agreement.study, len(agreement.classes))
        return agreement.transform.apply(
            rows, meaning.dtype_of(agreement.study)
        ).X, labels.for_training(y, loss)
