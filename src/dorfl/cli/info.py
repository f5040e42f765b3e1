"""Command `dorfl info`: the content of a model folder."""

from __future__ import annotations

from dorfl.cli import summary
from dorfl.cli.options import ModelFolder
from dorfl.cli.screen import ResultLine, Screen
from dorfl.tabular.model import load, views
from dorfl.tabular.model.folder import to_json


def info(model: ModelFolder) -> None:
    """Print what a model predicts, from which columns, its scores, and how it was trained.

    Example: dorfl info model
    """
    screen, loaded = Screen(), load(model)
    screen.lines(
        *summary.of_model(loaded, folder=str(model)),
        ResultLine("Method", loaded.fit.problem.method.name, f"dorfl report {model}"),
    )
    screen.table(views.columns(loaded))
    summary.explain(screen, loaded)
    for line in loaded.facts.notes:
        screen.explain(line)
    screen.give(to_json(loaded))
    for warning in (*loaded.facts.warnings, loaded.useless, loaded.idle, loaded.shortfall):
        if warning:
            screen.alarm(warning)
