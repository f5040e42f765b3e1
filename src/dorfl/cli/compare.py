"""`dorfl compare`: all methods on one table, by cross-validation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dorfl.cli import options
from dorfl.cli.screen import Screen
from dorfl.study.settings import METHODS
from dorfl.support.text import scored

if TYPE_CHECKING:
    from dorfl.study.comparison import Comparison

_LISTED = 10  # clients, and trainings that fell short


@options.takes(*options.ANY_METHOD)
def compare(
    data: options.Table,
    words: dict[str, Any],
    folds: options.Folds = 5,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the page, table and figure.")
    ] = None,
) -> None:
    """Compare the five methods on rows they have not seen: who is served worst, and by which?

    Every client's rows are cut into folds; each fold in turn is left out of training and scored.

    Examples:
      dorfl compare adult.csv --label income --client race --folds 5 --out comparison
      dorfl compare study.toml
    """
    study = options.study_of(data, words)
    from dorfl.study import comparison  # noqa: PLC0415
    from dorfl.study.pages import compared, of_comparison  # noqa: PLC0415

    screen = Screen()
    with screen.progress("reading", total=folds * len(METHODS)) as step:
        found = comparison.compare(study, folds, tick=step)
    screen.table(compared(found, most=_LISTED))
    for method, name in enumerate(found.methods):
        worst = found.worst(method)
        score = found.scores[method].mean(axis=0)[worst]
        screen.say(
            f"{name} serves {found.clients[worst]!r} worst ({scored(score, found.classifies)})"
        )
    if len(found.clients) > 1:
        screen.say(f"whoever is served worst is served best by {found.methods[found.best]}")
    if out is not None:
        from dorfl.report import export, page  # noqa: PLC0415

        made = of_comparison(found, study)
        page.write(made, out / "index.html")
        export.export(made, out)
        screen.say(f"page, table and figure in {out}")
    screen.give(_answer(found))
    for shortfall in found.shortfalls[:_LISTED]:
        screen.alarm(shortfall)
    if len(found.shortfalls) > _LISTED:
        screen.alarm(f"… and {len(found.shortfalls) - _LISTED} more trainings fell short")


def _answer(found: Comparison) -> dict[str, Any]:
    means = found.scores.mean(axis=1)
    return {
        "measure": found.measure,
        "clients": dict(zip(found.clients, found.rows.tolist(), strict=True)),
        "methods": {
            name: {
                "overall": float(found.overall[i].mean()),
                "clients": dict(zip(found.clients, means[i].tolist(), strict=True)),
                "worst": found.clients[found.worst(i)],
            }
            for i, name in enumerate(found.methods)
        },
        "best_for_the_worst_served": found.methods[found.best],
        "shortfalls": list(found.shortfalls),
    }
