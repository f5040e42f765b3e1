"""What sums of rows tell beside others: whether a difference rests on enough of the rows.

Let v_j be how much row j is of a difference. It rests on (Σ |v_j|)² / Σ v_j² rows: n if all have as
much part in it, 1 if it is one row's.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dorfl.support.types import Array

_LITTLE = 1e-3  # of what rows add: too little to go by
_WORK = 2e6  # products to find out what earlier answers leave open
_WORK_AT_ONCE = 4e7  # … where no row is looked at again and again
_TIMES = 8
_NEAR = 0.03  # of all other rows beside one: so much of it is as good as known
_ROUNDING = 1e-12  # of an answer: nothing new


def few(parts: Array, least: int) -> bool:
    """Whether a difference of which rows have these parts rests on fewer of them than `least`.

    >>> few(np.array([0.1, 0.1, 5.0, 0.1]), least=2), few(np.ones(4), least=2)
    (True, False)
    """
    size = np.abs(parts)
    return float(size.sum()) ** 2 < least * float(size @ size)


def singles_out(
    now: Array, before: Iterable[Array], least: int, codes: Array | None = None
) -> bool:
    """Whether what is known already leaves fewer than `least` rows open of one of these sums.

    Known are sums of all rows, of the classes that `codes` are of, and those asked for `before`, of
    which all together may cancel what other rows add. Each column of `now`, what rows add to a sum,
    is looked at by itself.

    >>> beyond = np.where(np.arange(40) == 7, 0.0, 1.0)[:, None]      # all rows but one
    >>> singles_out(beyond, [], 5), singles_out(np.sin(np.arange(40.0))[:, None], [], 5)
    (True, False)
    """
    if least <= 1:
        return False
    known = [np.ones((len(now), 1))]
    if codes is not None and len(codes):
        known.append(np.eye(int(codes.max()) + 1)[codes][:, 1:])
    earlier = list(before)
    basis = np.linalg.qr(_within(_WORK, known, earlier))[0]
    if any(_left_few(part, basis, least) for part in now.T):
        return True
    return _reaches_one(now, _within(_WORK_AT_ONCE, known, earlier))


def _within(work: float, known: list[Array], earlier: list[Array]) -> Array:
    """What is known as columns, of earlier answers as many as can be looked at, the last first."""
    count = len(known[0])
    room = int(min(count // 4, max((work / max(count, 1)) ** 0.5, 4.0)))
    width, found = sum(part.shape[1] for part in known), list(known)
    for old in earlier:
        width += old.shape[1]
        if width > room:
            break
        found.append(old)
    return np.concatenate(found, axis=1)


def _reaches_one(now: Array, known: Array) -> bool:
    """Whether with `now` some combination comes near to a single row, and without it none did.

    Answers that hardly differ do where a row lies far out: their differences of high order grow
    with its distance. Let Q be all answers made orthonormal and h the square of its row j. What is
    nearest to that row alone, Q Qᵀ e_j, has of all others √((1 − h) / h) as much.
    """
    first = known.shape[1]
    sized = [part / max(float(np.linalg.norm(part)), 1e-300) for part in (*known.T, *now.T)]
    q, r = np.linalg.qr(np.column_stack(sized))
    q[:, np.abs(np.diag(r)) <= _ROUNDING] = 0.0
    old, new = (np.einsum("ij,ij->i", part, part) for part in (q[:, :first], q))
    enough = 1.0 / (1.0 + _NEAR**2)
    return bool(((new > enough) & (old <= enough)).any())


def _left_few(now: Array, basis: Array, least: int) -> bool:
    """Whether some combination of the basis cancels all of `now` but a few rows.

    Looked for by the least sum of absolute values, which many small differences make up and few
    large ones do not: least squares, again and again, with rows weighed by what was left of them.
    """
    weights = np.ones(len(now))
    for _ in range(_TIMES):
        root = np.sqrt(weights)
        q, r = np.linalg.qr(root[:, None] * basis)
        left = now - basis @ np.linalg.lstsq(r, q.T @ (root * now), rcond=1e-10)[0]
        size = np.abs(left)
        weights = 1.0 / np.maximum(size, max(1e-4 * float(size.mean()), 1e-300))
    little = float(np.linalg.norm(left)) <= _LITTLE * float(np.linalg.norm(now))
    return not little and few(left, least)
