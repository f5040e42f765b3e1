"""`python -m experiments theory`: do the paper's statements hold?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dorfl.cli.screen import Screen


def theory(
    out: Annotated[Path, typer.Option(help="Folder for the figures and the table.")] = Path(
        "results/theory"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Which random instances.")] = 0,
) -> None:
    """Check every statement of the paper on random instances, and draw what they look like.

    Ends with exit code 1 when a statement fails.

    Example: python -m experiments theory --out results/theory
    """
    from dorfl.certificates import distance  # noqa: PLC0415 - slow to import
    from dorfl.report import tables  # noqa: PLC0415
    from dorfl.report.figures import draw  # noqa: PLC0415
    from dorfl.support.files import write_whole  # noqa: PLC0415
    from experiments import theory as statements  # noqa: PLC0415

    screen = Screen()
    distance.require()
    out.mkdir(parents=True, exist_ok=True)
    lines: list[statements.Statement] = []
    drawn: list[Path] = []
    with screen.progress("lemma 1", len(statements.PARTS)) as step:
        for name in statements.PARTS:
            findings = statements.examine(seed, name)
            lines += findings.statements
            drawn += [path for figure in findings.figures for path in draw(figure, out)]
            step(name)
    table = statements.table(lines)
    screen.table(table)
    write_whole(out / "statements.csv", tables.as_csv(table).encode())
    screen.say(f"{len(drawn)} figures and statements.csv in {out}")
    screen.give([line._asdict() | {"holds": line.holds} for line in lines])
    failed = sum(not line.holds for line in lines)
    if failed:
        screen.say(f"{failed} of {len(lines)} statements fail")
        raise typer.Exit(1)
