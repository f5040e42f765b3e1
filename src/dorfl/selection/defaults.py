"""Turn an outlier share and a drift into a method whose parameters are in units of the data.

`outliers` is the share of rows that may be outliers, `shift` the drift of rows between training and
use, in robust standard deviations. :func:`method_for` derives ρ, β, ρ₂, V and ξ̄ from them and from
robust locations and scales of the columns (:mod:`dorfl.data.robust`), which clients report without
a row. If `outliers` is 0 the method is plain training: without a score, a tilt would give outliers
*more* weight, and guarding against drift that is not asked for costs accuracy.

- **Unit of a column.** A robust standard deviation, from the nearest 80 % of the rows, or from
  1 − 2 · `outliers` if that is less. A column that mostly has one value does not drift.
- **Price ρ = 8 / `shift`.** A row moves by s‖θ‖/ρ with slope s ≤ 1. So a model with ‖θ‖ = 8 (logits
  with standard deviation 8, about 93 % accuracy) moves no row by more than `shift`. In a regression
  the reference norm is 40: nearly collinear columns have large coefficients of opposite sign.
- **Score ρ₂ V.** Let Q be the 1 − 2 · `outliers` quantile of the squared distance from the centre.
  A row at squared distance R² has weight exp(−0.3 R²/Q) relative to a row at the centre: 74 % at
  the cutoff, 30 % at twice its distance, 0.8 % at four times.
- **Tilt.** The temperature is 32, which is ρ at the default shift (β = 1). It is lower if the score
  would pull rows towards the centre, that is if 2ρ₂V exceeds a tenth of ρ.
- **Mixture.** Clients count by size and are compared by loss. Ask for "agnostic" to train for the
  worst client.
- **Centre.** Each client's own, unless most rows are with clients of fewer than 20 rows. If classes
  are far apart, each class has a centre.

The numbers are those of :mod:`dorfl.selection.constants`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dorfl.data import robust
from dorfl.data.robust import ColumnScales
from dorfl.data.sketch import Sketch
from dorfl.objective import costs, methods, mixture, scores
from dorfl.objective.base import Loss
from dorfl.objective.methods import AUTO, Method
from dorfl.objective.mixture import Mixture
from dorfl.selection.constants import MAX_PULL, REFERENCE_NORM, SHARES, SHIFT, STEEPNESS
from dorfl.selection.outliers import Decision, describe
from dorfl.support.types import Array

TEMPERATURE = REFERENCE_NORM[True] / SHIFT  # ρβ with β = 1 at the default shift

RULES = {"dorfl": "fixed", "erm": "fixed", "afl": "agnostic", "wafl": "fixed", "gdrfl": "agnostic"}
_MIXTURE_WORDS = {
    False: "Every client counts by its number of rows.",
    True: "The client with the largest loss counts most: the model is the best for the worst "
    "mixture.",
}


@dataclass(frozen=True, eq=False)
class Choice:
    """A resolved method.

    Attributes
    ----------
    method
        The method to train with.
    words
        Reasons for the choice, one sentence each.
    decision
        The outlier share and ridge, and their evidence; None if the share was given.
    """

    method: Method
    words: tuple[str, ...]
    decision: Decision | None = None


def share_kept(outliers: float) -> float:
    """Return the share of rows, nearest first, that defines the cutoff: 1 − 2 · outliers."""
    return float(np.clip(1.0 - 2.0 * outliers, 0.5, 0.95))


def share_measured(outliers: float) -> float:
    """Return the share of rows that robust scales are measured on: 80 %, or less if need be."""
    return share_kept(max(outliers, SHARES[1]))


def cutoff_of(distances: Sequence[Sketch], outliers: float) -> float:
    """Return the squared distance from the centre within which inliers are assumed to lie."""
    return robust.distance_cutoff(distances, share_kept(outliers))


def method_for(
    found: ColumnScales,
    *,
    method: str,
    outliers: float,
    shift: float | str,
    frozen: Sequence[int],
    loss: Loss,
    rho: float | None = None,
    beta: float | None = None,
    score_weight: float | None = None,
    center: Any = "client",
    mixture: str | Mixture | None = None,
    cutoff: float | None = None,
    decision: Decision | None = None,
) -> Choice:
    """Return the method for columns of these scales, by name: "dorfl", "erm", "afl", …

    Columns that cannot drift and have no outlying values are `frozen`. ρ, β and ρ₂ (`score_weight`)
    are derived if they are not given. Inliers lie within the squared distance `cutoff` from ξ̄.
    `decision` is the evidence for `outliers`, if the share was selected and not given.
    """
    rule = _mixture(mixture or RULES[method])
    about_mixture = _MIXTURE_WORDS[rule.adversarial]
    if method in ("erm", "afl"):
        made = methods.erm() if method == "erm" else methods.afl()
        return Choice(replace(made, mixture=rule), (about_mixture,))
    held = np.zeros(len(found.units), dtype=bool)
    held[[*frozen, *found.rigid]] = True
    unit = _loss_unit(found, loss)
    cutoff = cutoff or 1.0
    shape = shape_of(found, frozen) / cutoff
    scored = method == "dorfl" and outliers > 0 and bool(shape.any())
    needed = scored or method != "dorfl" or beta is not None
    drift = (SHIFT if needed else 0.0) if isinstance(shift, str) else shift
    price = float(rho) if rho is not None else np.inf
    if rho is None and drift > 0 and not held.all():
        price = REFERENCE_NORM[loss.classifies] * unit / drift
    weight = 1.0 / np.where(found.units > 0, found.units, 1.0) ** 2
    cost = costs.squared(weight.tolist(), frozen=np.flatnonzero(held).tolist())
    about_drift = _drift_words(shift, drift, price, held)
    if method in ("wafl", "gdrfl"):
        made = methods.method(rho=price, cost=cost, mixture=rule, name=method)
        return Choice(made, (about_drift, about_mixture))
    temperature = np.inf
    if scored:  # V is the cost over the cutoff, so 2ρ₂V over ρ is 2 · STEEPNESS · ρβ / (cutoff · ρ)
        temperature = min(TEMPERATURE * unit, MAX_PULL * price * cutoff / (2.0 * STEEPNESS))
    if beta is not None:
        if np.isinf(price):
            raise ValueError("beta is in units of transport: give rho, or a shift above 0, with it")
        temperature = price * float(beta)
    made = methods.method(rho=price, cost=cost, temperature=temperature, mixture=rule, name="dorfl")
    words = () if decision is None else (describe(decision),)
    if not scored:
        return Choice(made, (*words, about_drift, about_mixture), decision)
    suspicion = STEEPNESS * temperature if score_weight is None else float(score_weight)
    made = replace(made, score=scores.quadratic(suspicion, center, shape))
    about_score = _score_words(outliers, suspicion / temperature, decision)
    return Choice(made, (*words, about_score, about_drift, about_mixture), decision)


def shape_of(found: ColumnScales, frozen: Sequence[int]) -> Array:
    """Return V up to a factor: 1 / scale² for columns that vary, 0 for frozen ones."""
    shape = np.zeros(len(found.units))
    np.divide(1.0, found.units**2, where=found.units > 0, out=shape)
    shape[list(frozen)] = 0.0
    return shape


def _loss_unit(found: ColumnScales, loss: Loss) -> float:
    """Return the unit of the loss: 1 for classes, otherwise scale of the label times its slope."""
    if loss.classifies:
        return 1.0
    return found.target * (loss.max_slope if np.isfinite(loss.max_slope) else found.target)


def _mixture(rule: str | Mixture) -> Mixture:
    """Return the rule; one given by name compares losses, not distances from the centre."""
    if rule == "fixed":
        return mixture.fixed(by="loss")
    return mixture.agnostic(by="loss") if rule == "agnostic" else mixture.resolve(rule)


def _score_words(outliers: float, steepness: float, decision: Decision | None) -> str:
    weights = [100.0 * np.exp(-steepness * ratio**2) for ratio in (1, 2, 4)]
    nearest = 100.0 * share_kept(outliers)
    given = f"Up to {100 * outliers:.3g} % of the rows may be outliers: a" if not decision else "A"
    return (
        f"{given} row at the cutoff (the nearest {nearest:.3g} % of the rows) keeps "
        f"{weights[0]:.0f} % of its weight, one twice as far {weights[1]:.0f} %, one four times as "
        f"far {weights[2]:.1f} %."
    )


def _drift_words(asked: float | str, drift: float, price: float, held: Array) -> str:
    if np.isinf(price):
        if asked != AUTO:
            return "Rows do not drift."
        return "Rows are assumed not to drift; shift = 0.25 would guard against drift, at a cost."
    still = f"; {held.sum()} of {len(held)} columns cannot drift" if held.any() else ""
    if not drift > 0:
        return f"Rows may drift at a price of {price:.3g} per squared standard deviation{still}."
    return (
        f"Rows may drift by up to about {drift:.3g} standard deviations (price {price:.3g}){still}."
    )
