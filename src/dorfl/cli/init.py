"""Command `dorfl init`: write a study file for a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dorfl.cli import options
from dorfl.cli.options import NewTable
from dorfl.cli.screen import Screen
from dorfl.protocol.toml import to_toml
from dorfl.support import files
from dorfl.tabular.proposal import propose


@options.takes("label", "client")
def init(
    data: NewTable,
    settings: dict[str, Any],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write it.")] = Path(
        "study.toml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Write over an older one.")] = False,
) -> None:
    """Look at a table and write a commented study for it; `dorfl train study.toml` runs it.

    Without --label and --client, the last column with few values becomes the label and another one
    the client: check both before training.

    Examples:
      dorfl init adult.csv --label income --client race
      dorfl train study.toml
    """
    if out.exists() and not force:
        raise typer.BadParameter(f"{out} exists; --force writes over it")

    screen = Screen()
    study, notes = propose(data, settings["label"], settings["client"], out.parent)
    files.write_whole(out, to_toml(study, notes).encode())
    by = f"clients by {study.data.client!r}" if study.data.client else "all rows one client"
    screen.say(f"{out}: predicts {study.data.label!r}, {by}")
    for what in ("label", "client"):
        if what in notes:
            screen.note(f"--{what} was {notes[what].replace('GUESSED', 'guessed')}")
    if not study.data.client:
        screen.note(
            "no column looks like clients; --client names the column with the client of each row"
        )
    screen.say(f"read it, change what you know better, then: dorfl train {out}")
    screen.give({"study": str(out), "guessed": notes, **study.to_json()})
