"""Train a network in this process: from clients, a method and a model to a fit."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from dorfl.data.robust import find_centers
from dorfl.federated import registry
from dorfl.federated.diagnostics import FitWarning
from dorfl.federated.fit import HasHistory
from dorfl.federated.privacy import check as check_privacy
from dorfl.federated.simulation import Round
from dorfl.networks import checkpoint as checkpoints
from dorfl.networks import model as models
from dorfl.networks import resolution, server
from dorfl.networks.checkpoint import Course, describe
from dorfl.networks.client import LocalClients, NetworkProblem
from dorfl.networks.data import BLOCK, LAZY_BLOCK, ClientRows, Collate, gather
from dorfl.networks.device import array, resolve, seeded
from dorfl.networks.evaluation import (
    Callback,
    Progress,
    RoundEvaluation,
    decide,
    diagnose,
    evaluate_rows,
)
from dorfl.networks.model import Network
from dorfl.networks.plan import NetworkPlan
from dorfl.networks.scores import Agreed, row_score, search
from dorfl.networks.supremum import LOSSES, RobustLoss, RowLoss, transport_geometry
from dorfl.networks.tilt import RowTilt
from dorfl.objective import methods
from dorfl.objective.methods import AutoMethod, Method
from dorfl.support.types import Array

PROBED = 64  # rows at which the gradient of the outputs by the inputs is computed
NO_TRANSPORT = (
    "rho: the model's outputs have no gradient by its inputs, so transport cannot move them; "
    "give rows that can move, such as the outputs of its embedding, or do without (rho=inf)"
)


@dataclass(frozen=True, eq=False)
class NetworkFit(HasHistory):
    """A trained network.

    Attributes
    ----------
    model
        The module, in eval mode.
    theta
        (P,) its trainable parameters.
    lam
        (clients,) the mixture λ.
    clients
        Names of the clients.
    risks
        (clients,) F_i of all rows at the model; with privacy, as last reported, with noise.
    objective
        The objective at these risks.
    gap_estimate
        max_i F_i − Σ λ_i F_i, what the mixture could still gain. This is no bound: what θ could
        still gain is not known for a model that is not convex.
    rounds, history
        Number of rounds, and one record for each.
    sample_weights
        Weights p of rows, by client.
    inner_error, inner_steps
        Estimate of how far the mean row is below its supremum, and the steps of ascent.
    classes
        Labels by class number; empty for a regression.
    method, plan, loss
        What the network was trained by.
    notes
        Reasons for a method that was chosen from the rows, one sentence each.
    evaluations
        Figures of held-out rows.
    """

    model: nn.Module
    theta: Array
    lam: Array
    clients: tuple[str, ...]
    risks: Array
    objective: float
    gap_estimate: float
    rounds: int
    history: list[Round]
    sample_weights: dict[str, Array]
    inner_error: float
    inner_steps: int
    classes: Array
    method: Method
    plan: NetworkPlan
    loss: str | RowLoss
    notes: tuple[str, ...] = ()
    evaluations: Sequence[RoundEvaluation] = ()

    def __repr__(self) -> str:
        name, count = self.method.name, len(self.clients)
        return f"<NetworkFit by {name}: {count} clients, {self.rounds} rounds>"

    def decision(self, X: Any) -> Array:
        """Return the model's outputs: (n, outputs)."""
        return outputs(self.model, X)

    def predict(self, X: Any) -> Array:
        """Return labels, or values for a regression."""
        return decide(self.decision(X), self.classes, self.loss)

    def score(self, X: Any, y: Any) -> float:
        """Return the accuracy, or the negative mean squared error of a regression."""
        if len(self.classes):
            return float(np.mean(self.predict(X) == np.asarray(y)))
        return -float(np.mean((self.predict(X) - np.asarray(y, dtype=float)) ** 2))


