"""The benchmark of networks as tables, figures and a page, beside what others published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dorfl.report.content import (
    Beside,
    Block,
    Cell,
    Details,
    Figure,
    Page,
    Section,
    Series,
    Table,
    Text,
    measured,
)
from dorfl.support.types import Array
from experiments.benchmark import Asked, Results, data_set
from experiments.candidates import CLEAN, CONSTANT, LEFT_OUT, TRIES, WORSE
from experiments.claims import Claim, signed
from experiments.corruption import ABOUT
from experiments.pages.common import percent, small_multiples
from experiments.pages.fashion import PUBLISHED

TITLE = "Networks, tuned alike"
COMMAND = "python -m experiments benchmark"


class Published(NamedTuple):
    """A figure of somebody else, in %, and the column of ours it stands beside."""

    method: str
    value: float
    source: str
    kind: str = "clean"


_JIAO, _ZHAI = "Jiao et al., 2023, linear model", "Zhai et al., 2021, two-layer network"
WORST: dict[str, list[Published]] = {
    "three": [
        *(Published(name, value, _JIAO) for name, value in PUBLISHED.items()),
        Published("q-FFL, published", 74.7, "Li et al., 2020"),
    ],
    "compas": [
        Published("ERM, published", 68.8, _ZHAI),
        Published("CVaR-DORO, published", 69.1, _ZHAI),
        Published("χ²-DORO, published", 69.2, _ZHAI),
    ],
}
ATTACK: dict[str, list[Published]] = {
    "three": [
        Published("FedAvg, published", 82.0, _JIAO, "backdoor"),
        Published("AFL, published", 90.0, _JIAO, "backdoor"),
        Published("DRFA-Prox, published", 63.0, _JIAO, "backdoor"),
        Published("ASPIRE-EASE, published", 45.0, _JIAO, "backdoor"),
    ]
}


def page(asked: Asked, found: Results) -> Page:
    """One data set on a page of its own."""
    about = data_set(asked.data).about
    cards = [claim.finding for claim in claims(found)]
    return Page(TITLE, f"{about}.", cards, [Section("Accuracy", blocks(asked, found))])


def blocks(asked: Asked, found: Results) -> list[Block]:
    """What was found: accuracies first, then what they cost and which settings were chosen."""
    of, data = data_set(asked.data), asked.data
    kinds = "; ".join(f"{kind}: {ABOUT[kind]}" for kind in asked.kinds)
    words = Text(
        [
            f"{of.about}. Training rows are as the columns say ({kinds}); test rows are "
            f"clean{', but for the noise of shift' if 'shift' in asked.kinds else ''}. "
            f"All methods train the same network from the same start for {asked.rounds} rounds, "
            f"{asked.seeds} seed{'s' if asked.seeds > 1 else ''}.",
            f"Each has {TRIES} settings to choose from, trained for {asked.rounds // of.tuning} "
            "rounds on four in five of the training rows, wrong ones included, and judged on the "
            "fifth: mean and worst client count half each, and of every client's rows the "
            f"{100 * LEFT_OUT:.0f} % furthest from the median of their class are left out for all "
            "methods alike. Test rows have no part in it. DOR-FL trusts all rows, and is AFL, "
            f"unless that makes the loss of these rows {100 * WORSE:g} % larger.",
        ]
    )
    worst = _accuracy(
        asked, found, "worst", "Accuracy of the worst client in %", WORST.get(data, [])
    )
    mean = _accuracy(asked, found, "mean", "Mean accuracy of clients in %", [])
    made: list[Block] = [words, *([Beside([worst, mean])] if _narrow(asked) else [worst, mean])]
    if "backdoor" in asked.kinds:
        made.append(_attack(asked, found))
    figure = _curves(asked, found) if of.curve else _dots(asked, found)
    if figure is not None:
        made.append(small_multiples(figure, ("DOR-FL", CLEAN)))
    return [*made, Details("What travelled, and the settings that were chosen", [
        _cost(asked, found), _settings(asked, found),
    ])]  # fmt: skip


def claims(found: Results) -> list[Claim]:
    """What the score is for: outliers cost nothing, and others much."""
    ours, filtered = found.get(("negate", "DOR-FL")), found.get(("negate", CLEAN))
    if not ours or not filtered:
        return []

    def ahead(other: Sequence[dict[str, Any]]) -> Array:
        pairs = zip(ours, other, strict=False)
        return np.array([100.0 * (one["worst"] - two["worst"]) for one, two in pairs])

    where = "networks, one row in ten × −8: DOR-FL's worst client is"
    lost = ahead(filtered)
    made = [
        Claim.paired(
            f"{where} less than a point behind that of AFL trained without those rows", "ours",
            1.0 + lost, signed(measured(lost)),
        )
    ]  # fmt: skip
    rest = {name: found.get(("negate", name), []) for name in ("FedAvg", "AFL", "WAFL")}
    if all(rest.values()):
        leads = {f"over {name}": ahead(runs) for name, runs in rest.items()}
        text = f"{where} at least 8 points more accurate than those of FedAvg, AFL and WAFL"
        made.append(Claim.every(text, "ours", leads, margin=8.0))
    return made


def section(asked: Asked, found: Results) -> tuple[Section, list[Claim]]:
    """The same as a section of the study's page."""
    words = Text(
        [f"A small part of the benchmark; `{COMMAND}` runs it with all methods, rows and seeds."]
    )
    return Section(TITLE, [words, *blocks(asked, found)]), claims(found)


