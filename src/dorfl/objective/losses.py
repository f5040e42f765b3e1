"""Losses l(t, y) of a model's output t.

A loss of your own is a subclass of :class:`~dorfl.objective.base.Loss`.

>>> from dorfl import losses
>>> losses.resolve("logistic").name
'logistic'
>>> losses.huber(delta=0.5).delta
0.5
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import logsumexp, ndtr
from scipy.special import softmax as chances

from dorfl.objective.base import Loss
from dorfl.support.types import Array

_EFFICIENT = 1.345  # standard deviations; 95 % efficient for normal residuals (Huber 1981, ch. 7)


@dataclass(frozen=True)
class Logistic(Loss):
    """log(1 + e^{−y t}), y = ±1."""

    name = supremum = "logistic"
    classifies = unbounded = has_hessian = True
    curvature = 0.25
    max_slope = 1.0

    def value(self, outputs: Array, target: Array) -> Array:
        return np.asarray(np.logaddexp(0.0, -target * outputs))

    def slope(self, outputs: Array, target: Array) -> Array:
        return np.asarray(-target * np.exp(-np.logaddexp(0.0, target * outputs)))[:, None]

    def hessian(self, slope: Array, target: Array, value: Array) -> Array:
        s = np.abs(slope)
        return np.asarray(s * (1.0 - s))[:, :, None]

    def upper_bound(self, output: Any, target: Array, outputs: int) -> Array:
        return np.asarray(np.logaddexp(0.0, output) + np.zeros(len(target)))


@dataclass(frozen=True)
class Softmax(Loss):
    """log Σ_c e^{t_c} − t_y, y the number of the class."""

    name = supremum = "softmax"
    classifies = unbounded = has_hessian = invariant = True
    curvature = 0.5
    max_slope = 2.0**0.5

    def outputs(self, classes: int) -> int:
        return classes

    def value(self, outputs: Array, target: Array) -> Array:
        rows = np.arange(len(target))
        return np.asarray(logsumexp(outputs, axis=1) - outputs[rows, target.astype(int)])

    def slope(self, outputs: Array, target: Array) -> Array:
        g = chances(outputs, axis=1)
        g[np.arange(len(target)), target.astype(int)] -= 1.0
        return np.asarray(g)

    def hessian(self, slope: Array, target: Array, value: Array) -> Array:
        chance = slope.copy()
        chance[np.arange(len(target)), target.astype(int)] += 1.0
        bend = -chance[:, :, None] * chance[:, None, :]
        np.einsum("ncc->nc", bend)[:] += chance
        return np.asarray(bend)


@dataclass(frozen=True)
class Squared(Loss):
    """½ (t − y)²."""

    name = supremum = "squared"
    has_hessian = True
    curvature = 1.0
    finite_below = 1.0

    def value(self, outputs: Array, target: Array) -> Array:
        return np.asarray(0.5 * np.abs(outputs - target) ** 2)

    def slope(self, outputs: Array, target: Array) -> Array:
        return np.asarray(outputs - target)[:, None]

    def hessian(self, slope: Array, target: Array, value: Array) -> Array:
        return np.ones((*slope.shape, 1))

    def bounds(
        self, output: float, spread: float, targets: Array, outputs: int
    ) -> tuple[float, float]:
        """Bound the supremum and its slope; both are infinite if the spread is 1 or more."""
        if spread >= 1.0:
            return np.inf, np.inf
        far = output + float(np.abs(targets).max())
        return 0.5 * far**2 / (1.0 - spread), far / (1.0 - spread)


@dataclass(frozen=True)
class Huber(Loss):
    """½ (t − y)² up to a residual of `delta`, linear beyond.

    Attributes
    ----------
    delta : float
        Residual beyond which the loss is linear.
    """

    name = supremum = "huber"
    has_hessian = majorizes = has_unit = True
    curvature = 1.0
    delta: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.delta) and self.delta > 0):
            raise ValueError(f"huber(delta={self.delta}): delta must be a positive number")

    def scaled(self, unit: float) -> Huber:
        return Huber(self.delta * unit)

    @property
    def max_slope(self) -> float:
        return self.delta

    @property
    def parameter(self) -> float:
        return self.delta

    def value(self, outputs: Array, target: Array) -> Array:
        residual = np.abs(outputs - target)
        linear = self.delta * (residual - 0.5 * self.delta)
        return np.asarray(np.where(residual <= self.delta, 0.5 * residual**2, linear))

    def slope(self, outputs: Array, target: Array) -> Array:
        return np.asarray(np.clip(outputs - target, -self.delta, self.delta))[:, None]

    def hessian(self, slope: Array, target: Array, value: Array) -> Array:
        """Return ∂²l/∂t² of every row; beyond `delta`, that of a parabola above the loss."""
        residual = np.maximum(value / self.delta + 0.5 * self.delta, self.delta)
        inside = np.abs(slope) < self.delta
        return np.where(inside, 1.0, self.delta / residual[:, None])[:, :, None]


@dataclass(frozen=True)
class HuberInUnit(Huber):
    """Huber's loss of labels and outputs that are divided by `unit`."""

    unit: float = 1.0

    def encode(self, labels: Array, classes: Array) -> Array:
        return np.asarray(labels, dtype=np.float64) / self.unit

    def decode(self, target: Array, classes: Array) -> Array:
        return target * self.unit


