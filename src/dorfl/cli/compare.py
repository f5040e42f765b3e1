"""`dorfl compare`: all methods on one table, by cross-validation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dorfl.cli import options, summary
from dorfl.cli.screen import ResultLine, Screen
from dorfl.support.text import counted_rows
from dorfl.tabular import comparison
from dorfl.tabular.comparison import Comparison
from dorfl.tabular.pages import compared, compared_clients, of_comparison

_LISTED = 10  # clients, and trainings that fell short, that are listed


@options.takes(*options.ANY_METHOD)
def compare(
    data: options.Table,
    settings: dict[str, Any],
    folds: options.Folds = 5,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the page, tables and figure.")
    ] = None,
) -> None:
    """Compare the five methods on held-out rows, overall and for the worst client.

    Every client's rows are divided into folds; each fold in turn is left out of training and
    scored. Scores are given over inliers and over all rows, with standard errors. A best method is
    named only if it beats another by more than two paired standard errors. With --verbose: scores
    by client.

    Examples:
      dorfl compare adult.csv --label income --client race --folds 5 --out comparison
      dorfl compare study.toml
    """
    study = options.study_of(data, settings)
    screen = Screen()
    with screen.progress("reading", total=folds * len(comparison.compared(study))) as step:
        found = comparison.compare(study, folds, tick=step)
    saved = []
    if out is not None:
        from dorfl.report import page

        made = of_comparison(found, study)
        page.write(made, out / "index.html")
        page.export(made, out)
        saved = [ResultLine("Saved", f"{out}/index.html, tables and figures")]
    inliers, rows = int(found.inlier.sum()), len(found.inlier)
    screen.lines(
        ResultLine(
            "Data",
            f"{summary.counted(rows, len(found.clients), study.data.client)}, "
            f"{folds} folds; {counted_rows(rows - inliers)} down-weighted",
        ),
        ResultLine("Best", found.verdict),
        *saved,
    )
    screen.table(compared(found))
    if len(found.clients) > 1 and screen.verbose:
        screen.table(compared_clients(found, most=_LISTED))
    screen.give(_answer(found))
    for shortfall in found.shortfalls[:_LISTED]:
        screen.alarm(shortfall)
    if len(found.shortfalls) > _LISTED:
        screen.alarm(f"… and {len(found.shortfalls) - _LISTED} more trainings fell short")


def _answer(found: Comparison) -> dict[str, Any]:
    """Return the result as plain JSON."""
    methods = {}
    for i, name in enumerate(found.methods):
        own = found.score(i)
        methods[name] = {
            "inliers": own.overall._asdict(),
            "all_rows": found.score(i, inliers=False).overall._asdict(),
            "difference": found.difference(i, found.highest)._asdict(),
            "clients": {client: score._asdict() for client, score in own.clients.items()},
            "worst": found.worst(i),
        }
    return {
        "measure": found.measure,
        "folds": found.folds,
        "rows": len(found.inlier),
        "inliers": int(found.inlier.sum()),
        "clients": dict(zip(found.clients, found.rows.tolist(), strict=True)),
        "methods": methods,
        "best": found.best,
        "tied": list(found.tied),
        "shortfalls": list(found.shortfalls),
    }
