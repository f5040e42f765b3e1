"""Do random tables train to their bound? 167 draws that are small, odd, and full of corners.

A draw has 6 to 400 rows, 1 to 80 columns, a client for every two rows at the most, rows that are
cheap to move (so that risks have non-smooth points), labels that can be separable, and up to twelve
classes. The default solver has 200 rounds to prove a gap within the tolerance (1e-6).

A draw is false if its training says "converged" and SciPy's L-BFGS-B, which starts at its θ and
knows values and gradients alone, finds a point that is lower by more than the reported gap.

    python benchmarks/hard_draws.py [first seed] [draws]
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

import dorfl
from dorfl import losses, methods, mixture, scores
from dorfl.federated.training import prepare
from dorfl.linear.group import Group
from dorfl.objective.methods import Method

FIRST, DRAWS = 91_000, 167
LONG = 60.0  # seconds of processor time from which on a draw counts as not converged


class Draw(NamedTuple):
    """A table in clients, and how it is trained."""

    clients: list[tuple[np.ndarray, np.ndarray]]
    method: Method
    loss: Any
    l2: float
    about: str


def draw(seed: int) -> Draw:
    """Return the table and the method of a seed."""
    rng = np.random.default_rng(seed)
    n, d = int(10.0 ** rng.uniform(0.8, 2.6)), int(10.0 ** rng.uniform(0.0, 1.9))
    count = int(rng.integers(1, min(n // 2, 40) + 1))
    kind = str(rng.choice(["logistic", "softmax", "huber", "squared"]))
    classes = int(rng.integers(3, 13)) if kind == "softmax" else 2
    X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-1.0, 1.0, size=d)
    signal = 3.0 * (X / X.std(axis=0)) @ rng.normal(size=(d, classes)) / np.sqrt(d)
    noise = rng.choice([0.0, 0.3, 1.0])
    who = rng.integers(0, count, size=n)
    who[:count] = np.arange(count)
    if kind in ("huber", "squared"):
        y = signal[:, 0] + noise * rng.standard_t(3, size=n) + 0.2 * who
    else:
        y = (signal + noise * rng.gumbel(size=signal.shape)).argmax(axis=1)
        y[:classes] = np.arange(classes)[:n]
    rho, beta = 10.0 ** rng.uniform(-0.5, 2.0), 10.0 ** rng.uniform(-1.0, 1.0)
    score = scores.quadratic(0.1) if rng.random() < 0.5 else None
    made: dict[str, Callable[[], Method]] = {
        "erm": methods.erm,
        "afl": methods.afl,
        "wafl": lambda: methods.wafl(rho),
        "gdrfl": lambda: methods.gdrfl(rho),
        "dorfl": lambda: methods.paper(rho, beta, score),
        "capped": lambda: methods.method(
            rho=rho, beta=beta, mixture=mixture.capped(max(0.3, 1.0 / count))
        ),
    }
    name = str(rng.choice(list(made)))
    loss = losses.huber(10.0 ** rng.uniform(-1.3, 0.3)) if kind == "huber" else kind
    l2 = 10.0 ** rng.uniform(-5.0, -1.0)
    about = f"{n} × {d}, {count} clients, {kind} {classes}, {name}, rho {rho:.2g}, l2 {l2:.1g}"
    return Draw([(X[who == i], y[who == i]) for i in range(count)], made[name](), loss, l2, about)


def lowest(group: Group, of: Draw, fit: dorfl.Fit) -> float:
    """Return the lowest objective that L-BFGS-B reaches on smoothed worst mixtures."""
    penalty, rule, least = of.l2 * group.problem.penalised, of.method.mixture, np.inf
    tau = of.method.temperature

    def height(theta: np.ndarray, smooth: float) -> tuple[float, np.ndarray]:
        nonlocal least
        if not group.problem.is_finite(theta):
            return np.inf, np.zeros_like(theta)
        found, ridge = group.evaluate(theta), 0.5 * float(penalty @ theta**2)
        least = min(least, rule.objective(found.values, fit.lam, tau) + ridge)
        if rule.adversarial:
            share = softmax(found.values / smooth)
            value = smooth * float(logsumexp(found.values / smooth))
        else:
            share = rule.shares(found.values, fit.lam, tau)
            value = rule.objective(found.values, fit.lam, tau)
        return value + ridge, share @ found.gradients + penalty * theta

    for smooth in (1e-3, 1e-5, 1e-7) if rule.adversarial else (1.0,):
        minimize(
            height, fit.theta.ravel(), args=(smooth * abs(fit.objective),), jac=True,
            method="L-BFGS-B", options={"maxiter": 300},
        )  # fmt: skip
    return float(least)


def main(first: int = FIRST, draws: int = DRAWS) -> None:
    rounds, seconds, missed, false, seed = [], [], [], [], first - 1
    while len(rounds) < draws:
        seed += 1
        of, start = draw(seed), time.process_time()
        try:
            group = prepare(of.clients, of.method, of.loss)
            fit = dorfl.train(of.clients, of.method, loss=of.loss, l2=of.l2, max_rounds=200)
        except ValueError:  # no finite supremum, or too few rows: the draw is no problem
            continue
        rounds.append(fit.rounds)
        seconds.append(time.process_time() - start)
        done = fit.status == "converged" and fit.gap_kind == "bound" and seconds[-1] < LONG
        if not done:
            missed.append(seed)
        slack = 1e-9 * abs(fit.objective)
        if lowest(group, of, fit) < fit.objective - fit.gap - slack:
            false.append(seed)
        if not done or seed in false:
            end = f"{fit.status}, {fit.rounds} rounds, {seconds[-1]:.1f} s"
            print(f"{seed}: {of.about}: {end}, gap {fit.relative_gap:.1e}", flush=True)
    print(
        f"{draws} draws ({first} to {seed}): {draws - len(missed)} converge by the bound; rounds: "
        f"median {np.median(rounds):g}, 95 % within {np.quantile(rounds, 0.95):.0f}; processor "
        f"seconds: {sum(seconds):.0f}, at most {max(seconds):.1f}; bounds that are false: "
        f"{len(false)} {false or ''}"
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)
    main(*map(int, sys.argv[1:]))
