"""The Adult study on the page: Table 2 at two budgets, and the radar plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dorfl.paper.adult import STEPS
from dorfl.paper.pages.common import percent, tuning_table
from dorfl.paper.tuning import NAMES
from dorfl.report.content import (
    Beside,
    Block,
    Cell,
    Details,
    Direction,
    Figure,
    Finding,
    Measured,
    Section,
    Series,
    Table,
    Text,
    measured,
)

GROUPS = ("overall", "White", "Black", "Other")
PAPER = {  # Table 2 of the paper: accuracy in % and "excess risk"
    "erm": (83.1, 0.37),
    "afl": (81.7, 0.44),
    "wafl": (76.7, 0.64),
    "gdrfl": (79.5, 0.61),
    "dorfl": (84.6, 0.34),
}
_RULE = "contaminated"  # what a user has; the other is shown beside it

Methods = Mapping[str, Sequence[dict[str, Any]]]  # by method, one entry per seed


def section(
    found: Methods, best: Sequence[list[float]], official: Mapping[str, Any]
) -> tuple[Section, list[Finding]]:
    """Tables, radar plots and what they say."""
    final = {name: [run[_RULE] for run in runs] for name, runs in found.items()}
    budget = {
        name: [run["budget"] for run in runs if "budget" in run] for name, runs in found.items()
    }
    early = {name: [run["theorem"] for run in runs] for name, runs in budget.items()}
    tuned = {name: [run["tuned"] for run in runs] for name, runs in budget.items()}
    least = np.array(best)
    main = _table("adult", "Table 2: Adult, solved to convergence", final, least)
    short = _table(
        "adult-budget", f"Adult at the paper's budget: {STEPS} gradient steps of length 1/√T",
        early, least[: len(next(iter(early.values())))],
    )  # fmt: skip
    steps = _table(
        "adult-budget-tuned", f"Adult: {STEPS} gradient steps of the best of three lengths",
        tuned, least[: len(next(iter(tuned.values())))],
    )  # fmt: skip
    groups = _groups(final)
    above = all(
        100 * np.mean([r["accuracy"][0] for r in final[name]]) >= PAPER[name][0] for name in NAMES
    )
    gain = _gain(final)
    words = Text(
        [
            "70 % of all 48,842 rows to train on (the paper's client sizes are such a split), the "
            "rest to test; groups by race are the clients; 108 columns, categories one-hot and "
            "frozen in the cost. DOR-FL has the paper's score on capital gains above $20,000 with "
            "an income of at most $50K.",
            _finding(final, early),
            "The paper's “excess risk” of 0.34 to 0.64 is the size of a log loss on test rows, not "
            "of an excess over the best model; both are given here, each by its name. Only 8 rows "
            "of 32,561 in the official training file have the pattern the score is after, so it "
            "cannot make much of a difference.",
            "With the agnostic mixture λ settles on the group with the largest loss, here White, "
            "by far the largest group: agnostic methods all but forget the others.",
        ]
    )
    finding = Finding(
        "every method at least as accurate on Adult as in the paper", "yes" if above else "no",
        above,
    )  # fmt: skip
    over = Finding(
        "points of DOR-FL over ERM on Adult",
        f"{gain.mean:+.2f}".replace("-", "−"),
        gain.mean >= 0.0,
    )
    settings = tuning_table(
        "adult-settings",
        "Overall accuracy in % with the best of six settings",
        {label: found[name] for name, label in NAMES.items()},
    )
    blocks: list[Block] = [
        words,
        main,
        Beside([_radar(final, "accuracy"), _radar(final, "loss")]),
        groups,
        short,
        steps,
        Details(
            "Settings that won, and the official split",
            [settings, _official(official)],
        ),
    ]
    return Section("Adult", blocks), [finding, over]


def _gain(final: Methods) -> Measured:
    pairs = zip(final["dorfl"], final["erm"], strict=True)
    return percent([ours["accuracy"][0] - theirs["accuracy"][0] for ours, theirs in pairs])


def _finding(final: Methods, early: Methods) -> str:
    erm, ours = (percent([r["accuracy"][0] for r in final[n]]).mean for n in ("erm", "dorfl"))
    stopped = percent([r["accuracy"][0] for r in early["erm"]]).mean
    loss = float(np.mean([r["loss"][0] for r in early["erm"]]))
    return (
        f"Plain ERM after {STEPS} steps scores {stopped:.1f} % at a log loss of {loss:.2f}: the "
        f"paper's figures (83.1, 0.37) are of models that had not converged. Converged, all five "
        f"methods are within a few tenths of a point (ERM {erm:.2f} %, DOR-FL {ours:.2f} %) and "
        "the paper's ranking disappears; with equal steps, Algorithm 1's step shrinks with 1/ρβ "
        "and DOR-FL moves least."
    )


def _table(name: str, title: str, runs: Methods, least: Any) -> Table:
    rows: list[list[Cell]] = []
    for key, label in NAMES.items():
        accuracy, loss = PAPER[key]
        losses = np.array([r["loss"][0] for r in runs[key]])
        rows.append(
            [
                label,
                percent([r["accuracy"][0] for r in runs[key]]),
                accuracy,
                measured(losses),
                measured(losses - least[:, 0]),
                loss,
                round(float(np.mean([r["rounds"] for r in runs[key]]))),
            ]
        )
    columns = (
        "method",
        "accuracy in %",
        "paper",
        "log loss",
        "excess",
        "paper, “excess”",
        "rounds",
    )
    forms: dict[str, str] = {"accuracy in %": ".2f", "paper": ".1f", "log loss": ".4f",
                             "excess": ".4f", "paper, “excess”": ".2f"}  # fmt: skip
    note = (
        f"Mean of {len(least)} splits ± standard error. The excess is that of the log loss over "
        "the best linear model, the one with the least log loss on the test rows themselves."
    )
    marks: dict[str, Direction] = {
        "accuracy in %": "max",
        "log loss": "min",
        "excess": "min",
    }
    return Table(name, title, columns, rows, forms, note, marks)


def _groups(runs: Methods) -> Table:
    rows: list[Sequence[Cell]] = [
        (
            label,
            *(percent([r["accuracy"][k] for r in runs[key]]) for k in range(4)),
            *(measured([r["loss"][k] for r in runs[key]]) for k in range(1, 4)),
            ", ".join(f"{value:.2f}" for value in np.mean([r["lam"] for r in runs[key]], axis=0)),
        )
        for key, label in NAMES.items()
    ]
    columns = ("method", *GROUPS, *(f"loss {group}" for group in GROUPS[1:]), "λ")
    forms = dict.fromkeys(GROUPS, ".2f") | {f"loss {group}": ".3f" for group in GROUPS[1:]}
    marks: dict[str, Direction] = {f"loss {group}": "min" for group in GROUPS[1:]}
    marks |= dict.fromkeys(GROUPS, "max")
    return Table("adult-groups", "By group, at convergence: accuracy in % and log loss", columns,
                 rows, forms, "λ is in the order White, Black, Other.", marks)  # fmt: skip


def _radar(runs: Methods, what: str) -> Figure:
    factor = 100.0 if what == "accuracy" else 1.0
    series = []
    for key, label in NAMES.items():
        means = factor * np.mean([r[what] for r in runs[key]], axis=0)
        series.append(Series(label, GROUPS[1:], means[1:]))
    words = "accuracy in %" if what == "accuracy" else "log loss"
    better = "further out" if what == "accuracy" else "further in"
    return Figure(f"adult-{what}", f"Adult by group: {words}", "", words, series, "radar",
                  note=f"Better is {better}.",
                  alt=f"Radar plot of {words} of the five methods in three groups.")  # fmt: skip


def _official(runs: Mapping[str, Any]) -> Table:
    rows: list[Sequence[Cell]] = [
        (
            NAMES[key],
            *(100 * value for value in run["accuracy"]),
            run["loss"][0],
            run["settings"],
        )
        for key, run in runs.items()
    ]
    forms = dict.fromkeys(GROUPS, ".2f") | {"log loss": ".4f"}
    return Table("adult-official", "The official split: accuracy in %, to convergence",
                 ("method", *GROUPS, "log loss", "settings"), rows, forms)  # fmt: skip
