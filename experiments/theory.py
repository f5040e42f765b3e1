"""Checks of every statement of the paper on random instances."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dorfl.certificates.certificate import group_of, paper, saddle_gap, worst_case
from dorfl.certificates.distance import unbalanced_wasserstein, wasserstein
from dorfl.data.datasets import synthetic
from dorfl.data.datasets.base import Clients
from dorfl.federated.diagnostics import FitWarning
from dorfl.federated.fit import Fit
from dorfl.federated.training import prepare, train
from dorfl.linear import rowwise
from dorfl.objective import methods, scores
from dorfl.report.content import Figure, Series, Table, plain
from dorfl.support.types import Array
from experiments.suprema import rate, supremum

LOSSES = ("logistic", "softmax", "squared")


class Statement(NamedTuple):
    """One line of the table: the statement, the measured figure, and its limit."""

    name: str
    claim: str
    measured: float
    limit: float

    @property
    def holds(self) -> bool:
        """Return whether the measured figure is within its limit; NaN is not."""
        return bool(self.measured <= self.limit)


class Findings(NamedTuple):
    """The findings of one part of the study."""

    statements: list[Statement]
    figures: list[Figure]


def lemma_1(seed: int) -> Findings:
    """UW(P*‖P̂) ≤ W(P*, P̄) + β KL(P̄‖P̂) for every P̄, with equality at the best one."""
    rng = np.random.default_rng([seed, 1])
    violation, slack = -np.inf, -np.inf
    for _ in range(10):
        n, beta = int(rng.integers(5, 30)), float(10 ** rng.uniform(-1, 1))
        clean, dirty = rng.normal(size=(n, 2)), rng.normal(size=(n, 2))
        dirty[: n // 10 + 1] *= -8.0
        found = unbalanced_wasserstein(clean, dirty, beta, tol=1e-8)
        for _ in range(10):
            other = rng.dirichlet(np.full(n, 0.5))
            right = wasserstein(clean, (dirty, other)).value + beta * _divergence(other, n)
            violation = max(violation, (found.lower - right) / abs(right))
        best = wasserstein(clean, (dirty, found.marginal)).value
        best += beta * _divergence(found.marginal, n)
        slack = max(slack, abs(best - found.value) / abs(found.value))
    return Findings(
        [
            Statement("Lemma 1", "UW ≤ W + β KL, relative excess", violation, 1e-9),
            Statement("Lemma 1", "equality at the best P̄, relative", slack, 1e-6),
        ],
        [],
    )


def outliers_to_infinity(seed: int) -> Findings:
    """UW of a contaminated sample stays bounded as its outliers leave; W grows without bound."""
    rng = np.random.default_rng([seed, 2])
    clean, sample = rng.normal(size=(60, 2)), rng.normal(size=(60, 2))
    away = 10.0 ** np.arange(0, 5.5, 0.5)
    unbalanced, plain = [], []
    for factor in away:
        dirty = np.vstack([sample[6:], sample[:6] * -factor])
        unbalanced.append(unbalanced_wasserstein(clean, dirty, 1.0, tol=1e-6).value)
        plain.append(wasserstein(clean, dirty).value)
    limit = wasserstein(clean, sample[6:]).value + np.log(60 / 54)  # Lemma 1 at the clean rows
    stays, grows = unbalanced[-1] / limit, plain[0] / plain[-1]
    figure = Figure(
        "outliers",
        "Outliers move away: UW stays, W does not",
        "outliers multiplied by −",
        "distance to a clean sample",
        [
            Series("Wasserstein", away, np.array(plain)),
            Series("unbalanced Wasserstein", away, np.array(unbalanced)),
            Series("bound of Lemma 1", away, np.full(len(away), limit)),
        ],
        x_log=True,
        y_log=True,
    )
    return Findings(
        [
            Statement("Lemma 1", "UW with outliers at 10⁵, over its bound", stays, 1.0),
            Statement("Lemma 1", "W before over W with them at 10⁵", grows, 1e-6),
        ],
        [figure],
    )


def propositions(seed: int) -> Findings:
    """Primal against dual: Proposition 1 at ρ, Proposition 2 at r̂, for three losses."""
    statements, curves = [], []
    for loss in LOSSES:
        clients = _small_clients(seed, loss)
        method = methods.paper(rho=8.0, beta=0.7, score=scores.quadratic(0.2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # so few rows may not beat a constant
            fit = train(clients, method, loss=loss)
        certificate = paper(fit, clients)
        gain, cost, reference = _discretised(fit, clients, certificate.lam, seed)
        level = certificate.bound - certificate.rho * certificate.radius
        primal = supremum(gain, cost, reference, certificate.beta, rho=certificate.rho)
        hard = supremum(gain, cost, reference, certificate.beta, radius=certificate.radius)
        radii = certificate.radius * np.array([0.3, 0.6, 1.0, 1.6, 3.0])
        bound = certificate.curve(radii)
        reached = [supremum(gain, cost, reference, certificate.beta, radius=r) for r in radii]
        over = max((a - b) / abs(b) for a, b in zip(reached, bound, strict=True))
        first, second = f"Proposition 1, {loss}", f"Proposition 2, {loss}"
        statements += [
            Statement(first, "primal − dual, relative", _off(primal, level), 1e-6),
            Statement(second, "bound − E_P*[L]", abs(certificate.difference), 1e-9),
            Statement(
                second, "supremum at r̂ − bound, relative", _off(hard, certificate.bound), 1e-4
            ),
            Statement(second, "supremum over the curve's bound, relative", over, 1e-6),
        ]
        curves += [
            Series(f"{loss}: certified", radii, bound),
            Series(f"{loss}: reached on a support", radii, np.array(reached)),
        ]
    figure = Figure(
        "certificate", "Certified worst-case risk", "radius r", "E_P[L]", curves, x_log=True
    )
    return Findings(statements, [figure])


def radius_form(seed: int) -> Findings:
    """The constrained problem's optimum is the Lagrangian's at the multiplier found."""
    statements = []
    for loss in LOSSES:
        clients = _small_clients(seed, loss, rows=60)
        score = scores.quadratic(0.2)
        constrained = methods.method(radius=0.1, beta=1.0, score=score)
        fit = train(clients, constrained, loss=loss, tol=1e-8)
        lagrangian = train(clients, methods.paper(fit.rho, 1.0, score), loss=loss, tol=1e-9)
        value = lagrangian.objective + fit.rho * 0.1
        met = paper(fit, clients).radius
        name = f"Radius form, {loss}"
        statements += [
            Statement(
                name, "optimum − Lagrangian at its ρ, relative", _off(fit.objective, value), 1e-5
            ),
            Statement(name, "radius met, relative error", _off(met, 0.1), 1e-2),
        ]
    return Findings(statements, [])


def theorem_1(seed: int) -> Findings:
    """Algorithm 1's average: its gap falls as T^−½, under its bound; the others beside it."""
    data = synthetic(seed, contamination=(0.0, 0.0, 0.0))
    method = methods.paper(rho=2.0, beta=0.5, score=scores.quadratic(0.1))
    radius = 1.0

    def solve(solver: str, rounds: int | None = None, run: int = 0) -> Fit:
        return train(
            data.clients, method, solver=solver, max_rounds=rounds, seed=run, tol=1e-8,
            theta_radius=radius, intercept=False,
        )  # fmt: skip

    best = solve("sqp")

    def excess(objective: float) -> float:
        return float(np.exp(objective) - np.exp(best.objective))  # ρβ = 1

    lengths = np.array([25, 100, 400, 1600])
    gaps = np.array(
        [
            np.mean([excess(solve("paper", int(T), run).objective) for run in range(4)])
            for T in lengths
        ]
    )
    slope = float(np.polyfit(np.log(lengths), np.log(gaps), 1)[0])
    constants = rate(prepare(data.clients, method, intercept=False), radius)
    bounds = np.array([constants.bound(int(rounds)) for rounds in lengths])
    curves = [
        Series("Algorithm 1 (mean of 4)", lengths, np.array(gaps)),
        Series("Theorem 1", lengths, bounds),
    ]
    for solver in ("sqp", "optimistic"):
        fit = solve(solver)
        heights = np.minimum.accumulate([excess(line.objective) for line in fit.history])
        curves.append(Series(solver, np.arange(1, fit.rounds + 1), np.maximum(heights, 1e-9)))
    figure = Figure(
        "rate", "Gap against exchanges of messages", "rounds T", "gap of exp(F/ρβ)", curves,
        x_log=True, y_log=True,
    )  # fmt: skip
    gap = saddle_gap(best, data.clients)
    return Findings(
        [
            Statement("Theorem 1", "log–log slope of the gap in T (−½ or steeper)", slope, -0.4),
            Statement(
                "Theorem 1", "gap over its bound, largest", float(np.max(gaps / bounds)), 1.0
            ),
            Statement("Saddle gap", "max_i F_i(θ) − min F(·, λ), never negative", -gap, 1e-8),
        ],
        [figure],
    )


