"""How a training command ends when its training did not: never quietly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dorfl.cli.screen import Screen

if TYPE_CHECKING:
    from dorfl.study.model import Model

_NEAR = 1e-2  # of the objective: a gap that hardly shows in what the model predicts


def refuse_useless(model: Model) -> None:
    """Raise where the model predicts no better than a constant does."""
    from dorfl.study.model import ModelError  # noqa: PLC0415 - slow to import, and --help need not wait

    if model.useless:
        raise ModelError(
            f"{model.useless}; it is not written. The training ended so: {model.fit.message}. "
            "Try --scaling standard, a larger --l2, a smaller --shift, more --max-rounds, or "
            "look whether the columns say anything of the label; --force writes it all the same"
        )


def tell_shortfall(screen: Screen, model: Model) -> None:
    """Say, last, what must not be missed.

    Exit code 4 where the tolerance is far away, or the model no better than a constant on the very
    rows it was trained on.
    """
    for words in (*model.facts.warnings, model.useless, model.idle):
        if words:
            screen.alarm(words)
    if model.shortfall is not None:
        screen.alarm(f"{model.shortfall}, in {model.fit.rounds} rounds")
    if model.useless or (model.shortfall is not None and not model.relative_gap < _NEAR):
        raise typer.Exit(4)
