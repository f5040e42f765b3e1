"""`dorfl certify`: what a model guarantees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dorfl.cli.folders import Client, ModelFolder, NewTable, Site, labelled_rows
from dorfl.cli.screen import Screen

if TYPE_CHECKING:
    from dorfl.study.model import Model
    from dorfl.study.model.facts import Promise
    from dorfl.study.rows import Rows

_BAR = 30  # characters


def certify(
    model: ModelFolder,
    data: NewTable,
    client: Client = None,
    site: Site = None,
    outliers: Annotated[
        float, typer.Option("--outliers", help="The share of every client's rows that is wrong.")
    ] = 0.1,
    drift: Annotated[
        float,
        typer.Option(
            "--drift", help="How far rows to come may differ from good ones: standard deviations."
        ),
    ] = 0.1,
    beside: Annotated[
        Path | None, typer.Option("--beside", help="Another model, to compare with.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write a page with the curves.")
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option("--confidence", help="Also for the population behind rows not trained with."),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's form: the worst-case risk in a radius.")
    ] = False,
    radius: Annotated[
        list[float] | None,
        typer.Option("--radius", help="With --paper: also at this UW distance (repeatable)."),
    ] = None,
) -> None:
    """Bound loss and accuracy if so many rows are wrong and the others drift so far.

    The drift is the root mean square of how far rows move, in standard deviations of the columns
    in this table, which wrong rows do not sway. Columns of categories and flags do not move.

    Examples:
      dorfl certify model data.csv --outliers 0.1 --drift 0.1
      dorfl certify model data.csv --beside erm-model --out certificate.html
      dorfl certify model data.csv --paper --radius 0.5
    """
    from dorfl.study.model import load  # noqa: PLC0415 - slow to import, and --help need not wait

    screen, loaded = Screen(), load(model)
    if radius and not paper:
        raise ValueError("--radius is for --paper; without it say --outliers and --drift")
    if paper and beside is not None:
        raise ValueError("--beside compares models in plain words; leave out --paper")
    rows = labelled_rows(loaded, data, client, site)
    for note in rows.notes:
        screen.note(note)
    if paper:
        _paper(screen, loaded, rows, radius or [])
        return
    from dorfl.study import promises  # noqa: PLC0415

    certified = {model.name: promises.of_model(loaded, rows, outliers, drift)}
    if beside is not None:
        other = load(beside)
        theirs = labelled_rows(other, data, client, site)
        name = beside.name if beside.name != model.name else str(beside)
        certified[name] = promises.of_model(other, theirs, outliers, drift)
    found = {name: promises.written(one) for name, one in certified.items()}
    _show(screen, found)
    sure: dict[str, float | None] = {}
    if confidence is not None:
        sure = {name: one.confident(confidence) for name, one in certified.items()}
        for name, least in sure.items():
            screen.say(_surely(name, confidence, least))
    if out is not None:
        from dorfl.report import page  # noqa: PLC0415
        from dorfl.study.promise_pages import of_promises  # noqa: PLC0415

        page.write(of_promises(found, loaded.label), out)
        screen.say(f"the curves are in {out}")
    first, *others = found.values()
    told = {"beside": [_plain(one) for one in others], "confident": sure}
    screen.give({**_plain(first), **{name: value for name, value in told.items() if value}})


def _plain(promise: Promise) -> dict[str, Any]:
    lists = ("overall", "clients", "over_drift", "over_outliers")
    return {
        **promise._asdict(),
        **{name: [line._asdict() for line in getattr(promise, name)] for name in lists},
    }


def _surely(name: str, confidence: float, least: float | None) -> str:
    from dorfl.guarantees.certified import floored  # noqa: PLC0415

    if least is None:
        return f"{name}: no confidence is known for a regression, whose loss has no largest value"
    return (
        f"{name}: with confidence {100 * confidence:.4g} %, however far out they lie and if "
        f"these rows were not trained with, accuracy is at least {floored(least)} for the "
        "population they come from"
    )


def _show(screen: Screen, found: dict[str, Promise]) -> None:
    from dorfl.study.promise_pages import bounds, by_client  # noqa: PLC0415

    first = next(iter(found.values()))
    named = found if len(found) > 1 else {"": first}
    screen.table(by_client(named)._replace(note=""))
    lists = {
        f"drift, {100 * first.outliers:.3g} % wrong": {n: p.over_drift for n, p in named.items()},
        f"share wrong, drift {first.drift:.3g}": {n: p.over_outliers for n, p in named.items()},
    }
    for what, lines in lists.items():
        table = bounds("over", f"Certified over the {what.split(',')[0]}", what, lines)
        if len(found) == 1 and first.overall[0].accuracy is not None:
            bars = ["█" * round(_BAR * (line.accuracy or 0.0)) for line in lines[""]]
            rows = [(*row, bar) for row, bar in zip(table.rows, bars, strict=True)]
            table = table._replace(columns=(*table.columns, ""), rows=rows)
        screen.table(table)
    for name, promise in found.items():
        screen.say(f"{name}: {promise.words}" if len(found) > 1 else promise.words)
        screen.say(promise.assumption)


def _paper(screen: Screen, loaded: Model, rows: Rows, radii: list[float]) -> None:
    """Proposition 2 as the paper has it."""
    from dorfl.data.tables import DataError  # noqa: PLC0415
    from dorfl.guarantees.certificate import paper  # noqa: PLC0415
    from dorfl.report.content import Table  # noqa: PLC0415

    strange = [name for name in rows.names if name not in loaded.fit.clients]
    if strange:
        raise DataError(
            f"client {strange[0]!r} was not trained with; certify the clients that were, and say "
            "whose rows these are: --client COLUMN or --site NAME"
        )
    found = paper(loaded.fit, rows.clients)
    asked = {r: found.at(r) for r in radii}
    screen.say(str(found))
    if asked:
        columns, forms = ("UW distance", "at most"), {"UW distance": "g", "at most": ".6g"}
        rows_ = list(asked.items())
        screen.table(Table("paper", "Certified worst-case risk", columns, rows_, forms))
    screen.give(
        {
            "radius": found.radius,
            "bound": found.bound,
            "attained": found.attained,
            "is_certificate": found.is_certificate,
            "error": found.error if found.is_certificate else None,
            "at": [{"radius": r, "bound": bound} for r, bound in asked.items()],
            "words": str(found),
        }
    )
