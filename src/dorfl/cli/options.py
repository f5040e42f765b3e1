"""Arguments and options of commands; options are generated from the settings of a study."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import click
import typer

from dorfl.data import tables
from dorfl.protocol import checks, toml
from dorfl.protocol.settings import Data, Study, settings_of
from dorfl.tabular.model import Model
from dorfl.tabular.rows import Rows, rows_for

DATA, ROBUSTNESS, EXPERT = "Data", "Robustness", "Expert"  # panels of the help page
Table = Annotated[
    Path,
    typer.Argument(help="A table (CSV, CSV.gz, Parquet) or a study (.toml).", show_default=False),
]
ModelFolder = Annotated[
    Path, typer.Argument(help="A folder that `dorfl train` wrote.", show_default=False)
]
NewTable = Annotated[
    Path, typer.Argument(help="A table: CSV, CSV.gz or Parquet.", show_default=False)
]
Client = Annotated[
    str | None,
    typer.Option(
        "--client", help="Column with the client of each row; by default that of training."
    ),
]
Site = Annotated[str | None, typer.Option("--site", help="All rows are of this client or site.")]
Folds = Annotated[int, typer.Option("--folds", min=2, help="Number of folds.")]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Write over an older model, and even if a constant predicts as well.",
        rich_help_panel=EXPERT,
    ),
]
_LISTED = 12  # columns that are named if none is chosen
_SETTINGS = {  # option → section and field of a study, and panel
    "label": ("data", "label", DATA),
    "client": ("data", "client", DATA),
    "ignore": ("columns", "ignore", DATA),
    "method": ("method", "name", ROBUSTNESS),
    "outliers": ("method", "outliers", ROBUSTNESS),
    "shift": ("method", "shift", ROBUSTNESS),
    "mixture": ("method", "mixture", ROBUSTNESS),
    "table": ("data", "file", EXPERT),
    "task": ("data", "task", EXPERT),
    "numeric": ("columns", "numeric", EXPERT),
    "category": ("columns", "category", EXPERT),
    "missing": ("columns", "missing", EXPERT),
    "frozen": ("columns", "frozen", EXPERT),
    "scaling": ("columns", "scaling", EXPERT),
    "minimum_rows": ("privacy", "minimum_rows", EXPERT),
    "small": ("data", "small", EXPERT),
    "rho": ("method", "rho", EXPERT),
    "beta": ("method", "beta", EXPERT),
    "score_weight": ("method", "score_weight", EXPERT),
    "model": ("training", "model", EXPERT),
    "solver": ("training", "solver", EXPERT),
    "l2": ("training", "l2", EXPERT),
    "tol": ("training", "tol", EXPERT),
    "max_rounds": ("training", "max_rounds", EXPERT),
    "batch": ("training", "batch", EXPERT),
    "curvature": ("training", "curvature", EXPERT),
    "bytes_per_round": ("training", "bytes_per_round", EXPERT),
    "seed": ("training", "seed", EXPERT),
}


class _Share(click.ParamType):  # type: ignore[type-arg]
    """Parameter that is a number, or "auto"."""

    name = "NUMBER"

    def convert(self, value: Any, *_: Any) -> float | str:
        try:
            return float(value)
        except ValueError:
            return str(value)


TABLE = tuple(_SETTINGS)  # to train on a table
ANY_METHOD = tuple(name for name in TABLE if name != "method")  # to compare methods
FEDERATION = ("tol", "max_rounds", "solver", "curvature", "bytes_per_round")


def takes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces a command's parameter `settings` by these options."""

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            command(settings={name: given.pop(name) for name in names}, **given)

        own, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
        listed = []
        for name, parameter in own.parameters.items():
            if name != "settings":
                listed.append(parameter.replace(annotation=hints[name]))
                continue
            for setting in names:
                option = inspect.Parameter(setting, parameter.kind, default=None)
                listed.append(option.replace(annotation=_option(setting)))
        run.__signature__ = own.replace(parameters=listed)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in listed}
        return run

    return wrap


def study_of(data: Path, settings: dict[str, Any]) -> Study:
    """Return the study of a file or a table, changed by the options in `settings`."""
    if data.suffix == ".toml":
        return changed(toml.read(data), settings)
    if settings.get("label") is None:
        names = ", ".join(map(repr, tables.column_names(data)[:_LISTED]))
        raise typer.BadParameter(
            f"name the column to predict, --label COLUMN: {data} has {names}. "
            f"`dorfl init {data}` proposes one"
        )
    return changed(Study(Data(settings["label"], str(data))), settings)


def changed(study: Study, settings: dict[str, Any]) -> Study:
    """Return the study changed by the options in `settings`."""
    given = {"_".join(_SETTINGS[n][:2]): v for n, v in settings.items() if v not in (None, [])}
    study = study.changed(**{n: tuple(v) if isinstance(v, list) else v for n, v in given.items()})
    checks.check(study)
    return study


def _option(setting: str) -> Any:
    """Return a setting of a study as an option that is None by default."""
    section, name, panel = _SETTINGS[setting]
    record = get_type_hints(Study)[section]
    kind, about, _ = found = settings_of(record)[name]
    several = get_origin(kind) is tuple
    default = record._field_defaults.get(name)
    text = about[0].upper() + about[1:] + (" (repeatable)." if several else ".")
    if default not in (None, ()):
        text += f" Default: {default}."
    flag = f"--{setting.replace('_', '-')}"
    choice: Any = click.Choice(found.choices) if found.choices else None
    if get_args(kind) == (float, str):
        choice = _Share()
    plain = next(t for t in (get_args(kind) or (kind,)) if t is not type(None))
    option = typer.Option(flag, help=text, click_type=choice, rich_help_panel=panel)
    return Annotated[(list[str] if several else plain) | None, option]


def labelled_rows(
    model: Model, data: Path, client: str | None = None, site: str | None = None
) -> Rows:
    """Return the labelled rows of a table for a model."""
    names = tables.column_names(data)
    by = client or (model.client if model.client in names and site is None else None)
    parts = [part.name for part in model.transform.parts]
    wanted = [tables.find_column(names, name, "column of the model") for name in parts]
    wanted.append(tables.find_column(names, model.label, "label"))
    if by is not None:
        wanted.append(tables.find_column(names, by, "client"))
    text = [name for name in (by, model.label if model.classifies else None) if name is not None]
    table = tables.read(data, wanted, text=text, missing=model.transform.missing)
    rows = rows_for(model, tables.by_client(table, by, least=1))
    return replace(rows, names=(site,)) if site is not None and by is None else rows
