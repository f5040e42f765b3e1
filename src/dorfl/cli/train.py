"""`dorfl train`: from a table to a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dorfl.cli import ending, options
from dorfl.cli.screen import Screen, heading

if TYPE_CHECKING:
    from dorfl.study.model import Model


@options.takes(*options.TABLE)
def train(
    data: options.Table,
    words: dict[str, Any],
    out: Annotated[Path, typer.Option("--out", "-o", help="The model's folder.")] = Path("model"),
    force: options.Force = False,
) -> None:
    """Train a model that holds up when clients differ, data shift and rows are wrong.

    Examples:
      dorfl train adult.csv --label income --client race --out model
      dorfl train adult.csv --label income --client race --outliers 0.05 --ignore fnlwgt
      dorfl train study.toml
    """
    study = options.study_of(data, words)
    from dorfl.study.model import save  # noqa: PLC0415 - slow to import, and --help need not wait
    from dorfl.study.table import run  # noqa: PLC0415

    screen = Screen()
    with screen.progress("reading") as step:

        def tell(done: Any) -> None:
            step(f"round {done.round}, gap {done.gap:.1e}")
            screen.detail(
                f"round {done.round}: objective {done.objective:.6g}, gap {done.gap:.2e}, "
                f"{done.bytes_up / 1e3:.1f} kB up, {done.bytes_down / 1e3:.1f} kB down"
            )

        def keep(made: Model) -> None:
            if not force:
                ending.refuse_useless(made)
            save(made, out)
            step("certifying")

        model, _ = run(study, tell, keep)
    save(model, out)  # again, with what it guarantees
    for note in model.facts.notes:
        screen.note(note)
    screen.table(clients_table(model))
    for line in model.facts.choice:
        screen.say(line)
    if model.shortfall is None:
        screen.say(f"{model.fit.message}, in {model.fit.rounds} rounds")
    screen.say(f"model, card and scorer in {out}; next: dorfl report {out}")
    if model.facts.promise is not None:
        screen.say(model.facts.promise.words)
    screen.give(
        {
            "model": str(out),
            "rounds": model.fit.rounds,
            "gap": model.fit.gap,
            "relative_gap": model.relative_gap,
            "bytes_up": model.fit.bytes_up,
            "bytes_down": model.fit.bytes_down,
            "status": model.fit.status,
            "lambda": dict(zip(model.fit.clients, model.fit.lam.tolist(), strict=True)),
            **model.facts.to_json(),
        }
    )
    ending.tell_shortfall(screen, model)


def clients_table(model: Model) -> Any:
    """How each client is served."""
    measure = "accuracy" if model.classifies else "mean abs. error"
    table = heading("Clients, on the rows trained with", "client", "rows", "λ", "loss", measure)
    shares = dict(zip(model.fit.clients, model.fit.lam.tolist(), strict=True))
    for name, rows, loss, score in model.facts.clients:
        table.add_row(
            name, f"{rows:,}", f"{shares.get(name, 0.0):.3f}",
            "" if loss is None else f"{loss:.4f}", "" if score is None else f"{score:.4g}",
        )  # fmt: skip
    return table
