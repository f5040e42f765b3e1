"""`dorfl.train`: from clients and a method to a fitted model, in this process."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dorfl import solvers
from dorfl.data import centers as centering
from dorfl.data import validation
from dorfl.data.validation import Clients
from dorfl.federation import local
from dorfl.federation import privacy as keeping
from dorfl.federation.defence import Limits, defend
from dorfl.federation.local import Round
from dorfl.federation.messages import Broadcast, Report
from dorfl.federation.privacy import Gaussian
from dorfl.federation.server import Server
from dorfl.objective import losses, methods
from dorfl.objective.kinds import Loss
from dorfl.objective.methods import Method
from dorfl.oracle.curvature import BUDGET
from dorfl.oracle.group import Group, Risk
from dorfl.oracle.problem import Problem
from dorfl.solvers import Noisy, Paper, Radius, Solver, Sqp
from dorfl.solvers.base import Info, Setting
from dorfl.support.threads import each
from dorfl.support.types import Array

_BUDGET = {"sqp": 200, "optimistic": 5000}


@dataclass(frozen=True, eq=False)
class Fit:
    """A trained model and how it came about.

    `theta` has the intercept last (softmax: one row per class). `lam` is the mixture, in the order
    of `clients`. `gap` estimates how far max_i F_i is above the best possible. `sample_weights` has
    the weight p of every row, by client: 1/n for an ordinary one, nearly 0 for a suspect.
    """

    theta: Array
    lam: Array
    clients: tuple[str, ...]
    risks: Array
    objective: float
    gap: float
    rounds: int
    status: str
    message: str
    history: list[Round]
    sample_weights: dict[str, Array]
    centers: Array
    problem: Problem
    rho: float  # the price of transport: as given, or in the constrained problem as found
    radius: float | None = None  # in the constrained problem, the radius met
    l2: float = 0.0
    theta_radius: float = np.inf

    @property
    def relative_gap(self) -> float:
        """The gap in units of the objective, which is what `tol` is compared with."""
        gap = self.gap / max(abs(self.objective), 1e-300)
        return float(gap) if np.isfinite(gap) else np.inf

    @property
    def bytes_up(self) -> int:
        """What all clients sent in all rounds, in bytes of numbers."""
        return sum(line.bytes_up for line in self.history)

    @property
    def bytes_down(self) -> int:
        """What was sent to all clients in all rounds, in bytes of numbers."""
        return sum(line.bytes_down for line in self.history)

    def decision(self, X: Any) -> Array:
        """The model's outputs: (n,), or (n, classes) for softmax."""
        return self.problem.predict(self.theta, validation.rows(X, "decision"))

    def predict(self, X: Any) -> Array:
        """Labels, or values for a regression."""
        out = self.decision(X)
        return self.problem.loss.predict(out, self.problem.classes)

    def score(self, X: Any, y: Any) -> float:
        """Accuracy, or the negative mean loss for a regression."""
        labels = np.asarray(y)
        if self.problem.loss.classifies:
            return float(np.mean(self.predict(X) == labels))
        return -float(np.mean(self.problem.loss.value(self.decision(X), labels.astype(float))))


