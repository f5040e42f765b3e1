"""Does every table train? Public tables × five methods, beside scikit-learn on the same features.

Each method as `dorfl train` would choose it for the table, l2 = 1/n, to the tolerance of
`dorfl train` (1e-4). scikit-learn: `LogisticRegression` (lbfgs) with the C that makes its problem
that of `erm`, `HuberRegressor` for numbers. "gap" is relative, in units of the objective, as `tol`
is; for scikit-learn it is how far its point is above the least value that `erm` leaves possible.
Accuracy (for numbers: mean absolute error in robust units) is on the rows held out. A time is that
of all processors, which a busy machine changes little, and the fastest of as many trainings as half
a second has room for; of two where one takes longer, for on a virtual machine memory that is used
for the first time may cost more than what is done in it.

    PYTHONPATH=. python benchmarks/tables.py [--only storms …] [--method erm …] [--tol 1e-4]
        [--markdown FILE]
    PYTHONPATH=. python benchmarks/tables.py --tol 1e-6 --only adult bank compas german heart
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

import numpy as np
from sklearn.linear_model import HuberRegressor, LogisticRegression

import dorfl
import public_tables
from dorfl.solvers.base import relative
from experiments.data.packages import UnavailableError
from experiments.rows import pooled
from public_tables import METHODS, Table

ROOM = 0.5  # seconds that repeating a short training may take
LONG = 10.0  # … and a training that is not repeated
USUAL = 1e-4  # the tolerance of `dorfl train`
Model = TypeVar("Model")


class Run(NamedTuple):
    """How one method did on one table."""

    status: str
    rounds: int
    gap: float
    seconds: float
    score: float  # accuracy in per cent, or mean absolute error
    bytes_up: float = np.nan  # of all clients together


class Row(NamedTuple):
    """One table: every method's run, and scikit-learn's as `peer`."""

    table: Table
    runs: dict[str, Run]
    peer: Run


def train(table: Table, name: str, tol: float, rounds: int | None) -> tuple[Run, dorfl.Fit]:
    method = table.method(name)

    def once(most: int | None) -> dorfl.Fit:
        return dorfl.train(
            table.clients, method, loss=table.loss, l2=table.l2, tol=tol, max_rounds=most
        )

    once(2)  # the first use of a kernel on a machine compiles it
    fit, seconds = fastest(lambda: once(rounds))
    gap = relative(fit.gap, fit.objective, fit.history[0].objective)
    found = score(table, fit.predict)
    return Run(fit.status, fit.rounds, gap, seconds, found, fit.bytes_up), fit


def peer(table: Table, erm: dorfl.Fit | None) -> Run:
    """scikit-learn on the same features; "budget" where it gives up."""
    X, y = pooled(table.clients)
    if table.classes:
        made = LogisticRegression(C=1.0 / (len(y) * table.l2), max_iter=10_000)
    else:
        made = HuberRegressor(epsilon=1.345, alpha=len(y) * table.l2, max_iter=10_000)
    model, seconds = fastest(lambda: made.fit(X, y))
    steps = int(np.max(model.n_iter_))
    gap = np.nan
    if table.classes and erm is not None:
        above = value(table, model) - (erm.objective - erm.gap)
        gap = relative(above, erm.objective, erm.history[0].objective)
    status = "budget" if steps >= 10_000 else "converged"
    return Run(status, steps, gap, seconds, score(table, model.predict))


def value(table: Table, model: LogisticRegression) -> float:
    """The objective of `erm` at scikit-learn's point."""
    X, y = pooled(table.clients)
    out = model.decision_function(X).astype(np.float64)
    target = table.loss.encode(y, model.classes_)
    penalty = 0.5 * table.l2 * float((model.coef_.astype(np.float64) ** 2).sum())
    return float(table.loss.value(out, target).mean()) + penalty


def score(table: Table, predict: Callable[[np.ndarray], np.ndarray]) -> float:
    X, y = pooled(table.test)
    found = predict(X)
    return float(100.0 * np.mean(found == y) if table.classes else np.mean(np.abs(found - y)))


def fastest(make: Callable[[], Model]) -> tuple[Model, float]:
    times: list[float] = []
    while (len(times) < 2 and sum(times) < LONG) or sum(times) + min(times) < ROOM:
        start = time.process_time()
        made = make()
        times.append(time.process_time() - start)
    return made, min(times)


