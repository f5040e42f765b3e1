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
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A study.toml with what was chosen.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over an older one.")] = False,
) -> None:
    """Choose --outliers and --shift by comparing candidates on held-out rows.

    Twenty combinations are trained at the same time on two thirds of the rows. The plainest one
    that no other beats significantly is chosen; outliers among the held-out rows do not decide.

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
    from dorfl.protocol.toml import to_toml  # noqa: PLC0415
    from dorfl.report.content import Table  # noqa: PLC0415 - slow to import: --help need not wait
    from dorfl.support import files  # noqa: PLC0415
    from dorfl.tabular import tuning  # noqa: PLC0415
    from dorfl.tabular.rows import open_split, prepare  # noqa: PLC0415

    screen = Screen()
    with screen.progress("reading", total=2) as step:
        prepared = prepare(study, open_split(study))
        rows = prepared.rows
        step("training all candidates")
        found = tuning.tune_study(study, prepared)
    listed = [
        (
            trial.settings["outliers"],
            trial.settings["shift"],
            trial.loss,
            "" if trial is found.trials[0] else f"{trial.difference:+.4f} ± {trial.error:.4f}",
        )
        for trial in found.trials
    ]
    columns = ("outliers", "shift", "loss", "difference")
    forms = {"outliers": "g", "shift": "g", "loss": ".4f"}
    screen.table(Table("trials", "Trials, the chosen one first", columns, listed, forms))
    screen.say(
        "  Loss on held-out rows (trimmed mean), and its paired difference from the selected "
        "candidate ± one standard error. Selected is the plainest that no other beats: at 5 %, and "
        "by more than a standard error of its loss."
    )
    for line in (*rows.notes, *found.words):
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