def train(
    clients: Any,
    method: Method | None = None,
    *,
    loss: str | Loss = "logistic",
    solver: str | Solver = "auto",
    tol: float = 1e-6,
    max_rounds: int | None = None,
    seed: int = 0,
    intercept: bool = True,
    l2: float = 0.0,
    theta_radius: float = np.inf,
    batch: int | None = None,
    participation: float = 1.0,
    absent: Callable[[int, str], bool] | None = None,
    epsilon: float = 0.0,
    limits: Limits | None = None,
    trim: float = 0.0,
    privacy: Gaussian | None = None,
    curvature: str = "auto",
    bytes_per_round: float = BUDGET,
    tamper: Callable[[Broadcast, Report], Report] | None = None,
    start: Fit | Array | None = None,
    progress: Callable[[Round], object] | None = None,
) -> Fit:
    """Train one model over clients that keep their rows to themselves.

    Args:
        clients: a list of (X, y), or a mapping of client name to (X, y); or, for a model that is
            not linear, an :class:`~dorfl.oracle.base.Oracle`, which has its own method and loss.
        method: one of :mod:`dorfl.methods`, or any combination of their parts.
        loss: "logistic" (two classes), "softmax", "squared", "huber", `losses.huber(delta)`, or
            a loss of your own, a :class:`~dorfl.objective.kinds.Loss`.
        solver: "auto", "sqp", "optimistic", "paper", or one from :mod:`dorfl.solvers`.
        tol: stop when the gap, in units of the objective, is below this.
        max_rounds: stop after so many exchanges of messages in any case.
        seed: where the clients' random streams begin (minibatches, participation).
        intercept: whether the model has one; it is never moved by transport nor regularised.
        l2: adds ½ l2 ‖θ‖² to the objective.
        theta_radius: keep θ in the ball of this radius.
        batch: rows each client draws per round (none: all of them).
        participation: the share of clients asked in a round.
        absent: `absent(round, client)` says who does not answer; the last report stands in for it.
        epsilon: leave rows within this distance of their worst place instead of solving exactly.
        limits: clip reports to what rows within these limits can give, and leave out clients that
            contradict themselves; see :mod:`dorfl.federation.defence`.
        trim: the share of the mixture whose gradients may be lies; see
            :func:`~dorfl.solvers.base.trimmed_mean`. Not with `sqp`.
        privacy: differential privacy for every row, as :func:`dorfl.privacy.gaussian` makes it.
        curvature: the finest ∇²F_i that `sqp` may ask clients for: "full", "blocks" (one a class),
            "diagonal", "none", or "auto", as fine as `bytes_per_round` admits.
        bytes_per_round: how much one client may send in a round.
        tamper: `tamper(broadcast, report)` is what is sent instead of a report: to study attacks.
        start: a fit or a θ to go on from.
        progress: called with every :class:`~dorfl.federation.local.Round` as it ends.

    >>> import dorfl
    >>> data = dorfl.datasets.synthetic(seed=0)
    >>> fit = dorfl.train(data.clients, dorfl.methods.dorfl())
    >>> fit.status, fit.rounds < 25
    ('converged', True)
    """
    _check_options(tol, max_rounds, l2, theta_radius, batch, participation, epsilon, trim)
    group = clients
    if not hasattr(clients, "evaluate"):
        group = prepare(clients, _checked(method), loss, intercept=intercept, epsilon=epsilon)
    elif method is not None or limits is not None:
        raise ValueError("train(oracle): it has its own method, and no limits; leave both out")
    problem, method = group.problem, group.problem.method
    theta = _starting_point(start, problem)
    if problem.constrained:  # ρ joins θ as an unknown of its own, priced by the radius
        theta = np.append(theta, _starting_price(start, group))
    centers = getattr(group, "centers", np.zeros((len(group.names), 0)))
    server, budget = serve(
        problem, group.names, group.counts, theta, solver=solver, tol=tol, max_rounds=max_rounds,
        l2=l2, theta_radius=theta_radius, batch=batch, participation=participation,
        epsilon=epsilon, trim=trim, limits=limits, centers=centers, privacy=privacy,
        curvature=curvature, bytes_per_round=bytes_per_round,
    )  # fmt: skip
    chosen = server.solver
    info, history, status = local.run(
        server,
        group,
        max_rounds=budget,
        seed=seed,
        participation=participation,
        absent=absent,
        tamper=tamper,
        privacy=privacy,
        progress=progress,
        stop=stop_rule(problem, group.counts, l2, theta_radius) if privacy is None else None,
    )
    theta, rho, radius = info.theta, method.rho, None
    if problem.constrained:
        theta, rho = theta[:-1], float(theta[-1])
        group = group.priced(rho)
    found = group.evaluate(theta, rows=True)
    if found.spent is not None:
        radius = float(info.lam @ found.spent)
    message = describe(status, info._replace(theta=theta), tol)
    if problem.constrained:
        message += _too_large(group, theta, info.objective + tol * abs(info.objective))
    noisy = batch is not None or participation < 1.0 or getattr(chosen, "local_steps", 1) > 1
    if status != "converged" and not (isinstance(chosen, Paper | Noisy) or noisy):
        warnings.warn(message, stacklevel=2)
    return Fit(
        theta.reshape(problem.shape),
        info.lam,
        group.names,
        info.risks,
        info.objective,
        info.gap,
        len(history),
        status,
        message,
        history,
        dict(zip(group.names, found.weights, strict=True)),
        centers,
        group.problem,
        rho,
        radius,
        l2,
        theta_radius,
    )


