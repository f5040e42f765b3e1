"""What a table was turned into: a fit, the transformation before it, and what is known of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dorfl.data.preprocessing import Numeric, Transform
from dorfl.federation.fit import Fit
from dorfl.networks.layered import Layered
from dorfl.study.model.facts import Facts
from dorfl.support.text import scored
from dorfl.support.types import Array


@dataclass(frozen=True, eq=False)
class Model:
    """A model that takes tables.

    `label` and `client` are the columns it was trained with. The fit tells apart 0, 1, …, which
    stand for `classes`, text in order; a regression has none, and `target` is how its label was
    scaled. `facts` is what the card says of data, settings, clients and certificate.
    """

    fit: Fit
    transform: Transform
    label: str
    client: str | None
    classes: tuple[str, ...] = ()
    target: Numeric | None = None
    facts: Facts = Facts()  # noqa: RUF009 - a tuple, never changed

    @property
    def classifies(self) -> bool:
        """Whether it tells classes apart rather than estimate a number."""
        return self.fit.problem.loss.classifies

    @property
    def measure(self) -> str:
        """What its answers are scored by."""
        return "accuracy" if self.classifies else "mean absolute error"

    @property
    def network(self) -> bool:
        """Whether it is a network rather than a linear model."""
        return isinstance(self.fit.problem, Layered)

    @property
    def relative_gap(self) -> float:
        """How far the training ended from the best possible, in units of the objective."""
        return self.fit.relative_gap

    @property
    def shortfall(self) -> str | None:
        """Why the training is not to be trusted, if it ended short of its tolerance."""
        return None if self.fit.status in ("converged", "spent", "trained") else self.fit.message

    @property
    def useless(self) -> str | None:
        """Why the model is not worth keeping: it predicts no better than a constant would."""
        found = self.facts.learnt
        if found is None or found.loss < found.constant * (1.0 - 1e-9):
            return None
        return (
            f"the model learnt nothing: its loss on the rows trained with is {found.loss:.4g}, "
            f"that of the best constant prediction {found.constant:.4g}"
        )

    @property
    def idle(self) -> str | None:
        """Why the model is of no use on rows it has not seen: a constant does as well there."""
        found = self.facts.held_out
        if not found:
            return None
        own, constant = found[0], found[-1]
        better = own.overall > constant.overall
        if better if self.classifies else own.overall < constant.overall:
            return None
        return (
            f"on rows held out the model ({self.scored(own.overall)}) does no better than always "
            f"the {constant.method} ({self.scored(constant.overall)}): whatever is certified, it "
            "learnt nothing that holds for others"
        )

    def scored(self, value: float) -> str:
        """An accuracy in per cent, an error in the unit of the label."""
        return scored(value, self.classifies)

    def outputs(self, table: Any) -> Array:
        """θᵀx of every row, or a network's outputs: (n,), or (n, classes) for more than two."""
        return self.fit.problem.predict(self.fit.theta, self.transform.apply(table).X)

    def probabilities(self, table: Any) -> Array:
        """The probability of every class (n, classes)."""
        if not self.classifies:
            raise ValueError("probabilities: this model estimates a number, not classes")
        return self.fit.predict_proba(self.transform.apply(table).X)

    def predict(self, table: Any) -> Array:
        """The class of every row, as text, or the number in the label's own unit."""
        if self.classifies:
            names = np.array(self.classes, dtype=object)
            return self.fit.problem.loss.predict(self.outputs(table), names)
        out = self.outputs(table)
        return out if self.target is None else self.target.center + self.target.spread * out
