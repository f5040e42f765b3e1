"""`dorfl certify`: what a model guarantees."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dorfl.certificates.certificate import paper
from dorfl.certificates.certified import Certified
from dorfl.cli import summary
from dorfl.cli.options import Client, ModelFolder, NewTable, Site, labelled_rows
from dorfl.cli.screen import ResultLine, Screen
from dorfl.data.tables import DataError
from dorfl.report.content import Table
from dorfl.tabular import promises
from dorfl.tabular.model import Model, load
from dorfl.tabular.model.facts import Promise
from dorfl.tabular.model.views import bounds, certified_clients, of_promise
from dorfl.tabular.rows import Rows


def certify(
    model: ModelFolder,
    data: NewTable,
    client: Client = None,
    site: Site = None,
    outliers: Annotated[
        float | None,
        typer.Option(
            "--outliers",
            help="The share of rows that may be outliers, at every client. By default the share "
            "that training assumed.",
        ),
    ] = None,
    drift: Annotated[
        float,
        typer.Option("--drift", help="How far rows to come may drift, in standard deviations."),
    ] = 0.1,
    confidence: Annotated[
        float, typer.Option("--confidence", help="Confidence of the bound for rows to come.")
    ] = 0.95,
    in_sample: Annotated[
        bool,
        typer.Option("--in-sample", help="Bound loss and accuracy on these rows alone instead."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write a page with the curves.")
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's form: the worst-case risk in a radius.")
    ] = False,
    radius: Annotated[
        list[float] | None,
        typer.Option("--radius", help="With --paper: also at this UW distance (repeatable)."),
    ] = None,
) -> None:
    """Bound the accuracy for rows to come if some rows are outliers and the others drift.

    The table must hold rows that the model was not trained on. For the training table itself the
    statement is that of `dorfl train`: about a model trained on four fifths of its rows, from the
    rest. The drift is the root mean square of how far rows move, in robust standard deviations of
    the columns in training. Columns of categories and flags do not move.

    Examples:
      dorfl certify model new.csv --outliers 0.1 --drift 0.1
      dorfl certify model new.csv --out certificate.html
      dorfl certify model data.csv --in-sample
      dorfl certify model data.csv --paper --radius 0.5
    """
    screen, loaded = Screen(), load(model)
    if radius and not paper:
        raise ValueError("--radius is for --paper; without it give --outliers and --drift")
    if paper:
        _paper(screen, loaded, _rows(screen, loaded, data, client, site), radius or [])
        return
    assumed = loaded.facts.outliers if outliers is None else outliers
    share = 0.1 if assumed is None else assumed
    sure = None if in_sample else confidence
    is_renamed = client is not None or site is not None
    if sure is not None and not is_renamed and promises.is_training_table(loaded, data):
        screen.note(
            f"{data.name} is the table that the model was trained on: a fifth of its rows is held "
            "out, and the statement is about a model trained on the others, as in dorfl train"
        )
        with screen.progress("training on four fifths of the rows") as step:
            found: Certified = promises.of_table(
                loaded, data, share, drift, sure, lambda: step(None)
            )
    else:
        rows = _rows(screen, loaded, data, client, site)
        found = promises.of_model(loaded, rows, share, drift, sure)
    promise = promises.written(found)
    saved = []
    if out is not None:
        from dorfl.report import page

        page.write(of_promise(promise, loaded.label), out)
        saved = [ResultLine("Saved", str(out))]
    screen.lines(*_lines(promise), *saved)
    _explain(screen, promise)
    screen.give(loaded.facts._replace(promise=promise).to_json()["promise"])


def _rows(screen: Screen, loaded: Model, data: Path, client: str | None, site: str | None) -> Rows:
    """Return the labelled rows of a table, and show what was noted while reading it."""
    rows = labelled_rows(loaded, data, client, site)
    screen.notes(rows.notes)
    return rows


def _lines(promise: Promise) -> list[ResultLine]:
    """Return the bounds of a model: at the settings, of the worst client, at the corners."""
    lines = [ResultLine("Guaranteed", summary.guaranteed(promise))]
    own = [(one, summary.bounded(one)) for one in promise.clients if one.error is not None]
    if len(own) > 1:
        worst, bound = max(own, key=lambda pair: pair[0].error or 0.0)
        every = summary.bounded(promise.overall[1])
        text = f"{worst.name}: {bound}; every mixture of clients: {every}"
        lines.append(ResultLine("Worst", text))
    return [
        *lines,
        ResultLine("No drift", summary.bounded(promise.over_drift[0])),
        ResultLine("No outliers", summary.bounded(promise.over_outliers[0])),
    ]


def _explain(screen: Screen, promise: Promise) -> None:
    """Print the bounds by client and over drift and outliers, and the statement, if verbose."""
    if not screen.verbose:
        return

    screen.table(certified_clients(promise))
    for what, at, curve in (
        ("drift", f"{100 * promise.outliers:.3g} % outliers", promise.over_drift),
        ("share of outliers", f"drift {promise.drift:.3g}", promise.over_outliers),
    ):
        screen.table(bounds("over", f"Certified over the {what}", f"{what}, {at}", curve))
    screen.say(promise.words)
    screen.say(promise.assumption)


def _paper(screen: Screen, loaded: Model, rows: Rows, radii: list[float]) -> None:
    """Print the certificate of Proposition 2."""
    strange = [name for name in rows.names if name not in loaded.fit.clients]
    if strange:
        raise DataError(
            f"client {strange[0]!r} was not trained with; certify the clients that were, and name "
            "the client of the rows: --client COLUMN or --site NAME"
        )
    found = paper(loaded.fit, rows.clients)
    bounds_at = {r: found.at(r) for r in radii}
    screen.say(str(found))
    if bounds_at:
        columns, forms = ("UW distance", "at most"), {"UW distance": "g", "at most": ".6g"}
        rows_ = list(bounds_at.items())
        screen.table(Table("paper", "Certified worst-case risk", columns, rows_, forms))
    screen.give(
        {
            "radius": found.radius,
            "bound": found.bound,
            "attained": found.attained,
            "is_certificate": found.is_certificate,
            "error": found.error if found.is_certificate else None,
            "at": [{"radius": r, "bound": bound} for r, bound in bounds_at.items()],
            "words": str(found),
        }
    )
