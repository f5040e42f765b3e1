"""Measure the accuracy that is lost if a quarter of the sites lie, together and knowing everything.

    python benchmarks/liars.py [seeds] [first]          prints the table of docs/attacks.md

Four sites with one liar and eight with two. The table has the points of accuracy on the honest
sites' test rows that are lost against the same training without liars and without `liars`: the mean
over the seeds and, in brackets, the worst. Bounds are on, as in every study. The settings of the
defence were chosen on seeds 0 to 19.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import dorfl
from dorfl.federated.messages import Broadcast, Report
from dorfl.federated.report_bounds import Limits, bounds, defend
from dorfl.federated.training import prepare
from dorfl.linear import curvature
from dorfl.linear.group import Group

Lie = Callable[[Broadcast, Report], Report]
Attack = Callable[[Group, tuple[str, ...]], Lie]
MEANS = np.array([[0.0] * 5, [1.0, 1.0, 0.0, 0.0, 0.0], [2.0, 2.0, 0.5, 1.0, 2.0]])


class Case(NamedTuple):
    """Clients, the names of the liars, and rows to test on."""

    clients: dict[str, Any]
    liars: tuple[str, ...]
    X: Any
    y: Any


def case(seed: int, sites: int, rows: int = 300) -> Case:
    """Return sites with means and sizes of their own, as in the paper's synthetic study."""
    rng = np.random.default_rng([seed, sites])
    sizes = rng.integers(rows // 2, 2 * rows, sites)
    means = MEANS[np.arange(sites) % 3] * rng.uniform(0.5, 1.0, (sites, 1))
    drift = rng.uniform(-0.5, 0.8, sites)
    bad = rng.uniform(0.0, 0.1, sites)
    data = dorfl.datasets.synthetic(
        seed,
        sizes=sizes,
        means=means,
        contamination=bad,
        factors=np.full(sites, 8.0),
        shifts=drift,
        test_rows=8000,
    )
    liars = tuple(list(data.clients)[: sites // 4])
    honest = [name for name in data.clients if name not in liars]
    X, y = (np.concatenate([data.test[name][part] for name in honest]) for part in (0, 1))
    return Case(data.clients, liars, X, y)


# ── lies: made from the rows of all clients, they replace the report of a liar ──────────────────


def _others(group: Group, liars: tuple[str, ...]) -> Group:
    return group.select([i for i, name in enumerate(group.names) if name not in liars])


def _as_if(own: Group) -> Lie:
    """Return the lie that is an honest report on other rows."""

    def lie(sent: Broadcast, report: Report) -> Report:
        at = own.names.index(report.client)
        seen = own.evaluate(sent.task.theta, sent.task.curvature)
        bend = None if seen.curvature is None else seen.curvature[at]
        return report._replace(
            value=float(seen.values[at]), vector=seen.gradients[at], curvature=bend
        )

    return lie


def flipped(group: Group, _: tuple[str, ...]) -> Lie:
    """Report on rows whose labels are all flipped."""
    return _as_if(replace(group, target=-group.target))


def other_rule(group: Group, liars: tuple[str, ...], turn: float = 90.0) -> Lie:
    """Report on rows with labels by θ turned by so many degrees, the same for all liars."""
    rng = np.random.default_rng(0)
    honest = _honest(group, liars)
    side = rng.normal(size=honest.size)
    side -= honest * (side @ honest) / (honest @ honest)
    side *= np.linalg.norm(honest) / np.linalg.norm(side)
    angle = np.deg2rad(turn)
    theta = np.cos(angle) * honest + np.sin(angle) * side
    out = group.rows @ theta[:-1] + theta[-1]
    target = np.where(rng.random(len(out)) < 1 / (1 + np.exp(-out)), 1.0, -1.0)
    return _as_if(replace(group, target=target.astype(group.target.dtype)))


def leverage(group: Group, _: tuple[str, ...]) -> Lie:
    """Report on rows of which one in five is an outlier on the wrong side."""
    rows, target = group.rows.copy(), group.target.copy()
    for _, a, b in _pieces(group):
        rows[a:b:5] = -8.0 * np.sign(group.rows[a:b:5]) - 1.0
        target[a:b:5] = 1.0
    return _as_if(replace(group, rows=rows, target=target))


def takeover(group: Group, _: tuple[str, ...]) -> Lie:
    """Report the largest risk within the bounds, with its gradient."""
    limits = limits_of(group)
    defence = defend(group.problem, limits, dict(zip(group.names, group.centers, strict=True)))

    def lie(sent: Broadcast, report: Report) -> Report:
        limit, theta = bounds(defence, report.client, sent.task), sent.task.theta
        size = float(np.linalg.norm(theta))
        outward = theta / size if size > 0 else np.eye(theta.size)[0]
        return report._replace(value=limit.high, vector=limit.radius * outward)

    return lie


def _together(make: Callable[[Any, Report], dict[str, Any]]) -> Attack:
    """Return the attack in which liars make their reports from the honest ones by a rule."""

    def attack(group: Group, liars: tuple[str, ...]) -> Lie:
        others = _others(group, liars)

        def lie(sent: Broadcast, report: Report) -> Report:
            return report._replace(**make(others.evaluate(sent.task.theta), report))

        return lie

    return attack


def pulled(size: float, worst: bool = False) -> Attack:
    """Report the honest sites' mean risk with a slope of this size added, which is convex."""

    def attack(group: Group, liars: tuple[str, ...]) -> Lie:
        others = _others(group, liars)
        away = np.random.default_rng(1).normal(size=group.problem.size)
        away *= size / np.linalg.norm(away)

        def lie(sent: Broadcast, report: Report) -> Report:
            seen, theta = others.evaluate(sent.task.theta, sent.task.curvature), sent.task.theta
            at = int(seen.values.argmax())
            value = seen.values[at] if worst else seen.values.mean()
            vector = seen.gradients[at] if worst else seen.gradients.mean(axis=0)
            bend = seen.curvature
            if bend is not None:
                bend = bend[at] if worst else bend.mean(axis=0)
            value = max(float(value + away @ theta), 0.0)
            return report._replace(value=value, vector=vector + away, curvature=bend)

        return lie

    return attack


def steered(size: float, softest: bool = False, opposite: bool = False) -> Attack:
    """Report the honest mean with a slope that changes the honest sites' model most.

    The slope lengthens that model, or (`softest`) has the direction of the smallest curvature. With
    `opposite`, half of the liars have the opposite slope.
    """

    def attack(group: Group, liars: tuple[str, ...]) -> Lie:
        others = _others(group, liars)
        away = -_honest(group, liars)
        if softest:
            packed = others.evaluate(-away, "full").curvature.mean(axis=0)
            sizes = group.problem.layout.sizes_of(packed)
            solve = curvature.base(packed, sizes, np.full(away.size, 1e-9)).solve
            soft = np.linalg.eigh(np.array([solve(unit) for unit in np.eye(away.size)]))[1][:, -1]
            away = soft * np.sign(-soft @ away)
        away = away * size / np.linalg.norm(away)

        def lie(sent: Broadcast, report: Report) -> Report:
            seen, theta = others.evaluate(sent.task.theta, sent.task.curvature), sent.task.theta
            slope = -away if opposite and report.client != liars[0] else away
            bend = None if seen.curvature is None else seen.curvature.mean(axis=0)
            value = max(float(seen.values.mean() + slope @ theta), 0.0)
            vector = seen.gradients.mean(axis=0) + slope
            return report._replace(value=value, vector=vector, curvature=bend)

        return lie

    return attack


def _honest(group: Group, liars: tuple[str, ...]) -> Any:
    """Return θ of the honest sites alone."""
    rows = {n: (group.rows[a:b], group.target[a:b]) for n, a, b in _pieces(group) if n not in liars}
    return dorfl.train(rows, group.problem.method, l2=1e-3).theta.ravel()


def _pieces(group: Group) -> list[tuple[str, int, int]]:
    edges = [0, *np.cumsum(group.counts).tolist()]
    return list(zip(group.names, edges[:-1], edges[1:], strict=True))


def _spread(seen: Any, z: float) -> dict[str, Any]:
    """Return the honest mean less z standard deviations, coordinate by coordinate."""
    slopes = seen.gradients
    return {
        "value": float(seen.values.mean()),
        "vector": slopes.mean(axis=0) - z * slopes.std(axis=0),
    }


def _reversed(seen: Any, times: float) -> dict[str, Any]:
    return {
        "value": float(seen.values.mean()),
        "vector": -times * seen.gradients.mean(axis=0),
    }


def _no_farther(seen: Any) -> dict[str, Any]:
    """Return a gradient against the mean that is as far from it as an honest site's."""
    mean = seen.gradients.mean(axis=0)
    far = np.linalg.norm(seen.gradients - mean, axis=1).max() / np.sqrt(len(mean))
    return {"value": float(seen.values.mean()), "vector": mean - far * np.sign(mean)}


ATTACKS: dict[str, Attack] = {
    "takeover by the largest risk that passes": takeover,
    "labels flipped": flipped,
    "labels by a rule turned by 90°": other_rule,
    "labels by a rule turned by 45°": lambda group, liars: other_rule(group, liars, 45.0),
    "one row in five far out, on the wrong side": leverage,
    "gradient × −10": _together(lambda _, report: {"vector": -10.0 * report.vector}),
    "IPM, ε = 0.5": _together(lambda seen, _: _reversed(seen, 0.5)),
    "IPM, ε = 10": _together(lambda seen, _: _reversed(seen, 10.0)),
    "ALIE, z = 1": _together(lambda seen, _: _spread(seen, 1.0)),
    "ALIE, z = 2": _together(lambda seen, _: _spread(seen, 2.0)),
    "against Krum": _together(lambda seen, _: _no_farther(seen)),
    "a slope of 0.1 on the honest mean": pulled(0.1),
    "a slope of 0.2 on the honest mean": pulled(0.2),
    "a slope of 0.5 on the honest mean": pulled(0.5),
    "a slope of 0.1 on the largest risk of a site": pulled(0.1, worst=True),
    "a slope of 0.3 on the largest risk of a site": pulled(0.3, worst=True),
    "a slope of 0.1 that lengthens the honest model": steered(0.1),
    "a slope of 0.4 where the others curve least": steered(0.4, softest=True),
    "slopes of 0.2 that lengthen and shorten it": steered(0.2, opposite=True),
}
METHOD = dorfl.methods.paper(32.0, 1.0, mixture=dorfl.mixture.fixed(by="loss"))


def limits_of(group: Group) -> Limits:
    """Return the bounds that a study sets by default."""
    return Limits(30.0 * float(np.sqrt(group.problem.dims)), 30.0)


def train(case: Case, attack: Attack | None = None, liars: float = 0.0) -> Any:
    """Train, with liars if `attack` is given."""
    group = prepare(case.clients, METHOD)
    tamper: Lie | None = None
    if attack is not None:
        lie = attack(group, case.liars)

        def tamper(sent: Broadcast, report: Report) -> Report:
            return lie(sent, report) if report.client in case.liars else report

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a training that is attacked may not converge
        return dorfl.train(
            case.clients,
            METHOD,
            l2=1.0 / len(group.rows),
            tol=1e-4,
            limits=limits_of(group),
            liars=liars,
            tamper=tamper,
            max_rounds=100,
        )


def lost(case: Case, attack: Attack | None, liars: float) -> float:
    """Return the points of accuracy lost on the honest sites' test rows."""
    honest, found = train(case), train(case, attack, liars)
    return 100.0 * float(honest.score(case.X, case.y) - found.score(case.X, case.y))


def main(count: int = 20, first: int = 100) -> None:
    """Print the table in Markdown."""
    print("| lie of a quarter of the sites | 4 sites | … `liars` | 8 sites | … `liars` |")
    print("| --- | --- | --- | --- | --- |")
    for name, attack in {"no site lies": None, **ATTACKS}.items():
        cells = []
        for sites in (4, 8):
            for liars in (0.0, 0.25):
                points = [lost(case(first + k, sites), attack, liars) for k in range(count)]
                cells.append(f"{np.mean(points) + 0.0:.1f} ({np.max(points) + 0.0:.1f})")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
