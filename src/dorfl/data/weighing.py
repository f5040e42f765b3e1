"""How much rows count: weights that users give to rows and classes, as parts of P̂_i.

With weights w the distribution of a client is P̂_i = Σ_j w_j δ(ζ_j) / Σ_j w_j instead of 1/n_i each,
wherever it stands: F_i = ρβ log Σ_j w_j exp(f_j/ρβ) / Σ_j w_j, so a row's share of the gradient is
p_j ∝ w_j exp(f_j/ρβ), and the tilt multiplies what the user said rather than replacing it. A client
weighs Σ_j w_j among the others. A whole number is as many equal rows, zero is no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dorfl.data import validation
from dorfl.support.types import Array

_FINE = 4  # copies of a row of mean weight, where weights are no whole numbers
_MOST = 16  # copies, on average


class Weighed(NamedTuple):
    """Clients without the rows that count nothing; what the others count; which those are."""

    clients: Any
    mass: dict[str, Array] | None = None
    kept: dict[str, Array] | None = None

    def spread(self, name: str, values: Array) -> Array:
        """Values of a client's rows that count, as values of all its rows: 0 for the others."""
        if self.kept is None:
            return values
        out = np.zeros(len(self.kept[name]))
        out[self.kept[name]] = values
        return out


def weigh(clients: Any, sample_weight: Any = None, class_weight: Any = None) -> Weighed:
    """Weights checked; `sample_weight` by client as clients are given, `class_weight` by label.

    >>> found = weigh([([[1.0], [2.0], [3.0]], [0, 1, 1])], [[1, 0, 2]])
    >>> found.clients["client-1"][1], found.mass["client-1"]
    (array([0, 1]), array([1., 2.]))
    """
    if sample_weight is None and class_weight is None:
        return Weighed(clients)
    checked = validation.clients(clients)
    given: dict[str, Any] = {name: np.ones(len(y)) for name, (_, y) in checked.items()}
    if isinstance(sample_weight, Mapping):
        given = {str(name): values for name, values in sample_weight.items()}
    elif sample_weight is not None:
        given = dict(zip(checked, sample_weight, strict=False))
        if len(given) < len(checked) or len(given) < len(sample_weight):
            raise ValueError(
                f"sample_weight: {len(sample_weight)} lists of weights for {len(checked)} clients"
            )
    mass: dict[str, Array] = {}
    for name, (_, y) in checked.items():
        if name not in given:
            raise ValueError(f"sample_weight: there are none for client {name!r}")
        mass[name] = checked_weights(given[name], len(y), f"client {name!r}")
    if class_weight is not None:
        labels = np.concatenate([y for _, y in checked.values()])
        each = by_class(labels, np.concatenate(list(mass.values())), class_weight)
        ends = np.cumsum([len(y) for _, y in checked.values()])[:-1]
        mass = {n: w * c for (n, w), c in zip(mass.items(), np.split(each, ends), strict=True)}
    kept = {name: w > 0 for name, w in mass.items()}
    for name, counts in kept.items():
        if not counts.any():
            raise ValueError(f"client {name!r}: all its weights are zero; leave it out")
    rows = {name: (X[kept[name]], y[kept[name]]) for name, (X, y) in checked.items()}
    return Weighed(rows, {name: w[kept[name]] for name, w in mass.items()}, kept)


def checked_weights(weights: Any, count: int, what: str) -> Array:
    """One weight for every row: finite, and not negative."""
    found = np.asarray(weights, dtype=np.float64)
    if found.shape != (count,):
        raise ValueError(
            f"{what}: sample_weight has shape {found.shape}, X has {count} rows: one weight each"
        )
    if not np.isfinite(found).all() or (found < 0).any():
        raise ValueError(f"{what}: sample_weight must be finite and not negative")
    return found


def by_class(labels: Array, weights: Array, class_weight: Any) -> Array:
    """What every row's class counts: as given, or so that all classes weigh alike ("balanced").

    >>> by_class(np.array([0, 1, 1, 1]), np.ones(4), "balanced")
    array([2.        , 0.66666667, 0.66666667, 0.66666667])
    """
    classes, at = np.unique(labels, return_inverse=True)
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise ValueError(f'class_weight={class_weight!r}: give "balanced" or a mapping')
        total = np.bincount(at, weights)
        each = np.divide(
            total.sum(), len(classes) * total, out=np.ones(len(total)), where=total > 0
        )
        return np.asarray(each[at])
    strange = [label for label in class_weight if label not in classes.tolist()]
    if strange:
        raise ValueError(f"class_weight: there is no class {strange[0]!r}")
    each = checked_weights(
        [class_weight.get(label, 1.0) for label in classes.tolist()], len(classes), "class_weight"
    )
    return np.asarray(each[at])


def copies(weights: Array) -> Array:
    """How many copies of each row stand for its weight where quantiles are taken; at least one.

    Whole numbers are what they are, unless large; others are met to a quarter of their mean.
    """
    if (weights == np.rint(weights)).all() and weights.sum() <= _MOST * len(weights):
        return np.asarray(weights, dtype=np.int64)
    return np.asarray(np.maximum(np.rint(_FINE * weights / weights.mean()), 1.0), dtype=np.int64)
