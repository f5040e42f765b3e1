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
from experiments.benchmark import TUNING, Asked, Results, data_set
from experiments.candidates import CLEAN, CONSTANT, LEFT_OUT, TRIES, WORSE
from experiments.claims import Claim, signed
from experiments.corruption import ABOUT
from experiments.pages.common import percent, small_multiples
from experiments.pages.fashion import PUBLISHED

TITLE = "Networks, tuned alike"
COMMAND = "python -m experiments benchmark"


class Published(NamedTuple):
    """A figure of somebody else on clean rows, in %."""

    method: str
    value: float
    source: str


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


def page(asked: Asked, found: Results) -> Page:
    """One data set on a page of its own."""
    about = data_set(asked.data).about
    cards = [claim.finding for claim in claims(found)]
    return Page(TITLE, f"{about}.", cards, [Section("Accuracy", blocks(asked, found))])


def blocks(asked: Asked, found: Results) -> list[Block]:
    """What was found: accuracies first, then what they cost and which settings were chosen."""
    kinds = "; ".join(f"{kind}: {ABOUT[kind]}" for kind in asked.kinds)
    words = Text(
        [
            f"{data_set(asked.data).about}. Training rows are as the columns say ({kinds}); test "
            "rows are clean. "
            f"All methods train the same network from the same start for {asked.rounds} rounds, "
            f"{asked.seeds} seed{'s' if asked.seeds > 1 else ''}.",
            f"Each has {TRIES} settings to choose from, trained for {asked.rounds // TUNING} "
            "rounds on four in five of the training rows, wrong ones included, and judged on the "
            "fifth: mean and worst client count half each, and of every client's rows the "
            f"{100 * LEFT_OUT:.0f} % furthest from the median of their class are left out for all "
            "methods alike. Test rows have no part in it. DOR-FL trusts all rows, and is AFL, "
            f"unless that makes the loss of these rows {100 * WORSE:g} % larger.",
        ]
    )
    worst = _accuracy(
        asked, found, "worst", "Accuracy of the worst client in %", WORST.get(asked.data, [])
    )
    mean = _accuracy(asked, found, "mean", "Mean accuracy of clients in %", [])
    return [
        words,
        Beside([worst, mean]),
        small_multiples(_dots(asked, found), ("DOR-FL", CLEAN)),
        Details(
            "What travelled, and the settings that were chosen",
            [_cost(asked, found), _settings(asked, found)],
        ),
    ]


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


def _accuracy(
    asked: Asked, found: Results, what: str, title: str, published: list[Published]
) -> Table:
    rows: list[list[Cell]] = [
        [method, *(_of(found, kind, method, what) for kind in asked.kinds)]
        for method in asked.methods
    ]
    shown = published if "clean" in asked.kinds else []
    rows += [
        [one.method, *(one.value if kind == "clean" else None for kind in asked.kinds)]
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


def _of(found: Results, kind: str, method: str, what: str) -> Any:
    """Mean and standard error over seeds, in %; nothing where it was not run."""
    runs = found.get((kind, method))
    return percent([run[what] for run in runs]) if runs else None
