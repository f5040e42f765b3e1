"""What a loss and a score say of themselves: the two base classes, for those of your own too.

A loss needs `value` and `slope`, a score needs `at`; everything else has an answer that holds for
any. What a kind knows more of itself makes it faster or surer: a closed supremum, a bound on its
curvature or its slope. A kind that is listed in :data:`dorfl.losses.KINDS` or
:data:`dorfl.scores.KINDS` has a name that users can give and that model folders can hold.

>>> import numpy as np
>>> from dorfl.objective.kinds import Loss
>>> class LogCosh(Loss):
...     name, curvature, steep = "log-cosh", 1.0, 1.0
...     def value(self, outputs, target):
...         return np.logaddexp(outputs - target, target - outputs) - np.log(2.0)
...     def slope(self, outputs, target):
...         return np.tanh(outputs - target)[:, None]
>>> import dorfl
>>> rows = [([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0])]
>>> dorfl.train(rows, dorfl.methods.erm(), loss=LogCosh()).predict([[3.0]]).round(3)
array([3.])
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from dorfl.support.types import Array
from dorfl.support.wire import number


@dataclass(frozen=True, eq=False)
class Kind:
    """What losses and scores have in common: a name, and parameters that are its fields."""

    name: ClassVar[str] = ""

    def to_json(self) -> dict[str, Any]:
        """Its parameters as plain JSON."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_json(cls, written: Any) -> Any:
        """The kind with the parameters written down; by default they are numbers."""
        return cls(**{field.name: number(written[field.name]) for field in fields(cls)})


class Loss(Kind):
    """A loss l(t, y) of a model's output t, convex in t.

    Class attributes:
        classifies: whether y is one of several classes. With one output there are two.
        supremum: the closed form of :mod:`dorfl.linear.kernels` for it; "": it is found by ascent.
        curvature: a bound on ∂²l/∂t² (in the largest direction). With S = θᵀK⁻¹θ the spread of the
            model, the supremum is strictly concave when S · curvature < 1.
        steep: the largest ‖∂l/∂t‖; reports can be bounded only where it is finite.
        finite_below: the spread S from which on the supremum is infinite.
        unbounded: whether rows that a model separates leave it without a minimiser; one on the
            wrong side must then cost log 2 at least.
        bends: whether `bend` says what ∂²l/∂t² is. Elsewhere solvers go without curvature.
        invariant: whether the same number added to all of several outputs changes nothing.
        covers: whether `bend` is that of a parabola above the loss where that itself is straight.
        has_unit: whether residuals set its unit: see `scaled`.
        estimates_scale: whether the scale of residuals is one more unknown of training.
    """

    classifies: ClassVar[bool] = False
    supremum: ClassVar[str] = ""
    curvature: ClassVar[float] = np.inf
    finite_below: ClassVar[float] = np.inf
    unbounded: ClassVar[bool] = False
    bends: ClassVar[bool] = False
    invariant: ClassVar[bool] = False
    covers: ClassVar[bool] = False
    has_unit: ClassVar[bool] = False
    estimates_scale: ClassVar[bool] = False

    @property
    def steep(self) -> float:
        """The largest ‖∂l/∂t‖."""
        return np.inf

    @property
    def parameter(self) -> float:
        """The one number that the closed form takes, where it takes one."""
        return 1.0

    def value(self, outputs: Array, target: Array) -> Array:
        """l of every row; `outputs` is (n,), or (n, outputs) for several; `target` as encoded."""
        raise NotImplementedError

    def slope(self, outputs: Array, target: Array) -> Array:
        """∂l/∂t of every row, as (n, outputs)."""
        raise NotImplementedError

    def bend(self, slope: Array, target: Array, value: Array) -> Array:
        """∂²l/∂t² of every row from its l (n,) and ∂l/∂t, as (n, outputs, outputs)."""
        raise NotImplementedError

    def scaled(self, unit: float) -> Loss:
        """The same loss of residuals in another unit; most losses have none."""
        return self

    def outputs(self, classes: int) -> int:
        """How many numbers the model computes for a row."""
        return 1

    def encode(self, labels: Array, classes: Array) -> Array:
        """Labels as `value` takes them: the values themselves, ±1, or for several outputs places.

        >>> from dorfl import losses
        >>> losses.logistic.encode(np.array(["no", "yes"]), np.array(["no", "yes"]))
        array([-1.,  1.])
        """
        if not self.classifies:
            return np.asarray(labels, dtype=np.float64)
        place = np.searchsorted(classes, labels).astype(np.float64)
        return place if self.outputs(len(classes)) > 1 else 2.0 * place - 1.0

    def decode(self, target: Array, classes: Array) -> Array:
        """The labels behind encoded targets."""
        if not self.classifies:
            return target
        place = target if self.outputs(len(classes)) > 1 else (target + 1.0) / 2.0
        return np.asarray(classes[place.astype(int)])

    def predict(self, outputs: Array, classes: Array) -> Array:
        """What a model with these outputs says: labels, or values."""
        if not self.classifies:
            return outputs
        place = outputs.argmax(axis=1) if outputs.ndim == 2 else (outputs > 0).astype(int)
        return np.asarray(classes[place])

    def ceiling(self, output: Any, target: Array, outputs: int) -> Array:
        """The most that l(t, y) can be of every y, where ‖t‖ ≤ `output` and t has `outputs`."""
        zero = np.zeros((len(target), outputs) if outputs > 1 else len(target))
        return np.asarray(self.value(zero, target) + self.steep * output)

    def bounds(
        self, output: float, spread: float, targets: Array, outputs: int
    ) -> tuple[float, float]:
        """The most that supremum and slope can be where ‖t‖ ≤ `output` at the centre, S ≤ `spread`.

        `targets` has every class as encoded or, of a regression, the least and the largest y.
        """
        if np.isinf(self.steep):
            raise ValueError(f"defence: {self.name} loss has no bounded slope, so reports neither")
        most = float(self.ceiling(output, targets, outputs).max())
        return most + 0.5 * self.steep**2 * spread, self.steep


