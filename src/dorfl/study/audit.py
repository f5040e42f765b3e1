"""Which rows a model holds for wrong, and which of their columns make them so."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dorfl import networks
from dorfl.data.centers import at
from dorfl.data.preprocessing import Category, Numeric, Transform
from dorfl.data.preprocessing.transform import Part
from dorfl.federation.fit import Fit
from dorfl.guarantees.certificate import group_of
from dorfl.networks.layered import Layered
from dorfl.objective.kinds import Score
from dorfl.study import serving
from dorfl.study.model import Model
from dorfl.study.rows import Rows
from dorfl.study.suspects import REACH
from dorfl.support.text import percent
from dorfl.support.types import Array

_BLOCK = 65_536
COUNTS = 0.5  # of an ordinary row's weight
_MUCH = 0.05  # of a row's distance
_ENOUGH = 20  # rows of a client, to say what is usual there


class Audit(NamedTuple):
    """Rows from the most suspicious on.

    `row` is the place in the file (from 1, the header not counted), `weight` is 1 for an ordinary
    row and nearly 0 for a suspect, `distance` how far it is from the centre as the score has it
    (by default 1 is where the bulk of the rows ends), and `columns` the columns that make most of
    it: the value, what is usual among the client's rows that count, and the column's share. Where
    labels were found not to fit, how far they are from what they should be counts too.
    """

    row: Array
    client: Array
    weight: Array
    distance: Array
    columns: list[str]


def trusting(model: Model) -> str | None:
    """Why a model suspects no row, if it does not, and what to do about it."""
    problem, scaled = model.fit.problem, model.transform.numeric
    name, score = problem.method.name, problem.method.score
    if model.facts.reference or (score is not None and score.center is not None):
        return None
    hint = "train with --method dorfl"
    if name == "dorfl" and len(problem.method.cost.frozen) == problem.dims:
        hint = "its columns are all categories or flags, in which no row lies far out"
        hint += "; name those that measure something (--numeric)" * (not scaled)
    elif name == "dorfl":
        decided = model.facts.settings.get("method", {}).get("outliers") != 0
        why = "those that lie far out were not found to be wrong (`dorfl info` says why)"
        why = why if decided else "it was told that no row is wrong"
        hint = f"{why}; to weigh them all the same, train with --outliers 0.1"
    return f"the model was trained with method {name!r} and suspects no row: {hint}"


def audit(model: Model, rows: Rows) -> Audit:
    """Every row's weight, and why."""
    score, trusts = model.fit.problem.score, trusting(model)
    if trusts:
        raise ValueError(f"outliers: {trusts}")
    known, (off, said) = _with_strangers(model, rows.names), _labels(model, rows)
    middles = known.centers[[known.clients.index(name) for name in rows.names]]
    own = zip(_weights(known, rows, middles), rows.places, strict=True)
    parts = [w * serving.counts(off[at]) for w, at in own]
    weight = np.concatenate([w * (len(w) / w.sum()) for w in parts])
    each = zip(middles, rows.clients.values(), strict=True)
    centers = np.concatenate([np.broadcast_to(at(mid, y), X.shape) for mid, (X, y) in each])
    owner = np.repeat(np.arange(len(rows.names)), np.diff(rows.bounds))
    sources = list(dict.fromkeys(model.transform.sources))
    belongs = np.array([sources.index(name) for name in model.transform.sources])
    squared, why = np.empty(len(weight)), list[str]()
    usual, firsts = _usual(model.transform, rows, weight), _firsts(model.transform)
    for start in range(0, len(weight), _BLOCK):
        part = slice(start, start + _BLOCK)
        shares = _shares(rows.X[part], centers[part], score, belongs)
        squared[part] = shares.sum(axis=1)
        for x, mine, share in zip(rows.X[part], owner[part].tolist(), shares, strict=True):
            why.append(_words(share, model.transform.parts, firsts, x, usual[mine]))
    for k in np.flatnonzero(off > np.maximum(REACH, squared)).tolist():
        why[k] = said(k)
    distance = np.sqrt(squared + off)
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
    """The weight p of every row, by client."""
    if not isinstance(known.problem, Layered):
        return group_of(known, rows.clients).sample_weights(known.theta.ravel())
    networks.require()
    from dorfl.networks import tabular  # noqa: PLC0415 - brings in torch

    return tabular.evaluated(rows.clients, known.problem, known.theta, middles).sample_weights


