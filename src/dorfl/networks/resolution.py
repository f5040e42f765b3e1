"""Resolve an open method (:func:`dorfl.methods.dorfl`) for a neural network.

The decision about outliers is that of linear models, made on a sample of the clients' rows with
flattened inputs: held-out rows show whether down-weighting outliers lowers the loss. The network
takes over the score, with robust scales and centres in the units of the inputs, and the mixture.

- **Transport.** None unless `rho` or `shift` is given. On digits and Fashion-MNIST with one row in
  ten times −8 it changed the test accuracy of a network by at most 0.8 points either way, at five
  times the processor time, and the supremum of a network is only a local one.
- **Inputs without a gradient**, such as token ids, have no scale. They get no score, and if no
  input has a gradient the method is plain training.
- **Many inputs.** At most ``MAX_INPUTS`` of them, drawn at random, enter the score.

The function that chooses is registered by the package (:func:`register`), because the selection of
an outlier share is built on top of the folders that a neural network needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dorfl.objective import methods, mixture
from dorfl.objective.costs import squared
from dorfl.objective.methods import AUTO, AutoMethod, Method
from dorfl.objective.mixture import Mixture
from dorfl.objective.scores import Quadratic, quadratic
from dorfl.support.types import Array

MAX_ROWS = 5_000  # rows of all clients together that the choice is made on
MIN_ROWS = 10  # rows of a client's class that are in the sample, or all it has
MAX_INPUTS = 1_000  # inputs that the choice is made on, and that the score measures
TEMPERATURE = 32.0  # of the tilt with a score of the user's own, as that of the default method


class Sample(NamedTuple):
    """Flattened rows of all clients: a random sample, stratified by client and class."""

    clients: dict[str, tuple[Array, Array]]  # (n, inputs) inputs and (n,) class numbers or values
    classes: int  # Number of classes; 0 for a regression


class Resolved(NamedTuple):
    """A method with numbers, and the reasons for it."""

    method: Method
    notes: tuple[str, ...]


Choose: TypeAlias = Callable[..., Any]  # as dorfl.selection.defaults.choose
_registered: list[Choose] = []


def register(choose: Choose) -> None:
    """Set the function that resolves an open method for linear models."""
    _registered[:] = [choose]


def resolve(
    method: AutoMethod,
    rows: Sample,
    *,
    regression_loss: str,
    measurable: Array,
    own_score: bool = False,
) -> Resolved:
    """Return the method, in the units of the inputs, that a neural network is trained by.

    `measurable` (inputs,) tells which inputs are real numbers to the network, and `own_score`
    whether the user gives a score of tensors in place of the method's.
    """
    if own_score:
        method = replace(method, score=None, outliers=0.0)
    labels = np.concatenate([y for _, y in rows.clients.values()])
    present = np.unique(labels) if rows.classes else np.empty(0)
    wanted = method.outliers != 0.0 and method.score is not None
    reason = None
    if not measurable.any():
        reason = "the model has no gradient with respect to its inputs, as for token ids"
    elif rows.classes and len(present) < 2:
        reason = "all rows have the same label"
    if reason is not None:
        note = (f"No outlier score: {reason}.",) if wanted else ()
        return _with_tilt(_plain(method), note, own_score)
    if method.shift == AUTO and method.rho == AUTO:
        method = replace(method, shift=0.0)
    used = _used_inputs(measurable)
    clients = {name: (x[:, used], y) for name, (x, y) in rows.clients.items()}
    loss = regression_loss
    if rows.classes:
        loss = "logistic" if len(present) == 2 else "softmax"
    chosen = _choose()(clients, method, loss=loss)
    made = _placed(chosen.method, used, len(measurable), present.astype(int), rows.classes)
    notes = chosen.words
    if len(used) < measurable.sum() and made.score is not None:
        notes = (*notes, f"The score measures {len(used)} of {len(measurable)} inputs.")
    return _with_tilt(made, notes, own_score)


def _choose() -> Choose:
    if not _registered:
        raise RuntimeError("no selection is registered; import dorfl before its parts")
    return _registered[0]


def _plain(method: AutoMethod) -> Method:
    """Return the method without score; transport and tilt only if they are given in numbers."""
    rho, beta = (None if isinstance(v, str) else v for v in (method.rho, method.beta))
    return methods.method(
        rho=rho, beta=beta, cost=method.cost, mixture=_by_loss(method.mixture), name=method.name
    )


def _by_loss(rule: str | Mixture) -> Mixture:
    """Return the rule; one that is given by name compares clients by loss."""
    if rule == "fixed":
        return mixture.fixed(by="loss")
    return mixture.agnostic(by="loss") if rule == "agnostic" else mixture.resolve(rule)


def _with_tilt(method: Method, notes: tuple[str, ...], own_score: bool) -> Resolved:
    """Return the method with a tilt if a score of the user's own needs one."""
    if not own_score or np.isfinite(method.temperature):
        return Resolved(method, notes)
    tilted = replace(method, temperature=TEMPERATURE)
    note = f"The outlier score is the one given; a row has weight exp(−h/{TEMPERATURE:g})."
    return Resolved(tilted, (note, *notes))


