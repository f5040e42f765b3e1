"""Weigh rows as training does, and name the columns that make a row an outlier.

A weight of 1 is that of an ordinary row: the mean weight of its client's rows. A row is
**down-weighted** if its weight is below one half, and an **inlier** otherwise.
"""

from __future__ import annotations

import datetime
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dorfl import networks
from dorfl.certificates.certificate import group_of
from dorfl.data.preprocessing import Category, Numeric, Transform
from dorfl.data.preprocessing.transform import Part
from dorfl.data.robust import row_centers
from dorfl.federated.fit import Fit
from dorfl.networks.layered import Layered
from dorfl.objective.base import Score
from dorfl.protocol import training_rows
from dorfl.support.text import percent
from dorfl.support.types import Array
from dorfl.tabular.model import Model
from dorfl.tabular.rows import Rows

TOO_FEW = "too few rows could be held out to compare outlier shares"
_BLOCK = 65_536  # rows whose distances are split by column at once
MIN_WEIGHT = 0.5  # weight, relative to an ordinary row's, below which a row is down-weighted
_MIN_SHARE = 0.05  # share of a row's squared distance from which a second column is named
_MIN_ROWS = 20  # inliers of a client for its own usual range; otherwise that of all clients


class Audit(NamedTuple):
    """Rows by ascending weight.

    `columns` names those with most of a row's squared distance: value, usual range among inliers,
    share. If the label is the reason, it has the label and its prediction.
    """

    row: Array  # place in the file, from 1, without the header
    client: Array
    weight: Array  # in training, relative to an ordinary row's
    distance: Array  # from the centre by the score; by default 1 is the cutoff of inliers
    columns: list[str]

    @property
    def low(self) -> int:
        """Number of down-weighted rows."""
        return int((self.weight < MIN_WEIGHT).sum())


def why_none(model: Model) -> str | None:
    """Return why the model down-weights no row and what to do about it; None if it can."""
    problem, scaled = model.fit.problem, model.transform.numeric
    name, score = problem.method.name, problem.method.score
    if model.facts.reference or (score is not None and score.center is not None):
        return None
    hint = "train with --method dorfl"
    if name == "dorfl" and len(problem.method.cost.frozen) == problem.dims:
        hint = "its columns are all categories or flags, which have no outlying values"
        hint += "; name numeric columns (--numeric)" * (not scaled)
    elif name == "dorfl":
        decided = model.facts.settings.get("method", {}).get("outliers") != 0
        why = "no assumed outlier share lowered the held-out loss (see `dorfl info`)"
        why = why if model.facts.validation is not None else TOO_FEW
        why = why if decided else "it was trained with --outliers 0"
        hint = f"{why}; to down-weight far-out rows anyway, train with --outliers 0.1"
    return f"the model was trained with method {name!r} and down-weights no row: {hint}"


def row_weights(model: Model, rows: Rows) -> Array | None:
    """Return (n,) the weights that training by this model gives to rows.

    Weights have mean 1 in each client; None if the model down-weights no row. Clients that were not
    trained with have the average centre.
    """
    return None if why_none(model) else _weigh(model, rows)[0]


def is_inlier(model: Model, rows: Rows) -> Array:
    """Return (n,) which rows have at least half of an ordinary row's weight."""
    weight = row_weights(model, rows)
    return np.ones(len(rows.y), dtype=bool) if weight is None else weight >= MIN_WEIGHT


def _weigh(model: Model, rows: Rows) -> tuple[Array, Array, Array]:
    """Return the rows' weights, the part of them due to labels, and the clients' centres."""
    known = _with_strangers(model, rows.names)
    by_label = _label_weights(model, rows)
    centers = known.centers[[known.clients.index(name) for name in rows.names]]
    own = zip(_weights(known, rows, centers), rows.places, strict=True)
    parts = [w * by_label[part] for w, part in own]
    return np.concatenate([w * (len(w) / w.sum()) for w in parts]), by_label, centers


def audit(model: Model, rows: Rows) -> Audit:
    """Return every row's weight and the reason for it; ValueError if none is down-weighted."""
    score, reason = model.fit.problem.score, why_none(model)
    if reason:
        raise ValueError(f"outliers: {reason}")
    weight, by_label, middles = _weigh(model, rows)
    each = zip(middles, rows.clients.values(), strict=True)
    centers = np.concatenate(
        [np.broadcast_to(row_centers(mid, y), X.shape) for mid, (X, y) in each]
    )
    owner = rows.owner
    sources = list(dict.fromkeys(model.transform.sources))
    belongs = np.array([sources.index(name) for name in model.transform.sources])
    squared, why = np.empty(len(weight)), list[str]()
    usual = _usual(model.transform, rows, weight)
    firsts = np.cumsum([0, *(len(part.features) for part in model.transform.parts)]).tolist()
    for start in range(0, len(weight), _BLOCK):
        part = slice(start, start + _BLOCK)
        shares = _shares(rows.X[part], centers[part], score, belongs)
        squared[part] = shares.sum(axis=1)
        for x, mine, share in zip(rows.X[part], owner[part].tolist(), shares, strict=True):
            why.append(_words(share, model.transform.parts, firsts, x, usual[mine]))
    for k in np.flatnonzero(by_label < np.minimum(MIN_WEIGHT, weight / by_label)).tolist():
        why[k] = _label_words(model, rows, k)
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


