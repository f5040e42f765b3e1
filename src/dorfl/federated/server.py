"""The server's side: pure functions that turn reports into the next broadcast.

What a server receives is untrusted: :func:`refuse` says what is wrong with a report before anything
uses it; of a report whose curvature alone is wrong, the rest is used. A client that does not
answer, or whose report is refused, is represented by its last good report, extended along its
gradient to the new θ: by convexity never more than its true risk.

With a :class:`~dorfl.federated.defence.Defence` reports are also clipped to what honest ones can
be, and a client whose reports contradict each other is left out from then on. It is represented by
the mean of the others, which pulls at no mixture: the mean is never above the worst. The same goes
for clients that pull apart from the others (:mod:`~dorfl.federated.apart`), where some may lie.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from dorfl.federated import apart
from dorfl.federated import defence as defending
from dorfl.federated.apart import Doubt
from dorfl.federated.defence import Defence
from dorfl.federated.gathering import gathered
from dorfl.federated.messages import Broadcast, Report
from dorfl.linear import curvature
from dorfl.linear.curvature import RESOLUTIONS, Shape
from dorfl.solvers.base import Answers, Info, Solver, Task
from dorfl.support.threads import one_blas_thread
from dorfl.support.types import Array

_STIFFEST = 1e3  # times the median client's curvature
_OFTEN = 2  # times that a curvature is cut down before no more of the client's is used
_LARGEST = 1e20  # no risk is as large; squares of its squares must not overflow
_LOOKS = 6  # suspicions that are looked into
_HARM = 0.02  # of the objective: what the others lose by those who pull apart
_STIFF = "clipped: curvature far beyond that of others"
_UNBENT = "left out: its curvature could not be true more than once; the mean of the others is used"
_EXPOSED = "contradicts its own earlier report: no one set of rows gives both; left out"


class Server(NamedTuple):
    """All a server carries from one round to the next."""

    rows: dict[str, int]  # the roster, in its order: every client's n_i as first announced
    solver: Solver
    solving: Any  # the solver's own state
    round: int = 1
    last: dict[str, tuple[Task, Report]] = {}  # noqa: RUF012 - replaced, never changed in place
    defence: Defence | None = None
    exposed: tuple[str, ...] = ()  # clients caught lying
    stiffest: float = np.inf  # no curvature is believed beyond
    budget: int | None = None  # the last round there is
    doubt: Doubt = Doubt()
    shown: Info | None = None  # by the last round that somebody answered
    bent: dict[str, int] = {}  # noqa: RUF012 - how often a client's curvature was cut down

    @property
    def roster(self) -> tuple[str, ...]:
        """The clients' names, in the order all sums are taken in."""
        return tuple(self.rows)


class Heard(NamedTuple):
    """Who answered a round, which reports were refused for what, which were cut down; bytes."""

    answered: tuple[str, ...]
    refused: dict[str, str]
    clipped: dict[str, str] = {}  # noqa: RUF012 - never changed in place
    bytes_up: int = 0  # of all good reports
    bytes_down: int = 0  # to all of the roster

    @property
    def odd(self) -> bool:
        """Whether a report cannot be true. A stiff curvature is no sign: rows may be far out."""
        stiff = (_STIFF, _UNBENT)
        return bool(self.refused) or any(why not in stiff for why in self.clipped.values())


def broadcast(server: Server) -> Broadcast:
    """What to send to every client now."""
    return Broadcast(server.round, server.solver.ask(server.solving))


