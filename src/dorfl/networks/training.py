"""`train` for networks: from clients, a method and a model to a fitted one, in this process."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dorfl.data.robust import find_centers
from dorfl.federated.diagnostics import FitWarning
from dorfl.federated.fit import HasHistory
from dorfl.federated.simulation import Round
from dorfl.networks import checkpoint as keeping
from dorfl.networks import model as models
from dorfl.networks import resolution, server
from dorfl.networks.agreement import Agreed
from dorfl.networks.client import Fleet
from dorfl.networks.data import Rows, gather, inputs
from dorfl.networks.diagnostics import diagnose
from dorfl.networks.model import Network
from dorfl.networks.oracle import Agreement, NetworkOracle, evaluate
from dorfl.networks.plan import Plan
from dorfl.networks.rows import LOSSES, Robust, RowLoss, place
from dorfl.networks.scores import row_score
from dorfl.networks.tilt import Tilt
from dorfl.objective.methods import AutoMethod, Method, dorfl
from dorfl.support.types import Array

PROBED = 64  # rows at which the gradient by the inputs is looked at


@dataclass(frozen=True, eq=False)
class NetworkFit(HasHistory):
    """A trained network and how it came about; the fields are those of a linear model's fit.

    `gap_estimate` is max_i F_i − Σ λ_i F_i, what the mixture could still gain. What θ could still
    gain nobody knows for a model that is not convex, so this is no bound. `inner_error` is about
    how far the mean row is below its supremum, `inner_steps` the steps of ascent it had. `notes`
    are the reasons for a method that was chosen from the rows, one sentence each.
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
    plan: Plan
    loss: str | RowLoss
    notes: tuple[str, ...] = ()

    def decision(self, X: Any) -> Array:
        """What the model puts out: (n, outputs)."""
        return outputs(self.model, X)

    def predict(self, X: Any) -> Array:
        """Labels, or values for a regression."""
        out = self.decision(X)
        if not len(self.classes):
            return np.asarray(out[:, 0])
        return np.asarray(
            self.classes[out.argmax(1) if out.shape[1] > 1 else (out[:, 0] > 0).astype(int)]
        )

    def score(self, X: Any, y: Any) -> float:
        """Accuracy, or the negative mean squared error of a regression."""
        if len(self.classes):
            return float(np.mean(self.predict(X) == np.asarray(y)))
        return -float(np.mean((self.predict(X) - np.asarray(y, dtype=float)) ** 2))


def train(
    clients: Any,
    method: Method | AutoMethod | None,
    model: nn.Module | Callable[[], nn.Module],
    plan: Plan | None = None,
    *,
    loss: str | RowLoss = "softmax",
    score: Any = None,
    classes: Any = None,
    at: str | None = None,
    checkpoint: str | Path | None = None,
    progress: Callable[[Round], object] | None = None,
    **given: Any,
) -> NetworkFit:
    """Train one network over clients that keep their rows to themselves.

    Args:
        clients: a list of (X, y) or of data sets, or a mapping of client name to these.
        method: one of :mod:`dorfl.methods`, or any combination of their parts. None means
            ``methods.dorfl()``, which is resolved from the rows (:mod:`dorfl.networks.resolution`).
        model: a `torch.nn.Module`, or a function that makes one.
        plan: how it is trained; see :class:`~dorfl.networks.Plan`.
        loss: "softmax", "logistic", "squared", "huber", or a function of (outputs, labels) that
            gives one number per row; it gets class numbers where `classes` is given, else values.
        score: h as a function of (rows, labels) on tensors, instead of the method's.
        classes: the labels, where the clients do not have them all.
        at: the submodule whose output transport moves, instead of the inputs.
        checkpoint: a file to write after every round, and to go on from where it exists.
        progress: called with every round as it ends.
        **given: words of the plan by name, as in `train(…, rounds=10, batch=32)`.

    >>> import dorfl
    >>> from dorfl.networks import mlp, train
    >>> data = dorfl.datasets.synthetic(seed=0)
    >>> fit = train(data.clients, dorfl.methods.erm(), lambda: mlp(5, (8,), 2), rounds=2)
    >>> fit.rounds, fit.predict(data.test["client-1"][0][:3]).shape
    (2, (3,))
    """
    plan = (plan or Plan()).changed(**given)
    fleet = prepare(clients, method, model, plan, loss=loss, score=score, classes=classes, at=at)
    method = fleet.method
    setting = server.Setting(method, plan, fleet.rows.names, fleet.rows.counts)
    state, kept = server.begin(setting, fleet.network.start()), fleet.begin()
    history: list[Round] = []
    file = None if checkpoint is None else Path(checkpoint)
    words = repr((setting.names, terms(method, plan)))
    if file is not None and file.exists():
        state, kept, history = keeping.read(file, state, kept, words)
    while state.round < plan.rounds:
        state, line = server.play(fleet, setting, state, kept)
        history.append(line)
        if file is not None:
            keeping.write(file, state, kept, history, words)
        if progress is not None:
            progress(line)
    return _fit(fleet, state, history, loss)


