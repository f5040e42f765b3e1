"""`dorfl site ledger` and `dorfl site approve`: what a site reported, and which studies may ask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dorfl.carriers import require
from dorfl.cli.screen import Screen
from dorfl.cli.site import Folder
from dorfl.support.files import write_whole
from dorfl.support.text import percent

if TYPE_CHECKING:
    from dorfl.carriers.folders import SiteFolder
    from dorfl.study.ledger import Ledger


def ledger(
    folder: Folder,
    export: Annotated[Path | None, typer.Option(help="Write all of it here, as JSON.")] = None,
) -> None:
    """Show what this site has reported over all runs, and what is left.

    Example: dorfl site ledger site-1/
    """
    home, book = _open(folder)
    screen, limits = Screen(), home.limits
    for mark, seen in book.studies.items():
        state = "approved" if book.permits(mark, seen, home.approve) else "NOT approved"
        screen.say(f"study {seen['name']} {mark[:12]}: {state}; {len(seen['runs'])} run(s)")
    for name, told in book.columns.items():
        screen.say(
            f"column {name!r}: statistics in {len(told['versions'])} of {limits.versions} "
            f"version(s), distances from {len(told['middles'])} of {limits.middles} middles"
        )
    asked = sum(entry["step"] != "network" for entry in book.questions.values())
    screen.say(f"{asked} question(s) answered: {percent(book.told)} of the numbers in the rows")
    screen.say(f"left: {percent(max(limits.told - book.told, 0.0))} (told = {limits.told:g})")
    updates = [entry for entry in book.questions.values() if entry["step"] == "network"]
    if updates:
        times = sum(entry["times"] for entry in updates)
        screen.say(
            f"{len(updates)} network(s): updates with {times:,.0f} times as many numbers as the "
            "rows have, beside what is counted"
        )
    if book.private:
        spent, most = book.spent(limits.delta), home.epsilon
        left = "no limit is set" if most is None else f"left: {max(most - spent, 0.0):.3g}"
        screen.say(
            f"{len(book.private)} private run(s): ε = {spent:.3g} at δ = {limits.delta:g}; {left}"
        )
    if export is not None:
        kept = {name: getattr(book, name) for name in book.written}
        write_whole(export, json.dumps({**kept, "approved": sorted(book.approved)}).encode())
        screen.say(f"written to {export}")


def approve(
    folder: Folder,
    study: Annotated[str | None, typer.Argument(help="Its mark, or a part of it.")] = None,
) -> None:
    """Show the studies that wait for this site, or approve one: once for each study's text.

    Example: dorfl site approve site-1/ 3f9c2a
    """
    home, book = _open(folder)
    screen = Screen()
    waiting = {
        mark: seen
        for mark, seen in book.studies.items()
        if not book.permits(mark, seen, home.approve)
    }
    if study is None:
        for mark, seen in waiting.items():
            screen.say(f"{mark[:12]} {seen['name']}, first asked {seen['first']}:")
            screen.say(book.foreseen(mark, home.limits.told))
            screen.say(json.dumps(seen["text"], indent=2, ensure_ascii=True))
        screen.say(
            f"approve one: dorfl site approve {folder} MARK" if waiting else "no study waits"
        )
        return
    found = [mark for mark in waiting if mark.startswith(study)]
    if len(found) != 1:
        raise ValueError(f"{study!r} is the mark of {len(found)} studies that wait; name one")
    book.approve(found[0])
    screen.say(f"study {waiting[found[0]]['name']} {found[0][:12]} is approved, as it is written")


def _open(folder: Path) -> tuple[SiteFolder, Ledger]:
    require()
    from dorfl.carriers.folders import SiteFolder  # noqa: PLC0415
    from dorfl.study.ledger import Ledger  # noqa: PLC0415

    return SiteFolder.open(folder), Ledger(folder / "ledger.json")