def receive(
    server: Server, reports: Iterable[Report], *, stands: bool = False
) -> tuple[Server, Info, Heard]:
    """One round's reports into the next state. The order they came in makes no difference.

    `stands` says that a report is the sum of several, of which some told no curvature.
    """
    sent = broadcast(server)
    good, refused, unused = _sift(server, sent, reports)
    last = dict(server.last)
    caught = [name for name, report in good.items() if _is_exposed(server, sent.task, report)]
    for name in caught:
        refused[name] = _EXPOSED
        del good[name]
    for name, report in good.items():
        packed = report.curvature  # not asked for, it is not looked at: the last one stays
        if sent.task.curvature == "none":
            packed = last[name][1].curvature if name in last else None
        last[name] = (sent.task, report._replace(curvature=packed))
    silent = [name for name in server.roster if name not in last]
    if silent:
        because = f": {refused[silent[0]]}" if silent[0] in refused else ""
        raise ValueError(
            f"client {silent[0]!r} has sent no usable report yet{because}; "
            "every client must answer once before training can go on without it"
        )
    server = server._replace(last=last, exposed=(*server.exposed, *caught))
    if len(server.exposed) == len(server.rows):
        raise ValueError("every client's reports contradict each other; nobody is left to train on")
    shape = server.solving.setting.shape
    # Where ρ is unknown too, everybody's curvature goes with 1/ρ: there it is looked up every time.
    if sent.task.curvature != "none" and (np.isinf(server.stiffest) or shape.others):
        heard = (report for _, report in last.values())
        server = server._replace(stiffest=_stiffest(shape, heard))
    answers, clipped = _answers(server, sent.task)
    away = len(server.rows) - len(server.exposed) - len(good)
    answers = answers._replace(stands=answers.stands or stands, own=away == 0)
    off = {name for name in good if clipped.get(name) == _STIFF}
    bent = {name: server.bent.get(name, 0) + (name in off) for name in off | server.bent.keys()}
    server = server._replace(bent=bent)
    # absurd reports may overflow, and solvers look at results; bits must not depend on threads
    with np.errstate(over="ignore", invalid="ignore"), one_blas_thread():
        solving, info = server.solver.update(server.solving, answers)
    if caught:  # what the solver has learnt, it has learnt from lies too: it starts anew from here
        solving = server.solver.init(server.solving.setting, info.theta, info.lam)
        info = info._replace(done="")
    if server.doubt.most and (info.done or (sent.round == 1 and server.doubt.leave)):
        server, solving, info = _doubted(server, solving, info, sent.task)
    clipped.update({name: why for name, why in server.doubt.aside.items() if name in good})
    server = server._replace(solving=solving, round=server.round + 1)
    if info.done == "converged" and away:
        info = info._replace(done="")  # a stand-in is a lower bound: it cannot show convergence
    if not good and server.shown is not None:  # the next θ is another, but nothing was shown
        info = server.shown._replace(done="")
    info = info._replace(done=info.done or _over(server, sent.round, info))
    server = server._replace(shown=info)
    up = sum(report.bytes for report in good.values())
    clipped = {**{name: unused[name] for name in good if name in unused}, **clipped}
    return server, info, Heard(tuple(good), refused, clipped, up, sent.bytes * len(server.rows))


def _doubted(server: Server, solving: Any, info: Info, task: Task) -> tuple[Server, Any, Info]:
    """Look for clients that pull apart where training would end, and go on without them if so told.

    The solver starts anew from there, a few times at most: where now these and now those pull
    apart, or where nobody is to be left out and the others lose by it, θ is "contested".
    """
    doubt, setting = server.doubt, server.solving.setting
    names = [name for name in server.roster if name not in server.exposed]
    most = min(doubt.most - len(server.exposed), len(names) - 3)
    if len(doubt.aside) > max(most, 0):  # who was exposed since is one of those who may lie
        doubt = doubt._replace(aside={}, cleared=(*doubt.cleared, tuple(doubt.aside)))
        solving = server.solver.init(setting, info.theta, info.lam)
        return server._replace(doubt=doubt), solving, info._replace(done="")
    if most < 1 or (not doubt.aside and len(doubt.cleared) >= _LOOKS):
        return server, solving, info
    heard = [server.last[name][1] for name in names]
    bends, _ = gathered(setting.shape, [report.curvature for report in heard])
    vectors = np.array([report.vector for report in heard])
    plain = Answers(vectors[:, 0], vectors, bends)
    _, vectors, bends = setting.regularised(task.theta, plain)[:3]
    rows = np.array([server.rows[name] for name in names])
    told = apart.pulls(vectors, bends, setting.shape, rows, most)
    trying = tuple(names.index(name) for name in doubt.aside if name in names)
    cleared = [tuple(names.index(n) for n in some if n in names) for some in doubt.cleared]
    found = told.without(trying) if trying else apart.find(told, most, cleared)
    if trying and found.sure:  # unless others pull further apart: some honest clients do so too
        other = apart.find(told, most, [*cleared, trying])
        if other.sure and min(other.times) > min(found.times):
            doubt = doubt._replace(cleared=(*doubt.cleared, tuple(doubt.aside)), aside={})
            found, trying = other, ()
    words = "set aside: pulls" if doubt.leave else "pulls"
    aside = {
        names[i]: f"{words} {times:.0f} times as far away as others do"
        for i, times in zip(found.who, found.times, strict=True)
    }
    if not doubt.leave:
        if not found.sure or found.harm < _HARM * abs(info.objective):
            return server, solving, info
        server = server._replace(doubt=doubt._replace(aside=aside))
        return server, solving, info._replace(done="contested")
    if found.sure if trying else not aside:
        return server._replace(doubt=doubt._replace(aside=aside)), solving, info
    if trying:
        doubt = doubt._replace(cleared=(*doubt.cleared, tuple(doubt.aside)))
        aside = {}
    server = server._replace(doubt=doubt._replace(aside=aside))
    solving = server.solver.init(setting, info.theta, info.lam)
    return server, solving, info._replace(done="")