def _labels(model: Model, rows: Rows) -> tuple[Array, Callable[[int], str]]:
    """How far labels are from what they should be, squared, as training has it; and in words."""
    target, reference = model.target, np.array(model.facts.reference)
    if target is None or not len(reference):
        return np.zeros(len(rows.y)), lambda _: ""
    problem = model.fit.problem
    pairs = [(rows.X[at], rows.y[at]) for at in rows.places]
    off = np.concatenate([serving.unfit(problem, reference, *pair) for pair in pairs])

    def said(k: int) -> str:
        out = problem.predict(reference, rows.X[k : k + 1])[0]
        found, told = (number(target.center + target.spread * v, target) for v in (rows.y[k], out))
        return f"its label {found} does not fit: the other rows say {told}"

    return off, said


def _with_strangers(model: Model, names: tuple[str, ...]) -> Fit:
    """The fit with a centre, the clients' average, for those who were not trained with."""
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
    """(x − ξ̄)ᵀ V (x − ξ̄) by the table's columns (rows, columns)."""
    parts = score.parts(X, centers)
    out = np.zeros((len(X), belongs.max() + 1))
    for k, column in enumerate(belongs):
        out[:, column] += parts[:, k]
    return np.maximum(out, 0.0)


def _usual(transform: Transform, rows: Rows, weight: Array) -> list[Array]:
    """For every client what is usual of each feature: the middle 95 % of its rows that count."""
    counts = weight >= COUNTS
    everyone = rows.X[counts] if counts.any() else rows.X
    found = []
    for first, stop in pairwise(rows.bounds.tolist()):
        own = rows.X[first:stop][counts[first:stop]]
        own = own if len(own) >= _ENOUGH else everyone
        low, high = np.quantile(own.astype(np.float64), (0.025, 0.975), axis=0)
        # Of a level the share of rows that have it says more.
        fixed = list(transform.frozen)
        low[fixed] = high[fixed] = own[:, fixed].mean(axis=0)
        found.append(np.stack([low, high]))
    return found


def _words(share: Array, parts: tuple[Part, ...], firsts: list[int], x: Array, usual: Array) -> str:
    """The columns that make most of a row's distance: "year 1953 (usual 1986 to 1999) 93 %".

    Of hundreds none makes much of it: then the one that makes most.
    """
    total = share.sum()
    if not total > 0:
        return ""
    share = share / total
    first, *others = np.argsort(-share, kind="stable")[:3].tolist()
    return ", ".join(
        f"{parts[k].name} {_value(parts[k], firsts[k], x, usual)} {percent(share[k], places)}"
        for k in (first, *(k for k in others if share[k] > _MUCH))
        for places in (0 if share[k] > _MUCH else 1,)
    )


def _value(part: Part, first: int, x: Array, usual: Array) -> str:
    """What stands in a row, and what usually does."""
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
    """As many digits as the column's spread makes sense of; a date as a date."""
    if part.date and abs(value) < 500_000:
        return (datetime.date(1970, 1, 1) + datetime.timedelta(days=round(value))).isoformat()
    if abs(value) >= 1e9:
        return f"{value:.3g}"
    places = int(max(0, min(9, 2 - np.ceil(np.log10(part.spread)))))
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _firsts(transform: Transform) -> list[int]:
    """The first feature of every part."""
    widths = [len(part.features) for part in transform.parts]
    return [sum(widths[:k]) for k in range(len(widths))]