def inexact_supremum(seed: int) -> Findings:
    """A row left within ε of its worst place costs f at most L_ξ ε², and never raises it."""
    clients = _small_clients(seed, "logistic")
    method = methods.paper(rho=8.0, beta=0.7, score=scores.quadratic(0.2))
    group = prepare(clients, method)
    theta = np.random.default_rng([seed, 5]).normal(size=group.problem.size)
    smooth = 8.0 + 0.4 + 0.25 * float(theta @ theta)
    exact, gradient = group.atoms(theta).value, group.evaluate(theta).gradients
    sizes = 10.0 ** np.arange(-4.0, 0.0, 0.5)
    missed, turned = [], []
    for epsilon in sizes:
        loose = prepare(clients, method, tolerance=float(epsilon))
        missed.append(float((exact - loose.atoms(theta).value).max()))
        turned.append(float(np.abs(loose.evaluate(theta).gradients - gradient).max()))
    excess = max(m / (smooth * e**2) for m, e in zip(missed, sizes, strict=True))
    figure = Figure(
        "epsilon", "What an ε-approximate supremum costs", "ε", "error",
        [
            Series("f, largest over rows", sizes, np.maximum(missed, 1e-16)),
            Series("L_ξ ε²", sizes, smooth * sizes**2),
            Series("∇F, largest entry", sizes, np.maximum(turned, 1e-16)),
        ],
        x_log=True, y_log=True,
    )  # fmt: skip
    return Findings(
        [
            Statement("Inner accuracy", "f missed over L_ξ ε², largest", excess, 1.0),
            Statement("Inner accuracy", "f exceeded, largest", -min(missed), 1e-12),
        ],
        [figure],
    )


