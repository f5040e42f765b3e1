"""Result of training: the model, the mixture and the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, softmax

from dorfl.data import validation
from dorfl.federated.simulation import Round
from dorfl.linear.problem import Problem
from dorfl.solvers.base import Info
from dorfl.support.types import Array


class HasHistory:
    """Mixin that adds up the bytes of a `history`."""

    history: Sequence[Round]

    @property
    def bytes_up(self) -> int:
        """Return the bytes of numbers that all clients sent."""
        return sum(line.bytes_up for line in self.history)

    @property
    def bytes_down(self) -> int:
        """Return the bytes of numbers that were sent to all clients."""
        return sum(line.bytes_down for line in self.history)


@dataclass(frozen=True, eq=False)
class Fit(HasHistory):
    """Trained linear model.

    Attributes
    ----------
    theta : Array
        (d,) or (classes, d) parameters; with an intercept, it is last.
    lam : Array
        (clients,) mixture λ.
    clients : tuple of str
        Names of the clients.
    risks : Array
        (clients,) robust risks.
    objective : float
        Value of the objective.
    gap : float
        Optimality gap: how far the objective may be above the minimum.
    rounds : int
        Number of rounds.
    status : str
        "converged", "budget", "stopped", "stalled", "separable", "contested", "refused" or "spent".
    message : str
        The status in a sentence.
    history : list of Round
        One entry per round.
    sample_weights : dict
        (n,) weights p of the rows of each client. They sum to 1: about 1/n or a little more for an
        inlier, nearly 0 for an outlier.
    centers : Array
        (clients, d) centres ξ̄ of the score.
    problem : Problem
        Method, loss, classes and layout of θ.
    rho : float
        Price of transport; estimated if the method has a radius.
    radius : float, optional
        Radius of the ambiguity set, if the method has one.
    l2, theta_radius : float
        Regularisation: ½ l2 ‖θ‖² and ‖θ‖ ≤ theta_radius.
    scales : Array, optional
        (d,) scales of the columns that `l2` refers to.
    scale : float, optional
        Residual scale σ, if it was estimated.
    gap_kind : str
        "bound" if the gap is proven (with `l2` or `theta_radius`), else "estimate".
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
    rho: float
    radius: float | None = None
    l2: float = 0.0
    theta_radius: float = np.inf
    scales: Array | None = None
    scale: float | None = None
    gap_kind: str = "estimate"

    def __repr__(self) -> str:
        """Summarise the fit and its largest clients."""
        method, loss = self.problem.method.name, self.problem.loss.name
        by_share = sorted(zip(self.lam, self.risks, self.clients, strict=True), key=lambda e: -e[0])
        score = "no outlier score" if self.problem.method.score is None else "with outlier score"
        lines = [
            f"Fit: {method}, {loss} loss, {len(self.clients)} client(s), {score}",
            f"  {self.message}",
            f"  rounds {self.rounds}, objective {self.objective:.6g}, gap {self.gap:.2g}",
            f"  theta {self.theta.shape}, norm {np.linalg.norm(self.theta):.4g}",
            *(f"  {name}: λ {lam:.3f}, risk {risk:.4g}" for lam, risk, name in by_share[:5]),
        ]
        more = len(self.clients) - 5
        return "\n".join(lines + [f"  … and {more} more clients"] * (more > 0))

    @property
    def relative_gap(self) -> float:
        """Return the gap as a share of the objective, which `tol` is compared with."""
        gap = _share(self.gap, self.objective)
        return gap if np.isfinite(gap) else np.inf

    def decision(self, X: Any) -> Array:
        """Return the outputs of the model.

        Parameters
        ----------
        X
            (n, d) rows.

        Returns
        -------
        Array
            (n,) outputs, or (n, classes) for softmax.

        Raises
        ------
        ValueError
            If X is not a table of finite numbers, or has another number of columns.
        """
        return self.problem.predict(self.theta, validation.rows(X, "decision"))

    def predict(self, X: Any) -> Array:
        """Predict labels, or numbers for a regression.

        Parameters
        ----------
        X
            (n, d) rows.

        Returns
        -------
        Array
            (n,) predictions.
        """
        out = self.decision(X)
        return self.problem.loss.predict(out, self.problem.classes)

    def predict_proba(self, X: Any) -> Array:
        """Compute class probabilities.

        Parameters
        ----------
        X
            (n, d) rows.

        Returns
        -------
        Array
            (n, classes), in the order of `problem.classes`.

        Raises
        ------
        ValueError
            If the fit is a regression.
        """
        if not self.problem.loss.classifies:
            raise ValueError("predict_proba: a regression has no classes; use predict")
        return probabilities(self.decision(X))

    def score(self, X: Any, y: Any) -> float:
        """Compute the accuracy, or the negative mean loss for a regression.

        Parameters
        ----------
        X
            (n, d) rows.
        y
            (n,) labels or numbers.

        Returns
        -------
        float
            The score; larger is better.
        """
        labels = np.asarray(y)
        if self.problem.loss.classifies:
            return float(np.mean(self.predict(X) == labels))
        return -float(np.mean(self.problem.loss.value(self.decision(X), labels.astype(float))))

    def save(self, path: str | Path) -> Path:
        """Write the fit to a JSON file for :func:`dorfl.load`; numbers keep every bit.

        Sample weights are not saved because they describe single rows; :func:`dorfl.risk` computes
        them again.

        Parameters
        ----------
        path
            The file to write; an older one is replaced.

        Returns
        -------
        Path
            The file.

        >>> import dorfl, tempfile
        >>> data = dorfl.datasets.synthetic(seed=0)
        >>> fit = dorfl.train(data.clients, dorfl.methods.paper())
        >>> again = dorfl.load(fit.save(tempfile.mkdtemp() + "/fit.json"))
        >>> bool((again.theta == fit.theta).all()), again.message == fit.message
        (True, True)
        """
        from dorfl.federated import serialization  # noqa: PLC0415 - imports this module

        return serialization.save(self, path)


