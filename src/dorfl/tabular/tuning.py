"""Choose `outliers` and `shift` by the comparison that decides on outliers, over a larger grid.

All candidates are trained at the same time on two thirds of the rows and compared on the others:
:mod:`dorfl.selection.outliers`. Held-out rows show outliers, but not drift to come: they only show
what guarding against drift costs. So the most cautious `shift` that costs nothing significant is
listed beside the plainest one. The ridge is 1/n, as in a training with these settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dorfl.data.tables import DataError
from dorfl.objective.base import Loss
from dorfl.objective.methods import AutoMethod, check_outliers, check_shift
from dorfl.protocol.settings import Study
from dorfl.protocol.state import State
from dorfl.selection import outliers as selection
from dorfl.selection.outliers import Candidate
from dorfl.tabular import arrays
from dorfl.tabular import table as engine
from dorfl.tabular.rows import Prepared

GRID: dict[str, Sequence[float]] = {
    "outliers": (0.0, 0.05, 0.1, 0.2, 0.25),
    "shift": (0.0, 0.1, 0.25, 0.5),
}


class Trial(NamedTuple):
    """A candidate's held-out loss.

    Attributes
    ----------
    settings
        Values of `outliers` and `shift`.
    loss
        Trimmed mean held-out loss: log loss, or absolute error.
    difference
        Trimmed mean of the paired differences from the selected candidate; positive is worse.
    error
        Standard error of `difference`.
    """

    settings: dict[str, float]
    loss: float
    difference: float
    error: float


@dataclass(frozen=True, eq=False)
class Tuning:
    """Result of :func:`tune`.

    Attributes
    ----------
    method
        The selected open method, for :func:`dorfl.train`.
    trials
        All candidates, the selected one first, then by their loss.
    rows
        Number of held-out rows.
    words
        The choice in a sentence.
    """

    method: AutoMethod
    trials: tuple[Trial, ...]
    rows: int
    words: tuple[str, ...]


def tune(
    clients: Any,
    *,
    grid: Mapping[str, Sequence[float]] | None = None,
    loss: str | Loss = "auto",
    frozen: Sequence[int] | None = None,
) -> Tuning:
    """Return the plainest settings that no others beat significantly on held-out rows.

    Parameters
    ----------
    clients
        A list of (X, y), or a mapping of client name to (X, y).
    grid
        Values of "outliers" and "shift" to compare; all combinations are.
    loss
        The loss of the training; "auto" fits the labels.
    frozen
        Columns that cannot drift and have no outlying values.

    Returns
    -------
    Tuning
        The selected method and all trials.

    >>> import dorfl
    >>> data = dorfl.datasets.synthetic(seed=0)
    >>> tuned = dorfl.tune(data.clients, grid={"outliers": (0.0, 0.1)})
    >>> tuned.trials[0].settings
    {'outliers': 0.1, 'shift': 0.25}
    """
    study, prepared = arrays.prepared_for(clients, AutoMethod(), loss=loss, frozen=frozen)
    return tune_study(study, prepared, grid)


def tune_study(
    study: Study, prepared: Prepared, grid: Mapping[str, Sequence[float]] | None = None
) -> Tuning:
    """Like :func:`tune`, for rows that are prepared."""
    candidates = _candidates(GRID if grid is None else grid)
    open_study = study._replace(method=study.method._replace(name="dorfl", outliers="auto"))
    state = engine.resolve(open_study, prepared, candidates)
    trials, rows = _trials(state)
    chosen = trials[0].settings
    words = (
        f"Of {len(trials)} candidates, outliers = {chosen['outliers']:g} with shift = "
        f"{chosen['shift']:g} is the plainest that no other beats significantly, on {rows:,} "
        "held-out rows.",
    )
    method = AutoMethod(outliers=chosen["outliers"], shift=chosen["shift"])
    return Tuning(method, trials, rows, words)


def _candidates(grid: Mapping[str, Sequence[float]]) -> tuple[Candidate, ...]:
    """Return all combinations from plain to cautious: by outlier share, then by drift."""
    strange = set(grid) - set(GRID)
    if strange or not grid or not all(len(values) for values in grid.values()):
        raise ValueError('grid: give values of "outliers", "shift" or both')
    shares, shifts = grid.get("outliers", (0.0,)), grid.get("shift", (0.25,))
    for share, shift in product(shares, shifts):
        check_outliers(float(share))
        check_shift(float(shift))
    return tuple(sorted(Candidate(float(a), float(b)) for a, b in product(shares, shifts)))


def _trials(state: State) -> tuple[tuple[Trial, ...], int]:
    """Return the candidates with their losses, the selected one first, and the rows."""
    total, candidates = state.selection.compared, state.selection.candidates
    if total is None or not total.rows.any():
        raise DataError("tune: too few rows to hold some out; 15 rows of a client are the least")
    best = selection.select(candidates, total, bool(state.agreed.classes))
    rows = float(total.rows.max())
    pairs = {pair: k for k, pair in enumerate(selection.pairs_of(len(candidates)))}

    def trial(i: int) -> Trial:
        settings = {"outliers": candidates[i].share, "shift": float(candidates[i].shift)}
        mean = error = 0.0
        if i != best:
            k = pairs[min(i, best), max(i, best)]
            count = max(float(total.rows[k]), 1.0)
            mean = float(total.differences[k] / count) * (1.0 if i < best else -1.0)
            error = float(np.sqrt(total.variances[k])) / count
        return Trial(settings, float(total.losses[i] / rows), mean, error)

    found = [trial(i) for i in range(len(candidates))]
    others = sorted((t for i, t in enumerate(found) if i != best), key=lambda t: t.loss)
    return (found[best], *others), round(rows)
