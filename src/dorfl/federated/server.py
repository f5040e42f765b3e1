"""Server side: pure functions that turn reports into the next broadcast.

Reports are untrusted: :func:`refuse` validates each before it is used; if only the curvature is
invalid, the rest is used. For a client that does not reply, or whose report is refused, its last
valid report is extrapolated along its gradient to the new θ, which by convexity is a lower bound of
its risk.

With :class:`~dorfl.federated.report_bounds.ReportBounds`, reports are also clipped to the bounds of
honest ones, and clients whose reports contradict each other are left out. The mean of the others
replaces them, which does not change the worst mixture. Clients with outlying gradients are treated
alike (:mod:`~dorfl.federated.byzantine`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dorfl.federated import byzantine, report_bounds
from dorfl.federated.byzantine import Detection
from dorfl.federated.curvature_imputation import impute
from dorfl.federated.messages import Broadcast, Report
from dorfl.federated.report_bounds import ReportBounds
from dorfl.linear import curvature
from dorfl.linear.curvature import RESOLUTIONS, Shape
from dorfl.solvers.base import Answers, Info, Solver, Task
from dorfl.support.threads import one_blas_thread
from dorfl.support.types import Array

_MAX_CURVATURE = 1e3  # times the median client's curvature
_MAX_CLIPPED = 2  # rounds in which a curvature is clipped before it is ignored
_LARGEST = 1e20  # of a number in a report; its fourth power must not overflow
_MAX_TESTS = 6  # sets of clients that are tested
_HARM = 0.02  # share of the objective that outlying clients must cost the others
_CLIPPED_CURVATURE = "clipped: curvature far beyond that of others"
_IGNORED_CURVATURE = (
    "left out: its curvature was implausible more than once; the mean of the others is used"
)
_CONTRADICTS = "contradicts its own earlier report: no set of rows gives both; left out"


class Server(NamedTuple):
    """State of the server between rounds."""

    rows: dict[str, int]  # number of rows of every client, in the order of the clients
    solver: Solver
    solving: Any  # state of the solver
    round: int = 1  # number of the next round
    last: Mapping[str, tuple[Task, Report]] = {}  # last valid report of every client, with its task
    defence: ReportBounds | None = None  # parameters of the bounds of reports
    exposed: tuple[str, ...] = ()  # clients whose reports contradict each other
    stiffest: float = np.inf  # largest plausible entry of the diagonal of a curvature
    budget: int | None = None  # last round
    detection: Detection = Detection()  # detection of Byzantine clients
    shown: Info | None = None  # results of the last round in which a client replied
    # for each client, rounds in which its curvature was clipped
    clipped_before: Mapping[str, int] = {}

    @property
    def clients(self) -> tuple[str, ...]:
        """Return the clients' names, in the order of all sums."""
        return tuple(self.rows)


class Receipt(NamedTuple):
    """Reports of a round."""

    answered: tuple[str, ...]  # clients whose reports were used
    refused: dict[str, str]  # for each client whose report was refused, the reason
    clipped: Mapping[str, str] = {}  # for each client whose report was clipped, the reason
    bytes_up: int = 0  # of numbers in the reports used
    bytes_down: int = 0  # of numbers in the broadcasts to all clients

    @property
    def odd(self) -> bool:
        """Return whether a report is implausible; a large curvature is not."""
        plausible = (_CLIPPED_CURVATURE, _IGNORED_CURVATURE)
        return bool(self.refused) or any(why not in plausible for why in self.clipped.values())


def broadcast(server: Server) -> Broadcast:
    """Return the request of this round, the same for every client."""
    return Broadcast(server.round, server.solver.ask(server.solving))