def check(method: Method) -> None:
    """Raise ValueError if `method` is none with numbers, or one that only linear models can do."""
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


def terms(method: Method, plan: Plan) -> str:
    """What clients and server must both go by, in words; how many rounds is the server's matter.

    >>> from dorfl import methods
    >>> terms(methods.afl(), Plan(rounds=3)) == terms(methods.afl(), Plan())
    True
    """
    return repr((method.name, method.rho, method.temperature, replace(plan, rounds=1)))


def outputs(model: nn.Module, X: Any) -> Array:
    """What a trained model puts out for rows: (n, outputs)."""
    dtype = next(model.parameters()).dtype
    with torch.no_grad():
        parts = [model(part) for part in inputs(X, dtype).split(4096)]
    return np.asarray(torch.cat(parts).numpy())


def prepare(
    clients: Any,
    method: Method | AutoMethod | None,
    model: nn.Module | Callable[[], nn.Module],
    plan: Plan,
    *,
    loss: str | RowLoss = "softmax",
    score: Any = None,
    classes: Any = None,
    at: str | None = None,
    agreed: Agreed | None = None,
) -> Fleet:
    """Clients checked, their centres found, the model made: ready for the first round.

    `agreed` is what these clients have agreed on with others, where they are not all there are.
    """
    if isinstance(loss, str) and loss not in LOSSES:
        raise ValueError(f"loss={loss!r} is unknown; choose one of {', '.join(LOSSES)}")
    network = Network(models.make(model, plan.seed), at)
    dtype = network.start().dtype
    own = not isinstance(loss, str)
    classify = loss in ("softmax", "logistic") or (own and classes is not None)
    rows = gather(clients, dtype, classify=classify, classes=classes)
    notes: tuple[str, ...] = ()
    if method is None or isinstance(method, AutoMethod):
        _check_outputs(network, rows, loss, moving=False)
        method, notes = _resolve(method or dorfl(), network, rows, loss, score is not None)
    check(method)
    _check_outputs(network, rows, loss, moving=at is None and bool(method.rho < np.inf))
    bend = None
    if score is None and method.score is not None:
        bend = method.score.bend(rows.dims)
    if at is not None and bend is not None:
        raise ValueError("at: a quadratic score is on the inputs, transport is not; give `score`")
    moving = rows.dims if at is None else int(network.embed(rows.x[None, :1]).numel())
    robust = Robust(
        LOSSES[loss] if isinstance(loss, str) else loss,
        place(method.rho, method.cost, bend, moving, dtype),
        row_score(method.score if score is None else score, rows, agreed),
        plan.most,
        plan.climb,
        plan.accuracy,
        plan.bounds,
    )
    centers = None if bend is None else _centers(method, rows, agreed)
    tilt = Tilt(method.temperature, plan.memory, plan.trim)
    scored = robust.score is not None or centers is not None
    by_loss = scored and method.mixture.by == "loss"
    return Fleet(network, rows, robust, tilt, plan, method, notes, centers, by_loss=by_loss)


def _resolve(
    method: AutoMethod, network: Network, rows: Rows, loss: str | RowLoss, own_score: bool
) -> resolution.Resolved:
    """Return the open method with numbers for these rows."""
    sample = resolution.Sample(
        rows.x.flatten(1).numpy(), rows.y.numpy(), rows.names, rows.bounds, len(rows.classes)
    )
    return resolution.resolve(
        method,
        sample,
        regression_loss="squared" if loss == "squared" else "huber",
        measurable=_measurable(network, rows),
        own_score=own_score,
        at=network.at,
    )


def _measurable(network: Network, rows: Rows) -> Array:
    """Return (inputs,) True for inputs by which the outputs of the network have a gradient.

    The gradient is taken at parameters a little off the given ones: a layer that starts at zero
    passes none.
    """
    places = torch.linspace(0, len(rows.y) - 1, min(PROBED, len(rows.y))).long()
    x = rows.x[places].clone().requires_grad_(True)
    random = torch.Generator().manual_seed(0)
    theta = network.start()
    theta = theta + 0.01 * torch.randn(theta.shape, generator=random).to(theta)
    with network.evaluating():
        out = network.outputs(theta[None], x[None])[0]
    if not out.requires_grad:
        return np.zeros(rows.dims, dtype=bool)
    direction = torch.randn(out.shape, generator=random).to(out)
    (slope,) = torch.autograd.grad((out * direction).sum(), x, allow_unused=True)
    if slope is None:
        return np.zeros(rows.dims, dtype=bool)
    return np.asarray((slope.flatten(1) != 0).any(0).numpy())


