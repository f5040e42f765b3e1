"""Imputation of curvature for clients that report none, or a coarser one than others.

A site does not report a curvature that depends on a few of its rows, and may report a coarser one
than requested (docs/privacy.md). The mean of the others is used in its place. The curvature only
affects the steps of the solver: an inaccurate one costs rounds and leads to the same model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dorfl.linear import curvature
from dorfl.linear.curvature import RESOLUTIONS, Shape
from dorfl.support.types import Array


def impute(shape: Shape, reported: Sequence[Array | None]) -> tuple[Array | None, bool]:
    """Return all clients' packed curvature at one resolution, and whether some of it is imputed.

    The resolution is the median of those reported. Finer ones are coarsened, and their mean
    replaces coarser or missing ones. Without any report the curvature is None.

    >>> impute(Shape(1, 2), [np.array([1.0, 0.5, 1.0]), None, np.array([3.0, 0.5, 5.0])])
    (array([[1. , 0.5, 1. ],
           [2. , 0.5, 3. ],
           [3. , 0.5, 5. ]]), True)
    """
    ranks = np.array([0 if one is None else _rank(shape, one.size) for one in reported])
    some = np.sort(ranks[ranks > 0])
    if not len(some):
        return None, False
    rank = int(some[(len(some) - 1) // 2])
    sizes, imputed = shape.sizes(RESOLUTIONS[rank]), ranks < rank
    whole = _common_table(reported, (len(reported), curvature.count(sizes)))
    if whole is not None:
        return whole, False
    whole = np.array(
        [
            curvature.coarsen(one, shape.sizes(RESOLUTIONS[own]), sizes)
            for one, own in zip(reported, ranks, strict=True)
            if one is not None and own >= rank
        ]
    )
    if not imputed.any():
        return whole, False
    out = np.empty((len(reported), whole.shape[1]), whole.dtype)
    out[~imputed], out[imputed] = whole, whole.mean(axis=0)
    return out, True


def _rank(shape: Shape, numbers: int) -> int:
    return RESOLUTIONS.index(shape.resolution(numbers) or "none")


def _common_table(reported: Sequence[Array | None], form: tuple[int, int]) -> Array | None:
    """Return the table whose rows these are, to avoid a copy; None if there is none."""
    whole = reported[0].base if reported[0] is not None else None
    if not isinstance(whole, np.ndarray) or whole.shape != form:
        return None
    places = [one.__array_interface__["data"][0] for one in whole]
    rows = [one.__array_interface__["data"][0] for one in reported if one is not None]
    return whole if places == rows else None