def train(
    clients: Any,
    method: Method | AutoMethod | str | None,
    model: nn.Module | Callable[[], nn.Module],
    plan: NetworkPlan | None = None,
    *,
    loss: str | RowLoss = "softmax",
    score: Any = None,
    classes: Any = None,
    collate: Collate | None = None,
    validation: Any = None,
    evaluate_every: int = 0,
    patience: int | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: str | Path | None = None,
    progress: Callable[[Round], object] | None = None,
    **given: Any,
) -> NetworkFit:
    """Train one network over clients whose rows stay where they are.

    Parameters
    ----------
    clients
        A mapping of client name to (X, y), a PyTorch data set of pairs (x, y) or a `DataLoader`,
        or a list of these. X is (n, …), y is (n,) or (n, …). Data sets are read lazily; of a
        loader the data set, `collate_fn` and `num_workers` are used.
    method
        One of :mod:`dorfl.methods`, any combination of their parts, or a name such as "afl". None
        means ``methods.dorfl()``, which is resolved from the rows
        (:mod:`dorfl.networks.resolution`).
    model
        A `torch.nn.Module`, or a function that makes one.
    plan
        How it is trained; see :class:`~dorfl.networks.Plan`.
    loss
        "softmax", "logistic", "squared", "huber", or a function of (outputs, labels) that gives one
        number per row. It gets class numbers if `classes` is given, else values.
    score
        h as a function of (rows, labels) on tensors, instead of the method's.
    classes
        The labels, if the clients do not have them all.
    collate
        Function that makes a batch (x, y) of a list of rows of a data set. x is a tensor, a tuple
        (arguments of the model) or a dict (keyword arguments).
    validation
        Held-out rows: a share of every client's rows from 0 to 1, or clients like `clients`, which
        need not train.
    evaluate_every
        Rounds between evaluations of held-out rows; 0: after the last round.
    patience
        Stop after so many evaluations without a lower loss on held-out rows (of the worst client
        for a worst mixture, else of the mean row), and return the fit with the lowest.
    callbacks
        Functions of :class:`~dorfl.networks.Progress`, called after every round. The training ends
        if one returns True.
    checkpoint
        A file to write after every round, and to go on from if it exists.
    progress
        Called with every round as it ends.
    **given
        Options of the plan by name, as in `train(…, rounds=10, batch_size=32)`.

    Returns
    -------
    NetworkFit
        The model, the mixture, risks, weights of rows, history and evaluations.

    Raises
    ------
    ValueError
        If clients, model, loss, method and plan do not fit together, or the training diverges.

    >>> import dorfl
    >>> from dorfl.networks import mlp, train
    >>> data = dorfl.datasets.synthetic(seed=0)
    >>> fit = train(data.clients, dorfl.methods.erm(), lambda: mlp(5, (8,), 2), rounds=2)
    >>> fit.rounds, fit.predict(data.test["client-1"][0][:3]).shape
    (2, (3,))
    """
    plan = (plan or NetworkPlan()).changed(**given)
    local = prepare(
        clients,
        method,
        model,
        plan,
        loss=loss,
        score=score,
        classes=classes,
        collate=collate,
        validation=validation,
    )
    held_out = local.held_out
    if plan.privacy is not None and patience is not None:
        raise ValueError("patience: not with privacy, because held-out losses have no noise")
    if held_out is None and (patience is not None or evaluate_every):
        raise ValueError("evaluate_every, patience: give validation=, the rows that are evaluated")
    method, network = local.method, local.network
    settings = server.ServerSettings(method, plan, local.rows.names, local.rows.counts)
    state = server.begin(settings, network.start())
    means = local.begin()
    course = Course([], [], state.mean)
    file = None if checkpoint is None else Path(checkpoint)
    identity = {} if file is None else _identity(local, loss, score, state.theta)
    if file is not None and file.exists():
        state, means, course = checkpoints.read(file, state, means, identity)
    worst = method.mixture.adversarial
    last_round = plan.rounds
    while state.round < last_round and not course.exhausted(patience, worst=worst):
        state, line = server.run_round(local, settings, state, means)
        evaluation = None
        if held_out is not None and state.round % (evaluate_every or plan.rounds) == 0:
            evaluation = evaluate_rows(local, state.mean, state.round, loss)
        course = course.after(line, evaluation, state.mean, worst=worst)
        if file is not None:
            checkpoints.write(file, state, means, course, identity)
        if progress is not None:
            progress(line)
        view = Progress(line, evaluation, partial(network.module_at, state.mean))
        for callback in callbacks:
            if callback(view) is True:
                last_round = state.round
    if patience is not None and course.evaluations:
        state = replace(state, mean=course.best, round=course.best_round(worst=worst))
    return _fit(local, state, course, loss)


