"""What a training leaves: the model, the mixture, and how it came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, softmax

from dorfl.data import validation
from dorfl.federated.local import Round
from dorfl.linear.problem import Problem
from dorfl.solvers.base import Info
from dorfl.support.types import Array


class Exchanged:
    """What was sent in a training, from the lines of its `history`."""

    history: Sequence[Round]

    @property
    def bytes_up(self) -> int:
        """What all clients sent in all rounds, in bytes of numbers."""
        return sum(line.bytes_up for line in self.history)

    @property
    def bytes_down(self) -> int:
        """What was sent to all clients in all rounds, in bytes of numbers."""
        return sum(line.bytes_down for line in self.history)


@dataclass(frozen=True, eq=False)
class Fit(Exchanged):
    """A trained model and how it came about.

    `theta` has the intercept last (softmax: one row per class). `lam` is the mixture, in the order
    of `clients`. `gap` is how far the objective may be above the optimum: a proven bound if
    `gap_kind` is "bound" (with `l2` or `theta_radius`), else an estimate. `sample_weights` has the
    weight p of every row, by client: 1/n for an ordinary one, nearly 0 for an outlier.
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
    scales: Array | None = None  # (d,) units of the columns in which `l2` is, if not the given
    scale: float | None = None  # σ of the residuals, if it was estimated: huber(scale="auto")
    gap_kind: str = "estimate"  # "bound" if the optimum is proven to be within `gap`

    def __repr__(self) -> str:
        """What a person wants to see of it: not every number."""
        method, loss = self.problem.method.name, self.problem.loss.name
        by_share = sorted(zip(self.lam, self.risks, self.clients, strict=True), key=lambda e: -e[0])
        lines = [
            f"Fit: {method}, {loss} loss, {len(self.clients)} client(s)",
            f"  {self.message}",
            f"  rounds {self.rounds}, objective {self.objective:.6g}, gap {self.gap:.2g}",
            f"  theta {self.theta.shape}, norm {np.linalg.norm(self.theta):.4g}",
            *(f"  {name}: λ {lam:.3f}, risk {risk:.4g}" for lam, risk, name in by_share[:5]),
        ]
        more = len(self.clients) - 5
        return "\n".join(lines + [f"  … and {more} more clients"] * (more > 0))

    @property
    def relative_gap(self) -> float:
        """The gap in units of the objective, which is what `tol` is compared with."""
        gap = _share(self.gap, self.objective)
        return gap if np.isfinite(gap) else np.inf

    def decision(self, X: Any) -> Array:
        """The model's outputs: (n,), or (n, classes) for softmax."""
        return self.problem.predict(self.theta, validation.rows(X, "decision"))

    def predict(self, X: Any) -> Array:
        """Labels, or values for a regression."""
        out = self.decision(X)
        return self.problem.loss.predict(out, self.problem.classes)

    def predict_proba(self, X: Any) -> Array:
        """The probability of every class (n, classes), in the order of `problem.classes`."""
        if not self.problem.loss.classifies:
            raise ValueError("predict_proba: a regression has no classes; use predict")
        return probabilities(self.decision(X))

    def score(self, X: Any, y: Any) -> float:
        """Accuracy, or the negative mean loss for a regression."""
        labels = np.asarray(y)
        if self.problem.loss.classifies:
            return float(np.mean(self.predict(X) == labels))
        return -float(np.mean(self.problem.loss.value(self.decision(X), labels.astype(float))))

    def save(self, path: str | Path) -> Path:
        """Write the fit into one file of plain JSON, for `dorfl.load`; numbers keep every bit.

        Sample weights stay behind: they are the rows' own, and `dorfl.risk` finds them again.

        >>> import dorfl, tempfile
        >>> data = dorfl.datasets.synthetic(seed=0)
        >>> fit = dorfl.train(data.clients, dorfl.methods.paper())
        >>> again = dorfl.load(fit.save(tempfile.mkdtemp() + "/fit.json"))
        >>> bool((again.theta == fit.theta).all()), again.message == fit.message
        (True, True)
        """
        from dorfl.federated import saving  # noqa: PLC0415 - which knows what a fit is

        return saving.save(self, path)


def probabilities(out: Array) -> Array:
    """The probability of every class (n, classes), from logits (n,) or (n, classes).

    >>> probabilities(np.zeros(1))
    array([[0.5, 0.5]])
    """
    if out.ndim == 2:
        return np.asarray(softmax(out, axis=1))
    return np.column_stack([expit(-out), expit(out)])


def describe(status: str, info: Info, tol: float) -> str:
    """How a training ended, in a sentence; a gap is said in units of the objective as well."""
    size, share = float(np.linalg.norm(info.theta)), _share(info.gap, info.objective)
    kind = "proven gap at most" if info.gap_kind == "bound" else "estimated gap"
    gap = f"{kind} {info.gap:.2g}, i.e. {share:.2g} of the objective; tolerance {tol:.2g}"
    return {
        "converged": f"converged (objective {info.objective:.6g}, {gap})",
        "budget": f"not converged: stopped after max_rounds ({gap}); allow more rounds or a "
        f"larger tol{info.why and f'; {info.why}'}",
        "stopped": f"stopped, as `progress` asked ({gap})",
        "spent": "the rounds that the privacy budget was made for are over",
        "stalled": "not converged: no further progress in floating point"
        f"{info.why and f', because {info.why}'} ({gap}); scale columns to similar units, give "
        "rows in float64, set l2, or accept a larger tol",
        "refused": f"not converged: {info.why} ({gap} at the last answers)",
        "contested": f"contested: some clients pull apart from the others, who would be better "
        f"served without them ({gap})",
        "separable": "the classes are separable: every row is classified correctly, so without "
        "regularisation the minimiser is infinitely far away. Stopped at "
        f"‖θ‖ = {size:.3g}; set l2, theta_radius or a transport price rho for a finite one",
    }[status]


def _share(gap: float, objective: float) -> float:
    return float(gap / max(abs(objective), 1e-300))
