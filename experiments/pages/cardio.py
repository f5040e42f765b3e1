"""Cardio on the page: real entry errors, and how much of the damage is undone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dorfl.report.content import Cell, Details, Section, Table, Text, measured
from experiments.cardio import ORACLE
from experiments.claims import Claim, Situation
from experiments.pages.common import MARKS, MEASURES, ahead, measures, percents, tuning_table
from experiments.tuning import CONSTANT, NAMES, OURS

GROUPS = ("under 45", "45 to 50", "50 to 55", "55 to 60", "over 60")
_RULE = "contaminated"


def section(found: Sequence[dict[str, Any]]) -> tuple[Section, list[Claim], list[Situation]]:
    """The table, the share of the gap closed, and what won."""
    names = list(found[0])
    runs = {name: [r[name][_RULE] for r in found] for name in names}
    gained = {name: ahead(own, runs["ERM"]) for name, own in runs.items()}
    rows: list[Sequence[Cell]] = [
        (
            name,
            *measures(own),
            measured(gained[name]) if name != "ERM" else None,
            *percents([r["accuracy"][1:] for r in own]),
        )
        for name, own in runs.items()
    ]
    peers = tuple(name for name in names if "pooled" in name)
    table = Table(
        "cardio",
        "Cardio: accuracy on plausible test records in %",
        ("method", *MEASURES, "ahead of ERM by", *GROUPS),
        rows,
        dict.fromkeys((*MEASURES, "ahead of ERM by", *GROUPS), ".2f") | {"log loss": ".4f"},
        f"Accuracies in %. Mean of {len(found)} splits ± standard error, differences paired by "
        "split; tuned on validation rows with errors in them.",
        MARKS | dict.fromkeys(GROUPS, "max"),
        (ORACLE, CONSTANT, *peers),
    )
    closed = gained["DOR-FL"].mean() / gained[ORACLE].mean()
    recall = float(np.mean([r["DOR-FL"][_RULE]["recall"] for r in found]))
    settings = tuning_table(
        "cardio-settings",
        "Overall accuracy in % with the best of six settings",
        {name: [r[name] for r in found] for name in NAMES.values()},
    )
    words = Text(
        [
            "70,000 medical records with real entry errors: pressures of 16,020, negative "
            "pressures, diastolic above systolic. Clients are age groups. All methods train on all "
            "training records; tests are on plausible records.",
            f"The 3 % of rows with the smallest weights in DOR-FL contain {100 * recall:.0f} % of "
            "the implausible records. The method has no rule for plausible blood pressures.",
        ]
    )
    claims = [
        Claim.paired(
            "DOR-FL undoes at least 70 % of what entry errors cost ERM on cardio", "ours",
            gained["DOR-FL"] - 0.7 * gained[ORACLE],
            f"{100 * closed:.0f} %: {gained['DOR-FL'].mean():.2f} of "
            f"{gained[ORACLE].mean():.2f} points",
        ),
        Claim.paired(
            "dorfl's defaults are more accurate than tuned ERM on cardio", "ours", gained[OURS]
        ),
    ]  # fmt: skip
    situation = Situation("cardio: real entry errors", gained[OURS], gained["DOR-FL"])
    section = Section("Cardio", [words, table, Details("Settings that won", [settings])])
    return section, claims, [situation]
