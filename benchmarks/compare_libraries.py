"""Libraries for robust linear classification on the same contaminated rows.

    make compare-libraries
    .venv/bench/bin/python -m benchmarks.compare_libraries [--seeds 3] [--only dorfl scikit-learn]

Every library trains on the same contaminated rows and is measured on the same clean ones. The first
setting of a method is its default, or the share of outliers of 0.1 where it must be told one. Tuned
means the setting most accurate on a fifth of the training rows, wrong ones included, held out of
training: what a user has. Needs the extra `bench`; a library that is missing is left out. The table
is written into docs/comparison.md.

References: CVaR-DORO: Zhai et al., 2021. Outlier-robust Wasserstein: Nietert et al., 2023.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import (
    HuberRegressor,
    LogisticRegression,
    RANSACRegressor,
    TheilSenRegressor,
)

import dorfl
from dorfl.data.datasets.base import Clients
from dorfl.report.content import Measured, Table, measured
from dorfl.report.tables import as_markdown
from experiments import peers
from experiments.rows import hold_out, pooled
from experiments.tuning import constant

DOCS = Path(__file__).resolve().parents[1] / "docs"
SHARE = 0.1  # of outliers, told to methods that must be told
Predict = Callable[[np.ndarray], np.ndarray]  # rows to outputs whose sign is the class
Train = Callable[[Clients], Predict]


class Contender(NamedTuple):
    """A method of a library; `settings` are trainings, the default first."""

    library: str
    method: str
    settings: list[Train]


def tables(seed: int) -> dict[str, tuple[Clients, Clients]]:
    """Contaminated rows to train on and clean rows to test on, by client."""
    synthetic = dorfl.datasets.synthetic(seed)
    return {
        "synthetic": (synthetic.clients, synthetic.test),
        "breast cancer": breast_cancer(seed),
    }


def breast_cancer(seed: int) -> tuple[Clients, Clients]:
    """Three clients; 30 % of the rows to test, one training row in ten times −8, robust scales."""
    X, label = load_breast_cancer(return_X_y=True)
    y, rng = np.where(label > 0, 1, -1), np.random.default_rng(seed)
    order = rng.permutation(len(y))
    test, train = np.split(order, [round(0.3 * len(y))])
    middle = np.median(X[train], axis=0)
    X = (X - middle) / (1.4826 * np.median(np.abs(X[train] - middle), axis=0))
    bad = rng.choice(train, round(SHARE * len(train)), replace=False)
    dirty = X.copy()
    dirty[bad] *= -8.0
    return (
        {f"client-{k + 1}": (dirty[at], y[at]) for k, at in enumerate(np.array_split(train, 3))},
        {f"client-{k + 1}": (X[at], y[at]) for k, at in enumerate(np.array_split(test, 3))},
    )


def contenders() -> Iterator[Contender]:
    """Yield every method of every library that is installed."""
    yield Contender("", "constant", [constant])
    yield Contender("dorfl", "RobustClassifier()", [estimator(o) for o in ("auto", 0.1, 0.2)])
    yield Contender(
        "dorfl", "DOR-FL, the paper's form",
        [paper(rho, rho_beta) for rho, rho_beta in ((20, 20), (5, 5), (50, 10))],
    )  # fmt: skip
    yield Contender("", "trimming", [trimming(share) for share in (SHARE, 0.05, 0.2)])
    yield Contender("", "CVaR-DORO", [doro(trim) for trim in (SHARE, 0.05, 0.2)])
    models: dict[str, list[Any]] = {
        "LogisticRegression": [LogisticRegression(C=c, max_iter=2000) for c in (1.0, 0.1, 0.01)],
        "HuberRegressor on ±1": [
            HuberRegressor(epsilon=e, max_iter=1000) for e in (1.35, 1.1, 2.0)
        ],
        "RANSACRegressor on ±1": [
            RANSACRegressor(random_state=0, residual_threshold=at) for at in (None, 0.5, 1.0)
        ],
        "TheilSenRegressor on ±1": [
            TheilSenRegressor(random_state=0, max_subpopulation=n) for n in (10_000, 1000)
        ],
    }
    for name, some in models.items():
        yield Contender("scikit-learn", name, [sklearn(model) for model in some])
    if importlib.util.find_spec("dro"):
        yield from dro()
    if importlib.util.find_spec("skwdro"):
        from skwdro.linear_models import LogisticRegression as Wasserstein  # noqa: PLC0415

        radii = (1e-2, 1e-1)
        yield Contender(
            "skwdro", "LogisticRegression", [sklearn(Wasserstein(rho=rho)) for rho in radii]
        )


def estimator(outliers: Any) -> Train:
    def train(clients: Clients) -> Predict:
        X, y = pooled(clients)
        names = np.repeat(list(clients), [len(labels) for _, labels in clients.values()])
        model = dorfl.RobustClassifier(outliers=outliers).fit(X, y, clients=names)
        return model.predict

    return train


def paper(rho: float, rho_beta: float) -> Train:
    def train(clients: Clients) -> Predict:
        score = dorfl.scores.quadratic(0.5)
        return dorfl.train(clients, dorfl.methods.paper(rho, rho_beta / rho, score)).decision

    return train


def trimming(share: float) -> Train:
    def train(clients: Clients) -> Predict:
        theta = peers.trimmed(clients, share)
        return lambda rows: peers.outputs(theta, rows)

    return train


def doro(trim: float, alpha: float = 0.5, steps: int = 1000, rate: float = 0.05) -> Train:
    """CVaR-DORO: leave the `trim` largest losses out, minimise the mean of the next α by Adam."""

    def train(clients: Clients) -> Predict:
        X, y = pooled(clients)
        rows = np.column_stack([X, np.ones(len(y))])
        theta, first, second = (np.zeros(rows.shape[1]) for _ in range(3))
        start = round(trim * len(y))
        stop = start + max(1, round(alpha * (len(y) - start)))
        for step in range(1, steps + 1):
            margin = y * (rows @ theta)
            tail = np.argsort(margin, kind="stable")[start:stop]  # a small margin is a large loss
            pull = -y[tail] / (1.0 + np.exp(np.minimum(margin[tail], 500.0)))
            gradient = pull @ rows[tail] / len(tail)
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            size = rate * np.sqrt(1.0 - 0.999**step) / (1.0 - 0.9**step)
            theta = theta - size * first / (np.sqrt(second) + 1e-8)
        return lambda rows: peers.outputs(theta, rows)

    return train


def sklearn(model: Any) -> Train:
    def train(clients: Clients) -> Predict:
        X, y = pooled(clients)
        try:
            return model.fit(X, y).predict
        except ValueError:  # RANSAC without a consensus: always the larger class, then
            return constant(clients)

    return train


def dro() -> Iterator[Contender]:
    """Yield the linear models of `dro` that bear on outliers, drift or groups."""
    # importing dro imports its networks, which fail with a torchvision of another torch than ours
    sys.modules.setdefault("dro.neural_model", types.ModuleType("dro.neural_model"))
    from dro.linear_model.cvar_dro import CVaRDRO  # noqa: PLC0415 - an extra
    from dro.linear_model.group_dro import GroupDRO  # noqa: PLC0415
    from dro.linear_model.kl_dro import KLDRO  # noqa: PLC0415
    from dro.linear_model.or_wasserstein_dro import ORWDRO  # noqa: PLC0415
    from dro.linear_model.wasserstein_dro import WassersteinDRO  # noqa: PLC0415

    def pooled_model(make: Callable[[int], Any], **settings: float) -> Train:
        def train(clients: Clients) -> Predict:
            X, y = pooled(clients)
            model = make(X.shape[1])
            if settings:
                model.update(settings)
            model.fit(X.astype(float), y.astype(float))
            return model.predict

        return train

    def grouped(clients: Clients) -> Predict:
        X, y = pooled(clients)
        group = np.repeat(np.arange(len(clients)), [len(rows) for rows, _ in clients.values()])
        model = GroupDRO(X.shape[1] + 1, X.shape[1], model_type="logistic")
        model.fit(np.column_stack([X, group]).astype(float), y.astype(float))
        # the group is a column of its model: rows to come are predicted as of the middle group
        middle = float(np.median(group))
        return lambda rows: model.predict(np.column_stack([rows, np.full(len(rows), middle)]))

    def logistic(kind: Any) -> Callable[[int], Any]:
        return lambda dims: kind(dims, model_type="logistic")

    yield Contender("dro", "Wasserstein", [
        pooled_model(logistic(WassersteinDRO), **({"eps": e} if e else {})) for e in (0, 0.1, 1.0)
    ])  # fmt: skip
    yield Contender("dro", "outlier-robust Wasserstein (hinge)", [
        pooled_model(lambda dims: ORWDRO(dims, model_type="svm"), eps=eps, eta=SHARE)
        for eps in (0.1, 1.0)
    ])  # fmt: skip
    yield Contender("dro", "KL", [pooled_model(logistic(KLDRO), eps=e) for e in (0.1, 0.5)])
    yield Contender("dro", "CVaR", [pooled_model(logistic(CVaRDRO), alpha=a) for a in (0.5, 0.9)])
    yield Contender("dro", "group", [grouped])


def measure(contender: Contender, clients: Clients, test: Clients, seed: int) -> dict[str, float]:
    """Return accuracy on clean rows and the worst client, by default and tuned, and seconds."""
    start = time.process_time()
    default = contender.settings[0](clients)
    seconds = time.process_time() - start
    best = default
    if len(contender.settings) > 1:
        kept, held = hold_out(clients, 0.2, seed)
        pairs = list(zip(clients.items(), kept, held, strict=True))
        learn = {name: (X[k], y[k]) for (name, (X, y)), k, _ in pairs}
        judge = {name: (X[h], y[h]) for (name, (X, y)), _, h in pairs}
        scores = [np.mean(accuracies(train(learn), judge)) for train in contender.settings]
        chosen = int(np.argmax(scores))
        best = contender.settings[chosen](clients) if chosen else default
    found = {"seconds": seconds}
    for name, model in (("default", default), ("tuned", best)):
        X, y = pooled(test)
        found[name] = 100.0 * float(np.mean(np.where(model(X) > 0, 1, -1) == y))
        found[f"{name}, worst client"] = 100.0 * min(accuracies(model, test))
    return found


def accuracies(predict: Predict, rows: Clients) -> list[float]:
    return [float(np.mean(np.where(predict(X) > 0, 1, -1) == y)) for X, y in rows.values()]


def run(seeds: int, only: list[str] | None = None) -> Iterator[Table]:
    """Yield a table for every data set."""
    columns = ("default", "default, worst client", "tuned", "tuned, worst client", "seconds")
    dorfl.train(tables(0)["synthetic"][0])  # compiles on the first run on a machine
    dorfl.train(tables(0)["synthetic"][0], dorfl.methods.paper())
    for name in tables(0):
        rows: list[tuple[str | Measured, ...]] = []
        for contender in contenders():
            if only and contender.library and contender.library not in only:
                continue
            print(f"{name}: {contender.library} {contender.method}", file=sys.stderr, flush=True)
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")  # solvers' own doubts
                runs = [measure(contender, *tables(seed)[name], seed) for seed in range(seeds)]
            cells = [measured([one[column] for one in runs]) for column in columns]
            rows.append((" ".join(filter(None, contender[:2])), *cells))
        forms = dict.fromkeys(columns, ".1f") | {"seconds": ".2f"}
        slug = name.replace(" ", "-")
        yield Table(f"libraries-{slug}", name, ("method", *columns), rows, forms,
                    best=dict.fromkeys(columns[:4], "max"), reference=("constant",))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="libraries; default: all")
    given = parser.parse_args()
    found = {table.name: as_markdown(table) for table in run(given.seeds, given.only)}
    sys.path.insert(0, str(DOCS))
    from refresh import fill  # noqa: PLC0415 - it is beside the page, not in a package

    fill(DOCS / "comparison.md", found.__getitem__)
    print("\n\n".join(found.values()))


if __name__ == "__main__":
    main()