def probabilities(out: Array) -> Array:
    """Return class probabilities (n, classes) from logits, (n,) of two classes or (n, classes).

    >>> probabilities(np.zeros(1))
    array([[0.5, 0.5]])
    """
    if out.ndim == 2:
        return np.asarray(softmax(out, axis=1))
    return np.column_stack([expit(-out), expit(out)])


def describe(status: str, info: Info, tol: float) -> str:
    """Describe in a sentence how training ended, with the gap relative to the objective."""
    size, share = float(np.linalg.norm(info.theta)), _share(info.gap, info.objective)
    kind = "proven gap at most" if info.gap_kind == "bound" else "estimated gap"
    gap = f"{kind} {info.gap:.2g}, i.e. {share:.2g} of the objective; tolerance {tol:.2g}"
    return {
        "converged": f"converged (objective {info.objective:.6g}, {gap})",
        "budget": f"not converged: stopped after max_rounds ({gap}); allow more rounds or a "
        f"larger tol{info.why and f'; {info.why}'}",
        "stopped": f"stopped by `progress` ({gap})",
        "spent": "stopped: the rounds of the privacy budget are used up",
        "stalled": "not converged: no further progress in floating point"
        f"{info.why and f', because {info.why}'} ({gap}); scale columns to similar units, give "
        "rows in float64, set l2, or accept a larger tol",
        "refused": f"not converged: {info.why} ({gap} at the last reports)",
        "contested": f"contested: some clients have outlying gradients, and the risk of the others "
        f"would be lower without them ({gap})",
        "separable": "the classes are separable: every row is classified correctly, so without "
        "regularisation the minimiser is infinitely far away. Stopped at "
        f"‖θ‖ = {size:.3g}; set l2, theta_radius or a transport price rho for a finite one",
    }[status]


def _share(gap: float, objective: float) -> float:
    return float(gap / max(abs(objective), 1e-300))
