"""`dorfl report`: a model on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dorfl.cli.options import ModelFolder
from dorfl.cli.screen import Screen
from dorfl.tabular.model import load
from dorfl.tabular.model.folder import REPORT
from dorfl.tabular.model.views import of_model


def report(
    model: ModelFolder,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The page. Default: report.html in the model's folder."),
    ] = None,
) -> None:
    """Write one HTML page on a model: scores by client, coefficients, weights, certificate.

    The page opens offline, sends nothing anywhere and holds no row.

    Example: dorfl report model
    """
    from dorfl.report import page

    screen, loaded = Screen(), load(model)
    path = out or (model if model.is_dir() else model.parent) / REPORT
    page.write(of_model(loaded), path)
    screen.say(f"the report is {path}")
    screen.give({"report": str(path)})
