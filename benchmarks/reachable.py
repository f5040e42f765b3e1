"""How much of what wrong rows cost can be kept, by who is told what nobody knows?

`benchmarks/defaults.py` asks that 80 % of what scikit-learn loses be kept. On the same rows, for
every cell of that table in which it loses more than a point, this prints what is kept

- by the defaults;
- by who is told *which* rows are wrong and leaves them out: scikit-learn, and our plain training
  (the better of the two counts); no method can know more.

A cell that falls short is "out of reach" where who is told keeps less than 80 % as well, "chance"
where the loss itself is no larger than its standard error over test rows, and else "missed". The
same for a cell that is worse than scikit-learn by more than a standard error: "out of reach" where
who is told is no better.

`--worlds` asks of the far cluster what the same training rows would mean were it no mistake but a
group of its own: what setting it aside (`outliers=0.1`) gains over plain training if it is wrong,
and what it costs, over all rows, if one row in ten to come is of that group.

`--labels` asks of labels that are classes, 10 or 20 % of them wrong, who else reaches it:

- share: told the share q of wrong labels, by the likelihood of a label seen through a channel that
  replaces it so often, (1 − q) p + q/(K − 1) (1 − p) (forward correction; not convex, started from
  plain training);
- trim: told q, leaving out so many rows of every class, those most surprising to a model that was
  fitted without them (confident learning, five folds);
- found: as "share", with the q of 0 to 40 % under which rows held out (five folds) are
  likeliest, if by more than two standard errors; else plain training;
- ridge: plain training with the penalty that is best for rows held out.

Of labels that are numbers, mirrored at the median and eight times as far: which, and "share" is
leaving out so many of the largest residuals of Huber's fit. A cell is the share kept, in per cent;
behind "found" the q of each split and by how many points the class that loses most is worse served
than by plain training.

    PYTHONPATH=. python benchmarks/reachable.py [--splits 2] [--worlds | --labels] [table ...]
"""

from __future__ import annotations

import argparse
import warnings
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.linear_model import HuberRegressor
from sklearn.preprocessing import StandardScaler

import defaults
from defaults import TABLES, Case
from dorfl import RobustClassifier, RobustRegressor

SHARES = {"flip10": 0.1, "flip20": 0.2}
GRID = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
FOLDS = 5


class Rows(NamedTuple):
    X: np.ndarray
    y: np.ndarray
    classes: int

    def at(self, places: np.ndarray) -> Rows:
        return Rows(self.X[places], self.y[places], self.classes)


def channel(p: np.ndarray, q: float, classes: int) -> np.ndarray:
    """How likely a label is to be seen that the model gives p, if a share q are replaced."""
    return (1.0 - q) * p + q / (classes - 1) * (1.0 - p)


def fitted(
    rows: Rows, q: float = 0.0, penalty: float = 1.0, start: np.ndarray | None = None
) -> np.ndarray:
    """The parameter of least −Σ log channel(p) + ½ penalty ‖θ‖², intercepts free."""
    X = np.hstack([rows.X, np.ones((len(rows.y), 1))])
    outputs = rows.classes if rows.classes > 2 else 1
    own = np.arange(len(rows.y)), rows.y

    def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
        theta = flat.reshape(outputs, -1)
        p = probabilities(theta, rows.X, rows.classes)
        seen = channel(p[own], q, rows.classes)
        pull = (1.0 - q - q / (rows.classes - 1)) * p[own] / seen
        slope = pull[:, None] * p
        slope[own] -= pull
        gradient = slope[:, -outputs:].T @ X
        gradient[:, :-1] += penalty * theta[:, :-1]
        return -np.log(seen).sum() + 0.5 * penalty * (theta[:, :-1] ** 2).sum(), gradient.ravel()

    begin = np.zeros(outputs * X.shape[1]) if start is None else start
    found = minimize(value, begin.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 1000})
    return found.x.reshape(outputs, -1)


def probabilities(theta: np.ndarray, X: np.ndarray, classes: int) -> np.ndarray:
    out = X @ theta[:, :-1].T + theta[:, -1]
    if classes == 2:
        out = np.hstack([np.zeros_like(out), out])
    return np.maximum(np.exp(log_softmax(out, axis=1)), 1e-300)


def held_out(rows: Rows, fits: list[dict[str, float]]) -> np.ndarray:
    """The probability of every label under every fit that its fold had no part in."""
    fold = np.random.default_rng(0).permutation(len(rows.y)) % FOLDS
    found = np.empty((len(fits), len(rows.y)))
    for k in range(FOLDS):
        part, theta, rest = rows.at(fold != k), None, np.flatnonzero(fold == k)
        for i, words in enumerate(fits):
            theta = fitted(part, start=theta, **words)
            p = probabilities(theta, rows.X[rest], rows.classes)
            found[i, rest] = p[np.arange(len(rest)), rows.y[rest]]
    return found