class Score(Kind):
    """An outlier score h(ξ) of rows (n, d), their centres ξ̄ (d,) or (n, d), and their labels (n,).

    Only `at` is needed; the supremum is then found by ascent.
    """

    def at(self, rows: Array, center: Array, labels: Array) -> Array:
        """h of every row (n,)."""
        raise NotImplementedError

    def gradient(self, rows: Array, center: Array, labels: Array) -> Array:
        """∇h of every row (n, d); by central differences unless a score says otherwise."""
        out = np.empty_like(rows)
        for k in range(rows.shape[1]):
            step = np.cbrt(np.finfo(float).eps) * np.maximum(1.0, np.abs(rows[:, k]))
            up, down = rows.copy(), rows.copy()
            up[:, k] += step
            down[:, k] -= step
            apart = self.at(up, center, labels) - self.at(down, center, labels)
            out[:, k] = apart / (2.0 * step)
        return out

    def dent(self, stiffness: Array) -> float:
        """How far h is from convex: ∇²h ⪰ −dent · diag(stiffness). 0: convex; ∞: nobody knows."""
        return np.inf

    def scaled(self, unit: float) -> Score:
        """Return the score `unit` · h, for a loss in another unit."""
        raise ValueError(f"score {type(self).__name__}: define scaled(unit), the score unit · h")

    @property
    def center(self) -> str | Array | dict[str, Array] | None:
        """ξ̄: a vector, one by client, how it is found ("auto", "client"), or nothing."""
        return None

    @property
    def words(self) -> str:
        """The score in a report's words."""
        weight = getattr(self, "weight", None)
        if weight is None:
            return f"outlier score: {self.name or type(self).__name__}"
        return f"ρ₂ = {weight:.6g} (weight of the outlier score)"

    def check(self, dims: int, classes: Array) -> None:
        """Raise where the score does not fit rows of so many columns with labels of these."""

    # ── what a closed supremum or a bound needs to know ─────────────────────────────────────────

    def closed(self, stiffness: Array, outputs: int) -> bool:
        """Whether the supremum has a closed form, columns being as stiff as ρ w makes them."""
        return False

    def bend(self, dims: int) -> Array | None:
        """∇²h, a diagonal (dims,) or whole, if h is a quadratic around ξ̄."""
        return None

    def step(self, stiffness: Array) -> tuple[tuple[float, ...], Any] | None:
        """(column, its stiffness, level, softness, weight) and the label, if h is a threshold."""
        return None

    def parts(self, rows: Array, center: Array) -> Array:
        """What every column adds to a row's distance from ξ̄, squared (n, d)."""
        raise ValueError("the score does not say which columns make a row suspect")

    def bounds(self, bowl: Array, nearest: float, farthest: float) -> tuple[float, float]:
        """The least and the most that h can cost a row so far from ξ̄; `bowl` as in Geometry."""
        raise ValueError("defence: a custom score has no known bounds; use a score of dorfl.scores")

    def push(self, stiffness: Array) -> float:
        """How far h can push a row, beyond what `bend` does."""
        return 0.0


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