def _hold_out(
    rows: ClientRows, validation: Any, seed: int, collate: Collate | None
) -> tuple[ClientRows, ClientRows | None]:
    """Return the rows to train on, and those held out, which nothing else looks at."""
    if validation is None:
        return rows, None
    if not isinstance(validation, float | int):
        classify = len(rows.classes) > 0
        made = gather(
            validation,
            rows.dtype,
            classify=classify,
            classes=rows.classes if classify else None,
            collate=collate,
            device=rows.device,
        )
        return rows, replace(made, integers=rows.integers)
    if not 0.0 < validation < 1.0:
        raise ValueError(f"validation={validation}: must be a share between 0 and 1, or clients")
    trained, held_out = [], []
    for i, count in enumerate(rows.counts):
        order = np.random.default_rng([seed, i]).permutation(count)
        held_count = min(int(np.ceil(validation * count)), count - 1)
        held_out.append(np.sort(order[:held_count]))
        trained.append(np.sort(order[held_count:]))
    some = [i for i, places in enumerate(held_out) if len(places)]
    if not some:
        raise ValueError("validation: no client has two rows to hold one of them out")
    return rows.take(trained), rows.take(held_out).select(some)


def method_by_name(method: Any) -> Method | AutoMethod | Any:
    """Return the method of a name, dorfl's or registered, and anything else as it is."""
    if not isinstance(method, str):
        return method
    if method not in registry.method_names():
        return methods.named(method)
    parts = registry.method(method).parts
    if not isinstance(parts, Method):
        raise ValueError(
            f"method={method!r}: is a rule from reports to weights, which dorfl.train follows for "
            "linear models; for a network give `aggregator` or a method of parts"
        )
    return parts


def check_method(method: Any) -> Method:
    """Return the method; ValueError for one without numbers, or for linear models only."""
    if isinstance(method, AutoMethod):
        raise ValueError(
            f"method={method!r}: has parameters that are chosen from all clients' rows, which are "
            "not here. Give a method with numbers: the `method` of a fit by dorfl.train, or one "
            "of dorfl.methods, such as methods.afl() or methods.paper(rho=…)"
        )
    if not isinstance(method, Method):
        raise ValueError(f"method={method!r}: give one of dorfl.methods, such as methods.dorfl()")
    if method.radius is not None:
        raise ValueError("radius: the constrained problem is for linear models; give rho")
    if np.isfinite(method.cost.label_price):
        raise ValueError("label_price: a network's rows keep their labels")
    if method.mixture.by == "regret":
        raise ValueError('mixture: by="regret" is for linear models; use by="loss"')
    return method


def terms(method: Method, plan: NetworkPlan, score: Any = None) -> dict[str, str]:
    """Return what clients and server must both go by; the number of rounds is the server's matter.

    >>> from dorfl import methods
    >>> terms(methods.afl(), NetworkPlan(rounds=3)) == terms(methods.afl(), NetworkPlan())
    True
    """
    privacy = plan.privacy and replace(plan.privacy, seed=0)  # the seed of the noise is secret
    return {
        "method": describe(replace(method, score=None)),
        "plan": describe(replace(plan, rounds=1, device="cpu", privacy=privacy)),
        "score": describe(method.score if score is None else score),
    }


def _identity(
    local: LocalClients, loss: str | RowLoss, score: Any, theta: Tensor
) -> dict[str, str]:
    """Return descriptions of all that a checkpoint must agree with."""
    rows = local.rows
    data = {f"rows of {name!r}": rows.digest(i) for i, name in enumerate(rows.names)}
    model = {"model": str(local.network.module), "start of the model": describe(theta)}
    given = {"loss": describe(loss), "classes": describe(rows.classes)}
    return terms(local.method, local.plan, score) | given | model | data


def outputs(model: nn.Module, X: Any) -> Array:
    """Return a trained model's outputs for rows: (n, outputs)."""
    like = next(model.parameters())
    rows = torch.as_tensor(X if isinstance(X, Tensor) else np.asarray(X)).to(like.device)
    if not _takes(model, rows[:1]):
        rows = rows.to(like.dtype)
    with torch.no_grad():
        return array(torch.cat([model(part) for part in rows.split(BLOCK)]))