def _over(server: Server, number: int, info: Info) -> str:
    """Why to stop after this round although the solver is not done, if so."""
    limit = server.solving.setting.separable
    if limit is not None and (info.risks < limit).all():
        return "separable"
    return "budget" if server.budget is not None and number >= server.budget else ""


def refuse(server: Server, sent: Broadcast, report: Any) -> str | None:
    """Why a report cannot be used, or nothing. It looks at types before it touches a value."""
    if type(report) is not Report:
        return "is not a report"
    if type(report.client) is not str or report.client not in server.rows:
        return "not on the roster"
    if type(report.round) is not int or report.round != sent.round:
        return f"does not answer round {sent.round}"
    if type(report.rows) is not int or report.rows != server.rows[report.client]:
        return "announces another number of rows than before"
    if type(report.value) is not float or not math.isfinite(report.value):
        return "its risk is not a finite number"
    if abs(report.value) > _LARGEST:
        return "its risk is too large to compute with"
    reason = _refuse_vector("vector", report.vector, sent.task.theta.shape)
    if reason is None and sent.task.curvature != "none" and report.curvature is not None:
        reason = _refuse_curvature(server.solving.setting.shape, sent.task, report.curvature)
    return reason


def _refuse_curvature(shape: Shape, task: Task, packed: Any) -> str | None:
    """A client may answer at a coarser resolution than it was asked for, not at a finer one."""
    allowed = RESOLUTIONS[1 : RESOLUTIONS.index(task.curvature) + 1]
    found = shape.resolution(packed.size) if type(packed) is np.ndarray else None
    if found in (None, "none") or packed.size > max(map(shape.numbers, allowed)):
        return "its curvature has the wrong shape"
    reason = _refuse_vector("curvature", packed, (packed.size,), curvature.precision(packed.size))
    if reason is None and not curvature.is_plausible(packed, shape.sizes(found)):
        reason = "its curvature is not that of a convex risk"
    return reason


def _refuse_vector(
    what: str, vector: Any, shape: tuple[int, ...], dtype: Any = np.float64
) -> str | None:
    if type(vector) is not np.ndarray or vector.shape != shape:
        return f"its {what} has the wrong shape"
    if vector.dtype != dtype:
        return f"its {what} is not made of finite numbers"
    # No copy is made of what may be large; both ends are NaN where one number is.
    ends = vector.min(initial=0.0), vector.max(initial=0.0)
    if not np.isfinite(ends).all():
        return f"its {what} is not made of finite numbers"
    if np.abs(ends).max() > _LARGEST:
        return f"its {what} is too large to compute with"
    return None


def _sift(
    server: Server, sent: Broadcast, reports: Iterable[Report]
) -> tuple[dict[str, Report], dict[str, str], dict[str, str]]:
    """The usable reports in the roster's order, why others are not, and why a curvature is not."""
    good: dict[str, Report] = {}
    refused: dict[str, str] = {}
    unused: dict[str, str] = {}
    differing = set()
    for told in reports:
        report, reason = told, refuse(server, sent, told)
        if reason is not None and refuse(server, sent, bare(told)) is None:
            unused[told.client] = f"{reason}: left out; the mean of the others is used"
            report, reason = bare(told), None
        if reason is not None:
            name = _name(report)
            refused[name] = max(reason, refused.get(name, ""))
        elif report.client in server.exposed:
            refused[report.client] = _EXPOSED
        elif report.client not in good:
            good[report.client] = report
        elif _same(good[report.client], report):
            refused[report.client] = "answered twice"
        else:
            refused[report.client] = "answered twice, differently"
            differing.add(report.client)
    used = {name: good[name] for name in server.rows if name in good and name not in differing}
    return used, dict(sorted(refused.items())), unused


