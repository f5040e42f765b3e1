"""The options of a study, named and explained in one place for every command that takes one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import click
import typer

from dorfl.study.settings import METHODS, MIXTURES, SCALINGS, SMALL, SOLVERS, TASKS, Data, Study

Table = Annotated[
    Path,
    typer.Argument(help="A table (CSV, CSV.gz, Parquet) or a study (.toml).", show_default=False),
]
File = Annotated[
    Path | None, typer.Option("--table", help="The table, for a study that names none.")
]
Label = Annotated[str | None, typer.Option("--label", help="The column to predict.")]
Client = Annotated[
    str | None,
    typer.Option("--client", help="The column that says which site or group a row is of."),
]
Method = Annotated[
    str | None,
    typer.Option("--method", click_type=click.Choice(METHODS), help="Default: dorfl."),
]
Outliers = Annotated[
    float | None,
    typer.Option("--outliers", help="The share of rows that may be wrong. Default: 0.1."),
]
Shift = Annotated[
    float | None,
    typer.Option("--shift", help="How far rows may drift, in standard deviations. Default: 0.25."),
]
Rho = Annotated[float | None, typer.Option("--rho", help="By hand: the price of moving a row.")]
Beta = Annotated[float | None, typer.Option("--beta", help="By hand: the price of reweighting.")]
ScoreWeight = Annotated[
    float | None,
    typer.Option("--score-weight", help="By hand: ρ₂, the weight of the outlier score."),
]
Mixture = Annotated[
    str | None,
    typer.Option(
        "--mixture",
        click_type=click.Choice(MIXTURES),
        help="By hand: clients by size, or the worst mixture.",
    ),
]
Task = Annotated[
    str | None,
    typer.Option("--task", click_type=click.Choice(TASKS), help="Default: by the label."),
]
Scaling = Annotated[
    str | None,
    typer.Option("--scaling", click_type=click.Choice(SCALINGS), help="Default: robust."),
]
Numeric = Annotated[
    list[str] | None, typer.Option("--numeric", help="Read a column as numbers (repeatable).")
]
Category = Annotated[
    list[str] | None, typer.Option("--category", help="Read a column as a category (repeatable).")
]
Ignore = Annotated[
    list[str] | None, typer.Option("--ignore", help="Leave a column out (repeatable).")
]
Small = Annotated[
    str | None,
    typer.Option("--small", click_type=click.Choice(SMALL), help="Clients with too few rows."),
]
Least = Annotated[
    int | None, typer.Option("--least", help="How many rows a client needs. Default: 10.")
]
L2 = Annotated[float | None, typer.Option("--l2", help="Adds ½ l2 ‖θ‖². Default: 1 / rows.")]
Tol = Annotated[
    float | None,
    typer.Option("--tol", help="Stop at a gap of this share of the objective. Default: 1e-4."),
]
MaxRounds = Annotated[
    int | None, typer.Option("--max-rounds", "--rounds", help="At most so many exchanges.")
]
Solver = Annotated[
    str | None,
    typer.Option("--solver", click_type=click.Choice(SOLVERS), help="Default: auto."),
]
Force = Annotated[
    bool, typer.Option("--force", help="Write the model even if a constant predicts as well.")
]
Seed = Annotated[int | None, typer.Option("--seed", help="Where random streams begin. Default: 0.")]


_SECTIONS = {  # where a study has what an option says
    "data": ("file", "label", "client", "task", "small"),
    "columns": ("numeric", "category", "ignore", "scaling"),
    "method": ("name", "outliers", "shift", "rho", "beta", "score_weight", "mixture"),
    "training": ("l2", "tol", "max_rounds", "solver", "seed"),
    "privacy": ("minimum_rows",),
}
_PATHS = {name: f"{section}_{name}" for section, names in _SECTIONS.items() for name in names}


def study_of(data: Path, **given: Any) -> Study:
    """The study in a file, or of a table, with what the command line adds."""
    from dorfl.study import meaning, toml  # noqa: PLC0415 - slow to import, and --help need not wait

    plain = {list: tuple, Path: str}
    values = {
        _PATHS[name]: next((to(v) for kind, to in plain.items() if isinstance(v, kind)), v)
        for name, v in given.items()
        if v not in (None, [])
    }
    if data.suffix == ".toml":
        study = toml.read(data)
    elif "data_label" in values:
        study = Study(Data(values["data_label"], str(data)))
    else:
        raise typer.BadParameter("name the column to predict: --label COLUMN")
    study = study.changed(**values)
    meaning.check(study)
    return study