def prepare(
    clients: Any,
    method: Any,
    model: nn.Module | Callable[[], nn.Module],
    plan: NetworkPlan,
    *,
    loss: str | RowLoss = "softmax",
    score: Any = None,
    classes: Any = None,
    collate: Collate | None = None,
    validation: Any = None,
    agreed: Agreed | None = None,
) -> LocalClients:
    """Return the clients ready for the first round: checked, with the centres of the score.

    Parameters are those of :func:`train`. `agreed` has the score's statistics, if these are not all
    clients.
    """
    if isinstance(loss, str) and loss not in LOSSES:
        raise ValueError(f"loss={loss!r} is unknown; choose one of {', '.join(LOSSES)}")
    network = Network(models.make(model, plan.seed), resolve(plan.device))
    theta = network.start()
    own = not isinstance(loss, str)
    classify = loss in ("softmax", "logistic") or (own and classes is not None)
    rows = gather(
        clients,
        theta.dtype,
        classify=classify,
        classes=classes,
        collate=collate,
        device=theta.device,
    )
    rows = replace(rows, integers=takes_integers(network.module, rows))
    rows, held_out = _hold_out(rows, validation, plan.seed, collate)
    check_model(network, rows)
    notes: tuple[str, ...] = ()
    given = methods.dorfl() if method is None else method_by_name(method)
    if isinstance(given, AutoMethod):
        if plan.privacy is not None:
            raise ValueError(
                f"privacy: {given.name!r} is chosen from rows, without noise; give a method with "
                "numbers, such as methods.erm() or methods.paper(rho=…)"
            )
        _check_outputs(network, rows, loss, moving=False)
        given, notes = _resolve(given, network, rows, loss, score is not None)
    method = check_method(given)
    _check_outputs(network, rows, loss, moving=bool(method.rho < np.inf))
    if plan.privacy is not None:
        _check_private(method, network, score)
    hessian = None
    if score is None and method.score is not None:
        hessian = method.score.hessian(rows.dims)
        if not rows.plain:
            raise ValueError("score: rows are not one tensor each, of one shape; give `score`")
    robust = RobustLoss(
        LOSSES[loss] if isinstance(loss, str) else loss,
        transport_geometry(method.rho, method.cost, hessian, rows.dims, theta),
        row_score(method.score if score is None else score, rows, agreed),
        plan.max_loss,
        plan.inner_steps,
        plan.inner_lr,
        plan.inner_tol,
        plan.input_bounds,
    )
    centers = None if hessian is None else _centers(method, rows, agreed)
    if plan.row_risk is not None and np.isfinite(method.temperature):
        raise ValueError("row_risk: takes the place of the tilt; give a method without temperature")
    tilt = RowTilt(method.temperature, plan.risk_momentum, plan.trim, plan.row_risk)
    has_score = robust.score is not None or centers is not None
    return LocalClients(
        network,
        rows,
        robust,
        tilt,
        plan,
        method,
        notes,
        centers,
        held_out=held_out,
        by_loss=has_score and method.mixture.by == "loss",
    )


def _check_private(method: Method, network: Network, score: Any) -> None:
    """Raise ValueError if clients would also report statistics of rows without noise."""
    check_privacy(NetworkProblem(method, np.empty(0), network))
    if score is not None and search(method, score) is not None:
        raise ValueError("privacy: this score is found from rows, without noise; give a function")


def takes_integers(module: nn.Module, rows: ClientRows) -> bool:
    """Return whether rows have integers, such as token ids, that the module takes as they are."""
    return _takes(module, replace(rows, integers=True).read(0, np.arange(1))[0])


def _takes(module: nn.Module, x: Any) -> bool:
    if all(leaf.is_floating_point() for leaf in tree_leaves(x)):
        return False
    try:
        with torch.no_grad(), seeded(0):
            models.call(copy.deepcopy(module).eval(), x)
    except (RuntimeError, TypeError, ValueError):
        return False
    return True


