"""Base classes of losses and outlier scores, also for those of users.

A loss needs `value` and `slope`, a score needs `at`; the other methods have general defaults.
Overriding them makes training faster or certificates tighter: a closed supremum, a bound on the
curvature or the slope. For a loss of classes, set `classifies`; for a convex score, let
`nonconvexity` return 0, otherwise a small ρ gives a warning. A class with parameters is a frozen
dataclass, and the parameters are its fields.

Classes in the tuple of `KINDS` in :mod:`dorfl.objective.losses` and :mod:`dorfl.objective.scores`
have a name that model folders can hold. The name of a loss can also be given in place of an
instance, in `dorfl.train` and in a study.

>>> import numpy as np
>>> from dorfl.objective.base import Loss
>>> class LogCosh(Loss):
...     name, curvature, max_slope = "log-cosh", 1.0, 1.0
...     def value(self, outputs, target):
...         return np.logaddexp(outputs - target, target - outputs) - np.log(2.0)
...     def slope(self, outputs, target):
...         return np.tanh(outputs - target)[:, None]
>>> import dorfl
>>> rows = [([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0])]
>>> dorfl.train(rows, dorfl.methods.erm(), loss=LogCosh()).predict([[3.0]]).round(3)
array([3.])

A score is a part of the method. This one takes rows far out in one column for outliers:

>>> @dataclass(frozen=True, eq=False)
... class Column(Score):
...     name = "column"
...     weight: float = 0.5
...     column: int = 0
...     def at(self, rows, center, labels):
...         return self.weight * rows[:, self.column] ** 2
...     def nonconvexity(self, stiffness):
...         return 0.0
>>> method = dorfl.methods.method(rho=12.0, temperature=2.0, score=Column(0.3))
>>> dorfl.train(rows, method, loss=LogCosh()).status
'converged'
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from dorfl.support.types import Array
from dorfl.support.wire import number


@dataclass(frozen=True, eq=False)
class Kind:
    """Base of losses and scores: a name, and parameters that are dataclass fields.

    A subclass with parameters needs the decorator ``@dataclass(frozen=True, eq=False)``: without it
    `to_json` writes no parameters.
    """

    name: ClassVar[str] = ""

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as JSON types."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_json(cls, written: Any) -> Any:
        """Make an instance from untrusted JSON; by default all parameters are numbers.

        Parameters
        ----------
        written
            Parameters by name.

        Raises
        ------
        KeyError, TypeError, ValueError
            If a parameter is missing, of another type or out of range.
        """
        return cls(**{field.name: number(written[field.name]) for field in fields(cls)})


class Loss(Kind):
    """Loss l(t, y) of a model's output t, convex in t.

    Attributes
    ----------
    classifies : bool
        Whether y is one of several classes; there are two if the model has one output.
    supremum : str
        Closed form of the supremum in :mod:`dorfl.linear.kernels`; "" if it is found by gradient
        ascent.
    curvature : float
        Bound on ∂²l/∂t² in the largest direction. The supremum is strictly concave if
        S · curvature < 1, with S = θᵀK⁻¹θ.
    max_slope : float
        Largest ‖∂l/∂t‖; clients' reports can be bounded only if it is finite.
    finite_below : float
        S from which on the supremum is infinite.
    unbounded : bool
        Whether the loss has no minimiser on separable rows; a misclassified row must then cost at
        least log 2.
    has_hessian : bool
        Whether `hessian` is defined; solvers use no curvature otherwise.
    invariant : bool
        Whether adding one number to all of several outputs leaves the loss unchanged.
    majorizes : bool
        Whether `hessian` is the second derivative of a parabola above the loss where the loss is
        linear.
    has_unit : bool
        Whether the unit of the labels sets a parameter of the loss: see `scaled`.
    estimates_scale : bool
        Whether the scale of residuals is estimated in training.
    """

    classifies: ClassVar[bool] = False
    supremum: ClassVar[str] = ""
    curvature: ClassVar[float] = np.inf
    finite_below: ClassVar[float] = np.inf
    unbounded: ClassVar[bool] = False
    has_hessian: ClassVar[bool] = False
    invariant: ClassVar[bool] = False
    majorizes: ClassVar[bool] = False
    has_unit: ClassVar[bool] = False
    estimates_scale: ClassVar[bool] = False

    @property
    def max_slope(self) -> float:
        """Return the largest ‖∂l/∂t‖."""
        return np.inf

    @property
    def parameter(self) -> float:
        """Return the parameter of the closed form, if it has one."""
        return 1.0

    def value(self, outputs: Array, target: Array) -> Array:
        """Return l (n,) of every row.

        Parameters
        ----------
        outputs
            (n,), or (n, outputs) if the model has several.
        target
            (n,) encoded labels: see `encode`.
        """
        raise NotImplementedError

    def slope(self, outputs: Array, target: Array) -> Array:
        """Return ∂l/∂t (n, outputs) of every row.

        Parameters
        ----------
        outputs, target
            As in `value`.
        """
        raise NotImplementedError

    def hessian(self, slope: Array, target: Array, value: Array) -> Array:
        """Return ∂²l/∂t² (n, outputs, outputs) of every row.

        Parameters
        ----------
        slope
            (n, outputs) ∂l/∂t.
        target
            (n,) encoded labels.
        value
            (n,) l.
        """
        raise NotImplementedError

    def scaled(self, unit: float) -> Loss:
        """Return the loss for labels in another unit; most losses have none.

        Parameters
        ----------
        unit
            The present unit in terms of the new one.
        """
        return self

    def outputs(self, classes: int) -> int:
        """Return how many outputs the model has.

        Parameters
        ----------
        classes
            Number of classes; 0 for a regression.
        """
        return 1

    def encode(self, labels: Array, classes: Array) -> Array:
        """Return labels as targets (n,): numbers stay, two classes become ±1, more become indices.

        Parameters
        ----------
        labels
            (n,) labels or numbers.
        classes
            The classes in order; empty for a regression.

        >>> from dorfl import losses
        >>> losses.logistic.encode(np.array(["no", "yes"]), np.array(["no", "yes"]))
        array([-1.,  1.])
        """
        if not self.classifies:
            return np.asarray(labels, dtype=np.float64)
        place = np.searchsorted(classes, labels).astype(np.float64)
        return place if self.outputs(len(classes)) > 1 else 2.0 * place - 1.0

    def decode(self, target: Array, classes: Array) -> Array:
        """Return the labels (n,) of encoded targets.

        Parameters
        ----------
        target
            (n,) targets.
        classes
            As in `encode`.
        """
        if not self.classifies:
            return target
        place = target if self.outputs(len(classes)) > 1 else (target + 1.0) / 2.0
        return np.asarray(classes[place.astype(int)])

    def predict(self, outputs: Array, classes: Array) -> Array:
        """Return the predictions (n,) for outputs.

        Parameters
        ----------
        outputs
            (n,), or (n, outputs) if the model has several.
        classes
            As in `encode`.
        """
        if not self.classifies:
            return outputs
        place = outputs.argmax(axis=1) if outputs.ndim == 2 else (outputs > 0).astype(int)
        return np.asarray(classes[place])

    def upper_bound(self, output: Any, target: Array, outputs: int) -> Array:
        """Return the largest l(t, y) over outputs of a limited size, for every label y.

        Parameters
        ----------
        output
            Largest ‖t‖.
        target
            (k,) encoded labels.
        outputs
            Number of outputs.
        """
        zero = np.zeros((len(target), outputs) if outputs > 1 else len(target))
        return np.asarray(self.value(zero, target) + self.max_slope * output)

    def bounds(
        self, output: float, spread: float, targets: Array, outputs: int
    ) -> tuple[float, float]:
        """Return upper bounds of the supremum of the loss, and of ‖∂l/∂t‖ there.

        Parameters
        ----------
        output
            Largest ‖t‖ of an unmoved row.
        spread
            Largest S = θᵀK⁻¹θ.
        targets
            All encoded classes; for a regression the smallest and the largest y.
        outputs
            Number of outputs.

        Raises
        ------
        ValueError
            If the loss has no bounded slope.
        """
        if np.isinf(self.max_slope):
            raise ValueError(f"defence: {self.name} loss has no bounded slope, so reports neither")
        most = float(self.upper_bound(output, targets, outputs).max())
        return most + 0.5 * self.max_slope**2 * spread, self.max_slope


class Score(Kind):
    """Outlier score h(ξ) of rows (n, d), their centres ξ̄ (d,) or (n, d), and their labels (n,).

    Only `at` is needed; the supremum is then found by gradient ascent. Override `nonconvexity` if
    h is convex: then the ascent is known to find the supremum if ρ is large enough.
    """

    def at(self, rows: Array, center: Array, labels: Array) -> Array:
        """Return h (n,) of every row.

        Parameters
        ----------
        rows
            (n, d) rows.
        center
            (d,) ξ̄, or (n, d) if rows have different ones.
        labels
            (n,) labels.
        """
        raise NotImplementedError

    def gradient(self, rows: Array, center: Array, labels: Array) -> Array:
        """Return ∇h (n, d) of every row, by default by central differences.

        Parameters
        ----------
        rows, center, labels
            As in `at`.
        """
        out = np.empty_like(rows)
        for k in range(rows.shape[1]):
            step = np.cbrt(np.finfo(float).eps) * np.maximum(1.0, np.abs(rows[:, k]))
            up, down = rows.copy(), rows.copy()
            up[:, k] += step
            down[:, k] -= step
            change = self.at(up, center, labels) - self.at(down, center, labels)
            out[:, k] = change / (2.0 * step)
        return out

    def nonconvexity(self, stiffness: Array) -> float:
        """Return the least c with ∇²h ⪰ −c · diag(stiffness): 0 if h is convex, ∞ if c is unknown.

        Parameters
        ----------
        stiffness
            (d,) ρ w of every column.
        """
        return np.inf

    def scaled(self, unit: float) -> Score:
        """Return the score `unit` · h, for a loss in another unit.

        Parameters
        ----------
        unit
            The factor.

        Raises
        ------
        ValueError
            If a score of your own does not define it.
        """
        raise ValueError(f"score {type(self).__name__}: define scaled(unit), the score unit · h")

    @property
    def center(self) -> str | Array | dict[str, Array] | None:
        """Return ξ̄: a vector, one by client, how it is estimated ("auto", "client"), or None."""
        return None

    @property
    def words(self) -> str:
        """Describe the score for a report."""
        weight = getattr(self, "weight", None)
        if weight is None:
            return f"outlier score: {self.name or type(self).__name__}"
        return f"ρ₂ = {weight:.6g} (weight of the outlier score)"

    def check(self, dims: int, classes: Array) -> None:
        """Raise a ValueError if the score does not fit the rows.

        Parameters
        ----------
        dims
            Number of columns.
        classes
            The classes in order; empty for a regression.
        """

    # ── for closed suprema and bounds ─────────────────────────────────────────

    def has_closed_form(self, stiffness: Array, outputs: int) -> bool:
        """Return whether the supremum has a closed form; if not, it is found by gradient ascent.

        Parameters
        ----------
        stiffness
            (d,) ρ w of every column.
        outputs
            Number of outputs of the model.
        """
        return False

    def hessian(self, dims: int) -> Array | None:
        """Return ∇²h, (dims,) or (dims, dims), if h is quadratic around ξ̄; None otherwise.

        Parameters
        ----------
        dims
            Number of columns.
        """
        return None

    def threshold_form(self, stiffness: Array) -> tuple[tuple[float, ...], Any] | None:
        """Return the parameters of a threshold and the label of the rows concerned, or None.

        The parameters are the column, its stiffness, level, softness and weight.

        Parameters
        ----------
        stiffness
            (d,) ρ w of every column.
        """
        return None

    def parts(self, rows: Array, center: Array) -> Array:
        """Return the squared distance (n, d) between rows and ξ̄, split by column.

        Parameters
        ----------
        rows, center
            As in `at`.

        Raises
        ------
        ValueError
            If the score is no sum over columns.
        """
        raise ValueError("the score does not say which columns make a row an outlier")

    def bounds(self, bowl: Array, nearest: float, farthest: float) -> tuple[float, float]:
        """Return the smallest and the largest h of a row, from its distance to ξ̄.

        Parameters
        ----------
        bowl
            That of :class:`~dorfl.linear.problem.Geometry`.
        nearest, farthest
            Smallest and largest distance.

        Raises
        ------
        ValueError
            If the score has no known bounds.
        """
        raise ValueError("defence: a custom score has no known bounds; use a score of dorfl.scores")

    def max_shift(self, stiffness: Array) -> float:
        """Return how far h can move a row at most, without the effect of `hessian`.

        Parameters
        ----------
        stiffness
            (d,) ρ w of every column.
        """
        return 0.0


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
