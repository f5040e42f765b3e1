"""Public tables through the commands: train, evaluate, outliers, certify and report, as files.

    PYTHONPATH=. python benchmarks/commands.py                     # 1,000 rows of every table
    PYTHONPATH=. python benchmarks/commands.py storms --rows 0     # all rows of one

A command may end well, with what it is for (a model, figures that are numbers, a page), or with an
exit code and words that say what is wrong. Anything else is a failure: a traceback, an exit code
without words, success without what the command is for.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

import public_tables
from dorfl.cli import app
from experiments.data.packages import UnavailableError

COMMANDS = ("train", "evaluate", "outliers", "certify", "report")


class Ending(NamedTuple):
    """How a command ended: what is wrong with that, if anything, and what it said last."""

    command: str
    code: int
    wrong: str
    seconds: float
    words: str


def words_of(name: str) -> list[str]:
    """What a user says of the table."""
    source = public_tables.SOURCES[name]
    said = ["--label", source.label, "--client", source.client, "--small", "drop"]
    for column in source.category:
        said += ["--category", column]
    return said if source.task == "auto" else [*said, "--task", source.task]


def run(name: str, rows: int, folder: Path, budget: float = 20.0) -> Iterator[Ending]:
    """The commands on a table of so many rows (0: all), one after the other."""
    frame = public_tables.frame_of(name)
    if 0 < rows < len(frame):
        frame = frame.sample(rows, random_state=0)
    data, model = folder / "data.csv", folder / "model"
    frame.to_csv(data, index=False)
    given: dict[str, list[Any]] = {
        "train": [data, *words_of(name), "--out", model, "--budget", budget, "--force"],
        "evaluate": [model, data],
        "outliers": [model, data, "--out", folder / "audit"],
        "certify": [model, data],
        "report": [model],
    }
    for command in COMMANDS:
        start = time.process_time()
        asked = [command, *map(str, given[command]), "--json"]
        done = CliRunner().invoke(app, asked)
        last = (done.stderr.strip().splitlines() or [""])[-1]
        wrong = _wrong(command, done, folder)
        yield Ending(command, done.exit_code, wrong, time.process_time() - start, last)
        if command == "train" and not (model / "model.json").exists():
            return


def _wrong(command: str, done: Any, folder: Path) -> str:
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return f"{type(done.exception).__name__}: {done.exception}"
    if done.exit_code:
        said = done.stderr.strip() and "Usage:" not in done.stderr  # or it was asked wrongly
        return "" if said else f"exit code {done.exit_code}: {done.stderr.strip()[-300:]}"
    if command == "report":
        return "" if (folder / "model" / "report.html").stat().st_size > 10_000 else "no page"
    try:
        told = json.loads(done.stdout)
    except ValueError:
        return "what it gives is no JSON"
    bad = [where for where, value in _numbers(told) if not math.isfinite(value)]
    return f"no number: {bad[0]}" if bad else ""


def _numbers(told: Any, where: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(told, float):
        yield where, told
    for key, value in told.items() if isinstance(told, dict) else ():
        yield from _numbers(value, f"{where}.{key}")
    for k, value in enumerate(told) if isinstance(told, list) else ():
        yield from _numbers(value, f"{where}[{k}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=public_tables.names())
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--budget", type=float, default=20.0)
    asked = parser.parse_args()
    failures = 0
    for name in asked.tables:
        with tempfile.TemporaryDirectory() as folder:
            try:
                endings = list(run(name, asked.rows, Path(folder), asked.budget))
            except UnavailableError as error:
                print(f"{name:10} not here: {error}")
                continue
        for end in endings:
            failures += bool(end.wrong)
            shown = end.wrong or (end.words[:90] if end.code else "")
            mark = "✗" if end.wrong else "✓" if not end.code else "!"
            print(
                f"{name:10} {end.command:9} {mark} {end.code} {end.seconds:6.1f} s  {shown}",
                flush=True,
            )
    raise SystemExit(f"{failures} failures" if failures else 0)


if __name__ == "__main__":
    main()