def check_model(network: Network, rows: ClientRows) -> None:
    """Raise ValueError if rows of a batch are not independent, or a pass changes a buffer.

    The outputs for a row must not depend on its batch, as with batch normalisation. A buffer that
    a forward pass changes would go from client to client.
    """
    module = copy.deepcopy(network.module)
    before = {name: value.clone() for name, value in module.named_buffers()}
    found = []
    for second in (0, rows.counts[0] - 1):
        with torch.no_grad(), seeded(0):  # the same augmentation and dropout in both passes
            x, _ = rows.read(0, np.array([0, second]))
            try:
                out = models.call(module, x)
            except (RuntimeError, TypeError):  # `_check_outputs` names the shapes of the rows
                return
        if not isinstance(out, Tensor):
            return
        found.append(out[0])
    for name, value in module.named_buffers():
        if not torch.equal(value, before[name]):
            raise ValueError(
                f"model: a forward pass changes the buffer {name!r}, which would go from client to "
                "client; make it a parameter, or call .eval() on its submodule before training"
            )
    one, two = found
    if one.shape == two.shape and not torch.allclose(one, two, rtol=1e-3, atol=1e-5):
        raise ValueError(
            "model: its output for a row depends on the batch's other rows, as in batch "
            "normalisation: a row has no worst place of its own, and clients that differ have no "
            "common statistics; use GroupNorm or LayerNorm, or freeze it: .eval()"
        )


def _resolve(
    method: AutoMethod, network: Network, rows: ClientRows, loss: str | RowLoss, own_score: bool
) -> resolution.Resolved:
    """Return the open method with numbers for these rows."""
    measurable = _measurable(network, rows)
    if measurable.any():
        known = (rows.known(i) for i in range(len(rows.names)))
        parts = {
            name: (array(x.flatten(1)), array(y))
            for name, (x, y) in zip(rows.names, known, strict=True)
        }
    else:  # nothing is measured
        parts = {rows.names[0]: (np.zeros((1, 1)), np.zeros(1))}
    sample = resolution.sample(parts, len(rows.classes))
    return resolution.resolve(
        method,
        sample,
        regression_loss="squared" if loss == "squared" else "huber",
        measurable=measurable,
        own_score=own_score,
    )


