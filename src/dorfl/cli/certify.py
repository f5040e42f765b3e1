"""`dorfl certify`: what a model guarantees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dorfl.cli.folders import Client, ModelFolder, NewTable, Site, labelled_rows
from dorfl.cli.screen import Screen, heading

if TYPE_CHECKING:
    from dorfl.study.model import Model
    from dorfl.study.model.facts import Promise, Promised
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
    first = next(iter(found.values()))
    columns = [f"{what}{_of(name, found)}" for name in found for what in _heads(first)]
    barred = len(found) == 1 and first.overall[0].accuracy is not None
    lists = {
        "client": [(*promise.clients, *promise.overall) for promise in found.values()],
        f"drift, {100 * first.outliers:.3g} % wrong": [p.over_drift for p in found.values()],
        f"share wrong, drift {first.drift:.3g}": [p.over_outliers for p in found.values()],
    }
    for k, (what, lines) in enumerate(lists.items()):
        title = "Certified by client" if k == 0 else "Certified over the " + what.split(",")[0]
        table = heading(title, what, *columns)
        if barred and k:
            table.add_column("")
        for at in zip(*lines, strict=True):
            bar = ["█" * round(_BAR * (at[0].accuracy or 0.0))] if barred and k else []
            table.add_row(at[0].name, *(cell for line in at for cell in _cells(line)), *bar)
        screen.table(table)
    for name, promise in found.items():
        screen.say(f"{name}: {promise.words}" if len(found) > 1 else promise.words)
        screen.say(promise.assumption)


def _of(name: str, found: dict[str, Promise]) -> str:
    return f" {name}" if len(found) > 1 else ""


def _heads(promise: Promise) -> tuple[str, str]:
    classifies = promise.overall[0].accuracy is not None
    return ("accuracy ≥" if classifies else "mean abs. error ≤", "loss ≤")


def _cells(line: Promised) -> tuple[str, str]:
    from dorfl.guarantees.certified import ceiled, floored  # noqa: PLC0415

    error = "" if line.error is None else ceiled(line.error)
    score = error if line.accuracy is None else floored(line.accuracy)
    return score, "" if line.loss is None else f"{line.loss:.4f}"


def _paper(screen: Screen, loaded: Model, rows: Rows, radii: list[float]) -> None:
    """Proposition 2 as the paper has it."""
    from dorfl.data.tables import DataError  # noqa: PLC0415
    from dorfl.guarantees.certificate import paper  # noqa: PLC0415

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
        table = heading("Certified worst-case risk", "UW distance", "at most")
        for r, bound in asked.items():
            table.add_row(f"{r:g}", f"{bound:.6g}")
        screen.table(table)
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
