"""Compare rules that select outlier share and ridge, on the same trainings of tables with classes.

For every cell of `benchmarks/defaults.py` the statistics of the candidates' held-out losses are
computed once, and one model is trained for each candidate; a rule only picks among these models.

    PYTHONPATH=. python benchmarks/rules.py [--splits 2] [--fresh | --later]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np

import defaults
from dorfl import RobustClassifier
from dorfl.objective.methods import AutoMethod
from dorfl.selection import constants, outliers
from dorfl.selection.outliers import HeldOut
from dorfl.tabular import arrays
from dorfl.tabular import table as engine

Rule = Callable[[HeldOut], int]
STRONG = float(np.log(1.0 / constants.SIGNIFICANCE))
CANDIDATES = outliers.default_candidates()
USUAL = [k for k, candidate in enumerate(CANDIDATES) if candidate.ridge == 1.0]


def rule(ratio: float, errors: float, among: Sequence[int] = range(len(CANDIDATES))) -> Rule:
    """Return the rule with these thresholds of the log likelihood ratio and of standard errors."""

    def pick(total: HeldOut) -> int:
        beaten = np.ones(len(CANDIDATES), dtype=bool)
        beaten[list(among)] = False
        for k, (a, b) in enumerate(outliers.pairs_of(len(CANDIDATES))):
            difference = total.differences[k]
            strong = abs(difference) > max(ratio, errors * np.sqrt(total.errors[k]))
            if strong and {a, b} <= {*among}:
                beaten[a if difference > 0 else b] = True
        return int(np.flatnonzero(~beaten)[0]) if not beaten.all() else 0

    return pick


RULES: dict[str, Rule] = {
    "likelihood ratio of 20, and one standard error (the rule)": rule(STRONG, 1.0),
    "likelihood ratio of 20": rule(STRONG, 0.0),
    "one standard error": rule(0.0, 1.0),
    "likelihood ratio of 20, and half a standard error": rule(STRONG, 0.5),
    "the rule, with l2 = 1/n alone": rule(STRONG, 1.0, USUAL),
    **{f"always {CANDIDATES[k].share:.0%} outliers": lambda _, k=k: k for k in USUAL},
}


def trained(case: defaults.Case) -> tuple[HeldOut | None, list[np.ndarray]]:
    """Return the candidates' statistics, and what every test row costs by candidate."""
    clients = {n: (case.X[case.clients == n], case.y[case.clients == n]) for n in set(case.clients)}
    loss = "logistic" if len(np.unique(case.y)) == 2 else "softmax"
    ordered = dict(sorted(clients.items()))
    state = engine.resolve(*arrays.prepared_for(ordered, AutoMethod(), loss=loss))
    total = state.selection.compared
    costs = []
    for candidate in CANDIDATES:
        model = RobustClassifier(outliers=candidate.share, l2=candidate.ridge / len(case.y))
        model.fit(case.X, case.y, clients=case.clients)
        costs.append(defaults.served(model.predict(case.held), case, True))
    return total, costs


def measure(name: str, splits: int) -> dict[str, dict[str, defaults.Judged]]:
    """Return the judged cells of a table by rule."""
    data = defaults.TABLES[name]()
    found: dict[str, dict[str, list[np.ndarray]]] = {r: {} for r in RULES}
    for seed in range(splits):
        for kind, case in defaults.cases(data, seed):
            theirs, (total, costs) = defaults.scikit_learn(case, True), trained(case)
            for told, pick in RULES.items():
                ours = costs[0 if total is None and "always" not in told else pick(total)]
                error = (ours - theirs).std(ddof=1) / np.sqrt(len(ours))
                cell = np.array([ours.mean(), theirs.mean(), error])
                found[told].setdefault(kind, []).append(cell)
    means = {
        told: {kind: defaults.Cell(*np.mean(cells, axis=0)) for kind, cells in by.items()}
        for told, by in found.items()
    }
    return {told: defaults.judged(cells, True) for told, cells in means.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--later", action="store_true")
    asked = parser.parse_args()
    if asked.fresh or asked.later:
        defaults.TABLES = defaults.FRESH if asked.fresh else defaults.LATER
    names = [name for name, load in defaults.TABLES.items() if load().classifies]
    tables = [measure(name, asked.splits) for name in names]
    for told in RULES:
        counts = [
            line.split(": ")[1] for line in defaults.summary([found[told] for found in tables])
        ]
        print("| " + " | ".join([told, *counts]) + " |", flush=True)


if __name__ == "__main__":
    main()
