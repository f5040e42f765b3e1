"""`dorfl site ledger` and `dorfl site approve`: the studies and runs of a site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dorfl.carriers import require
from dorfl.cli.screen import Screen
from dorfl.cli.site import Folder, show_keys
from dorfl.support.files import write_whole
from dorfl.support.text import one_line

if TYPE_CHECKING:
    from dorfl.carriers.folders import SiteFolder
    from dorfl.site.ledger import Ledger


def ledger(
    folder: Folder,
    export: Annotated[Path | None, typer.Option(help="Write all of it here, as JSON.")] = None,
) -> None:
    """Show the studies and runs of this site, and what is left.

    Example: dorfl site ledger site-1/
    """
    home, book = _open(folder)
    screen, policy = Screen(), home.policy
    for mark, seen in book.studies.items():
        state = "approved" if book.permits(mark, seen, policy.approve) else "NOT approved"
        screen.say(f"study {seen['name']} {mark[:12]}: {state}; {len(seen['runs'])} run(s)")
    more = max(policy.max_runs - book.runs, 0)
    screen.say(f"{book.runs} of {policy.max_runs} runs, {more} left (max_runs in site.toml)")
    if book.private:
        spent, most = book.spent(policy.delta), policy.epsilon
        rest = "no limit is set" if most is None else f"left: {max(most - spent, 0.0):.3g}"
        screen.say(
            f"{len(book.private)} private run(s): ε = {spent:.3g} at δ = {policy.delta:g}; {rest}"
        )
    if export is not None:
        kept = {name: getattr(book, name) for name in book.written}
        write_whole(export, json.dumps({**kept, "approved": sorted(book.approved)}).encode())
        screen.say(f"written to {export}")


def approve(
    folder: Folder,
    study: Annotated[str | None, typer.Argument(help="Its mark, or a part of it.")] = None,
) -> None:
    """Show the studies that wait for this site in plain words, or approve one.

    Example: dorfl site approve site-1/ 3f9c2a
    """
    home, book = _open(folder)
    screen = Screen()
    waiting = {
        mark: seen
        for mark, seen in book.studies.items()
        if not book.permits(mark, seen, home.policy.approve)
    }
    if study is None:
        for mark, seen in waiting.items():
            screen.say(f"{mark[:12]} {seen['name']}, first asked {seen['first']}:")
            for line in seen["summary"].splitlines():
                screen.say(one_line(line))
            if peers := seen["text"]["privacy"].get("peers"):
                show_keys(screen, tuple(peers))
        screen.say(
            f"approve one: dorfl site approve {folder} MARK" if waiting else "no study waits"
        )
        return
    found = [mark for mark in waiting if mark.startswith(study)]
    if not found and any(mark.startswith(study) for mark in book.studies):
        screen.say(f"study {study} is approved already")
        return
    if len(found) != 1:
        raise ValueError(f"{study!r} is the mark of {len(found)} studies that wait; name one")
    book.approve(found[0])
    screen.say(f"study {waiting[found[0]]['name']} {found[0][:12]} is approved, as it is written")


def _open(folder: Path) -> tuple[SiteFolder, Ledger]:
    require()
    from dorfl.carriers.folders import SiteFolder  # noqa: PLC0415
    from dorfl.site.ledger import Ledger  # noqa: PLC0415

    return SiteFolder.open(folder), Ledger(folder / "ledger.json")
