"""`python -m experiments compare`: every method on a registered data set."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Annotated

import typer

from dorfl.cli.screen import Screen


def compare(
    data: Annotated[str, typer.Argument(help="The name of a registered data set.")],
    load: Annotated[
        list[Path] | None,
        typer.Option(help="A Python file that registers methods or data sets (repeatable)."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many random repetitions.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder for the table and the page.")] = Path("results"),
) -> None:
    """Train every method, built in and registered, on a registered data set, beside a constant.

    Example: python -m experiments compare records --load examples/own_dataset.py
    """
    from dorfl.report.content import Table, blocks  # noqa: PLC0415 - slow to import
    from dorfl.report.page import export, write  # noqa: PLC0415
    from experiments import comparison  # noqa: PLC0415

    for file in load or ():
        runpy.run_path(str(file))
    screen = Screen()
    with screen.progress("the comparison") as step:
        page = comparison.page(data, comparison.run(data, seeds, step))
    export(page, out)
    report = write(page, out / f"compare-{data}.html")
    for block in blocks(page):
        if isinstance(block, Table):
            screen.table(block)
    screen.say(f"the page: {report}")