def receive(
    server: Server, reports: Iterable[Report], *, imputed: bool = False
) -> tuple[Server, Info, Receipt]:
    """Process the reports of a round: return the next state, the solver's results and the receipt.

    Reports come in any order. One that is a sum in which some curvature is imputed is `imputed`. A
    ValueError says that a client has sent no valid report yet, or that all contradict themselves.
    """
    sent = broadcast(server)
    good, refused, unused = _sift(server, sent, reports)
    server, contradicting = _note_reports(server, sent.task, good, refused)
    server = _limit_curvature(server, sent.task)
    answers, clipped = _answers(server, sent.task)
    server = _count_clipped(server, good, clipped)
    complete = len(good) == len(server.rows) - len(server.exposed)
    answers = answers._replace(stands=answers.stands or imputed, own=complete)
    solving, info = _update_solver(server, answers, restart=bool(contradicting))
    server, solving, info = _detect(server, solving, info, sent)
    info = _conclude(server, sent.round, info, bool(good), complete)
    outlying = {name: why for name, why in server.detection.outlying.items() if name in good}
    without_curvature = {name: unused[name] for name in good if name in unused}
    receipt = Receipt(
        tuple(good),
        refused,
        {**without_curvature, **clipped, **outlying},
        sum(report.bytes for report in good.values()),
        sent.bytes * len(server.rows),
    )
    return server._replace(solving=solving, round=server.round + 1, shown=info), info, receipt


def _note_reports(
    server: Server, task: Task, good: dict[str, Report], refused: dict[str, str]
) -> tuple[Server, list[str]]:
    """Return the server with its clients' last reports, and clients that contradict themselves.

    These move from `good` to `refused`. A ValueError says that no training is possible.
    """
    last = dict(server.last)
    caught = [name for name, report in good.items() if _is_exposed(server, task, report)]
    for name in caught:
        refused[name] = _CONTRADICTS
        del good[name]
    for name, report in good.items():
        packed = report.curvature  # ignored unless requested: the last one is kept
        if task.curvature == "none":
            packed = last[name][1].curvature if name in last else None
        last[name] = (task, report._replace(curvature=packed))
    silent = [name for name in server.clients if name not in last]
    if silent:
        because = f": {refused[silent[0]]}" if silent[0] in refused else ""
        raise ValueError(
            f"client {silent[0]!r} has sent no usable report yet{because}; "
            "every client must answer once before training can go on without it"
        )
    server = server._replace(last=last, exposed=(*server.exposed, *caught))
    if len(server.exposed) == len(server.rows):
        raise ValueError(
            "every client's reports contradict each other; no client is left to train on"
        )
    return server, caught


