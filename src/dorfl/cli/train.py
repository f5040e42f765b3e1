"""`dorfl train`: from a table to a model folder."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dorfl.cli import ending, options
from dorfl.cli.screen import Screen

if TYPE_CHECKING:
    from dorfl.report.content import Table
    from dorfl.study.model import Model
    from dorfl.study.rows import Rows
    from dorfl.study.settings import Study

_FEW = 12  # clients that are listed one by one
_LISTED = 8  # columns that are not used
_LARGE = 100_000_000  # bytes of a table
GAP = (
    "  The gap is by how much further training could lower the objective; training stops "
    "when it is within the tolerance (--tol), a share of the objective."
)


@options.takes(*options.TABLE)
def train(
    data: options.Table,
    words: dict[str, Any],
    out: Annotated[Path, typer.Option("--out", "-o", help="The model's folder.")] = Path("model"),
    budget: Annotated[
        float,
        typer.Option(
            "--budget",
            min=0.0,
            help="Seconds for what follows once the model is saved: accuracy on rows held out, and "
            "the certificate's curve. 0: neither.",
        ),
    ] = 60.0,
    force: options.Force = False,
) -> None:
    """Train a model that holds up when clients differ, data shift and rows are wrong.

    The model is saved as soon as it is trained. Then a fifth of the rows is held out, and the
    method, plain ERM and a constant prediction are measured on them.

    Examples:
      dorfl train adult.csv --label income --client race --out model
      dorfl train adult.csv --label income --client race --outliers 0.05 --ignore fnlwgt
      dorfl train adult.csv --label income --client race --model mlp
      dorfl train study.toml
    """
    study = options.study_of(data, words)
    from dorfl.study.model import save  # noqa: PLC0415 - slow to import, and --help need not wait
    from dorfl.study.table import run  # noqa: PLC0415

    force = force or _overwrites(out)
    screen = Screen()
    _say_size(screen, study)
    with screen.progress("reading") as step:

        def tell(done: Any) -> None:
            step(
                f"round {done.round}, gap {done.gap:.1e}"
                if study.training.model == "linear"
                else f"round {done.round}, objective {done.objective:.4g}"
            )
            screen.detail(
                f"round {done.round}: objective {done.objective:.6g}, gap {done.gap:.2e}, "
                f"{done.bytes_up / 1e3:.1f} kB up, {done.bytes_down / 1e3:.1f} kB down"
            )

        def keep(made: Model) -> None:
            if not force:
                ending.refuse_useless(made)
            left = "" if made.network else "its guarantees and "
            saved = f"the model is in {out}, without {left}figures on rows held out"
            screen.writes(out / "model.json", saved)
            save(made, out)
            step("the model is saved" + "; certifying" * (not made.network))

        model, rows = run(study, tell, keep)
    save(model, out)  # again, with what it guarantees
    for note in (*model.facts.notes, *not_used(model)):
        screen.note(note)
    model = _measured(screen, study, model, rows, budget)
    save(model, out)
    _say(screen, model)
    screen.say(f"model, card and scorer in {out}; next: dorfl report {out}")
    if model.facts.promise is not None:
        screen.say(model.facts.promised)
    screen.give(
        {
            "model": str(out),
            "rounds": model.fit.rounds,
            "gap": _finite(model.fit.gap),
            "relative_gap": _finite(model.relative_gap),
            "bytes_up": model.fit.bytes_up,
            "bytes_down": model.fit.bytes_down,
            "status": model.fit.status,
            "lambda": dict(zip(model.fit.clients, model.fit.lam.tolist(), strict=True)),
            **model.facts.to_json(),
        }
    )
    ending.tell_shortfall(screen, model)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _say_size(screen: Screen, study: Study) -> None:
    """What a large table takes, before it is read."""
    path = Path(study.data.file or "")
    if path.suffix in (".csv", ".tsv", ".txt") and path.is_file():
        size = path.stat().st_size
        if size > _LARGE:
            screen.note(
                f"{path.name}: {size / 1e6:,.0f} MB of text is read once, into a temporary Parquet "
                "file of about its size, and then column by column; a Parquet file needs none"
            )


def _overwrites(out: Path) -> bool:
    """Whether an older model may go: asked where somebody is there to answer."""
    if not (out / "model.json").exists():
        return False
    if sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(f"{out} holds a model; write over it?", abort=True, err=True)
        return False
    raise typer.BadParameter(f"{out} holds a model; --force writes over it")


def _measured(screen: Screen, study: Study, model: Model, rows: Rows, seconds: float) -> Model:
    """The model with what takes longer to know, as far as there is time for it."""
    from dataclasses import replace  # noqa: PLC0415

    from dorfl.study import comparison, table  # noqa: PLC0415 - slow to import

    private = model.facts.settings["privacy"]["epsilon"] is not None
    if private or not seconds:
        return model
    start = time.monotonic()

    def within(share: float) -> None:
        if time.monotonic() - start > share * seconds:
            raise TimeoutError

    with screen.progress("the model is saved; measuring on rows held out") as step:
        try:

            def tick() -> None:
                within(0.7)
                step(None)

            found = comparison.held_out(study, model, tick)
            model = replace(model, facts=model.facts._replace(held_out=found))
        except TimeoutError:
            screen.note(
                f"accuracy on rows held out takes more than {0.7 * seconds:.0f} s: not measured; "
                "--budget allows more, dorfl compare measures all methods"
            )
        try:
            step("the certificate's curve")
            model = table.curved(model, rows, lambda: within(1.0))
        except TimeoutError:
            screen.note("the certificate's curve takes longer than --budget allows: left out")
    return model


def _say(screen: Screen, model: Model) -> None:
    """What a person wants to know: how well it does on rows it has not seen, and for whom."""
    for line in model.facts.choice:
        screen.say(line)
    if model.shortfall is None:
        screen.say(f"{model.fit.message}, in {model.fit.rounds} rounds")
        if not model.network:
            screen.say(GAP)
    tell_clients(screen, model)


def tell_clients(screen: Screen, model: Model) -> None:
    """How clients are served, and what the simplest methods score."""
    from dorfl.study.model import tables  # noqa: PLC0415

    screen.table(clients_listed(model))
    if model.facts.held_out:
        screen.table(tables.held_out(model))


def not_used(model: Model) -> list[str]:
    """The columns that are not used though nobody said so, and why."""
    ignored = {n: why for n, why in model.transform.ignored.items() if why != "as the study says"}
    lines = [f"column {name!r} is not used: {why}" for name, why in ignored.items()]
    more = len(lines) - _LISTED
    return lines[:_LISTED] + ([f"{more} more columns are not used: see the card"] * (more > 0))


def clients_listed(model: Model) -> Table:
    """How each client is served; of many, those served worst, as most and best."""
    from dorfl.report.content import finite  # noqa: PLC0415
    from dorfl.study.model import tables  # noqa: PLC0415

    table = tables.clients(model)
    if len(table.rows) <= _FEW:
        return table
    sign = 1.0 if model.classifies else -1.0
    order = sorted(
        (row for row in table.rows if row[-1] is not None),
        key=lambda row: (sign * (finite(row[-1]) or 0.0), -(finite(row[-2]) or 0.0)),
    )
    middle = len(order) // 2
    more = f": the worst three of {len(order)}, the middle one, the best"
    rows = (*order[:3], *order[middle : middle + 1], *order[-1:])
    return table._replace(title=table.title + more, rows=rows)