@dataclass(frozen=True)
class ConcomitantHuber(Huber):
    """Huber's loss in units of a residual scale σ that is estimated together with the model.

    A row with residual r costs

        huber_{εσ}(r)/σ + ½ b (σ + least²/σ),    b = E min(z², ε²) for a standard normal z,

    which is jointly convex in r and σ. Without `least`, σ solves mean min(r²/σ², ε²) = b: this is
    Huber's Proposal 2 [1]_, and σ estimates the standard deviation of normal residuals.
    scikit-learn's `HuberRegressor` has 1 in the place of b [2]_, so that its σ is smaller.

    Attributes
    ----------
    delta : float
        ε, in units of σ: residuals beyond εσ count linearly.
    least : float
        A lower bound of σ, in the unit of the labels. It acts as further residuals of that standard
        deviation, independent of the others, so that rows that are met exactly leave σ positive.
        With 0, :func:`dorfl.train` takes 1e-4 of the scale of the labels.

    References
    ----------
    .. [1] P. J. Huber, *Robust Statistics*, 1981, chapter 7 (concomitant scale; Proposal 2).
    .. [2] A. B. Owen, *A robust hybrid of lasso and ridge regression*, 2007.

    >>> round(ConcomitantHuber(1.345).consistency, 4)
    0.7102
    """

    name = "concomitant-huber"
    supremum = "huber"
    has_unit = False
    estimates_scale = True
    delta: float = _EFFICIENT
    least: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (np.isfinite(self.least) and self.least >= 0):
            raise ValueError(f"huber(least={self.least}): least must be a number of at least 0")

    @property
    def consistency(self) -> float:
        """Return b = E min(z², ε²) for a standard normal z."""
        tail, density = float(ndtr(-self.delta)), math.exp(-0.5 * self.delta**2)
        inside = 1.0 - 2.0 * tail - 2.0 * self.delta * density / math.sqrt(2.0 * math.pi)
        return inside + 2.0 * self.delta**2 * tail

    def scaled(self, unit: float) -> ConcomitantHuber:
        """Return the loss for labels in another unit; ε is in units of σ and stays."""
        return replace(self, least=self.least * unit)

    def at(self, scale: float) -> Huber:
        """Return Huber's loss with the scale σ fixed."""
        return Huber(self.delta * scale)


KINDS: dict[str, type[Loss]] = {
    kind.name: kind for kind in (Logistic, Softmax, Squared, Huber, ConcomitantHuber)
}  # names that users can give and files can hold

logistic, squared = Logistic(), Squared()


def huber(delta: float | None = None, *, scale: float | str = 1.0, least: float = 0.0) -> Huber:
    """Return Huber's loss: quadratic up to a residual of `delta` · `scale`, linear beyond.

    Parameters
    ----------
    delta : float, optional
        Where the loss becomes linear, in units of `scale`. The default is 1, and 1.345 with
        ``scale="auto"``: 95 % of the efficiency of least squares if residuals are normal.
    scale : float or "auto"
        The unit of residuals. With "auto" it is estimated together with the model, and the fit has
        it as `Fit.scale`; see :class:`ConcomitantHuber`.
    least : float
        With ``scale="auto"``, a lower bound of the scale in the unit of the labels. With 0,
        :func:`dorfl.train` takes 1e-4 of the scale of the labels.

    Returns
    -------
    Huber
        The loss, for ``dorfl.train(clients, method, loss=…)``.

    Raises
    ------
    ValueError
        If a number is not positive, or `scale` is another text than "auto".

    >>> huber(1.5, scale=2.0).delta, huber(scale="auto").delta
    (3.0, 1.345)
    """
    if scale == "auto":
        return ConcomitantHuber(_EFFICIENT if delta is None else float(delta), float(least))
    if isinstance(scale, str) or not scale > 0:
        raise ValueError(f'huber(scale={scale!r}): give a positive number or "auto"')
    return Huber((1.0 if delta is None else float(delta)) * float(scale))


def resolve(loss: str | Loss) -> Loss:
    """Return a loss by its name in `KINDS`; a loss is returned as it is."""
    if isinstance(loss, Loss):
        return loss
    if loss in ("exponential", "poisson"):
        raise ValueError(
            f"loss={loss!r} grows faster than the transport cost, so its supremum is infinite; "
            f"choose one of {', '.join(KINDS)}"
        )
    if loss not in KINDS:
        raise ValueError(f"loss={loss!r} is unknown; choose one of {', '.join(KINDS)}")
    return KINDS[loss]()
