"""Cardio on the page: real entry errors, and how much of the damage is undone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dorfl.report.content import Cell, Details, Finding, Section, Table, Text
from experiments.cardio import ORACLE
from experiments.pages.common import percents, tuning_table
from experiments.tuning import NAMES

GROUPS = ("overall", "under 45", "45 to 50", "50 to 55", "55 to 60", "over 60")
_RULE = "contaminated"


def section(found: Sequence[dict[str, Any]]) -> tuple[Section, list[Finding]]:
    """The table, the share of the gap closed, and what won."""
    names = list(found[0])
    rows: list[Sequence[Cell]] = [
        (name, *percents([r[name][_RULE]["accuracy"] for r in found])) for name in names
    ]
    peers = tuple(name for name in names if "pooled" in name)
    table = Table(
        "cardio",
        "Cardio: accuracy on plausible test records in %",
        ("method", *GROUPS),
        rows,
        ".2f",
        f"Mean of {len(found)} splits ± standard error; tuned on validation rows with errors in "
        "them.",
        "max",
        (ORACLE, *peers),
    )
    mean = {name: float(np.mean([r[name][_RULE]["accuracy"][0] for r in found])) for name in names}
    closed = (mean["DOR-FL"] - mean["ERM"]) / (mean[ORACLE] - mean["ERM"])
    recall = float(np.mean([r["DOR-FL"][_RULE]["recall"] for r in found]))
    settings = tuning_table(
        "cardio-settings",
        "Overall accuracy in % with the best of six settings",
        {name: [r[name] for r in found] for name in NAMES.values()},
    )
    words = Text(
        [
            "70,000 medical records with the typing errors they really have: pressures of 16,020, "
            "negative ones, diastolic above systolic. Clients are bands of age. Everyone trains on "
            "everything; tests are on plausible records.",
            f"The 3 % of rows that DOR-FL gives the least weight hold {100 * recall:.0f} % of the "
            "implausible records. Nobody told it what a blood pressure is.",
        ]
    )
    findings = [
        Finding(
            "of what entry errors cost on cardio is undone by DOR-FL",
            f"{100 * closed:.0f} %",
            closed >= 0.7,
            "ours",
        )
    ]
    return Section("Cardio", [words, table, Details("Settings that won", [settings])]), findings
