"""The model of a table: a fit, the transformation of columns before it, and facts on both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dorfl.data.preprocessing import Numeric, Transform
from dorfl.federated.fit import Fit
from dorfl.networks.layered import Layered
from dorfl.support.text import scored
from dorfl.support.types import Array
from dorfl.tabular.model.facts import Facts


@dataclass(frozen=True, eq=False)
class Model:
    """A model that predicts rows of tables."""

    fit: Fit  # parameters for standardised columns; its classes are 0, 1, …
    transform: Transform
    label: str  # name of its column
    client: str | None
    classes: tuple[str, ...] = ()  # names in order; empty for a regression
    target: Numeric | None = None  # how the label of a regression is scaled
    facts: Facts = Facts()  # noqa: RUF009 - a tuple, never changed

    @property
    def classifies(self) -> bool:
        """Whether it predicts classes; otherwise numbers."""
        return self.fit.problem.loss.classifies

    @property
    def measure(self) -> str:
        """Name of its score."""
        return "accuracy" if self.classifies else "mean absolute error"

    @property
    def network(self) -> bool:
        """Whether it is a neural network; otherwise a linear model."""
        return isinstance(self.fit.problem, Layered)

    @property
    def relative_gap(self) -> float:
        """Optimality gap at the end of training, relative to the objective."""
        return self.fit.relative_gap

    @property
    def shortfall(self) -> str | None:
        """Return a warning if training ended above its tolerance, else None."""
        return None if self.fit.status in ("converged", "spent", "trained") else self.fit.message

    @property
    def useless(self) -> str | None:
        """Return a warning if a constant fits the rows trained with as well, else None."""
        found = self.facts.learnt
        if found is None or found.loss < found.constant * (1.0 - 1e-9):
            return None
        return (
            "the model learnt nothing: its loss on the rows trained with, weighed as in training, "
            f"is {found.loss:.4g}, that of the best constant prediction {found.constant:.4g}"
        )

    @property
    def idle(self) -> str | None:
        """Return a warning if a constant predicts held-out rows as well as the model, else None.

        Classifiers are compared by the Brier score: with a rare class, accuracy hardly differs
        between a constant and a model that ranks rows well.
        """
        if not self.facts.held_out:
            return None
        own, constant = self.facts.held_out[0], self.facts.held_out[-1]
        name, a, b = self.measure, own.overall.mean, constant.overall.mean
        better, scores = a < b, (self.scored(a), self.scored(b))
        if own.loss is not None and constant.loss is not None:
            name, a, b = "Brier score", own.loss.mean, constant.loss.mean
            better, scores = a < b, (f"{a:.4g}", f"{b:.4g}")
        elif self.classifies:
            better = a > b
        if better:
            return None
        return (
            f"on held-out rows the model is no better than a constant prediction, the "
            f"{constant.method} ({name} {scores[0]} against {scores[1]}): it learnt nothing that "
            "holds for other rows, whatever is certified"
        )

    def scored(self, value: float) -> str:
        """Format an accuracy in per cent, or an error in the unit of the label."""
        return scored(value, self.classifies)

    def outputs(self, table: Any) -> Array:
        """Return the outputs for rows of a table: (n,), or (n, classes) for more than two."""
        return self.fit.problem.predict(self.fit.theta, self.transform.apply(table).X)

    def probabilities(self, table: Any) -> Array:
        """Return (n, classes) probabilities for rows of a table."""
        if not self.classifies:
            raise ValueError("probabilities: this model estimates a number, not classes")
        return self.fit.predict_proba(self.transform.apply(table).X)

    def predict(self, table: Any) -> Array:
        """Return (n,) classes as text, or numbers in the unit of the label."""
        if self.classifies:
            names = np.array(self.classes, dtype=object)
            return self.fit.problem.loss.predict(self.outputs(table), names)
        out = self.outputs(table)
        return out if self.target is None else self.target.center + self.target.spread * out