def _narrow(asked: Asked) -> bool:
    """Return whether there is room for two tables beside each other."""
    return len(asked.kinds) <= 3


def _accuracy(
    asked: Asked, found: Results, what: str, title: str, published: list[Published]
) -> Table:
    rows: list[list[Cell]] = [
        [method, *(_of(found, kind, method, what) for kind in asked.kinds)]
        for method in asked.methods
    ]
    shown = [one for one in published if one.kind in asked.kinds]
    rows += [
        [one.method, *(one.value if kind == one.kind else None for kind in asked.kinds)]
        for one in shown
    ]
    sources = "; ".join(dict.fromkeys(one.source for one in shown))
    note = f"“{CLEAN}” is AFL trained without the outliers, what a perfect filter would give."
    return Table(
        f"benchmark-{asked.data}-{what}",
        title,
        ("method", *asked.kinds),
        rows,
        ".1f",
        f"{note} Published: {sources}." if sources else note,
        "max",
        (CONSTANT, CLEAN, *(one.method for one in shown)),
    )


def _attack(asked: Asked, found: Results) -> Table:
    rows: list[list[Cell]] = [
        [method, _of(found, "backdoor", method, "attack")] for method in asked.methods
    ]
    shown = ATTACK.get(asked.data, [])
    rows += [[one.method, one.value] for one in shown]
    return Table(
        f"benchmark-{asked.data}-attack",
        "Marked test pictures of other classes taken for the attacker's class, in %",
        ("method", "attack success"),
        rows,
        ".1f",
        "Less is better." + (f" Published: {_JIAO}, after an attack of its own." if shown else ""),
        "min",
        (CLEAN, *(one.method for one in shown)),
    )


def _cost(asked: Asked, found: Results) -> Table:
    first = asked.kinds[0]
    rows: list[list[Cell]] = []
    for method in asked.methods:
        runs = found.get((first, method))
        if runs:
            rows.append([method, runs[0]["rounds"], runs[0]["bytes"] / 1e6])
    return Table(
        f"benchmark-{asked.data}-cost", "Rounds, and what travelled up and down",
        ("method", "rounds", "MB"), rows, {"MB": ",.0f"},
    )  # fmt: skip


def _settings(asked: Asked, found: Results) -> Table:
    rows: list[list[Cell]] = []
    for method in asked.methods:
        chosen = [found[kind, method][0]["words"] if (kind, method) in found else ""
                  for kind in asked.kinds]  # fmt: skip
        rows.append([method, *chosen])
    return Table(
        f"benchmark-{asked.data}-settings", "Settings chosen on rows held out",
        ("method", *asked.kinds), rows,
    )  # fmt: skip


def _dots(asked: Asked, found: Results) -> Figure:
    series = []
    for method in asked.methods:
        cells = {kind: _of(found, kind, method, "worst") for kind in asked.kinds}
        known = {kind: cell for kind, cell in cells.items() if cell is not None}
        if known:
            values = list(known.values())
            error = [v.error for v in values] if asked.seeds > 1 else None
            series.append(Series(method, list(known), [v.mean for v in values], error))
    return Figure(
        f"benchmark-{asked.data}", "Accuracy of the worst client", "training rows",
        "accuracy in %", series, "dots",
    )  # fmt: skip


def _curves(asked: Asked, found: Results) -> Figure | None:
    """Mean test accuracy by round, of the first kind of rows."""
    kind, series = asked.kinds[0], []
    for method in asked.methods:
        runs: list[dict[str, Any]] = found.get((kind, method), [])
        if not runs:
            continue
        ends = [[*run["curve"], [run["rounds"], run["mean"], run["worst"]]] for run in runs]
        points = [measured([100.0 * one[k][1] for one in ends]) for k in range(len(ends[0]))]
        error = [p.error for p in points] if len(runs) > 1 else None
        rounds = [one[0] for one in ends[0]]
        series.append(Series(method, rounds, [p.mean for p in points], error))
    if not series:
        return None
    return Figure(
        f"benchmark-{asked.data}", f"Mean test accuracy of clients, training rows: {kind}",
        "round", "accuracy in %", series,
    )  # fmt: skip


def _of(found: Results, kind: str, method: str, what: str) -> Any:
    """Mean and standard error over seeds, in %; nothing where it was not run."""
    runs = found.get((kind, method))
    return percent([run[what] for run in runs]) if runs else None
