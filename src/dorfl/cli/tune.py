"""`dorfl tune`: which settings do best on a table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from dorfl.cli import options, summary
from dorfl.cli.screen import ResultLine, Screen
from dorfl.protocol.toml import to_toml
from dorfl.report.content import Measured, Table
from dorfl.support import files
from dorfl.tabular import tuning
from dorfl.tabular.rows import open_split, prepare
from dorfl.tabular.tuning import Trial


@options.takes(*(word for word in options.ANY_METHOD if word != "model"))
def tune(
    data: options.Table,
    settings: dict[str, Any],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A study.toml with what was chosen.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over an older one.")] = False,
) -> None:
    """Choose --outliers and --shift by comparing candidates on held-out rows.

    Twenty combinations are trained at the same time on two thirds of the rows. The plainest one
    that no other beats significantly is chosen; outliers among the held-out rows do not decide.
    With --verbose: all combinations.

    Examples:
      dorfl tune adult.csv --label income --client race --out study.toml
      dorfl train study.toml
    """
    if out is not None and out.exists() and not force:
        raise typer.BadParameter(f"{out} exists; --force writes over it")
    study = options.study_of(data, settings)
    if study.training.model != "linear":
        raise ValueError(
            "training.model: settings are tuned with linear models; tune without it, and train the "
            "network with what was found: dorfl train study.toml --model mlp"
        )

    screen = Screen()
    with screen.progress("reading", total=2) as step:
        prepared = prepare(study, open_split(study))
        rows = prepared.rows
        step("training all candidates")
        found = tuning.tune_study(study, prepared)
    best, plain = found.trials[0], found.trials[0]
    for trial in found.trials:
        if not trial.settings["outliers"] and not trial.settings["shift"]:
            plain = trial
    chosen = best.settings
    flags = f"--outliers {chosen['outliers']:g} --shift {chosen['shift']:g}"
    last = ResultLine("Train with", flags)
    if out is not None:
        place = study.data.file and os.path.relpath(study.data.file, out.parent)
        kept = study.changed(
            method_outliers=chosen["outliers"], method_shift=chosen["shift"], data_file=place
        )
        files.write_whole(out, to_toml(kept).encode())
        last = ResultLine("Saved", str(out), f"dorfl train {out}")
    screen.notes(rows.notes)
    screen.lines(
        ResultLine(
            "Data",
            f"{summary.counted(len(rows.y), len(rows.names), study.data.client)}, "
            f"{found.rows:,} rows held out",
        ),
        ResultLine("Chosen", f"{flags}, of {len(found.trials)} combinations"),
        ResultLine(
            "Held-out", f"loss {best.loss:.3g}; without outliers and drift {plain.loss:.3g}"
        ),
        last,
    )
    if screen.verbose:
        screen.table(_table(found.trials))
    trials = [trial._asdict() for trial in found.trials]
    screen.give({"chosen": chosen, "trials": trials})


def _table(trials: tuple[Trial, ...]) -> Table:
    """Return the table of all combinations, the chosen one first."""
    listed = [
        (t.settings["outliers"], t.settings["shift"], t.loss, Measured(t.difference, t.error))
        for t in trials
    ]
    return Table(
        "trials",
        "Trials, the chosen one first",
        ("outliers", "shift", "loss", "difference"),
        [(*listed[0][:3], None), *listed[1:]],
        {"outliers": "g", "shift": "g", "loss": ".4f", "difference": ".4f"},
        note="Loss on held-out rows (trimmed mean), and its paired difference from the chosen "
        "combination ± one standard error. Chosen is the plainest that no other beats: by a "
        "likelihood ratio of 20, and by more than a standard error of its loss.",
    )
