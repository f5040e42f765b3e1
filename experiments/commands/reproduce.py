"""`python -m experiments reproduce`: the paper's study, and what lies beyond it, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dorfl.cli.screen import Screen
from experiments import Part

_MAIN = (
    "summary",
    "verdicts",
    "synthetic",
    "adult",
    "cardio",
    "fashion",
)  # the tables worth a look in the terminal


def reproduce(
    part: Annotated[Part, typer.Argument(help="Which part of the study.")] = Part.all,
    seeds: Annotated[int, typer.Option(min=1, help="How many random repetitions.")] = 10,
    out: Annotated[Path, typer.Option(help="Folder for the page, figures and tables.")] = Path(
        "results"
    ),
) -> None:
    """Reproduce the paper's study and what lies beyond it; leave one page that shows it all.

    What has been run before is not run again: stop it when you like, and go on later.

    Example: python -m experiments reproduce synthetic --seeds 10 --out results
    """
    from dorfl.report.content import Table, blocks  # noqa: PLC0415
    from dorfl.report.page import export, write  # noqa: PLC0415
    from experiments import study  # noqa: PLC0415 - slow to import

    screen = Screen()
    out.mkdir(parents=True, exist_ok=True)
    todo = study.plans(part, seeds)
    total = sum(len(plan.cells) for plan in todo)
    with screen.progress("the study", total) as step:
        page = study.reproduce(todo, out, lambda cell, _: step(cell.part))
    with screen.progress("figures and tables"):
        export(page, out)
        report = write(page, out / "report.html")
    for block in blocks(page):
        if isinstance(block, Table) and block.name in _MAIN:
            screen.table(block)
    for card in page.cards:
        mark = {True: "✓ ", False: "✗ ", None: ""}[card.holds]
        screen.say(f"{mark}{card.value}  {card.claim}")
    screen.say(f"the page: {report}")
    screen.give({"page": str(report), "findings": [card._asdict() for card in page.cards]})