def _limit_curvature(server: Server, task: Task) -> Server:
    """Return the server with the largest plausible diagonal entry of a curvature.

    It is 1,000 times the median client's largest: a false curvature beyond it would make every step
    look useless, and so end training as "converged".
    """
    shape = server.solving.setting.shape
    # If ρ is estimated, curvatures scale with 1/ρ, and the limit is computed in every round.
    if task.curvature == "none" or not (np.isinf(server.stiffest) or shape.others):
        return server
    packed = [report.curvature for _, report in server.last.values()]
    most = sorted(
        float(curvature.diagonal(one, shape.sizes_of(one)).max())
        for one in packed
        if one is not None
    )
    median = most[(len(most) - 1) // 2] if most else 0.0
    return server._replace(stiffest=_MAX_CURVATURE * median if median > 0.0 else np.inf)


def _count_clipped(
    server: Server, good: Mapping[str, Report], clipped: Mapping[str, str]
) -> Server:
    """Return the server with one more round for clients whose curvature was clipped."""
    before = dict(server.clipped_before)
    for name in good:
        if clipped.get(name) == _CLIPPED_CURVATURE:
            before[name] = before.get(name, 0) + 1
    return server._replace(clipped_before=before)


def _update_solver(server: Server, answers: Answers, restart: bool) -> tuple[Any, Info]:
    """Return the solver's next state and its results.

    It starts again from there if a client contradicts itself: its model has false reports in it.
    """
    # Implausible reports may overflow, which solvers handle; bits must not depend on threads.
    with np.errstate(over="ignore", invalid="ignore"), one_blas_thread():
        solving, info = server.solver.update(server.solving, answers)
    if restart:
        _, solving, info = _restart(server, info)
    return solving, info


def _restart(server: Server, info: Info) -> tuple[Server, Any, Info]:
    """Let the solver start again from its results."""
    solving = server.solver.init(server.solving.setting, info.theta, info.lam)
    return server, solving, info._replace(done="")


def _detect(server: Server, solving: Any, info: Info, sent: Broadcast) -> tuple[Server, Any, Info]:
    """Detect clients with outlying gradients where training would end, and maybe leave them out.

    The solver then starts again from there, a few times at most. θ is "contested" if clients with
    outlying gradients are not to be left out and cost the others too much.
    """
    detection = server.detection
    if not detection.most or not (info.done or (sent.round == 1 and detection.leave)):
        return server, solving, info
    names = [name for name in server.clients if name not in server.exposed]
    most = min(detection.most - len(server.exposed), len(names) - 3)
    if len(detection.outlying) > max(most, 0):  # an exposed client counts as Byzantine
        return _restart(server._replace(detection=detection.clear()), info)
    if most < 1 or (not detection.outlying and len(detection.cleared) >= _MAX_TESTS):
        return server, solving, info
    gradients = _gradients(server, names, sent.task, most)
    trying = tuple(names.index(name) for name in detection.outlying if name in names)
    cleared = [tuple(names.index(n) for n in some if n in names) for some in detection.cleared]
    found = gradients.without(trying) if trying else byzantine.find(gradients, most, cleared)
    if trying and found.sure:  # unless other clients are farther out
        other = byzantine.find(gradients, most, [*cleared, trying])
        if other.sure and min(other.times) > min(found.times):
            detection = detection.clear()
            found, trying = other, ()
    action = "left out: gradient" if detection.leave else "has a gradient"
    outlying = {
        names[i]: f"{action} {times:.0f} times as far from the others' as theirs vary"
        for i, times in zip(found.clients, found.times, strict=True)
    }
    known = server._replace(detection=detection._replace(outlying=outlying))
    if not detection.leave:
        if not found.sure or found.harm < _HARM * abs(info.objective):
            return server, solving, info
        return known, solving, info._replace(done="contested")
    if found.sure if trying else not outlying:
        return known, solving, info
    return _restart(server._replace(detection=detection.clear()) if trying else known, info)


def _gradients(server: Server, names: list[str], task: Task, most: int) -> byzantine.Gradients:
    """Return the last gradients and curvatures of clients, with penalties."""
    setting = server.solving.setting
    reports = [server.last[name][1] for name in names]
    bends, _ = impute(setting.shape, [report.curvature for report in reports])
    vectors = np.array([report.vector for report in reports])
    plain = Answers(vectors[:, 0], vectors, bends)
    _, vectors, bends = setting.regularised(task.theta, plain)[:3]
    rows = np.array([server.rows[name] for name in names])
    return byzantine.gradients_of(vectors, bends, setting.shape, rows, most)


def _conclude(server: Server, number: int, info: Info, any_reply: bool, complete: bool) -> Info:
    """Return the results that the round shows, with the reason to stop if there is one."""
    if info.done == "converged" and not complete:
        # An extrapolated report is a lower bound: it cannot prove convergence.
        info = info._replace(done="")
    if not any_reply and server.shown is not None:  # θ moves, but there is nothing new to report
        info = server.shown._replace(done="")
    if info.done:
        return info
    limit = server.solving.setting.separable
    if limit is not None and (info.risks < limit).all():
        return info._replace(done="separable")
    spent = server.budget is not None and number >= server.budget
    return info._replace(done="budget" if spent else "")


def refuse(server: Server, sent: Broadcast, report: Any) -> str | None:
    """Return why a report of any type is invalid, None if it is valid; types come before values."""
    if type(report) is not Report:
        return "is not a report"
    if type(report.client) is not str or report.client not in server.rows:
        return "is not a client of this training"
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
    """Validate a curvature; it may be coarser than requested, not finer."""
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
    # Without a copy: minimum and maximum are NaN if any number is.
    ends = vector.min(initial=0.0), vector.max(initial=0.0)
    if not np.isfinite(ends).all():
        return f"its {what} is not made of finite numbers"
    if np.abs(ends).max() > _LARGEST:
        return f"its {what} is too large to compute with"
    return None


def _sift(
    server: Server, sent: Broadcast, reports: Iterable[Report]
) -> tuple[dict[str, Report], dict[str, str], dict[str, str]]:
    """Return valid reports in order, reasons for the others, and for ignored curvatures."""
    good: dict[str, Report] = {}
    refused: dict[str, str] = {}
    unused: dict[str, str] = {}
    differing = set()
    for report in reports:
        used, reason = report, refuse(server, sent, report)
        if reason is not None and refuse(server, sent, bare(report)) is None:
            unused[report.client] = f"{reason}: left out; the mean of the others is used"
            used, reason = bare(report), None
        if reason is not None:
            name = _name(used)
            refused[name] = max(reason, refused.get(name, ""))
        elif used.client in server.exposed:
            refused[used.client] = _CONTRADICTS
        elif used.client not in good:
            good[used.client] = used
        elif _same(good[used.client], used):
            refused[used.client] = "answered twice"
        else:
            refused[used.client] = "answered twice, differently"
            differing.add(used.client)
    valid = {name: good[name] for name in server.rows if name in good and name not in differing}
    return valid, dict(sorted(refused.items())), unused


def bare(report: Any) -> Any:
    """Return a report without its curvature."""
    return report._replace(curvature=None) if type(report) is Report else report


def _name(report: Any) -> str:
    """Return the sender of a report that may have any type."""
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
    return report_bounds.contradicts(server.defence, server.last[report.client], (task, report))


def _answers(server: Server, task: Task) -> tuple[Answers, dict[str, str]]:
    """Return the last valid reports in order, extrapolated to the present θ and clipped."""
    clipped: dict[str, str] = {}
    used = []
    for name in server.clients:
        report, reason = _clipped(server, task, _extrapolated(task, *server.last[name]))
        used.append(report)
        if reason and name not in server.exposed:
            clipped[name] = reason
    bends, stands = None, False
    if task.curvature != "none":
        bends, stands, left = _bends(server, used)
        clipped.update(dict.fromkeys(left, _IGNORED_CURVATURE))
    answers = Answers(
        np.array([report.value for report in used]),
        np.array([report.vector for report in used]),
        bends,
        stands,
    )
    return _without(server, answers), clipped


def _clipped(server: Server, task: Task, report: Report) -> tuple[Report, str]:
    """Return a report within plausible limits, and the reason if it was not."""
    reason, packed = "", report.curvature
    if (
        task.curvature != "none"
        and packed is not None
        and packed.max(initial=0.0) > server.stiffest
    ):
        sizes = server.solving.setting.shape.sizes_of(packed)
        report = report._replace(curvature=curvature.limited(packed, sizes, server.stiffest))
        reason = _CLIPPED_CURVATURE
    if server.defence is not None:
        limit = report_bounds.bounds(server.defence, report.client, task)
        report, beyond = report_bounds.clip(limit, report)
        reason = beyond or reason
    return report, reason


def _bends(server: Server, used: list[Report]) -> tuple[Array | None, bool, list[str]]:
    """Return all curvatures, whether some are imputed, and whose was clipped too often."""
    shape = server.solving.setting.shape
    off = [server.clipped_before.get(report.client, 0) >= _MAX_CLIPPED for report in used]
    if all(off):
        off = [False] * len(used)
    reported = [None if bad else report.curvature for report, bad in zip(used, off, strict=True)]
    out = [report.client for report, bad in zip(used, off, strict=True) if bad]
    return *impute(shape, reported), out


def _without(server: Server, answers: Answers) -> Answers:
    """Replace every client left out by the mean of the others."""
    detection = server.detection
    gone = (*server.exposed, *(detection.outlying if detection.leave else ()))
    if not gone:
        return answers
    out = np.isin(server.clients, gone)

    def level(array: Array) -> Array:
        array = array.copy()
        array[out] = array[~out].mean(axis=0)
        return array

    bends = None if answers.curvature is None else level(answers.curvature)
    return answers._replace(
        values=level(answers.values), vectors=level(answers.vectors), curvature=bends
    )


def _extrapolated(task: Task, earlier: Task, report: Report) -> Report:
    if earlier is task or task.kind != "evaluate":
        return report
    if earlier.kind != "evaluate":
        raise ValueError(
            f"client {report.client!r} has not replied, and has no earlier report to extrapolate"
        )
    return report._replace(value=report.value + float(report.vector @ (task.theta - earlier.theta)))
