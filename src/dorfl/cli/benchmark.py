"""`dorfl benchmark`: the field's methods on the same network, rows and budget."""

from __future__ import annotations

import json
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from dorfl.cli.screen import Screen


class Split(StrEnum):
    """How rows are shared out to clients."""

    three = "three"
    ten = "ten"
    dirichlet = "dirichlet"


def benchmark(
    split: Annotated[Split, typer.Option(help="Classes per client.")] = Split.three,
    wrong: Annotated[
        list[str] | None, typer.Option(help="What is wrong with rows (repeatable). Default: all.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Which method (repeatable). Default: all.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of 64 rows per client.")] = 1500,
    seeds: Annotated[int, typer.Option(min=1, help="How many random repetitions.")] = 3,
    out: Annotated[Path, typer.Option(help="File for the results; what it has is kept.")] = Path(
        "results/benchmark.json"
    ),
) -> None:
    """Train a network by every method on Fashion-MNIST: clean, and with rows that are wrong.

    What has been run before is not run again. Needs PyTorch and Debian's dataset-fashion-mnist.

    Example: dorfl benchmark --split three --wrong outliers --seeds 3
    """
    from dorfl.networks import require  # noqa: PLC0415 - slow to import

    require()
    from dorfl.networks import benchmark as bench  # noqa: PLC0415
    from dorfl.support.files import write_whole  # noqa: PLC0415

    screen = Screen()
    kinds, names = wrong or list(bench.KINDS), method or list(bench.ENTRIES)
    for name in names:
        if name not in bench.ENTRIES:
            raise ValueError(f"--method {name!r}: choose one of {', '.join(bench.ENTRIES)}")
    done: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    todo = list(product(kinds, names, range(seeds)))
    with screen.progress("the benchmark", len(todo)) as step:
        for kind, name, seed in todo:
            key = f"{split}/{kind}/{name}/{seed}/{rounds}"
            if key not in done:
                rows = bench.task(split, kind, seed)
                done[key] = bench.measure(bench.ENTRIES[name], rows, seed, rounds=rounds)
                write_whole(out, json.dumps(done, indent=1).encode())
            step(f"{kind}, {name}")
    table = Table("rows", *names, title=f"mean / worst client, test accuracy in % ({split})")
    for kind in kinds:
        cells = []
        for name in names:
            runs = [done[f"{split}/{kind}/{name}/{seed}/{rounds}"] for seed in range(seeds)]
            mean, worst = (100 * sum(run[k] for run in runs) / seeds for k in ("mean", "worst"))
            cells.append(f"{mean:.1f} / {worst:.1f}")
        table.add_row(kind, *cells)
    screen.table(table)
    screen.give(done)
