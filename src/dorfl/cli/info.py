"""`dorfl info`: what is in a model folder."""

from __future__ import annotations

from dorfl.cli.folders import ModelFolder
from dorfl.cli.screen import Screen, heading
from dorfl.cli.train import clients_table, held_out_table


def info(model: ModelFolder) -> None:
    """Say what a model predicts, from what, for whom, and how it was trained.

    Example: dorfl info model
    """
    from dorfl.study.model import load  # noqa: PLC0415 - slow to import, and --help need not wait
    from dorfl.study.model.folder import to_json  # noqa: PLC0415

    screen, loaded = Screen(), load(model)
    fit = loaded.fit
    what = f"classes {', '.join(loaded.classes)}" if loaded.classifies else "a number"
    screen.say(f"predicts {loaded.label!r}: {what}")
    screen.say(f"method {fit.problem.method.name}; {fit.message}, in {fit.rounds} rounds")
    if loaded.facts.clients:
        screen.table(clients_table(loaded))
    if loaded.facts.held_out:
        screen.table(held_out_table(loaded))
    table = heading("Columns", "column", "kind", "features", "missing")
    for part in loaded.transform.parts:
        kind = "date" if getattr(part, "date", False) else type(part).__name__.lower()
        table.add_row(part.name, kind, str(len(part.features)), f"{part.missing:.0%}")
    for name, why in loaded.transform.ignored.items():
        table.add_row(name, "not used", "", why)
    screen.table(table)
    for line in (*loaded.facts.choice, *loaded.facts.notes):
        screen.say(str(line))
    screen.give(to_json(loaded))
    for words in (*loaded.facts.warnings, loaded.useless, loaded.idle, loaded.shortfall):
        if words:
            screen.alarm(words)
