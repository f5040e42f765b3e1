"""Transport cost c(ξ, ζ) = ½ Σ_k w_k (x_k − x'_k)² of moving a row.

An infinite weight freezes a column: rows cannot move along it. Labels change only if that has a
finite price.

>>> from dorfl import costs
>>> costs.squared(frozen=[2]).weights(3)
array([ 1.,  1., inf])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dorfl.support.types import Array


@dataclass(frozen=True)
class Cost:
    """Weighted squared distance; see :func:`squared`.

    Attributes
    ----------
    weight : float or tuple of float
        w, for all columns or for each.
    frozen : tuple of int
        Columns that cannot move.
    label_price : float
        Price of another label; infinity never changes one.
    """

    weight: float | tuple[float, ...] = 1.0
    frozen: tuple[int, ...] = ()
    label_price: float = np.inf

    def weights(self, dims: int) -> Array:
        """Return the weight of every column.

        Parameters
        ----------
        dims
            Number of columns.

        Returns
        -------
        Array
            (dims,) w, infinite for frozen columns.

        Raises
        ------
        ValueError
            If there are weights for another number of columns, or a frozen column does not exist.
        """
        w = np.full(dims, self.weight) if np.isscalar(self.weight) else np.array(self.weight)
        if w.shape != (dims,):
            raise ValueError(f"cost: {w.size} weights for {dims} columns; give one for each column")
        for k in self.frozen:
            if not -dims <= k < dims:
                raise ValueError(
                    f"cost: frozen column {k} does not exist; there are {dims} columns"
                )
            w[k] = np.inf
        return w


def squared(
    weight: float | Sequence[float] = 1.0,
    *,
    frozen: Sequence[int] = (),
    label_price: float = np.inf,
) -> Cost:
    """Return the cost ½ Σ_k w_k (x_k − x'_k)², plus `label_price` if the label changes.

    Parameters
    ----------
    weight
        w: one positive number, or one for each column; infinity freezes a column.
    frozen
        Indices of columns that cannot move.
    label_price
        Price of another label, for classifiers; infinity never changes one.

    Returns
    -------
    Cost
        The cost, for :mod:`dorfl.methods`.

    Raises
    ------
    ValueError
        If a weight or the price is not positive.
    """
    w = np.asarray(weight, dtype=float)
    if w.ndim > 1 or np.isnan(w).any() or (w <= 0).any():
        raise ValueError(
            "squared(weight=…): a positive number, or one for each column; inf freezes"
        )
    if not label_price > 0:
        raise ValueError(
            f"squared(label_price={label_price}): must be positive; inf never changes one"
        )
    weights = float(w) if w.ndim == 0 else tuple(w.tolist())
    return Cost(weights, tuple(int(k) for k in frozen), float(label_price))
