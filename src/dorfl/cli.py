"""The command line: `dorfl --help`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from dorfl.commands import own_table
from dorfl.commands.screen import EPILOG, Commands
from dorfl.experiments import Part

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    epilog=EPILOG,
    pretty_exceptions_enable=False,
    help="Federated learning that holds up when clients differ, data shift and rows are wrong.",
)


@app.callback()
def main() -> None:
    """Keeps `reproduce` a command of its own while it is the only one."""


@app.command()
def reproduce(
    part: Annotated[Part, typer.Argument(help="Which part of the study.")] = Part.all,
    seeds: Annotated[int, typer.Option(min=1, help="How many random repetitions.")] = 10,
    out: Annotated[Path, typer.Option(help="Folder for the page, figures and tables.")] = Path(
        "results"
    ),
) -> None:
    """Reproduce the paper's study and what lies beyond it; leave one page that shows it all.

    What has been run before is not run again: stop it when you like, and go on later.

    Example: dorfl reproduce synthetic --seeds 10 --out results
    """
    from dorfl.experiments import study  # noqa: PLC0415 - slow to import
    from dorfl.report import tables  # noqa: PLC0415
    from dorfl.report.content import Table, blocks  # noqa: PLC0415
    from dorfl.report.export import export  # noqa: PLC0415
    from dorfl.report.page import write  # noqa: PLC0415

    console = Console()
    _writable(out)
    todo = study.plans(part, seeds)
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("the study", total=sum(len(plan.cells) for plan in todo))
        page = study.reproduce(
            todo,
            out,
            lambda cell, _: progress.update(task, advance=1, description=cell.part),
        )
        progress.update(task, description="figures and tables")
        export(page, out)
        report = write(page, out / "report.html")
    for block in blocks(page):
        if isinstance(block, Table) and block.name in ("synthetic", "adult", "cardio"):
            console.print(tables.as_rich(block))
    for card in page.cards:
        mark = {True: "[green]✓[/] ", False: "[red]✗[/] ", None: ""}[card.holds]
        console.print(f"{mark}{card.value}  {card.claim}")
    console.print(f"The page: {report}")


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
    _writable(out)
    lines: list[statements.Statement] = []
    drawn: list[Path] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("lemma 1", total=len(statements.PARTS))
        for name in statements.PARTS:
            findings = statements.examine(seed, name)
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


def _writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"cannot write to {folder}: {error.strerror}") from None


own_table.register(app)

if __name__ == "__main__":
    app()
