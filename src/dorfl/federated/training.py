"""Training of linear models in this process: the code behind :func:`dorfl.train`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dorfl import solvers
from dorfl.data import validation
from dorfl.data.robust import find_centers
from dorfl.data.validation import Clients, Weighted
from dorfl.federated import privacy as keeping
from dorfl.federated import scale as scaling
from dorfl.federated import simulation
from dorfl.federated.byzantine import plan_exclusion
from dorfl.federated.diagnostics import FitWarning, diagnose
from dorfl.federated.fit import Fit, describe
from dorfl.federated.messages import Broadcast, Report
from dorfl.federated.options import Options
from dorfl.federated.privacy import Gaussian
from dorfl.federated.report_bounds import defend
from dorfl.federated.server import Server
from dorfl.federated.simulation import Round
from dorfl.linear.curvature import coarser
from dorfl.linear.group import Group, Risk
from dorfl.linear.problem import Problem
from dorfl.objective import losses, methods
from dorfl.objective.base import Loss, Score
from dorfl.objective.losses import ConcomitantHuber
from dorfl.objective.methods import Method
from dorfl.objective.mixture import fixed as fixed_mixture
from dorfl.objective.mixture import tilted_mean
from dorfl.solvers import Radius, Scale, Solver
from dorfl.solvers.base import Info, Setting
from dorfl.support.types import Array

REGRET_FOLDS = 5  # folds of the cross-validation of a client's own model
_REGRET_ROUNDS = 30  # of a fold; a model that needs more is no better than a constant


def train(
    clients: Any,
    method: Method | None = None,
    options: Options | None = None,
    *,
    start: Fit | Array | None = None,
    absent: Callable[[int, str], bool] | None = None,
    tamper: Callable[[Broadcast, Report], Report] | None = None,
    progress: Callable[[Round], object] | None = None,
    sample_weight: Any = None,
    class_weight: Any = None,
    **given: Any,
) -> Fit:
    """Train a linear model by a method whose parameters are given; see :func:`dorfl.train`.

    >>> import dorfl
    >>> data = dorfl.datasets.synthetic(seed=0)
    >>> fit = dorfl.train(data.clients, dorfl.methods.paper())
    >>> fit.status, fit.rounds < 25
    ('converged', True)
    """
    options = (options or Options()).changed(**given)
    group, weighted = _weighted_group(clients, method, options, sample_weight, class_weight)
    centers = None if group is clients else group.centers
    group, theta = _start(start, group)
    sizes = getattr(group, "sizes", group.counts)
    server = serve(group.problem, group.names, sizes, theta, options, centers)
    rows = dict(zip(group.names, group.counts.tolist(), strict=True))  # which reports repeat
    server = server._replace(rows=rows)
    info, history = simulation.run(
        server,
        group,
        seed=options.seed,
        participation=options.participation,
        absent=absent,
        tamper=tamper,
        privacy=options.privacy,
        progress=progress,
    )
    fit, defects = _fit_of(group, weighted, centers, info, history, options)
    unfinished = fit.status not in ("converged", "stopped") and server.solver.needs.reports_gap
    if unfinished and options.all_answer:
        warnings.warn(fit.message, stacklevel=2)
    for defect in defects:
        warnings.warn(defect, FitWarning, stacklevel=2)
    return fit


def _weighted_group(
    clients: Any, method: Method | None, options: Options, sample_weight: Any, class_weight: Any
) -> tuple[Any, Weighted]:
    """Return the clients as an oracle, and their rows without those of weight 0."""
    weighs = not (sample_weight is None and class_weight is None)
    if weighs and options.privacy is not None:
        raise ValueError(
            "privacy: the bound on a row's effect needs equal sample weights; leave them out"
        )
    if hasattr(clients, "evaluate"):
        if method is not None or options.limits is not None or weighs:
            raise ValueError(
                "train(oracle): it has its own method and weights, and no limits; leave them out"
            )
        return clients, Weighted(clients)
    weighted = validation.apply_weights(clients, sample_weight, class_weight)
    group = prepare(
        weighted.clients,
        _checked(method),
        options.loss,
        intercept=options.intercept,
        tolerance=options.tolerance,
        mass=weighted.mass,
    )
    return group, weighted


def _start(start: Fit | Array | None, group: Any) -> tuple[Any, Array]:
    """Return the oracle, in units of the residual scale if it is estimated, and all unknowns."""
    theta = _starting_point(start, group.problem)
    if group.problem.constrained:  # ρ becomes the last unknown
        theta = np.append(theta, _starting_price(start, group))
    if group.problem.estimates_scale:
        known = start.scale if isinstance(start, Fit) else None
        group, theta = scaling.prepared(group, None if start is None else theta, known)
    return group, theta


def _fit_of(
    group: Any,
    weighted: Weighted,
    centers: Array | None,
    info: Info,
    history: list[Round],
    options: Options,
) -> tuple[Fit, list[str]]:
    """Return the fit at the end of training, and warnings about its defects."""
    problem, scale, l2, radius = group.problem, None, options.l2, None
    if problem.estimates_scale:
        problem, scale, info = scaling.settle(problem, info)
        group, l2 = replace(group, problem=problem), scale * l2
    theta, rho = info.theta, problem.method.rho
    if problem.constrained:
        theta, rho = theta[:-1], float(theta[-1])
        group = group.priced(rho)
    found = group.evaluate(theta, rows=True)
    if found.spent is not None:
        radius = float(info.lam @ found.spent)
    message = describe(info.done, info._replace(theta=theta), options.tol)
    if problem.constrained:
        message += _too_large(group, theta, info.objective + options.tol * abs(info.objective))
    names, defects = group.names, []
    if isinstance(group, Group) and found.weights is not None and options.privacy is None:
        defects = diagnose(group, theta, info.lam, found.weights)
    weights = zip(names, found.weights, strict=True)
    fit = Fit(
        theta=theta.reshape(problem.shape),
        lam=info.lam,
        clients=names,
        risks=info.risks,
        objective=info.objective,
        gap=info.gap,
        gap_kind=info.gap_kind,
        rounds=len(history),
        status=info.done,
        message=message,
        history=history,
        sample_weights={name: weighted.expand(name, p) for name, p in weights},
        centers=np.zeros((len(names), 0)) if centers is None else centers,
        problem=group.problem,
        rho=rho,
        radius=radius,
        l2=l2,
        theta_radius=options.theta_radius,
        scale=scale,
    )
    return fit, defects


def serve(
    problem: Problem,
    names: tuple[str, ...],
    counts: Array,
    theta: Array,
    options: Options,
    centers: Array | None = None,
) -> Server:
    """Return the server before the first round; it needs no rows.

    Clients come in the order of all sums; `counts` are their numbers of rows, or sums of weights. θ
    is where to start: with a radius ρ is the last entry, with ``huber(scale="auto")`` the scale σ.
    `centers` are the clients' ξ̄, for the bounds of a quadratic score.
    """
    method = problem.method
    lam = method.mixture.start(names, counts)
    solver = _solver_for(problem, counts, lam, options)
    needs = solver.needs
    finest = "none"
    if needs.curvature:
        fits = problem.layout.finest(options.bytes_per_round, len(names), options.curvature)
        finest = coarser(fits, problem.finest)
    rounds = options.max_rounds or needs.rounds
    setting = Setting(
        mixture=method.mixture,
        temperature=method.temperature,
        penalty=np.append(options.l2 * problem.penalised, np.zeros(problem.layout.others)),
        radius=options.theta_radius,
        tol=options.tol,
        feasible=problem.is_finite,
        trim=options.trim,
        shape=problem.layout,
        resolution=finest,
        rounds=rounds,
        batch=options.batch,
        smooth=problem.smooth,
        covered=problem.covered,
        separable=_separable(problem, counts, options),
    )
    defence = None
    if options.limits is not None:
        center = np.zeros((len(names), problem.dims)) if centers is None else centers
        steady = options.batch is None and options.tolerance == 0.0 and options.privacy is None
        known = dict(zip(names, center, strict=True))
        defence = defend(problem, options.limits, known, convex=steady)
    rows = dict(zip(names, counts.tolist(), strict=True))
    state = solver.init(setting, setting.project(theta), lam)
    detection = plan_exclusion(options, method.mixture, len(names))
    return Server(
        rows, solver, state, defence=defence, budget=rounds + needs.closing, detection=detection
    )


def _solver_for(problem: Problem, counts: Array, lam: Array, options: Options) -> Solver:
    """Return the solver of the options; raise a ValueError if they contradict its needs."""
    if options.privacy is not None:
        _check_private(options.privacy, problem, options)
        return options.privacy.solver(problem, counts, lam)
    chosen = solvers.resolve(options.solver, whole=options.whole)
    needs, radius = chosen.needs, problem.method.radius
    for wrong, reason in (
        (needs.every_client and options.participation < 1.0, "needs a report of every client"),
        (needs.all_rows and options.batch is not None, "needs all rows every round: no batch"),
        (not needs.trims and options.trim > 0.0, "has no trim: it takes gradients as they are"),
    ):
        if wrong:
            raise ValueError(f"solver {chosen.name!r} {reason}; use 'optimistic'")
    if radius is None and not problem.estimates_scale:
        return chosen
    if not needs.radius or np.isfinite(options.theta_radius):
        what = "radius" if radius is not None else 'huber(scale="auto")'
        raise ValueError(f"{what}: use solver 'sqp', with all clients and rows, and any theta")
    if radius is not None:
        return Radius(radius, chosen)
    assert isinstance(problem.loss, ConcomitantHuber)
    return Scale(problem.loss.consistency, chosen)


def risk(
    theta: Any,
    X: Any,
    y: Any,
    method: Method,
    *,
    loss: str | Loss = "logistic",
    classes: Any = None,
    tolerance: float = 0.0,
    sample_weight: Any = None,
) -> Risk:
    """Compute the robust risk F(θ) of one client: value, gradient and sample weights.

    Parameters
    ----------
    theta
        (d,), or (d + 1,) with the intercept last; for softmax one such row per class.
    X, y
        (n, d) rows, and (n,) labels or numbers.
    method
        A method from :mod:`dorfl.methods`.
    loss
        As in :class:`~dorfl.federated.options.Options`.
    classes
        The labels, if not all of them occur in `y`.
    tolerance
        Accuracy of the inner maximisation over rows; 0 solves it exactly.
    sample_weight
        (n,) weights of the rows in P̂; see :mod:`dorfl.data.validation`.

    Returns
    -------
    Risk
        `value`, `gradient` in the shape of θ, and `weights` (n,) of the rows.

    Raises
    ------
    ValueError
        If the input cannot be used, or shapes do not match.

    >>> import dorfl, numpy as np
    >>> X, y = np.array([[1.0], [-1.0]]), np.array([1, -1])
    >>> round(dorfl.risk([0.0], X, y, dorfl.methods.erm()).value, 6)      # log 2
    0.693147
    """
    _checked(method)
    checked = validation.clients({"client": (X, y)})
    weighted = validation.apply_weights(checked, None if sample_weight is None else [sample_weight])
    chosen = losses.resolve(loss)
    parameters = np.asarray(theta, dtype=np.float64)
    dims = checked["client"][0].shape[1]
    width = parameters.shape[-1] if parameters.ndim else 0
    if width not in (dims, dims + 1) or not np.isfinite(parameters).all():
        raise ValueError(
            f"theta: needs {dims} finite numbers, or {dims + 1} with an intercept last; "
            f"it has shape {parameters.shape}"
        )
    if chosen.estimates_scale:
        raise ValueError("risk: needs the scale of residuals; give huber(delta, scale=fit.scale)")
    group = prepare(
        weighted.clients,
        method,
        chosen,
        intercept=width == dims + 1,
        classes=classes,
        tolerance=tolerance,
        mass=weighted.mass,
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
        weighted.expand("client", group.sample_weights(parameters.ravel())[0]),
    )


def prepare(
    clients: Any,
    method: Method,
    loss: str | Loss = "logistic",
    *,
    intercept: bool = True,
    classes: Any = None,
    tolerance: float = 0.0,
    mass: dict[str, Array] | None = None,
) -> Group:
    """Check clients, encode labels, estimate centres and stack rows.

    `classes` are the labels, if not all of them occur; `mass` has positive weights of each client's
    rows (:func:`dorfl.data.validation.apply_weights`).
    """
    checked = validation.clients(clients)
    chosen = _resolve_loss(loss, checked, method)
    known = validation.classes(checked, chosen, classes)
    tables = [X for X, _ in checked.values()]
    dims = tables[0].shape[1]
    problem = Problem(method, chosen, dims, known, intercept)
    problem.check()
    known_rows = dict(zip(checked, tables, strict=True))
    if mass is not None and method.score is not None:
        known_rows = {
            n: X[np.repeat(np.arange(X.shape[0]), validation.copies(mass[n]))]
            for n, X in known_rows.items()
        }
    centers = find_centers(method, known_rows, len(known))
    together = None if mass is None else np.concatenate([mass[name] for name in checked])
    return stack(problem, checked, centers, tolerance, together)


def _resolve_loss(loss: str | Loss, checked: Clients, method: Method) -> Loss:
    """Return the loss; "auto" is that of the labels.

    For a regression that is Huber's with an estimated scale, or in the label's own unit if the
    method has a score that cannot be scaled with it.
    """
    if loss != "auto":
        return losses.resolve(loss)
    name, score = validation.loss_name(checked), method.score
    scalable = score is None or type(score).scaled is not Score.scaled
    return losses.huber(scale="auto") if name == "huber" and scalable else losses.resolve(name)


def stack(
    problem: Problem,
    checked: Clients,
    centers: Array,
    tolerance: float = 0.0,
    mass: Array | None = None,
) -> Group:
    """Stack checked clients into one group, with encoded labels."""
    rows = validation.joined([X for X, _ in checked.values()])
    # Numba would compile the kernels again for a read-only array.
    if isinstance(rows, np.ndarray) and not rows.flags.writeable:
        rows = rows.copy()
    target = np.concatenate([problem.encode(y) for _, y in checked.values()])
    bounds = np.concatenate([[0], np.cumsum([len(y) for _, y in checked.values()])])
    group = Group(problem, tuple(checked), rows, target, bounds, centers, tolerance, mass)
    by_regret = problem.method.mixture.by == "regret"
    return replace(group, own=own_best(group)) if by_regret else group


def own_best(group: Group) -> Array:
    """Return F_i* of each client: the cross-validated risk of a model of its own.

    Regret F_i(θ) − F_i* is a client's risk relative to that of its own model. A client with noisy
    labels has a large risk under every model, so the worst mixture by risk gives it weight without
    effect. The client computes F_i* from its own rows before the first round and subtracts it from
    every risk it reports; F_i* itself is never sent.

    That model has l2 = 1 / n_i and five folds: the risk on training rows would be far too low for
    a small client. F_i* is at most the risk of θ = 0.

    >>> import dorfl
    >>> data = dorfl.datasets.synthetic(seed=0)
    >>> rule = dorfl.mixture.agnostic(by="regret")
    >>> group = prepare(data.clients, dorfl.methods.method(mixture=rule))
    >>> bool((own_best(group) == group.own).all())
    True
    """
    method = replace(group.problem.method, mixture=fixed_mixture())
    plain = replace(group, problem=replace(group.problem, method=method), own=None)
    constant = plain.evaluate(np.zeros(plain.problem.size)).values
    alone = [_cross_fitted(plain.select([i])) for i in range(len(group.names))]
    return np.minimum(alone, constant)


def _cross_fitted(client: Group) -> float:
    count = int(client.counts[0])
    folds = min(REGRET_FOLDS, count)
    if folds < 2:
        return np.inf
    fold = np.random.default_rng(count).permutation(count) % folds
    values = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # convergence is not needed
        for k in range(folds):
            kept, held = (client.take([np.flatnonzero(at)]) for at in (fold != k, fold == k))
            fit = train(kept, l2=1.0 / count, tol=1e-4, max_rounds=_REGRET_ROUNDS)
            values.append(float(held.evaluate(fit.theta.ravel()).values[0]))
    weights = np.bincount(fold, client.mass)  # of every fold
    return tilted_mean(np.array(values), client.problem.method.temperature, weights)


def _starting_point(start: Fit | Array | None, problem: Problem) -> Array:
    if start is None:
        return problem.start
    theta = np.array(start.theta if isinstance(start, Fit) else start, dtype=np.float64)
    if theta.shape != problem.shape or not np.isfinite(theta).all():
        raise ValueError(f"start: needs finite numbers of shape {problem.shape}, not {theta.shape}")
    if not problem.constrained and not problem.is_finite(theta):
        raise ValueError("start: the robust risk is infinite there; start from zero or raise rho")
    return theta.ravel()


def _check_private(privacy: Gaussian, problem: Problem, options: Options) -> None:
    keeping.check(problem)
    rounds = options.max_rounds
    if options.solver != "auto" or options.batch is not None:
        raise ValueError("privacy: has its own solver, on all rows; leave out solver and batch")
    if rounds is not None and rounds != privacy.rounds:
        raise ValueError(f"max_rounds={rounds}: the privacy budget is for {privacy.rounds} rounds")


def _starting_price(start: Fit | Array | None, group: Group) -> float:
    """Return where ρ starts: as in `start`, as given, or with ρ r equal to the loss at θ = 0."""
    method = group.problem.method
    if isinstance(start, Fit):
        return start.rho
    if method.rho != 1.0:
        return method.rho
    if np.isinf(method.beta) and np.isinf(method.cost.weights(group.problem.dims)).all():
        raise ValueError(
            "radius: rows can neither move nor be reweighted; give beta, or unfreeze a column"
        )
    plain = replace(group, problem=replace(group.problem, method=methods.afl()))
    loss = float(plain.evaluate(np.zeros(group.problem.size)).values.max())
    return max(loss, 1e-300) / float(method.radius or 1.0)


def _too_large(group: Group, theta: Array, limit: float) -> str:
    """Return a remark if a constant prediction has an objective of at most `limit`."""
    method, alone = group.problem.method, np.where(group.problem.penalised == 1.0, 0.0, theta)
    assert method.radius is not None
    worst = float(group.evaluate(alone).values.max())
    if method.rho * method.radius + worst > limit:
        return ""
    return (
        f"; the radius {method.radius:g} is so large that no model is better than a constant "
        "prediction (θ = 0): give a smaller one"
    )


def _separable(problem: Problem, counts: Array, options: Options) -> Array | None:
    """Return risks (clients,) below which rows are separable, or None if that is impossible.

    A misclassified row costs at least log 2, so a client with a risk below log 2 / n_i has none.
    """
    bounded = options.l2 > 0.0 or np.isfinite(options.theta_radius)
    bounded = bounded or problem.method.mixture.by == "regret"  # regret is not a mean over rows
    if bounded or not problem.unbounded or options.privacy is not None:
        return None
    return np.asarray(np.log(2.0) / counts * (1.0 - 1e-9))  # θ = 0 classifies nothing


def _checked(method: Any) -> Method:
    if not isinstance(method, Method):
        raise ValueError(f"method={method!r}: give one of dorfl.methods, such as methods.paper()")
    return method
