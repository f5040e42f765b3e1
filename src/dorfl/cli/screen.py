"""Output, errors and exit codes of all commands.

Exit codes: 0 done; 1 a check fails, or an error in dorfl itself; 2 a wrong command, option or
study; 3 unusable data; 4 an unusable model folder, or training that ended far from its tolerance;
5 a file that cannot be read or written; 130 interrupted.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import click
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from typer.core import TyperArgument, TyperGroup, TyperOption

from dorfl.data.tables import DataError
from dorfl.report.content import Table
from dorfl.report.tables import as_rich
from dorfl.tabular.model import Model, ModelError

EPILOG = (
    "Exit codes: 0 done, 1 a check that fails, 2 wrong usage, 3 unusable data, 4 unusable model or "
    "a training far from converged, 5 a file that cannot be read or written, 130 interrupted."
)
_REMOVED = {"--beside": "There is no --beside: certify each model by itself."}
_EXPERIMENTS = ("reproduce", "theory", "benchmark")  # commands of the repository, not the package
_NEAR = 1e-2  # share of the objective: a gap that hardly changes predictions
_SILENCE = 15.0  # seconds between lines of progress that are not on a terminal
_FLAGS = {
    "verbose": (["-v", "--verbose"], "Also print what explains the result."),
    "quiet": (["-q", "--quiet"], "Print errors only."),
    "json": (["--json"], "Print plain JSON for scripts."),
    "debug": (["--debug"], "Show where an error comes from."),
    "help": (["-h", "--help"], "Show this message and exit."),
}
_PANEL = "Output"  # of the help page, for these options
_LABEL = 12  # width of the labels of a result
_NOTES = 8  # notes that are printed without --verbose


class ResultLine(NamedTuple):
    """A line of a result: what it is about, the figures, and the command that shows more."""

    label: str
    text: str
    command: str = ""


class Commands(TyperGroup):
    """Command group with shared options; errors become a message and an exit code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # From 8.2 on, click suggests a command by itself, and Typer would suggest it once more.
        self.suggest_commands = not hasattr(click.exceptions, "NoSuchCommand")
        for command in self.commands.values():
            command.help = _flowed(command.help or "")
            if not isinstance(command, click.Group):
                _describe_arguments(command)
                command.params += [_flag(name, *how) for name, how in _FLAGS.items()]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of this name; commands of the repository's experiments are named."""
        if args and args[0] in _EXPERIMENTS and args[0] not in self.commands:
            raise ValueError(
                f"`dorfl {args[0]}` is not in the package: write `python -m experiments {args[0]}` "
                "in a clone of the repository"
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and print exceptions as messages."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if error.option_name not in _REMOVED:
                raise
            raise click.UsageError(_REMOVED[error.option_name], error.ctx) from None
        except (click.exceptions.Exit, click.Abort, click.ClickException, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            _print_error(f"interrupted; {_written(*ctx.meta.get('dorfl.writes', ()))}")
            code = 130
        except Exception as error:
            if ctx.meta.get("dorfl.debug"):
                raise
            code = _report(error)
        return ctx.exit(code)


def _flag(name: str, names: list[str], about: str) -> click.Option:
    def keep(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        ctx.meta[f"dorfl.{name}"] = value
        if name == "help" and value:
            ctx.get_help()  # Typer prints it
            ctx.exit()

    return TyperOption(
        param_decls=names,
        is_flag=True,
        expose_value=False,
        is_eager=True,
        help=about,
        callback=keep,
        rich_help_panel=_PANEL,
    )


def _flowed(text: str) -> str:
    r"""Join the lines of each paragraph, which Typer does not; indented lines stay lines.

    >>> _flowed("A\nb.\n\nExamples:\n  c\n  d")
    'A b.\n\nExamples:\n  c\n  d'
    """
    return re.sub(r"(?<!\n)\n(?![\n ])", " ", text)


def _describe_arguments(command: click.Command) -> None:
    """Set the help of arguments, which Typer 0.20 loses with click 8.5 and later."""
    hints = get_type_hints(command.callback, include_extras=True)
    for parameter in command.params:
        if isinstance(parameter, TyperArgument):
            parameter.help = hints[str(parameter.name)].__metadata__[0].help


def _report(error: Exception) -> int:
    """Print an error, and return its exit code."""
    known: dict[type[Exception], int] = {
        DataError: 3,
        ModelError: 4,
        ValueError: 2,
        ModuleNotFoundError: 2,
    }
    for kind, code in known.items():
        if isinstance(error, kind):
            _print_error(str(error))
            return code
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        _print_error(f"{where}{error.strerror or error}")
        return 5
    if isinstance(error, MemoryError):
        _print_error("there is not enough memory; use fewer columns or rows, or a larger machine")
        return 3
    _print_error(f"{type(error).__name__}: {error}; this is a fault of dorfl: --debug shows where")
    return 1


def _print_error(text: str) -> None:
    Console(stderr=True, highlight=False).print(
        f"[bold red]error:[/] {_plain(text)}", soft_wrap=True
    )


def _plain(text: str) -> str:
    """Escape markup, and remove control characters."""
    return escape(_printable(text))


def _printable(text: str) -> str:
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


def _written(path: Path | None = None, before: int = 0, text: str = "") -> str:
    return text if path is not None and _age(path) != before else "nothing was written"


def _age(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


class Screen:
    """Output of a command: results to standard output, messages to standard error."""

    def __init__(self) -> None:
        meta = click.get_current_context().meta
        self.json = bool(meta.get("dorfl.json"))
        self.quiet = bool(meta.get("dorfl.quiet"))
        self.verbose = bool(meta.get("dorfl.verbose"))
        self.out = Console(highlight=False, markup=False)  # names may look like markup
        self.err = Console(stderr=True, highlight=False)

    def lines(self, *lines: ResultLine) -> None:
        """Print the labelled lines of a result; a terminal wraps them behind their labels."""
        width = self.out.width - _LABEL if self.out.is_terminal else sys.maxsize
        for line in lines:
            whole = f"{line.text}     {line.command}".rstrip()
            text = textwrap.fill(
                whole,
                width=max(width, _LABEL),
                drop_whitespace=True,
                break_on_hyphens=False,
                break_long_words=False,
                replace_whitespace=False,
            )
            self.say(textwrap.indent(f"{line.label:{_LABEL}}{text}", " " * _LABEL)[_LABEL:])

    def say(self, text: str) -> None:
        """Print a line of the result, unless quiet or JSON."""
        if not (self.quiet or self.json):
            self.out.print(_printable(text), soft_wrap=True)

    def explain(self, text: str) -> None:
        """Print a line that explains the result, with --verbose alone."""
        if self.verbose:
            self.say(text)

    def note(self, text: str) -> None:
        """Print a note that is not part of the result."""
        if not self.quiet:
            self.err.print(f"[yellow]note:[/] {_plain(text)}", soft_wrap=True)

    def notes(self, text: Sequence[str]) -> None:
        """Print notes; of many the first ones and their number, unless verbose."""
        shown = text if self.verbose else text[:_NOTES]
        for line in shown:
            self.note(line)
        if len(shown) < len(text):
            self.note(f"{len(text) - len(shown)} more notes: --verbose shows them")

    def alarm(self, text: str) -> None:
        """Print a warning, even if quiet."""
        self.out.file.flush()
        self.err.print(f"[bold red]warning:[/] [red]{_plain(text)}[/]", soft_wrap=True)

    def detail(self, text: str) -> None:
        """Print a line with --verbose alone."""
        if self.verbose:
            self.err.print(_plain(text), soft_wrap=True)

    def table(self, table: Table) -> None:
        """Print a table of results, with its note if verbose."""
        if not (self.quiet or self.json):
            self.out.print(as_rich(table))
            if self.verbose and table.note:
                self.say(table.note)

    def give(self, answer: Any) -> None:
        """Print the result as JSON, for scripts."""
        if self.json:
            sys.stdout.write(json.dumps(answer, indent=1, ensure_ascii=False) + "\n")

    def writes(self, path: Path, text: str) -> None:
        """Set the message for an interruption after the file written next is complete."""
        click.get_current_context().meta["dorfl.writes"] = (path, _age(path), text)

    @contextmanager
    def progress(self, what: str, total: int | None = None) -> Iterator[Any]:
        """Show a progress line; yield `step(text)`, to be called after each step.

        `step(text, 0)` updates the text within a step. If the output is not a terminal, a line is
        printed every 15 seconds.
        """
        columns = [SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()]
        if total is not None:
            columns.insert(2, BarColumn())
        hidden = self.quiet or self.json
        moving = self.err.is_terminal and not hidden
        printed, done = time.monotonic(), 0
        with Progress(*columns, console=self.err, transient=True, disable=not moving) as bar:
            task = bar.add_task(what, total=total)

            def step(text: str | None, steps: int = 1) -> None:
                nonlocal printed, done
                done += steps
                bar.update(task, advance=steps, description=text or what)
                if not (moving or hidden) and time.monotonic() - printed > _SILENCE:
                    printed = time.monotonic()
                    share = "" if total is None else f" ({done} of {total})"
                    self.err.print(f"{_plain(text or what)}{share}", soft_wrap=True)

            yield step


def refuse_useless(model: Model) -> None:
    """Raise a ModelError if the model is no better than a constant prediction."""
    if model.useless:
        raise ModelError(
            f"{model.useless}; it is not written. Training: {model.fit.message}. "
            "Try --scaling standard, a larger --l2, a smaller --shift, more --max-rounds, or "
            "check whether the columns are related to the label; --force writes it nevertheless"
        )


def warn_shortfall(screen: Screen, model: Model) -> None:
    """Print the warnings about a model, and exit with code 4 if it is unusable.

    A model is unusable if training ended far from the tolerance, or if it is no better than a
    constant prediction on its training rows.
    """
    for text in (*model.facts.warnings, model.useless, model.idle):
        if text:
            screen.alarm(text)
    if model.shortfall is not None:
        screen.alarm(f"{model.shortfall}, in {model.fit.rounds} rounds")
    if model.useless or (model.shortfall is not None and not model.relative_gap < _NEAR):
        raise typer.Exit(4)