def classified(case: Case, classes: int, share: float) -> tuple[dict[str, np.ndarray], float]:
    """Hits of every method on the test rows, and the share that "found" goes by."""
    scaler = StandardScaler().fit(case.X)
    rows, held = Rows(scaler.transform(case.X), case.y, classes), scaler.transform(case.held)
    plain = fitted(rows)
    p = held_out(rows, [{"q": q} for q in GRID])
    likely = np.log([channel(own, q, classes) for own, q in zip(p, GRID, strict=True)])
    best = int(likely.mean(axis=1).argmax())
    gain = likely[best] - likely[0]
    q = GRID[best] if gain.mean() > 2.0 * gain.std() / len(gain) ** 0.5 else 0.0
    order = np.argsort(p[0], kind="stable")
    out = [own[: round(share * len(own))] for c in range(classes)
           for own in [order[rows.y[order] == c]]]  # fmt: skip
    keep = np.setdiff1d(order, np.concatenate(out))
    p = held_out(rows, [{"penalty": penalty} for penalty in PENALTIES])
    models = {
        "plain": plain,
        "which": fitted(rows.at(np.flatnonzero(~case.bad))),
        "share": fitted(rows, share, start=plain),
        "trim": fitted(rows.at(keep)),
        "found": plain if q == 0.0 else fitted(rows, q, start=plain),
        "ridge": fitted(rows, penalty=PENALTIES[int(np.log(p).mean(axis=1).argmax())]),
    }
    return {
        name: 100.0 * (probabilities(theta, held, classes).argmax(axis=1) == case.truth)
        for name, theta in models.items()
    }, q


def estimated(case: Case, share: float) -> dict[str, np.ndarray]:
    """Minus the absolute errors of every method on the test rows."""
    scaler = StandardScaler().fit(case.X)
    X, held = scaler.transform(case.X), scaler.transform(case.held)

    def huber(places: np.ndarray) -> HuberRegressor:
        return HuberRegressor(max_iter=1000).fit(X[places], case.y[places])

    plain = huber(np.arange(len(X)))
    near = np.argsort(np.abs(plain.predict(X) - case.y))[: round((1.0 - share) * len(X))]
    models = {"plain": plain, "which": huber(np.flatnonzero(~case.bad)), "share": huber(near)}
    return {name: -np.abs(model.predict(held) - case.truth) for name, model in models.items()}


class Kept(NamedTuple):
    """A cell: what scikit-learn loses by wrong rows, and who keeps how much of it, in points."""

    table: str
    kind: str
    lost: float
    error: float  # its standard error
    defaults: float
    worse: float  # the standard error of that
    told: float

    @property
    def short(self) -> bool:
        """Whether the defaults keep less than 80 %, or are worse by more than a standard error."""
        return self.defaults < (0.8 * self.lost if self.lost > 1 else -self.worse - 1e-9)

    @property
    def verdict(self) -> str:
        if not self.short:
            return ""
        if self.told < (0.8 * self.lost if self.lost > 1 else -self.worse):
            return "out of reach"
        return "chance" if 1 < self.lost <= self.error else "missed"

    def __str__(self) -> str:
        per_cent = ""
        if self.lost > 1:
            own, other = (100 * gain / self.lost for gain in (self.defaults, self.told))
            per_cent = f" ({own:.0f} % / {other:.0f} %)"
        return (
            f"{self.table:14} {self.kind:8} lost {self.lost:+.2f} ±{self.error:.2f}: "
            f"defaults {self.defaults:+.2f} ±{self.worse:.2f}, told {self.told:+.2f}"
            f"{per_cent} {self.verdict}"
        )


def kept(name: str, splits: int) -> list[Kept]:
    """Every spoilt cell of a table, the mean over splits."""
    data = TABLES[name]()
    robust = RobustClassifier if data.classifies else RobustRegressor
    found: dict[str, list[list[float]]] = {}

    def ours(rows: Case, **given: str) -> np.ndarray:
        model = robust(**given).fit(rows.X, rows.y, clients=rows.clients)
        return defaults.served(model.predict(rows.held), rows, data.classifies)

    for seed in range(splits):
        clean = np.zeros(0)
        for kind, case in defaults.cases(data, seed):
            theirs = defaults.scikit_learn(case, data.classifies)
            if kind == "clean":
                clean = theirs
                continue
            good = case._replace(
                X=case.X[~case.bad], y=case.y[~case.bad], clients=case.clients[~case.bad]
            )
            gains = [
                theirs - other
                for other in (
                    clean, ours(case), defaults.scikit_learn(good, data.classifies),
                    ours(good, method="erm"),
                )
            ]  # fmt: skip
            unit = 1.0 if data.classifies else 100.0 / clean.mean()
            lost, own, *told = (unit * gain.mean() for gain in gains)
            errors = [unit * gain.std(ddof=1) / np.sqrt(len(gain)) for gain in gains[:2]]
            found.setdefault(kind, []).append([lost, errors[0], own, errors[1], *told])
    cells = []
    for kind, values in found.items():
        *mean, first, second = np.mean(values, axis=0).tolist()
        cells.append(Kept(name, kind, *mean, told=max(first, second)))
    return cells