def measure(name: str, methods: list[str], tol: float, rounds: int | None) -> Row:
    table = public_tables.load(name)
    kind = f"{table.classes} classes" if table.classes else "numbers"
    shape = f"{table.rows:,} × {table.columns}, {len(table.clients)} clients, {kind}"
    print(f"{name}: {table.about}; {shape}", flush=True)
    runs, plain = {}, None
    for method in methods:
        runs[method], fit = train(table, method, tol, rounds)
        plain = fit if method == "erm" else plain
        show(method, runs[method])
    other = peer(table, plain)
    show("sklearn", other)
    return Row(table, runs, other)


def show(who: str, run: Run) -> None:
    cells = (
        f"{run.rounds:6}",
        f"{run.gap:10.1e}",
        f"{run.seconds:9.3f} s",
        f"{run.score:9.3f}",
        f"{run.bytes_up / 1e3:11.1f} kB",
    )
    print(f"  {who:8}{run.status:10}{''.join(cells)}", flush=True)


def summary(rows: list[Row], tol: float) -> str:
    """What the tables are held to, and what they did; with a finer tolerance 15 rounds each."""
    every = [(row, name, run) for row in rows for name, run in row.runs.items()]
    failed = [f"{row.table.name}/{name}" for row, name, r in every if r.status != "converged"]
    rounds = sorted(run.rounds for _, _, run in every)
    ratios = [row.runs["erm"].seconds / row.peer.seconds for row in rows if "erm" in row.runs]
    aims = ("≤ 12", "≤ 40") if tol == USUAL else ("≤ 15", "≤ 15")
    lines = [
        f"{len(rows)} tables, {len(every)} fits. Not converged: {', '.join(failed) or 'none'}.",
        f"Rounds: median {median(rounds):g} ({aims[0]}), most {rounds[-1]} ({aims[1]}).",
    ]
    if ratios:
        most = f"median {median(ratios):.2f} (≤ 1), most {max(ratios):.2f} (≤ 3)"
        lines.append(f"Seconds of `erm` ÷ scikit-learn's: {most}.")
    return "\n".join(lines)


def markdown(rows: list[Row], tol: float) -> str:
    """A line per table: rounds by method, then seconds and scores beside scikit-learn's."""
    methods = list(rows[0].runs)
    head = ["table", "n × d", "clients", "classes", *methods, "`erm` s", "sklearn s", "÷"]
    head += [f"{name} %" for name in methods] + ["sklearn %", "kB a client and round, `erm`"]
    lines = [head, ["---"] * len(head)]
    for table, runs, other in rows:
        shape = [f"{table.rows:,} × {table.columns}", str(len(table.clients))]
        cells = [table.name, *shape, str(table.classes or "–")]
        cells += [str(r.rounds) if r.status == "converged" else r.status for r in runs.values()]
        own = runs["erm"].seconds if "erm" in runs else np.nan
        cells += [f"{own:.3f}", f"{other.seconds:.3f}", f"{own / other.seconds:.2f}"]
        form = ".1f" if table.classes else ".3f"
        cells += [f"{run.score:{form}}" for run in (*runs.values(), other)]
        first = next(iter(runs.values()))
        cells.append(f"{first.bytes_up / first.rounds / len(table.clients) / 1e3:.1f}")
        lines.append(cells)
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{text}\n\n{summary(rows, tol)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", nargs="+", choices=public_tables.names(), default=public_tables.names())
    add("--method", nargs="+", choices=METHODS, default=list(METHODS))
    add("--tol", type=float, default=USUAL)
    add("--rounds", type=int, help="at most so many exchanges")
    add("--markdown", type=Path, help="where to write the tables for benchmarks/README.md")
    asked = parser.parse_args()
    # A training that did not get there says so in its row.
    warnings.simplefilter("ignore", UserWarning)
    print("  method  status    rounds       gap    seconds   accuracy % or mean error   sent")
    rows = []
    for name in asked.only:
        try:
            rows.append(measure(name, asked.method, asked.tol, asked.rounds))
        except UnavailableError as error:
            print(f"{name}: left out, {error}", file=sys.stderr, flush=True)
    if not rows:
        sys.exit("no table could be had")
    print(summary(rows, asked.tol))
    if asked.markdown:
        asked.markdown.write_text(markdown(rows, asked.tol), encoding="utf-8")


if __name__ == "__main__":
    main()