def _weights(known: Fit, rows: Rows, middles: Array) -> list[Array]:
    """Return the weights p of every client's rows, which sum to 1."""
    if not isinstance(known.problem, Layered):
        return group_of(known, rows.clients).sample_weights(known.theta.ravel())
    networks.require()
    from dorfl.networks import tabular  # noqa: PLC0415 - brings in torch

    return tabular.evaluated(rows.clients, known.problem, known.theta, middles).sample_weights


def _label_weights(model: Model, rows: Rows) -> Array:
    """Return the weights of rows by their labels; 1 if labels are not down-weighted."""
    reference = np.array(model.facts.reference)
    if model.target is None or not len(reference):
        return np.ones(len(rows.y))
    pairs = [(rows.X[part], rows.y[part]) for part in rows.places]
    problem = model.fit.problem
    return np.concatenate(
        [training_rows.label_weights(problem, reference, *pair) for pair in pairs]
    )


def _label_words(model: Model, rows: Rows, k: int) -> str:
    """Return why row k is down-weighted for its label."""
    target, reference = model.target, np.array(model.facts.reference)
    assert target is not None
    out = model.fit.problem.predict(reference[:-1], rows.X[k : k + 1])[0]
    label, prediction = (
        number(target.center + target.spread * v, target) for v in (rows.y[k], out)
    )
    return f"its label is {label}, the model of the other rows predicts {prediction}"


def _with_strangers(model: Model, names: tuple[str, ...]) -> Fit:
    """Return the fit with the clients' average centre for clients that were not trained with."""
    fit = model.fit
    strangers = tuple(name for name in names if name not in fit.clients)
    average = np.array(model.facts.center or fit.centers.mean(axis=0), dtype=np.float64)
    average = average.reshape(fit.centers.shape[1:])  # of all rows, or of each class
    return replace(
        fit,
        clients=fit.clients + strangers,
        centers=np.array([*fit.centers, *[average] * len(strangers)]),
    )


def _shares(X: Array, centers: Array, score: Score, belongs: Array) -> Array:
    """Return (rows, columns) the parts of (x − ξ̄)ᵀ V (x − ξ̄) due to the table's columns."""
    parts = score.parts(X, centers)
    out = np.zeros((len(X), belongs.max() + 1))
    for k, column in enumerate(belongs):
        out[:, column] += parts[:, k]
    return np.maximum(out, 0.0)


def _usual(transform: Transform, rows: Rows, weight: Array) -> list[Array]:
    """Return each client's usual range of each feature: the middle 95 % of its inliers."""
    counts = weight >= MIN_WEIGHT
    everyone = rows.X[counts] if counts.any() else rows.X
    found = []
    for first, stop in pairwise(rows.bounds.tolist()):
        own = rows.X[first:stop][counts[first:stop]]
        own = own if len(own) >= _MIN_ROWS else everyone
        low, high = np.quantile(own.astype(np.float64), (0.025, 0.975), axis=0)
        # The usual range of a level is the share of rows that have it.
        fixed = list(transform.frozen)
        low[fixed] = high[fixed] = own[:, fixed].mean(axis=0)
        found.append(np.stack([low, high]))
    return found


def _words(share: Array, parts: tuple[Part, ...], firsts: list[int], x: Array, usual: Array) -> str:
    """Return the columns with most of a row's distance: "year 1953 (usual 1986 to 1999) 93 %".

    The first column is named in any case, up to two more if their share is large enough.
    """
    total = share.sum()
    if not total > 0:
        return ""
    share = share / total
    first, *others = np.argsort(-share, kind="stable")[:3].tolist()
    return ", ".join(
        f"{parts[k].name} {_value(parts[k], firsts[k], x, usual)} {percent(share[k], places)}"
        for k in (first, *(k for k in others if share[k] > _MIN_SHARE))
        for places in (0 if share[k] > _MIN_SHARE else 1,)
    )


def _value(part: Part, first: int, x: Array, usual: Array) -> str:
    """Return a row's value in a column and the usual range."""
    if isinstance(part, Category):
        own = x[first : first + len(part.levels)]
        if not own.any():
            return "(a level not seen in training)"
        level = int(own.argmax())
        return f"= {part.levels[level]} (as {percent(usual[0, first + level], 0)} of rows)"
    if part.flagged and x[first + 1]:
        return f"missing (as in {percent(usual[0, first + 1], 0)} of rows)"
    value, low, high = (
        number(part.center + part.spread * float(v), part) for v in (x[first], *usual[:, first])
    )
    return f"{value} (usual {low} to {high})"


def number(value: float, part: Numeric) -> str:
    """Format a value with the digits that the column's spread justifies; a date as a date."""
    if part.date and abs(value) < 500_000:
        return (datetime.date(1970, 1, 1) + datetime.timedelta(days=round(value))).isoformat()
    if abs(value) >= 1e9:
        return f"{value:.3g}"
    places = int(max(0, min(9, 2 - np.ceil(np.log10(part.spread)))))
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