PARTS: dict[str, Callable[[int], Findings]] = {
    "lemma 1": lemma_1,
    "outliers to infinity": outliers_to_infinity,
    "propositions": propositions,
    "radius form": radius_form,
    "theorem 1": theorem_1,
    "inexact supremum": inexact_supremum,
}


def examine(seed: int, name: str) -> Findings:
    """Run one part of the checks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*no further progress")  # tight tolerances
        return PARTS[name](seed)


def cell(seed: int, name: str) -> dict[str, Any]:
    """Return one part's findings as plain lists, for :func:`findings`."""
    found = examine(seed, name)
    return {
        "statements": [list(statement) for statement in found.statements],
        "figures": [
            figure._asdict()
            | {"series": [[one.label, plain(one.x), plain(one.y)] for one in figure.series]}
            for figure in found.figures
        ],
    }


def findings(kept: dict[str, Any]) -> Findings:
    """Return findings from the plain lists of :func:`cell`."""
    figures = [
        Figure(**figure | {"series": [Series(*line) for line in figure["series"]]})
        for figure in kept["figures"]
    ]
    return Findings([Statement(*line) for line in kept["statements"]], figures)


def table(statements: Sequence[Statement]) -> Table:
    """Return the table of statements, measured figures and limits."""
    return Table(
        "statements",
        "The paper's statements on random instances",
        ("statement", "measured", "found", "limit", "holds"),
        [(*statement, statement.holds) for statement in statements],
        ".2g",
    )


def _off(value: float, expected: float) -> float:
    return abs(value - expected) / abs(expected)


def _divergence(weights: Array, count: int) -> float:
    positive = weights[weights > 0]
    return float(np.sum(positive * np.log(positive * count)))


def _small_clients(seed: int, loss: str, rows: int = 7) -> Clients:
    """Return two clients with an outlier each, small enough to solve the primal directly."""
    rng = np.random.default_rng([seed, 3])
    clients = {}
    for name, shift in (("north", 0.0), ("south", 0.7)):
        X = rng.normal(size=(rows, 2)) + shift
        signal = X @ [1.0, -0.5] + 0.5 * rng.normal(size=rows)
        y = (
            signal
            if loss == "squared"
            else np.digitize(signal, [-0.3, 0.6] if loss == "softmax" else [0.2])
        )
        X[0] *= -8.0
        clients[name] = (X, y)
    return clients


def _discretised(fit: Fit, clients: Clients, lam: Array, seed: int) -> tuple[Array, Array, Array]:
    """Return a finite support: every row's worst place, the rows themselves, and random points."""
    rng = np.random.default_rng([seed, 4])
    group, worst = group_of(fit, clients), worst_case(fit, clients)
    noise = worst.rows + rng.normal(size=worst.rows.shape)
    points = np.vstack([worst.rows, group.rows, noise])
    target = np.tile(group.target, 3)
    outputs = group.problem.predict(fit.theta, points)
    centers = np.tile(rowwise.centers_of(group), (3, 1))
    gain = group.problem.loss.value(outputs, target)
    gain = gain - group.problem.score.at(points, centers, group.problem.decode(target))
    apart = ((points[:, None, :] - group.rows[None]) ** 2).sum(axis=2) / 2.0
    same = target[:, None] == group.target[None]
    return gain, np.where(same, apart, np.inf), np.repeat(lam / group.counts, group.counts)
