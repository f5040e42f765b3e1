"""Every method, built in and registered, on a registered data set, beside a constant."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dorfl.data.datasets import Dataset
from dorfl.federated import registry
from dorfl.federated.fit import Fit
from dorfl.objective import methods
from dorfl.report.content import Cell, Page, Section, Table, Text, measured
from experiments.claims import Verdict, verdict
from experiments.pages.common import FORMATS, MARKS, MEASURES, ahead, measures, percent
from experiments.tuning import (
    CONSTANT,
    NAMES,
    OURS,
    Candidate,
    Scores,
    constant,
    defaults,
    fit,
    scored,
)

WORST, GAIN = "worst client", "ahead of ERM by"
BUILT_IN = (
    methods.erm(), methods.afl(), methods.wafl(rho=20), methods.gdrfl(rho=20), methods.paper(),
)  # fmt: skip
_WORDS: dict[Verdict, str] = {"holds": "ahead", "tie": "level", "fails": "behind"}


def run(
    name: str, seeds: int, tick: Callable[[str], object] = lambda _: None
) -> dict[str, list[Scores]]:
    """Train every method on the clients of a data set and score it on its test rows, by seed."""
    found: dict[str, list[Scores]] = {}
    for seed in range(seeds):
        data = registry.dataset(name, seed)
        found.setdefault(CONSTANT, []).append(scored(constant(data.clients), data.test))
        for label, train in _trainings(data).items():
            tick(f"seed {seed}, {label}")
            found.setdefault(label, []).append(scored(train().decision, data.test))
    return found


def _trainings(data: Dataset) -> dict[str, Callable[[], Fit]]:
    """Return how each method trains on the clients: with the ridge 1/n that dorfl gives a table."""
    clients, l2 = data.clients, 1.0 / sum(len(y) for _, y in data.clients.values())
    own = registry.method_names()
    return {
        **{NAMES[one.name]: partial(fit, Candidate("", one, l2), clients) for one in BUILT_IN},
        OURS: partial(defaults, clients),
        **{name: partial(registry.train, name, clients, l2=l2) for name in own},
    }


def page(name: str, found: dict[str, list[Scores]]) -> Page:
    """Return the table of all methods, and the references of registered ones."""
    rows: list[list[Cell]] = []
    for label, runs in found.items():
        gain = measured(ahead(runs, found["ERM"]))
        rows.append(
            [
                label,
                *measures(runs),
                percent([min(one["accuracy"][1:]) for one in runs]),
                gain if label != "ERM" else None,
                _WORDS[verdict(gain)] if label != "ERM" else None,
            ]
        )
    seeds = len(found["ERM"])
    table = Table(
        "comparison", f"{name}: all methods", ("method", *MEASURES, WORST, GAIN, "verdict"), rows,
        FORMATS | dict.fromkeys((WORST, GAIN), ".1f"),
        f"Accuracies in %. Mean of {seeds} seeds ± standard error, differences paired by seed: "
        "ahead or behind means beyond two standard errors.",
        MARKS | {WORST: "max"}, (CONSTANT,),
    )  # fmt: skip
    cited = [registry.method(own).bibtex for own in registry.method_names()]
    words = [Text([f"`{text}`" for text in cited if text])] if any(cited) else []
    return Page(f"{name}, compared", "Nothing is tuned.", (), [Section("Methods", [table, *words])])
