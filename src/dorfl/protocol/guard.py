"""Columns that single rows would show in: taken to be constant wherever rows are trained on."""

from __future__ import annotations

import numpy as np

from dorfl.support.types import Array


def settle(rows: Array, least: int) -> Array:
    """Return the rows with columns held constant in which fewer than `least` of them differ.

    Numbers told of such a column would be those rows' own. So a level has `least` rows, or none.

    >>> settle(np.array([[0.0, 1.0], [0.0, 2.0], [7.0, 3.0], [0.0, 4.0], [0.0, 5.0]]), least=2).T
    array([[0., 0., 0., 0., 0.],
           [1., 2., 3., 4., 5.]])
    """
    if least <= 1 or not len(rows):
        return rows
    few = np.sort(rows[: 2 * least - 1], axis=0)  # most of them have the value that nearly all have
    common = few[len(few) // 2]
    differing = (rows != common).sum(axis=0)
    rare = np.flatnonzero((differing > 0) & (differing < least))
    if not len(rare):
        return rows
    rows = rows.copy()
    rows[:, rare] = common[rare]
    return rows