def serve(
    problem: Problem,
    names: tuple[str, ...],
    counts: Array,
    theta: Array,
    *,
    solver: str | Solver = "auto",
    tol: float = 1e-6,
    max_rounds: int | None = None,
    l2: float = 0.0,
    theta_radius: float = np.inf,
    batch: int | None = None,
    participation: float = 1.0,
    epsilon: float = 0.0,
    trim: float = 0.0,
    limits: Limits | None = None,
    centers: Array | None = None,
    privacy: Gaussian | None = None,
    curvature: str = "auto",
    bytes_per_round: float = BUDGET,
) -> tuple[Server, int]:
    """The server before the first round, and its budget of rounds; it needs no rows.

    `centers` has ξ̄ of every client (clients, d), which the limits of a quadratic score need.
    """
    method = problem.method
    lam = method.mixture.start(names, counts)
    chosen = solvers.resolve(solver, full=participation == 1.0 and trim == 0.0, batch=batch)
    if privacy is not None:
        _check_private(privacy, problem, solver, batch, max_rounds)
        chosen = privacy.solver(problem, counts, lam)
    if trim > 0.0 and isinstance(chosen, Sqp):
        raise ValueError("trim: solver 'sqp' needs every gradient as it is; use 'optimistic'")
    if chosen.exact and participation < 1.0:
        raise ValueError(f"solver {chosen.name!r} needs every client's answer; use 'optimistic'")
    if isinstance(chosen, Paper) and max_rounds is not None:
        chosen = replace(chosen, rounds=max_rounds)
    if isinstance(chosen, Paper | Noisy):
        budget = chosen.rounds + isinstance(chosen, Paper)  # that one closes with an evaluation
    else:
        budget = max_rounds or _BUDGET[chosen.name]
    if method.radius is not None:
        if not isinstance(chosen, Sqp) or np.isfinite(theta_radius):
            raise ValueError("radius: use solver 'sqp', with all clients and rows, and any theta")
        chosen = Radius(method.radius, chosen)
    shape = problem.layout
    finest = shape.finest(bytes_per_round, len(names), curvature)
    setting = Setting(
        method.mixture, method.temperature, l2 * problem.penalised, theta_radius, tol,
        problem.is_finite, trim, shape, finest,
    )  # fmt: skip
    defence = None
    if limits is not None:
        center = np.zeros((len(names), problem.dims)) if centers is None else centers
        steady = batch is None and epsilon == 0.0 and privacy is None
        defence = defend(problem, limits, dict(zip(names, center, strict=True)), convex=steady)
    rows = dict(zip(names, counts.tolist(), strict=True))
    state = chosen.init(setting, setting.project(theta), lam)
    return Server(rows, chosen, state, defence=defence), budget


def risk(
    theta: Any,
    X: Any,
    y: Any,
    method: Method,
    *,
    loss: str | Loss = "logistic",
    classes: Any = None,
    epsilon: float = 0.0,
) -> Risk:
    """One client's robust risk F(θ): value, gradient and sample weights, so that anyone can check.

    Whether there is an intercept follows from the length of θ. `classes` names the labels where `y`
    does not have them all.

    >>> import dorfl, numpy as np
    >>> X, y = np.array([[1.0], [-1.0]]), np.array([1, -1])
    >>> round(dorfl.risk([0.0], X, y, dorfl.methods.erm()).value, 6)      # log 2
    0.693147
    """
    _checked(method)
    checked = validation.clients({"client": (X, y)})
    chosen = losses.resolve(loss)
    parameters = np.asarray(theta, dtype=np.float64)
    dims = checked["client"][0].shape[1]
    width = parameters.shape[-1] if parameters.ndim else 0
    if width not in (dims, dims + 1) or not np.isfinite(parameters).all():
        raise ValueError(
            f"theta: needs {dims} finite numbers, or {dims + 1} with an intercept last; "
            f"it has shape {parameters.shape}"
        )
    group = prepare(
        checked, method, chosen, intercept=width == dims + 1, classes=classes, epsilon=epsilon
    )
    if parameters.shape != group.problem.shape:
        raise ValueError(
            f"theta: has shape {parameters.shape}, {chosen.name} loss with these classes needs "
            f"{group.problem.shape}"
        )
    risks = group.evaluate(parameters.ravel())
    return Risk(
        float(risks.values[0]),
        risks.gradients[0].reshape(parameters.shape),
        group.sample_weights(parameters.ravel())[0],
    )