def _used_inputs(measurable: Array) -> Array:
    """Return the places of inputs that the choice is made on."""
    places = np.flatnonzero(measurable)
    if len(places) <= MAX_INPUTS:
        return places
    return np.sort(np.random.default_rng(0).choice(places, MAX_INPUTS, replace=False))


def sample(clients: Mapping[str, tuple[Array, Array]], classes: int) -> Sample:
    """Return at most about ``MAX_ROWS`` rows (X, y) of all clients; only these are copied."""
    share = MAX_ROWS / sum(len(y) for _, y in clients.values())
    if share >= 1.0:
        return Sample(dict(clients), classes)
    rng, kept = np.random.default_rng(0), {}
    for name, (x, y) in clients.items():
        codes = y if classes else np.zeros(len(y))
        parts = []
        for code in np.unique(codes):
            places = np.flatnonzero(codes == code)
            size = min(len(places), max(MIN_ROWS, round(share * len(places))))
            parts.append(rng.choice(places, size, replace=False))
        drawn = np.sort(np.concatenate(parts))
        kept[name] = (x[drawn], y[drawn])
    return Sample(kept, classes)


def _placed(method: Method, used: Array, inputs: int, present: Array, classes: int) -> Method:
    """Return a method for the inputs `used` as one for all inputs.

    The other inputs cannot move and do not enter the score. Classes without rows get the mean of
    the other classes' centres.
    """
    everywhere = len(used) == inputs
    weights = method.cost.weights(len(used))
    full = np.full(inputs, np.inf)
    full[used] = weights
    score = method.score
    if isinstance(score, Quadratic):
        shape = score.shape(len(used))
        if shape.ndim == 2 and not everywhere:
            raise ValueError("score: give a diagonal matrix, or a score for all inputs")
        matrix = shape if everywhere else _spread(shape, used, inputs)
        center: Any = score.center
        if isinstance(center, dict):
            center = {n: _center(c, used, inputs, present, classes) for n, c in center.items()}
        elif not isinstance(center, str):
            center = _center(center, used, inputs, present, classes)
        score = quadratic(score.weight, center, matrix)
    if everywhere:
        return replace(method, score=score)
    frozen = np.isinf(full)
    cost = squared(np.where(frozen, 1.0, full).tolist(), frozen=np.flatnonzero(frozen).tolist())
    return replace(method, score=score, cost=cost)


def _spread(values: Array, used: Array, inputs: int) -> Array:
    """Return (…, inputs) values that are 0 at inputs that are not used."""
    out = np.zeros((*values.shape[:-1], inputs))
    out[..., used] = values
    return out


def _center(center: Array, used: Array, inputs: int, present: Array, classes: int) -> Array:
    """Return ξ̄ for all inputs, and for all classes if there is one for each."""
    found = _spread(np.asarray(center, dtype=float), used, inputs)
    if found.ndim == 1 or len(found) == classes:
        return found
    out = np.tile(found.mean(axis=0), (classes, 1))
    out[present] = found
    return out
