"""How far the bulk of the rows reaches: to a share of them, or on to a gap; and the nearer half."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dorfl.data import spread
from dorfl.data.sketch import Sketch, quantile, rank_error
from dorfl.study.suspects import FEW, HALF, MANY, REACH, share_kept

GAP = 4.0  # times as large a squared distance, from one row in a hundred to the next
NIL = 40.0  # squared units of the edge, from which on a row counts for less than 1e-5


def edges_of(told: Sequence[Sketch], outliers: float) -> tuple[float, ...]:
    """How far the bulk reaches, squared; with the edge of the nearer half where that is tried.

    That is to where the share of the rows reaches that says what is usual, or on to a gap.

    >>> from dorfl.data import sketch
    >>> near, far = np.linspace(0.0, 1.0, 700), np.full(300, 60.0)
    >>> edges_of([sketch.of(np.concatenate([near, far]), least=1)], outliers=0.1)[-1] < 1.0
    True
    """
    first, half = (spread.edge(told, share_kept(share)) for share in (outliers, HALF))
    further, before = _gap(told, share_kept(outliers))
    nearer = before if 1.0 - before <= MANY else 1.0  # of more the edge itself may be theirs
    first, many = max(first, further), quantile(told, (1.0 - MANY) * nearer) > REACH * half
    return (first, half) if many and half < first else (first,)


def _gap(told: Sequence[Sketch], bulk: float) -> tuple[float, float]:
    """The edge by which rows beyond a gap count for nothing, and the share before it; else 0 and 1.

    >>> from dorfl.data import sketch
    >>> near, tail = np.linspace(0.0, 1.0, 800), np.geomspace(1.0, 50.0, 100)
    >>> rows = np.concatenate([near, tail, np.full(100, 9000.0)])
    >>> edge, before = _gap([sketch.of(rows, least=1)], bulk=0.8)
    >>> round(edge), round(before, 2)
    (113, 0.89)
    """
    # Fewer make none, and a row far out takes its block with it: one at every client is no gap.
    shares = np.arange(bulk, 1.005 - max(FEW, rank_error(told)), 0.01)
    if len(shares) < 2:
        return 0.0, 1.0
    away = np.array([quantile(told, share) for share in shares])
    known = away[:-1] > 0.0
    jump = np.divide(away[1:], away[:-1], where=known, out=np.zeros(len(known)))
    k = int(jump.argmax())
    if not jump[k] >= GAP:
        return 0.0, 1.0
    return float(away[k + 1] / NIL), float(shares[k])
