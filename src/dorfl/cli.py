"""The command line: `dorfl --help`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from dorfl.experiments import synthetic as study

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated learning that holds up when clients differ, data shift and rows are wrong.",
)


class Part(StrEnum):
    """A part of the paper's study."""

    synthetic = "synthetic"


@app.callback()
def main() -> None:
    """Keeps `reproduce` a command of its own while it is the only one."""


@app.command()
def reproduce(
    part: Annotated[Part, typer.Argument(help="Which part of the study.")] = Part.synthetic,
    seeds: Annotated[int, typer.Option(min=1, help="How many random repetitions.")] = 10,
) -> None:
    """Reproduce the paper's study: the five methods on contaminated data, tested on clean data.

    Example: dorfl reproduce synthetic --seeds 10
    """
    console = Console()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(part.value, total=seeds * len(study.five_methods()))
        rows = study.table(
            range(seeds), lambda name: progress.update(task, advance=1, description=name)
        )
    table = Table(
        title=f"Accuracy on clean test data in %, mean of {seeds} seed(s) ± standard error"
    )
    for heading in ("method", "overall", "client 1", "client 2", "client 3", "rounds"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in rows:
        cells = [
            f"{100 * mean:.1f}" + (f" ± {100 * error:.1f}" if seeds > 1 else "")
            for mean, error in zip(row.mean, row.error, strict=True)
        ]
        rounds = f"{row.rounds.mean():.0f}" if row.rounds.any() else ""
        table.add_row(row.name, *cells, rounds)
    console.print(table)


@app.command()
def theory(
    out: Annotated[Path, typer.Option(help="Folder for the figures and the table.")] = Path(
        "results/theory"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Which random instances.")] = 0,
) -> None:
    """Check every statement of the paper on random instances, and draw what they look like.

    Ends with exit code 1 when a statement fails. Example: dorfl theory --out results/theory
    """
    # Slow to import, and of no use to the other commands.
    from dorfl.experiments import theory as statements  # noqa: PLC0415
    from dorfl.files import write_whole  # noqa: PLC0415
    from dorfl.report import tables  # noqa: PLC0415
    from dorfl.report.figures import draw  # noqa: PLC0415

    console = Console()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"cannot write to {out}: {error.strerror}") from None
    lines: list[statements.Statement] = []
    drawn: list[Path] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("lemma 1", total=len(statements.PARTS))
        for name, findings in statements.run(seed):
            lines += findings.statements
            drawn += [path for figure in findings.figures for path in draw(figure, out)]
            progress.update(task, advance=1, description=name)
    table = statements.table(lines)
    console.print(tables.as_rich(table))
    write_whole(out / "statements.csv", tables.as_csv(table).encode())
    console.print(f"{len(drawn)} figures and statements.csv in {out}")
    failed = sum(not line.holds for line in lines)
    if failed:
        console.print(f"[red]{failed} of {len(lines)} statements fail[/]")
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
