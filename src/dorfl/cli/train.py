"""`dorfl train`: from a table to a model folder."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from dorfl.certificates.certified import CONFIDENCE, DRIFT
from dorfl.cli import options, summary
from dorfl.cli.screen import ResultLine, Screen, refuse_useless, warn_shortfall
from dorfl.protocol import resolution
from dorfl.protocol.settings import Study
from dorfl.tabular import held_out, promises
from dorfl.tabular.model import Model, save, save_evaluation
from dorfl.tabular.rows import Rows
from dorfl.tabular.table import run
from dorfl.tabular.uncertainty import coefficient_errors

_LARGE = 100_000_000  # bytes of a table above which the time to read it is announced


@options.takes(*options.TABLE)
def train(
    data: options.Table,
    settings: dict[str, Any],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The model's folder.", rich_help_panel=options.DATA),
    ] = Path("model"),
    budget: Annotated[
        float,
        typer.Option(
            "--budget",
            min=0.0,
            help="Seconds for accuracy and certificate on rows held out, once the model is saved. "
            "0: neither.",
            rich_help_panel=options.EXPERT,
        ),
    ] = 60.0,
    force: options.Force = False,
) -> None:
    """Train a model that stays accurate when clients differ, data shift and rows are outliers.

    The model is saved once, as soon as it is trained. Then the method, ERM and a constant
    prediction are trained on four fifths of the rows and measured on the others, and the method is
    certified; these scores and the certificate are saved beside the model.

    Examples:
      dorfl train adult.csv --label income --client race --out model
      dorfl train adult.csv --label income --client race --outliers 0.05 --ignore fnlwgt
      dorfl train adult.csv --label income --client race --model mlp
      dorfl train study.toml
    """
    study = options.study_of(data, settings)
    force = force or _overwrites(out)
    screen = Screen()
    _say_size(screen, study)
    rounds = count(1)  # of the final training, as the result counts them
    with screen.progress("reading") as step:

        def show_round(done: Any) -> None:
            number = next(rounds)
            step(
                f"round {number}, gap {done.gap:.1e}"
                if study.training.model == "linear"
                else f"round {number}, objective {done.objective:.4g}"
            )
            screen.detail(
                f"round {number}: objective {done.objective:.6g}, gap {done.gap:.2e}, "
                f"{done.bytes_up / 1e3:.1f} kB up, {done.bytes_down / 1e3:.1f} kB down"
            )

        def keep(made: Model) -> None:
            if not force:
                refuse_useless(made)
            left = "" if made.network else "its guarantees and "
            saved = f"the model is in {out}, without {left}scores on held-out rows"
            screen.writes(out / "model.json", saved)
            save(made, out)
            step("the model is saved" + "; certifying" * (not made.network))

        # The certificate from held-out rows, if there is time for it, takes the place of this one.
        model, rows = run(study, show_round, keep, certify=not budget)
    model = _framed(study, model, rows)
    screen.notes([*model.facts.notes, *summary.not_used(model)])
    model = _measured(screen, study, model, rows, budget)
    save_evaluation(model, out)
    table = study.data.file or str(data)
    screen.lines(
        *summary.of_model(model, table, str(out)),
        ResultLine("Saved", f"{out}/", f"dorfl report {out}"),
    )
    summary.explain(screen, model)
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
            "down_weighted": None if model.facts.weights is None else model.facts.weights.low,
            **model.facts._replace(frame=None).to_json(),
        }
    )
    warn_shortfall(screen, model)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _say_size(screen: Screen, study: Study) -> None:
    """Announce how a large table of text is read."""
    path = Path(study.data.file or "")
    if path.suffix in (".csv", ".tsv", ".txt") and path.is_file():
        size = path.stat().st_size
        if size > _LARGE:
            screen.note(
                f"{path.name}: {size / 1e6:,.0f} MB of text is read once, into a temporary Parquet "
                "file of about its size, and then column by column; a Parquet file needs none"
            )


def _overwrites(out: Path) -> bool:
    """Return False if there is no model yet, or the user confirms; otherwise raise."""
    if not (out / "model.json").exists():
        return False
    if sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(f"{out} holds a model; write over it?", abort=True, err=True)
        return False
    raise typer.BadParameter(f"{out} holds a model; --force writes over it")


def _framed(study: Study, model: Model, rows: Rows) -> Model:
    """Return the model with what certificates and reports need of its training rows."""
    if study.privacy.epsilon is not None:
        return model
    frame = promises.frame_of(model, rows) if resolution.certifies(study) else None
    table = promises.fingerprint(Path(study.data.file or ""))
    found = coefficient_errors(model, rows)
    errors = () if found is None else tuple(map(tuple, found.tolist()))
    return replace(model, facts=model.facts._replace(frame=frame, table=table, errors=errors))


def _measured(screen: Screen, study: Study, model: Model, rows: Rows, seconds: float) -> Model:
    """Return the model with its figures on held-out rows, if there is time for them."""
    if study.privacy.epsilon is not None or not seconds:
        return model
    start, promise = time.monotonic(), model.facts.promise

    with screen.progress("the model is saved; measuring on held-out rows") as step:

        def tick() -> None:
            if time.monotonic() - start > seconds:
                raise TimeoutError
            step(None)

        def certify(own: Model, trained: Rows, held: Rows) -> None:
            nonlocal promise
            if resolution.certifies(study) and len(held.y):
                share = model.facts.outliers or 0.0
                found = promises.of_held_out(own, trained, held, share, DRIFT, CONFIDENCE)
                promise = promises.written(found)

        try:
            found = held_out.evaluate_methods(study, model, rows, tick, certify)
        except TimeoutError:
            screen.note(
                f"held-out rows take more than {seconds:.0f} s: scores are not measured; --budget "
                "allows more, dorfl compare measures all methods, dorfl certify certifies the model"
            )
            found = ()
    return replace(model, facts=model.facts._replace(held_out=found, promise=promise))
