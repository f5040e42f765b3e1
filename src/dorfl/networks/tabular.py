"""The network of a table, for estimators and commands: its layers and its training.

Rows, method and centres are those of the study, whose linear model was trained before. The choices
here hold from a hundred rows to many thousands:

- **Layers.** Two of 64 with ReLU (:mod:`dorfl.networks.layered`).
- **Steps.** In a round every client takes one gradient on 64 of its rows, and the server steps by
  Adam at a rate of 2·10⁻³ along their mixture: no client drifts. The model is the mean of about the
  last 50 θ, which a worst mixture needs more than others.
  With `batch` 0 the gradient is of all rows, without random numbers and without state from round
  to round, as sites of a federation train.
- **Rounds.** As many as take the largest client through its rows five times, from 500 to 2000.
- **Weight decay.** ½ l2 ‖θ‖² with l2 = 3 / rows. (1 / rows, as for linear models, lets a network of
  a few hundred rows overfit; 10 / rows leaves little of an interaction there.)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dorfl.data.validation import Clients
from dorfl.federated.simulation import Round
from dorfl.linear.problem import Problem
from dorfl.networks.client import LocalClients, RobustRisks
from dorfl.networks.layered import Layered, layered
from dorfl.networks.model import Network, make, mlp
from dorfl.networks.plan import NetworkPlan
from dorfl.networks.supremum import RowLoss
from dorfl.networks.training import NetworkFit, prepare, train
from dorfl.objective.methods import Method
from dorfl.objective.scores import Quadratic
from dorfl.support.types import Array

DECAY = 3.0  # l2 in units of 1 / rows
_BATCH = 64  # rows of a step
_MIN_ROUNDS, _MAX_ROUNDS = 500, 2000
_PASSES = 5  # of the largest client through its rows


def plan_for(
    counts: Array, *, l2: float | None, rounds: int | None, seed: int, batch: int | None = None
) -> NetworkPlan:
    """Return the plan for clients with so many rows each.

    >>> plan = plan_for(np.array([200]), l2=None, rounds=None, seed=0)
    >>> plan.rounds, plan.l2
    (500, 0.015)
    """
    size = (_BATCH if batch is None else batch) or int(np.max(counts))
    if rounds is None:
        passes = _PASSES * int(np.max(counts)) // size
        rounds = int(np.clip(passes, _MIN_ROUNDS, _MAX_ROUNDS))
    plan = NetworkPlan(
        rounds=rounds,
        batch_size=size,
        local_steps=1,
        lr=2e-3,
        average=0.98,
        mixture_lr=0.02,
        inner_steps=5,
        l2=DECAY / float(np.sum(counts)) if l2 is None else l2,
        seed=seed,
    )
    return plan.changed(risk_momentum=0.0, max_parameters=1) if batch == 0 else plan


def fit(
    clients: Clients,
    problem: Problem,
    centers: Array,
    plan: NetworkPlan,
    model: Any = "mlp",
    progress: Callable[[Round], object] | None = None,
) -> NetworkFit:
    """Train a network for a study's linear `problem` on rows as the study prepared them.

    `model` is "mlp", a module, or a function that makes one, of the numbers of inputs and outputs
    if it takes them. For two classes it may have one output or two.
    """
    own = _made(model, problem, plan.seed)
    loss = _loss(problem)
    if loss == "logistic" and _outputs(own, problem.dims) == 2:
        loss = "softmax"
    method = _with_centers(problem.method, clients, centers)
    classes = problem.classes if problem.loss.classifies else None
    return train(clients, method, own, plan, loss=loss, classes=classes, progress=progress)


def ready(clients: Clients, problem: Layered, centers: Array, plan: NetworkPlan) -> LocalClients:
    """Return the clients before the first round, with the network of the plan's seed."""
    method = _with_centers(problem.method, clients, centers)
    classes = problem.classes if problem.loss.classifies else None
    module = _mlp(problem, plan.seed)
    return prepare(clients, method, module, plan, loss=_loss(problem), classes=classes)


def start(problem: Layered, seed: int) -> Tensor:
    """Return θ before the first round."""
    return Network(_mlp(problem, seed)).start()


def evaluated(clients: Clients, problem: Layered, theta: Array, centers: Array) -> RobustRisks:
    """Return F_i at θ, and the weights of rows: 1/n for an ordinary one."""
    counts = np.array([len(y) for _, y in clients.values()])
    local = ready(clients, problem, centers, plan_for(counts, l2=None, rounds=1, seed=0))
    return local.risks(torch.from_numpy(theta.astype(np.float32)))


def _made(model: Any, problem: Problem, seed: int) -> nn.Module:
    if isinstance(model, str):
        return _mlp(layered(problem), seed)
    if isinstance(model, nn.Module) or not callable(model) or not _takes_two(model):
        return make(model, seed)
    return make(lambda: model(problem.dims, problem.outputs), seed)


def _takes_two(model: Callable[..., Any]) -> bool:
    try:
        inspect.signature(model).bind(1, 1)
    except (TypeError, ValueError):
        return False
    return True


def _mlp(problem: Layered, seed: int) -> nn.Module:
    return make(lambda: mlp(problem.dims, problem.hidden, problem.outputs), seed)


def _outputs(module: nn.Module, dims: int) -> int:
    """Return how many outputs the module has; 0 if it does not take such rows."""
    like = next(module.parameters(), torch.zeros(1))
    try:
        with torch.no_grad():
            return int(module(torch.zeros(1, dims, dtype=like.dtype)).shape[-1])
    except (RuntimeError, TypeError, ValueError, AttributeError):  # training raises the error
        return 0


def _loss(problem: Problem) -> str | RowLoss:
    """Return the problem's loss on tensors."""
    steep = problem.loss.max_slope
    if problem.loss.name != "huber":
        return problem.loss.name

    def huber(outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.huber_loss(
            outputs[..., 0], y.to(outputs), reduction="none", delta=steep
        )

    return huber


def _with_centers(method: Method, clients: Clients, centers: Array) -> Method:
    """Return the method with the study's ξ̄ for every client."""
    if not isinstance(method.score, Quadratic):
        return method
    known = dict(zip(clients, centers, strict=True))
    return replace(method, score=replace(method.score, center=known))
