"""`dorfl train`: from a table to a model folder."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dorfl.cli import ending, options
from dorfl.cli.screen import Screen, heading

if TYPE_CHECKING:
    from dorfl.study.model import Model
    from dorfl.study.rows import Rows
    from dorfl.study.settings import Study

_FEW = 12  # clients that are listed one by one
_LISTED = 8  # columns that are not used
_LARGE = 100_000_000  # bytes of a table
GAP = (
    "  The gap is by how much further training could lower the objective at most; training stops "
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
        screen.say(model.facts.promise.words)
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
    screen.table(clients_table(model))
    if model.facts.held_out:
        screen.table(held_out_table(model))


def held_out_table(model: Model) -> Any:
    """What the method and the simplest ones score on rows they were not trained with."""
    measure = "accuracy" if model.classifies else "mean abs. error"
    columns, where = ["", measure, "worst served", "who"], "On rows held out of training"
    if model.facts.held_out[0].all_rows is not None:
        columns.append("with those")
        where += ", without those furthest out, which may be wrong"
    table = heading(where, *columns)
    for told in model.facts.held_out:
        with_all = () if told.all_rows is None else (model.scored(told.all_rows),)
        table.add_row(
            told.method,
            model.scored(told.overall),
            model.scored(told.worst),
            told.client,
            *with_all,
        )
    return table


def not_used(model: Model) -> list[str]:
    """The columns that are not used though nobody said so, and why."""
    ignored = {n: why for n, why in model.transform.ignored.items() if why != "as the study says"}
    lines = [f"column {name!r} is not used: {why}" for name, why in ignored.items()]
    more = len(lines) - _LISTED
    return lines[:_LISTED] + ([f"{more} more columns are not used: see the card"] * (more > 0))


def clients_table(model: Model) -> Any:
    """How each client is served; of many, those served worst, as most and best."""
    measure = "accuracy" if model.classifies else "mean abs. error"
    held = model.facts.held_out
    score = {c.name: c.score for c in model.facts.clients if c.score is not None}
    where = "on the rows trained with"
    if held:
        score, where = dict(held[0].clients), "on rows held out of training"
    listed = model.facts.clients
    if len(listed) > _FEW:
        order = sorted(
            (c for c in listed if c.name in score),
            key=lambda c: (score[c.name] if model.classifies else -score[c.name], -(c.loss or 0)),
        )
        middle = len(order) // 2
        listed = (*order[:3], *order[middle : middle + 1], *order[-1:])
        where += f": the worst three of {len(order)}, the middle one, the best"
    columns = ("client", "rows", "λ", "loss in training", measure)
    table = heading(f"Clients, {measure} {where}", *columns)
    shares = dict(zip(model.fit.clients, model.fit.lam.tolist(), strict=True))
    for name, rows, loss, _ in listed:
        table.add_row(
            name, f"{rows:,}", f"{shares.get(name, 0.0):.3f}",
            "" if loss is None else f"{loss:.4f}",
            model.scored(score[name]) if name in score else "",
        )  # fmt: skip
    return table