def _measurable(network: Network, rows: ClientRows) -> Array:
    """Return (inputs,) True for inputs by which the outputs of the network have a gradient.

    The gradient is taken at parameters a little off the given ones: a layer that starts at zero
    passes none.
    """
    none, parts = np.zeros(rows.dims, dtype=bool), []
    if not rows.plain or rows.read(0, np.arange(1))[1].ndim > 1:
        return none
    for i, count in enumerate(rows.counts):
        probed = -(-int(np.clip(LAZY_BLOCK // rows.dims, 1, PROBED)) // len(rows.names))
        parts.append(rows.read(i, np.linspace(0, count - 1, min(probed, count)).astype(int))[0])
    x = torch.cat(parts).clone()
    if not x.is_floating_point():
        return none
    x.requires_grad_(True)
    random = torch.Generator().manual_seed(0)
    theta = network.start()
    theta = theta + 0.01 * torch.randn(theta.shape, generator=random).to(theta)
    with network.evaluating():
        out = network.outputs(theta[None], x[None])[0]
    if not out.requires_grad:
        return none
    direction = torch.randn(out.shape, generator=random).to(out)
    (slope,) = torch.autograd.grad((out * direction).sum(), x, allow_unused=True)
    return none if slope is None else array((slope.flatten(1) != 0).any(0))


def oracle(
    clients: Any,
    method: Method | AutoMethod | str | None,
    model: nn.Module | Callable[[], nn.Module],
    plan: NetworkPlan | None = None,
    **given: Any,
) -> LocalClients:
    """Return the clients as an oracle, for the solvers of linear models: `dorfl.train(oracle(…))`.

    For networks small enough to evaluate all rows in every round. Options are as for :func:`train`.

    >>> import dorfl
    >>> data = dorfl.datasets.synthetic(seed=0)
    >>> small = oracle(data.clients, dorfl.methods.afl(), lambda: models.mlp(5, (2,), 2))
    >>> small.evaluate(small.problem.start).gradients.shape
    (3, 18)
    """
    names = {"loss", "score", "classes", "collate"} & given.keys()
    own = {name: given.pop(name) for name in names}
    return prepare(clients, method, model, (plan or NetworkPlan()).changed(**given), **own)


def _fit(
    local: LocalClients, state: server.ServerState, course: Course, loss: str | RowLoss
) -> NetworkFit:
    """Return the fit, with a warning for each defect of the trained network."""
    rows, method = local.rows, local.method
    found = local.risks(state.mean)
    private = local.plan.privacy is not None  # then risks are as reported, with noise
    risks = state.risks if private else found.values
    for defect in [] if private else diagnose(local, state.mean, state.lam, found.sample_weights):
        warnings.warn(defect, FitWarning, stacklevel=4)
    objective, gap = server.objective_and_gap(method, risks, state.lam)
    return NetworkFit(
        model=local.network.module_at(state.mean),
        theta=array(state.mean),
        lam=state.lam,
        clients=rows.names,
        risks=risks,
        objective=objective,
        gap_estimate=gap,
        rounds=state.round,
        history=course.history,
        evaluations=course.evaluations,
        sample_weights=dict(zip(rows.names, found.sample_weights, strict=True)),
        inner_error=found.error,
        inner_steps=found.steps,
        classes=rows.classes,
        method=method,
        plan=local.plan,
        loss=loss,
        notes=local.notes,
    )


def _centers(method: Method, rows: ClientRows, agreed: Agreed | None) -> Tensor:
    """Return ξ̄ of every client, as for linear models."""
    tables = {n: array(rows.known(i)[0].flatten(1)) for i, n in enumerate(rows.names)}
    if agreed and "center" in agreed:
        centers = np.tile(agreed["center"], (len(tables), 1))
    else:
        centers = find_centers(method, tables, len(rows.classes))
    return torch.as_tensor(centers).to(rows.device, rows.dtype)


def _check_outputs(
    network: Network, rows: ClientRows, loss: str | RowLoss, *, moving: bool
) -> None:
    """Raise ValueError if outputs for two rows do not fit the labels, the loss or the method."""
    x, y = rows.read(0, np.zeros(2, dtype=int))
    leaves = tree_leaves(x)
    if moving and not (isinstance(x, Tensor) and x.is_floating_point()):
        raise ValueError(NO_TRANSPORT)
    if moving:
        x.requires_grad_(True)
    try:
        with network.evaluating():
            out = network.outputs(network.start()[None], tree_map(lambda leaf: leaf[None], x))[0]
    except (RuntimeError, TypeError) as error:
        given = ", ".join(f"{tuple(v.shape[1:])}, which reach it as {v.dtype}" for v in leaves)
        raise ValueError(f"model: does not take rows of shape {given}: {error}") from None
    if not out.is_floating_point():
        raise ValueError(f"model: returns {out.dtype} for a row; a loss needs real numbers")
    if moving and not out.requires_grad:
        raise ValueError(NO_TRANSPORT)
    if not isinstance(loss, str):
        _check_loss(loss, out, y)
        return
    labels = tuple(y.shape[1:])
    needed = (*labels, len(rows.classes)) if loss == "softmax" else labels or (1,)
    if out.shape[1:] != needed:
        more = "; give `classes` if these rows lack some, or loss='squared' if labels are numbers"
        raise ValueError(
            f"model: returns {tuple(out.shape[1:])} for a row, {loss} loss here needs "
            f"{needed}{more if loss == 'softmax' else ''}"
        )


def _check_loss(loss: RowLoss, out: Tensor, y: Tensor) -> None:
    """Raise ValueError unless a loss of the user's own gives one number for each of two rows."""
    try:
        each = loss(out, y)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        kind = "values" if y.dtype.is_floating_point else "class numbers"
        raise ValueError(
            f"loss: does not take outputs {tuple(out.shape)} and labels {tuple(y.shape)}, which "
            f"are {kind} (class numbers where `classes` is given, else values): {error}"
        ) from None
    if not isinstance(each, Tensor) or each.shape != y.shape[:1]:
        given = tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__
        raise ValueError(
            f"loss: gives {given} for two rows, and it must give one number for each, (2,); "
            "PyTorch's losses do with reduction='none' and outputs of the labels' shape"
        )
