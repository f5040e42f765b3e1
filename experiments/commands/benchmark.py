"""`python -m experiments benchmark`: methods on the same network, rows, rounds and tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dorfl.cli.screen import Screen


def benchmark(
    data: Annotated[
        str,
        typer.Option(
            help="three (Fashion-MNIST), compas, hospitals, or the name of a registered data set."
        ),
    ] = "three",
    wrong: Annotated[
        list[str] | None, typer.Option(help="What is wrong with rows (repeatable). Default: all.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Which method (repeatable). Default: all.")
    ] = None,
    load: Annotated[
        list[Path] | None,
        typer.Option(help="A Python file that registers methods or data sets (repeatable)."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many random repetitions.")] = 3,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of training. Default: the data's own.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes at a time. Default: one per core.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results, tables and the page.")] = Path(
        "results"
    ),
) -> None:
    """Train a network by every method, tuned alike: on clean rows, and on rows that are wrong.

    What has been run before is not run again: stop it when you like, and go on later. Needs
    PyTorch; pictures come from Debian's dataset-fashion-mnist, tables by pip.

    Example: python -m experiments benchmark --data three --wrong negate --method AFL
    """
    from dorfl.networks import require  # noqa: PLC0415 - slow to import

    require()
    from dorfl.report.content import Table, blocks  # noqa: PLC0415
    from dorfl.report.page import export, write  # noqa: PLC0415
    from experiments import benchmark as bench  # noqa: PLC0415
    from experiments.pages import benchmark as told  # noqa: PLC0415

    screen = Screen()
    asked = bench.ask(data, wrong or (), method or (), seeds, rounds, load or ())
    bench.task(data, "clean", 0)  # once, before several processes want it
    with screen.progress("the benchmark", asked.size) as step:
        found = bench.run(
            asked, out, lambda cell, _: step(_words(cell.arguments, cell.function)), workers
        )
    page = told.page(asked, found)
    export(page, out)
    report = write(page, out / f"benchmark-{data}.html")
    screen.say(page.lead)
    for block in blocks(page):
        if isinstance(block, Table):
            screen.table(block)
    screen.say(f"the page: {report}")
    screen.give(
        {f"{kind}/{name}/{seed}": run for (kind, name), runs in found.items()
         for seed, run in enumerate(runs)}
    )  # fmt: skip


def _words(arguments: dict[str, object], what: str) -> str:
    return f"{what} {arguments['method']}, {arguments['kind']}"
