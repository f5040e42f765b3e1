"""Base class of the data sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dorfl.support.types import Array

Clients = Mapping[str, tuple[Array, Array]]


@dataclass(frozen=True)
class Dataset:
    """Data set of several clients.

    Attributes
    ----------
    clients, test : dict
        (X, y) by client, to train with and to test on.
    outliers : dict
        (n,) mask of training rows that are known or strongly suspected to be wrong.
    feature_names : tuple of str
        Columns of X.
    theta : Array, optional
        Parameters from which labels were drawn, of synthetic data.
    frozen : tuple of int
        Columns that stand for categories, in which rows cannot drift.
    units : mapping
        For each scaled column, its location and scale.
    """

    clients: dict[str, tuple[Array, Array]]
    test: dict[str, tuple[Array, Array]]
    outliers: dict[str, Array]
    feature_names: tuple[str, ...]
    theta: Array | None = None
    frozen: tuple[int, ...] = ()
    units: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def in_units(self, column: str, value: float) -> float:
        """Convert a value from the original unit of a column to that of X.

        Parameters
        ----------
        column
            Name of the column.
        value
            A value in the original unit.

        Returns
        -------
        float
            The value in the unit of X.
        """
        zero, unit = self.units.get(column, (0.0, 1.0))
        return (value - zero) / unit

    def uncontaminated(self) -> dict[str, tuple[Array, Array]]:
        """Return the clients without the rows known to be wrong."""
        return {
            name: (X[~self.outliers[name]], y[~self.outliers[name]])
            for name, (X, y) in self.clients.items()
        }


def seventy_percent(count: int, seed: int) -> Array:
    """Return a random mask of 70 % of the rows, to train on."""
    drawn = np.zeros(count, dtype=bool)
    order = np.random.default_rng([seed, count]).permutation(count)
    drawn[order[: round(0.7 * count)]] = True
    return drawn