def bare(report: Any) -> Any:
    """A report without its curvature: training goes on with less."""
    return report._replace(curvature=None) if type(report) is Report else report


def _name(report: Any) -> str:
    """What to call the sender of a report that may be anything."""
    named = type(report) is Report and type(report.client) is str
    return report.client[:60] if named else "?"


def _same(one: Report, other: Report) -> bool:
    if one.value != other.value or not np.array_equal(one.vector, other.vector):
        return False
    if one.curvature is None or other.curvature is None:
        return one.curvature is other.curvature
    return np.array_equal(one.curvature, other.curvature)


def _is_exposed(server: Server, task: Task, report: Report) -> bool:
    if server.defence is None or report.client not in server.last:
        return False
    return defending.contradicts(server.defence, server.last[report.client], (task, report))


def _answers(server: Server, task: Task) -> tuple[Answers, dict[str, str]]:
    """The last good reports in the roster's order, brought to the present θ and within bounds."""
    clipped: dict[str, str] = {}
    used = [_brought_to(task, *server.last[name]) for name in server.roster]
    for i, report in enumerate(used if task.curvature != "none" else ()):
        packed, shape = report.curvature, server.solving.setting.shape
        if packed is not None and packed.max(initial=0.0) > server.stiffest:
            packed = curvature.limited(packed, shape.sizes_of(packed), server.stiffest)
            used[i] = report._replace(curvature=packed)
            if report.client not in server.exposed:
                clipped[report.client] = _STIFF
    if server.defence is not None:
        for i, report in enumerate(used):
            limit = defending.bounds(server.defence, report.client, task)
            used[i], words = defending.clip(limit, report)
            if words and report.client not in server.exposed:
                clipped[report.client] = words
    bends, stands = None, False
    if task.curvature != "none":
        bends, stands, left = _bends(server, used)
        clipped.update(dict.fromkeys(left, _UNBENT))
    answers = Answers(
        np.array([report.value for report in used]),
        np.array([report.vector for report in used]),
        bends,
        stands,
    )
    return _without(server, answers), clipped


def _bends(server: Server, used: list[Report]) -> tuple[Array | None, bool, list[str]]:
    """Everyone's curvature, whether some of it stands in, and whose was cut down too often."""
    shape = server.solving.setting.shape
    off = [server.bent.get(report.client, 0) >= _OFTEN for report in used]
    if all(off):
        off = [False] * len(used)
    told = [None if bad else report.curvature for report, bad in zip(used, off, strict=True)]
    out = [report.client for report, bad in zip(used, off, strict=True) if bad]
    return *gathered(shape, told), out


def _stiffest(shape: Shape, reports: Iterable[Report]) -> float:
    """A thousand times the median client's curvature, the first time that they tell of it.

    A lie beyond would end training: no step looks worth its while to a model that stiff, and that
    no step is worth taking is what "converged" means.
    """
    packed = [report.curvature for report in reports if report.curvature is not None]
    most = sorted(float(curvature.diagonal(one, shape.sizes_of(one)).max()) for one in packed)
    middle = most[(len(most) - 1) // 2] if most else 0.0
    return _STIFFEST * middle if middle > 0.0 else np.inf


def _without(server: Server, answers: Answers) -> Answers:
    """The answers with the mean of the others in the place of every client left out."""
    doubt = server.doubt
    gone = (*server.exposed, *(doubt.aside if doubt.leave else ()))
    if not gone:
        return answers
    out = np.isin(server.roster, gone)

    def level(array: Array) -> Array:
        array = array.copy()
        array[out] = array[~out].mean(axis=0)
        return array

    bends = None if answers.curvature is None else level(answers.curvature)
    return answers._replace(
        values=level(answers.values), vectors=level(answers.vectors), curvature=bends
    )


def _brought_to(task: Task, asked: Task, report: Report) -> Report:
    if asked is task or task.kind != "evaluate":
        return report
    if asked.kind != "evaluate":
        raise ValueError(
            f"client {report.client!r} has not answered; there is nothing to stand in for it"
        )
    return report._replace(value=report.value + float(report.vector @ (task.theta - asked.theta)))
