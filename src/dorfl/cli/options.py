"""The words of a study as options: named, typed and explained where the study's settings are."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import click
import typer

from dorfl.study.settings import (
    CURVATURES,
    METHODS,
    MIXTURES,
    MODELS,
    SCALINGS,
    SMALL,
    SOLVERS,
    TASKS,
    Data,
    Study,
)

Table = Annotated[
    Path,
    typer.Argument(help="A table (CSV, CSV.gz, Parquet) or a study (.toml).", show_default=False),
]
Folds = Annotated[int, typer.Option("--folds", min=2, help="How many folds.")]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Write over an older model, and even if a constant predicts as well."
    ),
]
_WORDS = {  # option → where a study has it
    "table": ("data", "file"),
    "label": ("data", "label"),
    "client": ("data", "client"),
    "model": ("training", "model"),
    "method": ("method", "name"),
    "least": ("privacy", "minimum_rows"),
    **{name: ("method", name) for name in ("outliers", "shift", "rho", "beta", "score_weight")},
    "mixture": ("method", "mixture"),
    **{name: ("data", name) for name in ("task", "small")},
    **{name: ("columns", name) for name in ("scaling", "numeric", "category", "ignore", "missing")},
    "frozen": ("columns", "frozen"),
    **{name: ("training", name) for name in ("l2", "tol", "max_rounds", "solver", "seed", "batch")},
    **{name: ("training", name) for name in ("curvature", "bytes_per_round")},
}
_CHOICES = {
    "model": MODELS,
    "method": METHODS,
    "mixture": MIXTURES,
    "task": TASKS,
    "small": SMALL,
    "scaling": SCALINGS,
    "solver": SOLVERS,
    "curvature": CURVATURES,
}


class _Share(click.ParamType):  # type: ignore[type-arg]
    """A number, or auto."""

    name = "NUMBER"

    def convert(self, value: Any, *_: Any) -> float | str:
        try:
            return float(value)
        except ValueError:
            return str(value)


TABLE = tuple(_WORDS)  # of a command that trains on a table
ANY_METHOD = tuple(word for word in TABLE if word != "method")  # … by several methods
FEDERATION = ("tol", "max_rounds", "solver", "curvature", "bytes_per_round")


def takes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The command with these options of a study in the place of its parameter `words`."""

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            command(words={name: given.pop(name) for name in names}, **given)

        own, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
        listed = []
        for name, parameter in own.parameters.items():
            if name != "words":
                listed.append(parameter.replace(annotation=hints[name]))
                continue
            for word in names:
                option = inspect.Parameter(word, parameter.kind, default=None)
                listed.append(option.replace(annotation=_option(word)))
        run.__signature__ = own.replace(parameters=listed)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in listed}
        return run

    return wrap


def study_of(data: Path, words: dict[str, Any]) -> Study:
    """The study in a file, or of a table, with what the command line adds."""
    from dorfl.study import toml  # noqa: PLC0415 - slow to import, and --help need not wait

    if data.suffix == ".toml":
        return changed(toml.read(data), words)
    if words.get("label") is None:
        raise typer.BadParameter("name the column to predict: --label COLUMN")
    return changed(Study(Data(words["label"], str(data))), words)


def changed(study: Study, words: dict[str, Any]) -> Study:
    """The study with what the command line says."""
    from dorfl.study import checks  # noqa: PLC0415 - slow to import, and --help need not wait

    given = {"_".join(_WORDS[n]): v for n, v in words.items() if v not in (None, [])}
    study = study.changed(**{n: tuple(v) if isinstance(v, list) else v for n, v in given.items()})
    checks.check(study)
    return study


def _option(word: str) -> Any:
    """A study's setting as an option: its type and its words, and no value unless one is given."""
    section, name = _WORDS[word]
    record = get_type_hints(Study)[section]
    kind, about = get_args(get_type_hints(record, include_extras=True)[name])[:2]
    several = get_origin(kind) is tuple
    default = record._field_defaults.get(name)
    told = about[0].upper() + about[1:] + (" (repeatable)." if several else ".")
    if default not in (None, ()):
        told += f" Default: {default}."
    flags = [f"--{word.replace('_', '-')}"] + (["--rounds"] if word == "max_rounds" else [])
    choice: Any = click.Choice(_CHOICES[word]) if word in _CHOICES else None
    if get_args(kind) == (float, str):
        choice = _Share()
    plain = next(t for t in (get_args(kind) or (kind,)) if t is not type(None))
    return Annotated[
        (list[str] if several else plain) | None, typer.Option(*flags, help=told, click_type=choice)
    ]
