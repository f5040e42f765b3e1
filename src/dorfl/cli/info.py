"""Command `dorfl info`: the content of a model folder."""

from __future__ import annotations

from dorfl.cli.options import ModelFolder
from dorfl.cli.screen import Screen
from dorfl.cli.train import tell_clients


def info(model: ModelFolder) -> None:
    """Print what a model predicts, from which columns, its scores, and how it was trained.

    Example: dorfl info model
    """
    from dorfl.tabular.model import load, tables  # noqa: PLC0415 - slow to import: --help need not wait
    from dorfl.tabular.model.folder import to_json  # noqa: PLC0415

    screen, loaded = Screen(), load(model)
    fit = loaded.fit
    what = f"classes {', '.join(loaded.classes)}" if loaded.classifies else "a number"
    screen.say(f"predicts {loaded.label!r}: {what}")
    screen.say(f"method {fit.problem.method.name}; {fit.message}, in {fit.rounds} rounds")
    if loaded.facts.clients:
        tell_clients(screen, loaded)
    screen.table(tables.columns(loaded))
    for line in (*loaded.facts.choice, tables.down_weighted(loaded), *loaded.facts.notes):
        if line:
            screen.say(line)
    screen.give(to_json(loaded))
    for words in (*loaded.facts.warnings, loaded.useless, loaded.idle, loaded.shortfall):
        if words:
            screen.alarm(words)