def prepare(
    clients: Any,
    method: Method,
    loss: str | Loss = "logistic",
    *,
    intercept: bool = True,
    classes: Any = None,
    epsilon: float = 0.0,
) -> Group:
    """Clients checked, labels encoded, centres found, rows stacked: ready to be evaluated."""
    checked = validation.clients(clients)
    chosen = losses.resolve(loss)
    known = validation.classes(checked, chosen, classes)
    tables = [X for X, _ in checked.values()]
    dims = tables[0].shape[1]
    problem = Problem(method, chosen, dims, known, intercept)
    problem.check()
    centers = find_centers(method, dict(zip(checked, tables, strict=True)))
    return stack(problem, checked, centers, epsilon)


def stack(problem: Problem, checked: Clients, centers: Array, epsilon: float = 0.0) -> Group:
    """Checked clients as one group: rows stacked, labels encoded."""
    tables = [X for X, _ in checked.values()]
    rows = _joined(tables)
    if not rows.flags.writeable:  # a read-only table would be a type of its own to the kernel
        rows = rows.copy()
    target = [problem.encode(y) for _, y in checked.values()]
    bounds = np.concatenate([[0], np.cumsum([len(X) for X in tables])])
    return Group(problem, tuple(checked), rows, np.concatenate(target), bounds, centers, epsilon)


def _joined(tables: list[Array]) -> Array:
    """The tables one below the other; no copy where they are pieces of one table, in order."""
    whole = tables[0].base
    if len(tables) == 1:
        return tables[0]
    if not isinstance(whole, np.ndarray) or whole.shape[1:] != tables[0].shape[1:]:
        return np.concatenate(tables)
    row = tables[0].strides[0]
    first = place = (tables[0].ctypes.data - whole.ctypes.data) // row
    for X in tables:
        at = whole.ctypes.data + place * row
        if X.base is not whole or X.dtype != whole.dtype or X.ctypes.data != at:
            return np.concatenate(tables)
        place += len(X)
    return np.ascontiguousarray(whole[first:place])


def find_centers(method: Method, tables: dict[str, Array]) -> Array:
    """ξ̄ of every client (clients, d): given, found together, or each its own; else zero."""
    dims = next(iter(tables.values())).shape[1]
    center = None if method.score is None else method.score.center
    if center is None:
        return np.zeros((len(tables), dims))
    if isinstance(center, str):
        summaries = each(centering.summarise, tables.values())
        if center == "client":
            return np.array([summary.mean for summary in summaries])
        return np.tile(centering.combine(summaries), (len(tables), 1))
    if isinstance(center, dict):
        missing = [name for name in tables if name not in center]
        if missing:
            raise ValueError(f"quadratic(center=…): there is none for client {missing[0]!r}")
        found = [center[name] for name in tables]
    else:
        found = [center] * len(tables)
    for name, vector in zip(tables, found, strict=True):
        if len(vector) != dims:
            raise ValueError(
                f"quadratic(center=…): {len(vector)} numbers for client {name!r}, not {dims}"
            )
    return np.array(found)


def _starting_point(start: Fit | Array | None, problem: Problem) -> Array:
    if start is None:
        return problem.start
    theta = np.array(start.theta if isinstance(start, Fit) else start, dtype=np.float64)
    if theta.shape != problem.shape or not np.isfinite(theta).all():
        raise ValueError(f"start: needs finite numbers of shape {problem.shape}, not {theta.shape}")
    if not problem.constrained and not problem.is_finite(theta):
        raise ValueError("start: the robust risk is infinite there; start from zero or raise rho")
    return theta.ravel()


def _check_private(
    privacy: Gaussian, problem: Problem, solver: str | Solver, batch: int | None, rounds: int | None
) -> None:
    keeping.check(problem)
    if solver != "auto" or batch is not None:
        raise ValueError("privacy: comes with its own solver, on all rows; leave out solver, batch")
    if rounds is not None and rounds != privacy.rounds:
        raise ValueError(f"max_rounds={rounds}: the privacy budget is for {privacy.rounds} rounds")


