"""`dorfl tune`: which settings do best on a table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from dorfl.cli import options
from dorfl.cli.screen import Screen


@options.takes(*(word for word in options.ANY_METHOD if word != "model"))
def tune(
    data: options.Table,
    words: dict[str, Any],
    folds: options.Folds = 5,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A study.toml with what was chosen.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over an older one.")] = False,
) -> None:
    """Choose --outliers and --shift by cross-validation, by a measure that wrong rows do not fool.

    Sixteen combinations are tried. What cannot be told apart is decided for the more robust.

    Examples:
      dorfl tune adult.csv --label income --client race --out study.toml
      dorfl train study.toml
    """
    if out is not None and out.exists() and not force:
        raise typer.BadParameter(f"{out} exists; --force writes over it")
    study = options.study_of(data, words)
    if study.training.model != "linear":
        raise ValueError(
            "training.model: settings are tuned with linear models; tune without it, and train the "
            "network with what was found: dorfl train study.toml --model mlp"
        )
    from dorfl.report.content import Table  # noqa: PLC0415 - slow to import: --help need not wait
    from dorfl.study import table, tuning  # noqa: PLC0415
    from dorfl.study.meaning import assumed_of, frozen_of, loss_of  # noqa: PLC0415
    from dorfl.study.rows import open_split  # noqa: PLC0415
    from dorfl.study.toml import to_toml  # noqa: PLC0415
    from dorfl.support import files  # noqa: PLC0415

    screen = Screen()
    trainings = folds * 16
    with screen.progress("reading", total=trainings) as step:
        prepared = table.prepare(study, open_split(study))
        state, rows = prepared.state, prepared.rows
        assert state.transform is not None
        l2 = study.training.l2
        found = tuning.tune(
            rows.clients, loss=loss_of(study, len(state.classes)), folds=folds, progress=step,
            frozen=frozen_of(study, state.transform), outliers=assumed_of(study),
            seed=study.training.seed, l2=1.0 / len(rows.y) if l2 is None else l2,
            tol=study.training.tol,
        )  # fmt: skip
    lowest = min(trial.loss for trial in found.trials)
    listed = [
        (
            trial.settings["outliers"], trial.settings["shift"], trial.loss,
            "" if trial.loss == lowest
            else f"{trial.loss - lowest:.4f} ± {trial.error:.4f}",
        )
        for trial in found.trials
    ]  # fmt: skip
    columns = ("outliers", "shift", "loss", "above the least")
    forms = {"outliers": "g", "shift": "g", "loss": ".4f"}
    screen.table(Table("trials", "Trials, the chosen one first", columns, listed, forms))
    screen.say(
        "  The loss is on rows not trained with, ± one standard error. What is within one of the "
        "least counts as equal, and of equals the most robust is chosen."
    )
    for line in (*rows.notes, *found.words[:2]):
        screen.say(line)
    chosen = found.trials[0].settings
    if out is not None:
        place = study.data.file and os.path.relpath(study.data.file, out.parent)
        kept = study.changed(
            method_outliers=chosen["outliers"], method_shift=chosen["shift"], data_file=place
        )
        files.write_whole(out, to_toml(kept).encode())
        screen.say(f"the study is {out}; next: dorfl train {out}")
    else:
        screen.say(f"train with: --outliers {chosen['outliers']:g} --shift {chosen['shift']:g}")
    trials = [trial._asdict() for trial in found.trials]
    screen.give({"chosen": chosen, "trials": trials})
