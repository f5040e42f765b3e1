"""A fourth site joins the synthetic study and lies. What becomes of the model?

    python examples/attacks.py          prints the table of docs/attacks.md (about a minute)

The figures are test accuracies on the three honest clients' test sets, the mean over several seeds,
and how many points the lie cost at worst against a fourth site that is honest.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import dorfl
from dorfl.federated.messages import Broadcast, Report
from dorfl.federated.report_bounds import Limits, bounds, defend
from dorfl.federated.training import prepare
from dorfl.linear.group import Group

LIMITS = Limits(row=6.0)  # the synthetic columns have unit variance: an honest row is about 3 long
CAP, TRIM = 0.26, 0.5  # hardly more than a quarter each; the median. Chosen on seeds 0 to 7
LIAR = "fourth"

Lie = Callable[[Broadcast, Report], Report]


def huge(_group: Group, _: str) -> Lie:
    """An absurd risk, and a gradient that leads away."""
    return lambda _sent, report: report._replace(value=1e6, vector=-10.0 * report.vector)


def ceiling(group: Group, liar: str) -> Lie:
    """The largest risk and the longest gradient that pass the bounds, and it leads away."""
    defence = _defence(group, liar)

    def lie(sent: Broadcast, report: Report) -> Report:
        limit = bounds(defence, liar, sent.task)
        away = -report.vector / max(float(np.linalg.norm(report.vector)), 1e-300)
        return report._replace(value=limit.high, vector=limit.radius * away)

    return lie


def convex_ceiling(group: Group, liar: str) -> Lie:
    """The largest risk that passes, with the gradient that belongs to it: nothing contradicts."""
    defence = _defence(group, liar)

    def lie(sent: Broadcast, report: Report) -> Report:
        limit, theta = bounds(defence, liar, sent.task), sent.task.theta
        length = float(np.linalg.norm(theta))
        outward = theta / length if length > 0 else np.eye(theta.size)[0]
        return report._replace(value=limit.high, vector=limit.radius * outward)

    return lie


def reversed_gradient(_group: Group, _: str) -> Lie:
    """The true risk with the gradient turned round and made longer."""
    return lambda _sent, report: report._replace(vector=-10.0 * report.vector)


def flipped_labels(group: Group, liar: str) -> Lie:
    """Honest about rows whose labels are all wrong: a site with bad data rather than a liar."""
    own = group.select([group.names.index(liar)])
    wrong = replace(own, target=-own.target)

    def lie(sent: Broadcast, report: Report) -> Report:
        risks = wrong.evaluate(sent.task.theta)
        return report._replace(value=float(risks.values[0]), vector=risks.gradients[0])

    return lie


TAKEOVERS: dict[str, Callable[[Group, str], Lie]] = {
    "a risk of 1e6": huge,
    "the largest risk that passes": ceiling,
    "the same, without contradiction": convex_ceiling,
}
ATTACKS = {
    **TAKEOVERS,
    "gradient reversed": reversed_gradient,
    "labels flipped": flipped_labels,
}
DEFENCES: dict[str, dict[str, Any]] = {
    "none": {},
    "limits and cap": {"cap": CAP, "limits": LIMITS},
    "limits, cap and trim": {"cap": CAP, "limits": LIMITS, "trim": TRIM},
}


def accuracy(
    seed: int,
    attack: Callable[[Group, str], Lie] | None,
    *,
    cap: float = 1.0,
    limits: Limits | None = None,
    trim: float = 0.0,
) -> float:
    """Test accuracy in percent of a training in which the fourth site attacks, or not."""
    data = dorfl.datasets.synthetic(seed)
    clients = {**data.clients, LIAR: dorfl.datasets.synthetic(1000 + seed).clients["client-1"]}
    method = dorfl.methods.paper(mixture=dorfl.mixture.capped(cap))
    tamper: Lie | None = None
    if attack is not None:
        lie = attack(prepare(clients, method, intercept=False), LIAR)

        def tamper(sent: Broadcast, report: Report) -> Report:
            return lie(sent, report) if report.client == LIAR else report

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not to have converged is part of the story
        fit = dorfl.train(
            clients, method, intercept=False, limits=limits, trim=trim, tamper=tamper,
            max_rounds=200,
        )  # fmt: skip
    X = np.concatenate([rows for rows, _ in data.test.values()])
    y = np.concatenate([labels for _, labels in data.test.values()])
    return 100.0 * fit.score(X, y)


def _defence(group: Group, liar: str) -> Any:
    center = group.centers[group.names.index(liar)]
    return defend(group.problem, LIMITS, {liar: center})


def main(count: int = 20, first: int = 100) -> None:
    """Print the table in Markdown, for `count` seeds from `first` on."""
    seeds = range(first, first + count)
    honest = {
        name: np.array([accuracy(seed, None, **options) for seed in seeds])
        for name, options in DEFENCES.items()
    }
    print("| attack | " + " | ".join(DEFENCES) + " |")
    print("| --- " * (1 + len(DEFENCES)) + "|")
    print("| no site lies | " + " | ".join(f"{honest[n].mean():.1f}" for n in DEFENCES) + " |")
    for words, attack in ATTACKS.items():
        cells = []
        for name, options in DEFENCES.items():
            found = np.array([accuracy(seed, attack, **options) for seed in seeds])
            cost = (honest[name] - found).max()
            cells.append(f"{found.mean():.1f} (−{max(cost, 0.0):.1f} at worst)")
        print(f"| {words} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
