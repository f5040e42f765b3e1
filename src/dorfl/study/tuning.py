"""Choose settings by cross-validation inside clients, by a measure that outliers do not distort.

Wrong rows are among the validation rows too, and a plain mean of their losses prefers the model
that fits them. So rows that lie out by more than twice the edge of the bulk do not count, the same
rows for every candidate. What cannot be told apart (within a standard error of the best) is decided
for the more robust: cross-validation does not see drift to come, only what guarding against it
costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dorfl.data import validation
from dorfl.data.validation import Clients
from dorfl.federation.fit import Fit
from dorfl.federation.training import train
from dorfl.objective import losses
from dorfl.objective.kinds import Loss
from dorfl.objective.methods import Method
from dorfl.objective.scores import Quadratic
from dorfl.study import suspects
from dorfl.study.defaults import Choice, choose
from dorfl.support.types import Array

GRID: dict[str, Sequence[Any]] = {"outliers": (0.0, 0.05, 0.1, 0.2), "shift": (0.0, 0.1, 0.25, 0.5)}


class Trial(NamedTuple):
    """What a candidate came to: mean validation loss, its standard error, and by client."""

    settings: dict[str, Any]
    loss: float
    error: float  # of the difference from the best
    clients: dict[str, float]


@dataclass(frozen=True, eq=False)
class Tuning:
    """The method chosen, every trial (the best first), and the choice in words."""

    choice: Choice
    trials: tuple[Trial, ...]
    words: tuple[str, ...]

    @property
    def method(self) -> Method:
        """What to train with."""
        return self.choice.method


def tune(
    clients: Any,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    outliers: float = 0.1,
    loss: str | Loss = "logistic",
    frozen: Sequence[int] = (),
    folds: int = 5,
    seed: int = 0,
    measure: str = "inlying",
    l2: float = 0.0,
    tol: float = 1e-4,
    progress: Callable[[str], object] = str,
    **given: Any,
) -> Tuning:
    """The settings of :func:`dorfl.defaults.choose` that do best on rows not trained with.

    Args:
        clients: a list of (X, y), or a mapping of client name to (X, y).
        grid: argument of `choose` → values to try; all combinations are.
        outliers: the share of rows that may be wrong, for the measure.
        loss: what is trained and measured.
        frozen: columns that cannot drift.
        folds: into how many parts each client's rows are divided.
        seed: how they are divided.
        measure: "inlying" as above, or "plain": every row counts, for data known to be clean.
        l2: as for :func:`dorfl.train`.
        tol: as for :func:`dorfl.train`.
        progress: called with a few words before every training.
        given: further arguments of `choose`, the same for all candidates.

    >>> import dorfl
    >>> data = dorfl.datasets.synthetic(seed=0)
    >>> tuned = dorfl.tune(data.clients, grid={"outliers": (0.0, 0.1)}, folds=3)
    >>> tuned.trials[0].settings
    {'outliers': 0.1}
    """
    candidates = _candidates(GRID if grid is None else grid)
    if measure not in ("inlying", "plain"):
        raise ValueError(f'measure={measure!r}: choose "inlying" or "plain"')
    chosen = losses.resolve(loss)
    checked = validation.clients(clients)
    known = validation.classes(checked, chosen)
    fold = folds_of(checked, folds, seed)
    fixed = {"loss": chosen, "frozen": frozen, **given}
    counted = _inlying(checked, outliers if measure == "inlying" else 0.0, frozen, chosen)

    found = []
    for settings in candidates:
        lost = {name: np.zeros(len(y)) for name, (_, y) in checked.items()}
        for k in range(folds):
            kept = {n: (X[fold[n] != k], y[fold[n] != k]) for n, (X, y) in checked.items()}
            kept = {name: pair for name, pair in kept.items() if len(pair[1])}
            said = ", ".join(f"{name} {value}" for name, value in settings.items())
            progress(f"{said}, fold {k + 1}")
            method = choose(kept, **{**fixed, **settings}).method
            fit = train(kept, method, loss=chosen, l2=l2, tol=tol)
            for name, (X, y) in checked.items():
                held = fold[name] == k
                lost[name][held] = _losses(fit, X[held], y[held], known)
        found.append(lost)
    trials, best = _compare(candidates, found, counted, fold, folds)
    settings = trials[0].settings
    choice = choose(checked, **{**fixed, **settings})
    said = ", ".join(f"{name} = {value}" for name, value in settings.items())
    count = sum(int(rows.sum()) for rows in counted.values())
    total = sum(len(rows) for rows in counted.values())
    words = (
        f"Of {len(trials)} candidates, {said} is chosen: loss {trials[0].loss:.4g} on rows not "
        "trained with, "
        + ("the least." if trials[0].loss <= best else f"the least is {best:.4g}."),
        f"{count} of {total} rows counted; the others lie too far out to be trusted.",
        *choice.words,
    )
    return Tuning(choice, trials, words)


def _compare(
    candidates: list[dict[str, Any]],
    found: list[dict[str, Array]],
    counted: dict[str, Array],
    fold: dict[str, Array],
    folds: int,
) -> tuple[tuple[Trial, ...], float]:
    """Trials, the chosen one first and the others by their loss; and the lowest loss."""
    used, part = np.concatenate(list(counted.values())), np.concatenate(list(fold.values()))
    rows = np.array([np.concatenate(list(lost.values())) for lost in found])
    means = rows[:, used].mean(axis=1)
    best = int(means.argmin())
    trials = []
    for settings, lost, row, mean in zip(candidates, found, rows, means, strict=True):
        ahead = [(row - rows[best])[used & (part == k)] for k in range(folds)]
        by_fold = np.array([a.mean() for a in ahead if len(a)])
        error = float(by_fold.std(ddof=1) / np.sqrt(len(by_fold))) if len(by_fold) > 1 else 0.0
        served = {n: float(lost[n][counted[n]].mean()) for n in lost if counted[n].any()}
        trials.append(Trial(settings, float(mean), error, served))
    lowest = trials[best].loss
    level = [t for t in trials if t.loss <= lowest + t.error]
    winner = max(level, key=lambda t: (*_robustness(t.settings), -t.loss))
    others = sorted((t for t in trials if t is not winner), key=lambda t: t.loss)
    return (winner, *others), lowest


def _robustness(settings: Mapping[str, Any]) -> tuple[float, float]:
    return float(settings.get("shift", 0.0)), float(settings.get("outliers", 0.0))


def _candidates(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    if not grid or not all(len(values) for values in grid.values()):
        raise ValueError("grid: give at least one value for every argument in it")
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def folds_of(checked: Clients, folds: int, seed: int) -> dict[str, Array]:
    """The fold of every row: labels spread evenly over folds, each client on its own."""
    if folds < 2:
        raise ValueError(f"folds={folds}: at least 2, so that there are rows not trained with")
    if sum(len(y) for _, y in checked.values()) < 2 * folds:
        raise ValueError(f"folds={folds}: too many for so few rows; take fewer")
    out, first = {}, 0
    streams = np.random.default_rng(seed).spawn(len(checked))
    for stream, (name, (_, y)) in zip(streams, checked.items(), strict=True):
        order = np.lexsort([stream.random(len(y)), np.unique(y, return_inverse=True)[1]])
        out[name] = np.empty(len(y), dtype=int)
        out[name][order] = (first + np.arange(len(y))) % folds
        first += len(y)  # small clients do not all end in the first folds
    return out


def _inlying(
    checked: Clients, outliers: float, frozen: Sequence[int], loss: Loss
) -> dict[str, Array]:
    """Which rows count: those within twice the edge of the bulk of their client's centre."""
    score = choose(checked, outliers=outliers, frozen=frozen, loss=loss).method.score
    if score is None:
        return {name: np.ones(len(y), dtype=bool) for name, (_, y) in checked.items()}
    assert isinstance(score, Quadratic)
    assert isinstance(score.center, dict)
    known, center = validation.classes(checked, loss), score.center

    def bulk(name: str, X: Array, y: Array) -> Array:
        codes = np.searchsorted(known, y)
        return suspects.is_bulk(X, codes, center[name], score.shape(X.shape[1]))

    return {name: bulk(name, X, y) for name, (X, y) in checked.items()}


def _losses(fit: Fit, X: Array, y: Array, known: Array) -> Array:
    """The loss of every row; a class that was not among the rows trained with is one too."""
    loss, classes = fit.problem.loss, fit.problem.classes
    if not len(y):
        return np.zeros(0)
    if loss.classifies and len(classes) < len(known):
        raise ValueError(
            "folds: a class has too few rows to be in every fold; take fewer folds or drop it"
        )
    return loss.value(fit.decision(X), loss.encode(y, classes))
