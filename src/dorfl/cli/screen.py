"""What all commands share: output, errors and exit codes.

Exit codes: 0 done; 1 what was asked for does not hold, or an error in dorfl itself; 2 a wrong
command, option or study; 3 data that cannot be used; 4 a model folder that cannot, or a training
that ended far from its tolerance; 5 a file that cannot be read or written; 130 interrupted.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from typer.core import TyperGroup

if TYPE_CHECKING:
    from dorfl.report.content import Table

EPILOG = (
    "Exit codes: 0 done, 1 a check that fails, 2 wrong usage, 3 unusable data, 4 unusable model or "
    "a training far from converged, 5 a file that cannot be read or written, 130 interrupted."
)
EXPERIMENTS = ("reproduce", "theory", "benchmark")  # commands of the repository, not the package
_SILENCE = 15.0  # seconds between lines of progress where none can move
_FLAGS = {
    "json": (["--json"], "Print plain JSON for scripts."),
    "quiet": (["-q", "--quiet"], "Say nothing but errors."),
    "verbose": (["-v", "--verbose"], "Say more."),
    "debug": (["--debug"], "Show where an error comes from."),
}


class Commands(TyperGroup):
    """Gives every command the shared options, and turns errors into words and an exit code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for command in self.commands.values():
            if not isinstance(command, click.Group):
                command.params += [_flag(name, *how) for name, how in _FLAGS.items()]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of this name; commands of the repository's experiments are named."""
        if args and args[0] in EXPERIMENTS and args[0] not in self.commands:
            raise ValueError(
                f"`dorfl {args[0]}` is not in the package: write `python -m experiments {args[0]}` "
                "in a clone of the repository"
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; whatever it raises is told in words."""
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort, click.ClickException, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            _say(f"interrupted; {_written(*ctx.meta.get('dorfl.writes', ()))}")
            code = 130
        except Exception as error:
            if ctx.meta.get("dorfl.debug"):
                raise
            code = _tell(error)
        return ctx.exit(code)


def _flag(name: str, names: list[str], about: str) -> click.Option:
    def keep(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        ctx.meta[f"dorfl.{name}"] = value

    return click.Option(
        names, is_flag=True, expose_value=False, is_eager=True, help=about, callback=keep
    )


def _tell(error: Exception) -> int:
    """Say what went wrong; the exit code for it."""
    # Only now: a command that works need not wait for what these modules import.
    from dorfl.data.tables import DataError  # noqa: PLC0415
    from dorfl.study.model import ModelError  # noqa: PLC0415

    known: dict[type[Exception], int] = {
        DataError: 3, ModelError: 4, ValueError: 2, ModuleNotFoundError: 2,
    }  # fmt: skip
    for kind, code in known.items():
        if isinstance(error, kind):
            _say(str(error))
            return code
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        _say(f"{where}{error.strerror or error}")
        return 5
    if isinstance(error, MemoryError):
        _say("there is not enough memory; use fewer columns or rows, or a larger machine")
        return 3
    _say(f"{type(error).__name__}: {error}; this is a fault of dorfl: --debug shows where")
    return 1


def _say(words: str) -> None:
    Console(stderr=True, highlight=False).print(
        f"[bold red]error:[/] {_plain(words)}", soft_wrap=True
    )


def _plain(words: str) -> str:
    """As text: no markup, and nothing that a terminal would obey."""
    return escape(_printable(words))


def _printable(words: str) -> str:
    return "".join(c for c in words if c.isprintable() or c in "\n\t")


def _written(path: Path | None = None, before: int = 0, words: str = "") -> str:
    return words if path is not None and _age(path) != before else "nothing was written"


def _age(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


class Screen:
    """The output of a command: tables or JSON to standard output, all else to standard error."""

    def __init__(self) -> None:
        meta = click.get_current_context().meta
        self.json = bool(meta.get("dorfl.json"))
        self.quiet = bool(meta.get("dorfl.quiet"))
        self.verbose = bool(meta.get("dorfl.verbose"))
        self.out = Console(highlight=False, markup=False)  # names are not ours to interpret
        self.err = Console(stderr=True, highlight=False)

    def say(self, words: str) -> None:
        """A line of result, for people."""
        if not (self.quiet or self.json):
            self.out.print(_printable(words), soft_wrap=True)

    def note(self, words: str) -> None:
        """Something to know that is not the result."""
        if not self.quiet:
            self.err.print(f"[yellow]note:[/] {_plain(words)}", soft_wrap=True)

    def alarm(self, words: str) -> None:
        """Something that must not be missed: said even when quiet, and after all else."""
        self.out.file.flush()
        self.err.print(f"[bold red]warning:[/] [red]{_plain(words)}[/]", soft_wrap=True)

    def detail(self, words: str) -> None:
        """Something that is said with --verbose alone."""
        if self.verbose:
            self.err.print(_plain(words), soft_wrap=True)

    def table(self, table: Table) -> None:
        """A table of results."""
        if not (self.quiet or self.json):
            from dorfl.report.tables import as_rich  # noqa: PLC0415 - slow to import

            self.out.print(as_rich(table))

    def give(self, answer: Any) -> None:
        """The whole answer for scripts."""
        if self.json:
            sys.stdout.write(json.dumps(answer, indent=1, ensure_ascii=False) + "\n")

    def writes(self, path: Path, words: str) -> None:
        """What to say should the command be interrupted once the file, written next, is there."""
        click.get_current_context().meta["dorfl.writes"] = (path, _age(path), words)

    @contextmanager
    def progress(self, what: str, total: int | None = None) -> Iterator[Any]:
        """A line that moves while something is done: `step(words)` for each step.

        `step(words, 0)` is a sign of life within one. Where nobody sees a line move, as in a file,
        there is one every now and then.
        """
        columns = [SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()]
        if total is not None:
            columns.insert(2, BarColumn())
        hidden = self.quiet or self.json
        moving = self.err.is_terminal and not hidden
        told, done = time.monotonic(), 0
        with Progress(*columns, console=self.err, transient=True, disable=not moving) as bar:
            task = bar.add_task(what, total=total)

            def step(words: str | None, steps: int = 1) -> None:
                nonlocal told, done
                done += steps
                bar.update(task, advance=steps, description=words or what)
                if not (moving or hidden) and time.monotonic() - told > _SILENCE:
                    told, share = time.monotonic(), "" if total is None else f" ({done} of {total})"
                    self.err.print(f"{_plain(words or what)}{share}", soft_wrap=True)

            yield step
