"""Every client's curvature, where not all of them tell one, or one as fine as the others'.

A site keeps a curvature to itself that rests on a few of its rows, and may tell a coarser one than
is asked for (docs/privacy.md). That is no reason for all to go without: the mean of the others'
stands for it. A curvature only models the risk, whose values and gradients are everyone's own, so
where it is off steps take longer and lead to the same model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dorfl.linear import curvature
from dorfl.linear.curvature import RESOLUTIONS, Shape
from dorfl.support.types import Array


def gathered(shape: Shape, told: Sequence[Array | None]) -> tuple[Array | None, bool]:
    """All clients' curvature (N, numbers) at one resolution, and whether some of it stands in.

    The resolution is the finest that most of those sent who sent any; finer ones are coarsened, and
    the mean of those stands for what is coarser or missing.

    Args:
        shape: how the parameters are laid out.
        told: every client's curvature, packed, or nothing.

    >>> gathered(Shape(1, 2), [np.array([1.0, 0.5, 1.0]), None, np.array([3.0, 0.5, 5.0])])
    (array([[1. , 0.5, 1. ],
           [2. , 0.5, 3. ],
           [3. , 0.5, 5. ]]), True)
    """
    ranks = np.array([0 if one is None else _rank(shape, one.size) for one in told])
    some = np.sort(ranks[ranks > 0])
    if not len(some):
        return None, False
    rank = int(some[(len(some) - 1) // 2])
    sizes, stands = shape.sizes(RESOLUTIONS[rank]), ranks < rank
    whole = _rows_of(told, (len(told), curvature.count(sizes)))
    if whole is not None:
        return whole, False
    whole = np.array(
        [
            curvature.coarsen(one, shape.sizes(RESOLUTIONS[own]), sizes)
            for one, own in zip(told, ranks, strict=True)
            if one is not None and own >= rank
        ]
    )
    if not stands.any():
        return whole, False
    out = np.empty((len(told), whole.shape[1]), whole.dtype)
    out[~stands], out[stands] = whole, whole.mean(axis=0)
    return out, True


def _rank(shape: Shape, numbers: int) -> int:
    return RESOLUTIONS.index(shape.resolution(numbers) or "none")


def _rows_of(told: Sequence[Array | None], form: tuple[int, int]) -> Array | None:
    """The table whose rows these are, in order, so that there is no copy; nothing if none is."""
    whole = told[0].base if told[0] is not None else None
    if not isinstance(whole, np.ndarray) or whole.shape != form:
        return None
    places = [one.__array_interface__["data"][0] for one in whole]
    rows = [one.__array_interface__["data"][0] for one in told if one is not None]
    return whole if places == rows else None
