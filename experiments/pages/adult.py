"""The Adult study on the page: Table 2 at two budgets, groups, and three ways of mixing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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
from experiments.adult import STEPS
from experiments.pages.common import percent, percents, tuning_table
from experiments.tuning import NAMES

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
    found: Methods,
    best: Sequence[list[float]],
    mixed: Sequence[dict[str, Any]],
    official: Mapping[str, Any],
) -> tuple[Section, list[Finding]]:
    """Tables, dots by group and what they say."""
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
    groups = _groups(
        "adult-groups", "By group, at convergence: accuracy in % and log loss", "method",
        {label: final[name] for name, label in NAMES.items()}, 3, "",
    )  # fmt: skip
    above = all(
        100 * np.mean([r["accuracy"][0] for r in final[name]]) >= PAPER[name][0] for name in NAMES
    )
    gain = _gain(final)
    words = Text(
        [
            "70 % of all 48,842 rows to train on (the paper's client sizes are such a split), the "
            "rest to test; groups by race are the clients; 108 columns, categories one-hot and "
            "frozen in the cost. DOR-FL has the paper's score on capital gains above $20,000 with "
            "an income of at most $50K. Every setting has a ridge of 1/n at least, as dorfl train "
            "has it: without any, columns that hardly matter to the group which has the mixture "
            "are left wherever a solver stops, and test losses with them.",
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
        "every method is at least as accurate on Adult as in the paper", "yes" if above else "no",
        above, "ours",
    )  # fmt: skip
    over = Finding(
        "DOR-FL is more accurate than ERM on Adult (the paper: by 1.5 points)",
        f"{gain.mean:+.2f} points".replace("-", "−"),
        gain.mean > 0.0,
        "the paper",
    )
    settings = tuning_table(
        "adult-settings",
        "Overall accuracy in % with the best of six settings",
        {label: found[name] for name, label in NAMES.items()},
    )
    blocks: list[Block] = [
        words,
        main,
        Beside([_by_group(final, "accuracy"), _by_group(final, "loss")]),
        groups,
        *_mixing(mixed),
        short,
        steps,
        Details("Settings that won, and the official split", [settings, _official(official)]),
    ]
    return Section("Adult", blocks), [finding, over, _regret(mixed)]


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
    marks: dict[str, Direction] = {"accuracy in %": "max", "log loss": "min", "excess": "min"}
    return Table(name, title, columns, rows, forms, note, marks)


def _groups(name: str, title: str, head: str, runs: Methods, digits: int, note: str) -> Table:
    """By group, of each label's runs: accuracy, log loss, and the mixture."""
    losses = [f"loss {group}" for group in GROUPS[1:]]
    rows: list[Sequence[Cell]] = [
        (
            label,
            *percents([r["accuracy"] for r in own]),
            *(measured([r["loss"][k] for r in own]) for k in range(1, 4)),
            ", ".join(f"{value:.2f}" for value in np.mean([r["lam"] for r in own], axis=0)),
        )
        for label, own in runs.items()
    ]
    forms = dict.fromkeys(GROUPS, ".2f") | dict.fromkeys(losses, f".{digits}f")
    marks: dict[str, Direction] = dict.fromkeys(losses, "min")
    marks |= dict.fromkeys(GROUPS, "max")
    note += "λ is in the order White, Black, Other."
    return Table(name, title, (head, *GROUPS, *losses, "λ"), rows, forms, note, marks)


def _by_group(runs: Methods, what: str) -> Figure:
    factor = 100.0 if what == "accuracy" else 1.0
    words = "accuracy in %" if what == "accuracy" else "log loss"
    series = []
    for key, label in NAMES.items():
        groups = [measured(column) for column in factor * np.array([r[what] for r in runs[key]]).T]
        means, errors = [g.mean for g in groups[1:]], [g.error for g in groups[1:]]
        series.append(Series(label, GROUPS[1:], means, errors if len(runs[key]) > 1 else None))
    better = "right" if what == "accuracy" else "left"
    return Figure(f"adult-{what}", f"Adult by group: {words}", "", words, series, "dots",
                  note=f"Better is further {better}; ± is a standard error over splits.",
                  alt=f"Dots: {words} of the five methods in three groups.")  # fmt: skip


def _mixing(found: Sequence[dict[str, Any]]) -> list[Block]:
    table = _groups(
        "adult-mixing", "Three ways of weighing groups, plain losses: accuracy in % and log loss",
        "clients weighted", {name: [r[name] for r in found] for name in found[0]}, 4,
        f"Mean of {len(found)} splits ± standard error; a ridge of 1/n. ",
    )  # fmt: skip
    words = (
        "By loss the worst mixture turns to the group whose labels are hardest to tell, whether "
        "or not a model could do better there. By regret every group's loss is compared with what "
        "a model of its own would give it on rows it has not seen, so λ goes to those who give up "
        "most by sharing a model."
    )
    return [Text([words]), table]


def _regret(found: Sequence[dict[str, Any]]) -> Finding:
    """Whether any group's log loss is larger by regret than by loss, beyond a standard error."""
    change = np.array(
        [np.subtract(r["worst by regret"]["loss"], r["worst by loss"]["loss"]) for r in found]
    )
    groups = [measured(column) for column in change.T]
    worst = max(group.mean for group in groups)
    return Finding(
        "no group of Adult has a larger log loss with groups compared by regret than by loss",
        f"at most {worst:+.4f}".replace("-", "−"),
        all(group.mean <= np.nan_to_num(group.error) for group in groups),
        "ours",
    )


def _official(runs: Mapping[str, Any]) -> Table:
    rows: list[Sequence[Cell]] = [
        (NAMES[key], *(100 * share for share in run["accuracy"]), run["loss"][0], run["settings"])
        for key, run in runs.items()
    ]
    forms = dict.fromkeys(GROUPS, ".2f") | {"log loss": ".4f"}
    return Table("adult-official", "The official split: accuracy in %, to convergence",
                 ("method", *GROUPS, "log loss", "settings"), rows, forms)  # fmt: skip