def worlds(name: str, splits: int) -> str:
    """What setting a far cluster aside gains if it is wrong, and costs if it is real."""
    data, found = TABLES[name](), []
    robust = RobustClassifier if data.classifies else RobustRegressor
    for seed in range(splits):
        case = dict(defaults.cases(data, seed))["cluster"]
        group = case._replace(held=case.X[case.bad], truth=case.y[case.bad])
        costs = []
        for words in ({"method": "erm"}, {"outliers": 0.1}):
            model = robust(**words).fit(case.X, case.y, clients=case.clients)
            costs.append(
                [defaults.served(model.predict(rows.held), rows, data.classifies).mean()
                 for rows in (case, group)]
            )  # fmt: skip
        (trusted, there), (aside, away) = costs
        unit = 1.0 if data.classifies else 100.0 / trusted
        share = defaults.SHARE
        real = share * (away - there) + (1.0 - share) * (aside - trusted)
        found.append([unit * (trusted - aside), unit * real])
    gains, costs_if_real = np.mean(found, axis=0)
    return f"{name:14} if wrong {gains:+.2f}, if real {-costs_if_real:+.2f}"


def summed_up(cells: list[Kept]) -> None:
    """Of every kind: how many cells keep 80 %, of the defaults and of who is told."""
    print("kind: cells that lose more than a point, kept by the defaults / by who is told")
    for kind in dict.fromkeys(cell.kind for cell in cells):
        of = [cell for cell in cells if cell.kind == kind]
        lossy = [cell for cell in of if cell.lost > 1]
        own = sum(cell.defaults >= 0.8 * cell.lost for cell in lossy)
        told = sum(cell.told >= 0.8 * cell.lost for cell in lossy)
        short = ", ".join(f"{cell.table} {cell.verdict}" for cell in of if cell.short)
        print(f"{kind}: {len(lossy)} cells, {own} / {told}; short: {short or 'none'}")


def by_labels(names: list[str], splits: int) -> None:
    """What further methods keep where labels are wrong."""
    defaults.KINDS = ("clean", *SHARES)
    for name in names:
        data = TABLES[name]()
        found: dict[tuple[str, str], list[float]] = {}
        harm, shares = dict.fromkeys(("clean", *SHARES), 0.0), dict[str, list[float]]()
        for seed in range(splits):
            for kind, case in defaults.cases(data, seed):
                share, q = SHARES.get(kind, 0.0), 0.0
                if data.classifies:
                    served, q = classified(case, int(data.labels.max()) + 1, share)
                    gain = served["found"] - served["plain"]
                    by_class = [gain[case.truth == c].mean() for c in np.unique(case.truth)]
                    harm[kind] = min(harm[kind], float(min(by_class)))
                else:
                    served = estimated(case, share)
                shares.setdefault(kind, []).append(q)
                for method, hits in served.items():
                    found.setdefault((kind, method), []).append(hits.mean())
        mean = {key: float(np.mean(values)) for key, values in found.items()}
        clean = mean["clean", "plain"]
        unit = 1.0 if data.classifies else -100.0 / clean
        for kind in ("clean", *SHARES):
            plain = mean[kind, "plain"]
            lost, words = unit * (clean - plain), []
            for method in dict.fromkeys(method for of, method in mean if of == kind):
                if method == "plain":
                    continue
                gain = unit * (mean[kind, method] - plain)
                kept = f" ({100 * gain / lost:.0f} %)" if lost > 1 else ""
                words.append(f"{method} {gain:+.2f}{kept}")
            by = ", ".join(f"{q:g}" for q in shares[kind])
            tail = f" q {by}; worst class {harm[kind]:+.1f}" if data.classifies else ""
            print(f"{name:14} {kind:6} lost {lost:+6.2f}: {', '.join(words)};{tail}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", default=[], help="all of them if none is named")
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--labels", action="store_true", help="more methods, of wrong labels alone")
    parser.add_argument("--worlds", action="store_true", help="were the far cluster no mistake")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.worlds:
        for name in asked.tables or TABLES:
            print(worlds(name, asked.splits), flush=True)
        return
    if asked.labels:
        by_labels(asked.tables or list(TABLES), asked.splits)
        return
    cells: list[Kept] = []
    for name in asked.tables or TABLES:
        for cell in kept(name, asked.splits):
            cells.append(cell)
            if cell.lost > 1 or cell.short:
                print(cell, flush=True)
    summed_up(cells)


if __name__ == "__main__":
    main()