def _starting_price(start: Fit | Array | None, group: Group) -> float:
    """Where ρ starts: as found before, as given, or where ρ r is as large as the loss at θ = 0."""
    method = group.problem.method
    if isinstance(start, Fit):
        return start.rho
    if method.rho != 1.0:
        return method.rho
    if np.isinf(method.beta) and np.isinf(method.cost.weights(group.problem.dims)).all():
        raise ValueError(
            "radius: nothing can move and nothing be reweighted; give beta, or free a column"
        )
    plain = replace(group, problem=replace(group.problem, method=methods.afl()))
    loss = float(plain.evaluate(np.zeros(group.problem.size)).values.max())
    return max(loss, 1e-300) / float(method.radius or 1.0)


def _too_large(group: Group, theta: Array, limit: float) -> str:
    """Words for a radius at which θ's intercept alone costs no more than `limit`."""
    method, alone = group.problem.method, np.where(group.problem.penalised > 0, 0.0, theta)
    assert method.radius is not None
    worst = float(group.evaluate(alone).values.max())
    if method.rho * method.radius + worst > limit:
        return ""
    return (
        f"; the radius {method.radius:g} is so large that no model is better than a constant "
        "prediction (θ = 0): give a smaller one"
    )


def stop_rule(
    problem: Problem, counts: Array, l2: float, theta_radius: float
) -> Callable[[Info], str] | None:
    """When to stop although the solver is not done: where no finite minimiser exists.

    A row on the wrong side costs at least log 2: below log 2 / n_i nobody has such a row.
    """
    if not problem.unbounded or l2 > 0.0 or np.isfinite(theta_radius):
        return None
    limit = np.log(2.0) / counts * (1.0 - 1e-9)  # θ = 0 classifies nothing
    return lambda info: "separable" if (info.risks < limit).all() else ""


def describe(status: str, info: Info, tol: float) -> str:
    """How a training ended, in a sentence; a gap is said in units of the objective as well."""
    size, share = float(np.linalg.norm(info.theta)), info.gap / max(abs(info.objective), 1e-300)
    gap = f"gap {info.gap:.2g}, i.e. {share:.2g} of the objective; tolerance {tol:.2g}"
    return {
        "converged": f"converged (objective {info.objective:.6g}, {gap})",
        "budget": f"not converged: stopped after max_rounds ({gap}); allow more rounds or a "
        "larger tol",
        "spent": "the rounds that the privacy budget was made for are over",
        "stalled": f"not converged: no further progress in floating point ({gap})",
        "separable": "the classes are separable: every row is classified correctly, so without "
        "regularisation the minimiser is infinitely far away. Stopped at "
        f"‖θ‖ = {size:.3g}; set l2, theta_radius or a transport price rho for a finite one",
    }[status]


def _checked(method: Any) -> Method:
    if not isinstance(method, Method):
        raise ValueError(f"method={method!r}: give one of dorfl.methods, such as methods.dorfl()")
    return method


def _check_options(
    tol: float, max_rounds: int | None, l2: float, theta_radius: float, batch: int | None,
    participation: float, epsilon: float, trim: float,
) -> None:  # fmt: skip
    for name, value, fine, need in (
        ("tol", tol, tol > 0, "must be positive"),
        ("max_rounds", max_rounds, max_rounds is None or max_rounds >= 1, "must be at least 1"),
        ("l2", l2, 0 <= l2 < np.inf, "must be a number ≥ 0"),
        ("theta_radius", theta_radius, theta_radius > 0, "must be positive (infinity: no bound)"),
        ("batch", batch, batch is None or batch >= 1, "must be at least 1 row"),
        ("participation", participation, 0 < participation <= 1, "must be above 0 and at most 1"),
        ("epsilon", epsilon, 0 <= epsilon < np.inf, "must be a number ≥ 0"),
        ("trim", trim, 0 <= trim <= 0.5, "must be from 0 (the mean) to 0.5 (the median)"),
    ):
        if not fine:
            raise ValueError(f"{name}={value}: {need}")
