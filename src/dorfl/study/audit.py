"""Which rows a model holds for wrong, and which of their columns make them so."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dorfl.federation.fit import Fit
from dorfl.guarantees.certificate import group_of
from dorfl.objective.kinds import Score
from dorfl.study.model import Model
from dorfl.study.rows import Rows
from dorfl.support.types import Array

_BLOCK = 65_536


class Audit(NamedTuple):
    """Rows from the most suspicious on.

    `row` is the place in the file (from 1, the header not counted), `weight` is 1 for an ordinary
    row and nearly 0 for a suspect, `distance` how far it is from the centre as the score has it
    (by default 1 is where the bulk of the rows ends), and `columns` the columns that make most of
    it, with their shares.
    """

    row: Array
    client: Array
    weight: Array
    distance: Array
    columns: list[str]


def audit(model: Model, rows: Rows) -> Audit:
    """Every row's weight, and why."""
    fit, score = model.fit, model.fit.problem.method.score
    if score is None or score.center is None:
        raise ValueError(
            f"outliers: the model was trained with method {fit.problem.method.name!r}, which "
            "suspects no row; train with --method dorfl"
        )
    group = group_of(_with_strangers(model, rows.names), rows.clients)
    weight = np.concatenate([w * len(w) for w in group.sample_weights(fit.theta.ravel())])
    owner = np.repeat(np.arange(len(rows.names)), np.diff(rows.bounds))
    sources = list(dict.fromkeys(model.transform.sources))
    belongs = np.array([sources.index(name) for name in model.transform.sources])
    squared, why = np.empty(len(weight)), []
    for start in range(0, len(weight), _BLOCK):
        part = slice(start, start + _BLOCK)
        shares = _shares(rows.X[part], group.centers[owner[part]], score, belongs)
        squared[part] = shares.sum(axis=1)
        why += [_words(share, sources) for share in shares]
    distance = np.sqrt(squared)
    order = np.lexsort((-distance, weight))  # the least weight first; of those at 0, the furthest
    names = np.array(rows.names, dtype=object)
    return Audit(
        rows.order[order] + 1,
        names[owner[order]],
        weight[order],
        distance[order],
        [why[k] for k in order],
    )


def _with_strangers(model: Model, names: tuple[str, ...]) -> Fit:
    """The fit with a centre, the clients' average, for those who were not trained with."""
    fit = model.fit
    strangers = tuple(name for name in names if name not in fit.clients)
    average = np.array(model.facts.center or fit.centers.mean(axis=0), dtype=np.float64)
    return replace(
        fit,
        clients=fit.clients + strangers,
        centers=np.vstack([fit.centers, *[average] * len(strangers)]),
    )


def _shares(X: Array, centers: Array, score: Score, belongs: Array) -> Array:
    """(x − ξ̄)ᵀ V (x − ξ̄) by the table's columns (rows, columns)."""
    parts = score.parts(X, centers)
    out = np.zeros((len(X), belongs.max() + 1))
    for k, column in enumerate(belongs):
        out[:, column] += parts[:, k]
    return np.maximum(out, 0.0)


def _words(share: Array, sources: list[str]) -> str:
    total = share.sum()
    if not total > 0:
        return ""
    top = np.argsort(-share, kind="stable")[:3]
    return ", ".join(f"{sources[k]} {share[k] / total:.0%}" for k in top if share[k] > 0.05 * total)