def oracle(
    clients: Any,
    method: Method | AutoMethod | None,
    model: nn.Module | Callable[[], nn.Module],
    plan: Plan | None = None,
    **given: Any,
) -> NetworkOracle:
    """The clients as an oracle, for the solvers of linear models: `dorfl.train(oracle(…))`.

    For networks small enough to evaluate all rows in every round; words are those of :func:`train`.

    >>> import dorfl
    >>> data = dorfl.datasets.synthetic(seed=0)
    >>> small = oracle(data.clients, dorfl.methods.afl(), lambda: models.mlp(5, (2,), 2))
    >>> small.evaluate(small.problem.start).gradients.shape
    (3, 18)
    """
    named = {word: given.pop(word) for word in ("loss", "score", "classes", "at") if word in given}
    fleet = prepare(clients, method, model, (plan or Plan()).changed(**given), **named)
    theta = fleet.network.start().double().numpy()
    return NetworkOracle(Agreement(fleet.method, theta, fleet.network), fleet)


def _fit(
    fleet: Fleet, state: server.State, history: list[Round], loss: str | RowLoss
) -> NetworkFit:
    """Return the fit, with a warning for each defect of the trained network."""
    found, rows, method = evaluate(fleet, state.mean), fleet.rows, fleet.method
    risks = found.values
    for defect in diagnose(fleet, method, state.mean, state.lam, found.sample_weights):
        warnings.warn(defect, FitWarning, stacklevel=4)
    objective, gap = server.standing(method, risks, state.lam)
    return NetworkFit(
        model=fleet.network.module_at(state.mean),
        theta=state.mean.numpy(),
        lam=state.lam,
        clients=rows.names,
        risks=risks,
        objective=objective,
        gap_estimate=gap,
        rounds=state.round,
        history=history,
        sample_weights=dict(zip(rows.names, found.sample_weights, strict=True)),
        inner_error=found.error,
        inner_steps=found.steps,
        classes=rows.classes,
        method=method,
        plan=fleet.plan,
        loss=loss,
        notes=fleet.notes,
    )


def _centers(method: Method, rows: Rows, agreed: Agreed | None) -> Tensor:
    """ξ̄ of every client, as it is found for linear models."""
    x = rows.x.flatten(1).numpy()
    tables = {name: x[rows.client(i)] for i, name in enumerate(rows.names)}
    if agreed and "center" in agreed:
        centers = np.tile(agreed["center"], (len(tables), 1))
    else:
        centers = find_centers(method, tables, len(rows.classes))
    return torch.from_numpy(centers).to(rows.x.dtype)


def _check_outputs(
    network: Network, rows: Rows, loss: str | RowLoss, *, moving: bool
) -> None:  # fmt: skip
    """One pass of a row, taken twice: does the model fit the rows, the labels and the method?"""
    x, y = (torch.cat([part[:1]] * 2) for part in (rows.x, rows.y))
    x.requires_grad_(moving)
    try:
        with network.evaluating():
            out = network.outputs(network.start()[None], x[None])[0]
    except (RuntimeError, TypeError) as error:
        given = f"{tuple(rows.x.shape[1:])}, which reach it as {rows.x.dtype}"
        raise ValueError(f"model: does not take rows of shape {given}: {error}") from None
    if not out.is_floating_point():
        raise ValueError(f"model: puts out {out.dtype} for a row; a loss needs real numbers")
    if moving and not out.requires_grad:
        raise ValueError(
            "rho: what the model puts out has no gradient by its inputs, so transport cannot move "
            "them; name a submodule whose output it can move (at=), or do without (rho=inf)"
        )
    if not isinstance(loss, str):
        _check_loss(loss, out, y)
    elif out.shape[1:] != ((width := len(rows.classes) if loss == "softmax" else 1),):
        more = "; give `classes` if there are more than these rows have" if width > 1 else ""
        raise ValueError(
            f"model: puts out {tuple(out.shape[1:])} for a row, {loss} loss here needs "
            f"({width},){more}"
        )


def _check_loss(loss: RowLoss, out: Tensor, y: Tensor) -> None:
    """Does a loss of the user's own give one number for each of two rows?"""
    try:
        each = loss(out, y)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        kind = "values" if y.dtype.is_floating_point else "class numbers"
        raise ValueError(
            f"loss: does not take outputs {tuple(out.shape)} and labels {tuple(y.shape)}, which "
            f"are {kind} (class numbers where `classes` is given, else values): {error}"
        ) from None
    if not isinstance(each, Tensor) or each.shape != y.shape:
        given = tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__
        raise ValueError(
            f"loss: gives {given} for two rows, and it must give one number for each, (2,); "
            "PyTorch's losses do with reduction='none' and outputs of the labels' shape"
        )
