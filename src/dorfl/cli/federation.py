"""`dorfl run`, `resume`, `status`, `watch` and `stop`: commands of the coordinator."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dorfl.carriers import require
from dorfl.cli import options, summary
from dorfl.cli.screen import ResultLine, Screen, refuse_useless, warn_shortfall
from dorfl.cli.server import Folder, opened

if TYPE_CHECKING:
    from dorfl.carriers.folders import Federation
    from dorfl.carriers.runs import Watch
    from dorfl.protocol.state import State
    from dorfl.tabular.model import Model


def _refuse_board(folder: Path | None) -> None:
    if folder is not None:
        raise ValueError("--tensorboard is gone: log RUN/log.jsonl as in docs/federation.md")


Board = Annotated[Path | None, typer.Option("--tensorboard", hidden=True, callback=_refuse_board)]


@options.takes(*options.FEDERATION)
def run(
    folder: Folder,
    study: Annotated[Path, typer.Argument(help="The study, as TOML.", show_default=False)],
    settings: dict[str, Any],
    force: options.Force = False,
    _: Board = None,
) -> None:
    """Train a model on a study with the registered sites. Ctrl-C is safe: see `resume`.

    Example: dorfl run fed/ study.toml
    """
    federation = opened(folder)
    from dorfl.carriers import runs
    from dorfl.protocol import toml
    from dorfl.protocol.settings import among

    named = among(toml.read(study), tuple(federation.sites()))
    named = named._replace(data=named.data._replace(file=None))  # each site has its own table
    named = options.changed(named, settings)
    _go(federation, partial(runs.begin, federation, named), force)


def resume(
    folder: Folder,
    run: Annotated[
        str | None, typer.Argument(help="The run's name; by default the last that is not finished.")
    ] = None,
    force: options.Force = False,
    _: Board = None,
) -> None:
    """Resume a run from its last checkpoint; the result is the same to the last bit.

    Example: dorfl resume fed/
    """
    federation = opened(folder)
    from dorfl.carriers import runs

    found = runs.unfinished(federation, run)

    def going(watch: runs.Watch, vet: Callable[[Model], object]) -> tuple[State, Path]:
        return runs.resume(federation, found, watch, vet), found

    _go(federation, going, force)


def status(folder: Folder) -> None:
    """Show the state of the server, the sites and the last run.

    Example: dorfl status fed/ --json
    """
    screen, found = Screen(), _status(opened(folder))
    screen.give(found)
    screen.say(f"HTTPS server: {'up' if found['server'] else 'down'} ({found['address']})")
    for site, presence in found["sites"].items():
        screen.say(f"site {site}: {presence}")
    last = found["run"]
    if last is None:
        screen.say("run: none yet")
        return
    gap = "" if last["gap"] is None else f", gap {last['gap']:.2g}"
    screen.say(
        f"run {last['run']}: {last['state']}, step {last['step']}, {last['rounds']} rounds{gap}"
    )


def watch(
    folder: Annotated[
        Path, typer.Argument(help="A federation's folder, or a site's.", show_default=False)
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The page's port; 0 takes a free one.")
    ] = 0,
) -> None:
    """Show rounds as they come, on a page that only this machine can open. Ctrl-C ends it.

    For a site's folder, show its requests and replies. The page changes nothing.

    Example: dorfl watch fed/
    """
    require()
    from dorfl.carriers import dashboard
    from dorfl.carriers.https import run_until_stopped

    screen, page = Screen(), dashboard.Page(dashboard.of_folder(folder), port)
    screen.say(f"open {page.url}")
    screen.give({"url": page.url})
    sys.stdout.flush()
    run_until_stopped(page.serve())


def stop(folder: Folder) -> None:
    """Stop the run, if there is one, and the server. Nothing is lost: see `resume`.

    Example: dorfl stop fed/
    """
    federation, screen = opened(folder), Screen()
    for what in ("run", "server"):
        note = federation.noted(what)
        if note is None:
            continue
        os.kill(note["pid"], signal.SIGTERM)
        for _ in range(300):
            if federation.noted(what) is None:
                screen.say(f"{what}: stopped")
                break
            time.sleep(0.1)
        else:
            raise ValueError(f"{what}: process {note['pid']} does not stop")


def _go(
    federation: Federation,
    conduct: Callable[[Watch, Callable[[Model], object]], tuple[State, Path]],
    force: bool,
) -> None:
    from dorfl.carriers import runs
    from dorfl.protocol.steps.certify import describe_withheld
    from dorfl.tabular import results

    screen, name = Screen(), ""

    def show(state: State, event: str, line: dict[str, Any]) -> None:
        nonlocal name
        if not name:
            name = state.run
            screen.say(f"run {name}")
        _show(screen, state, event, line)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        end, folder = conduct(show, (lambda _: None) if force else refuse_useless)
    except KeyboardInterrupt:
        screen.note(f"stopped; nothing is lost: dorfl resume {federation.path} {name}".rstrip())
        raise typer.Exit(130) from None
    made, saved = results.model_of(end), folder / "model"
    screen.lines(
        *summary.of_model(made, "NEW.csv", str(saved)),
        ResultLine("Saved", f"{saved}/", f"dorfl report {saved}"),
    )
    summary.explain(screen, made)
    for line in describe_withheld(end):
        screen.note(line)
    screen.give(runs.read_record(folder))
    warn_shortfall(screen, made)


def _shares(lam: dict[str, float], most: int = 6) -> str:
    """Return λ by site as text; only the largest if there are many sites.

    >>> _shares({"a": 0.2, "b": 0.5, "c": 0.3}, most=2)
    'b 0.500  c 0.300  and 1 more'
    """
    shown = sorted(lam, key=lambda site: -lam[site])[:most] if len(lam) > most else list(lam)
    more = [f"and {len(lam) - most} more"] if len(lam) > most else []
    return "  ".join([*(f"{site} {lam[site]:.3f}" for site in shown), *more])


def _show(screen: Screen, state: State, event: str, line: dict[str, Any]) -> None:
    """Print one line for each event of a run."""
    if event == "round":
        shares = _shares({site: figures["lambda"] for site, figures in line["sites"].items()})
        gap = "" if line["gap"] is None else f"gap {line['gap']:.2e}"
        if state.network_training is not None:
            gap = f"objective {line['objective']:.4g}"
        took = "" if line["seconds"] is None else f"{line['seconds']:.1f} s"
        replies = f"{len(line['answered'])} of {len(state.sites)} answered"
        screen.say(f"round {line['round']:3d}  {gap}  λ {shares}  {replies}  {took}")
    elif event == "step":
        screen.detail(f"{state.step} …")
    elif event == "waiting":
        screen.note(f"waiting for {', '.join(line['sites'])}")
    elif event not in ("began", "done"):
        screen.note(f"{event}: {line.get('site', '')} {line.get('reason', '')}".rstrip(": "))


def _status(federation: Federation) -> dict[str, Any]:
    from dorfl.carriers import runs

    server, there = federation.noted("server"), federation.present()
    sites = dict.fromkeys(federation.sites(), "unknown, as the server is down")
    if server is not None:
        sites = {site: "online" if site in there else "offline" for site in sites}
    last, folders = None, federation.runs()
    if folders:
        record, lines = runs.read_record(folders[-1]), runs.read_log(folders[-1])
        rounds = [line for line in lines if line["event"] == "round"]
        last = {
            "run": record["run"],
            "state": runs.progress(federation, folders[-1]),
            "step": lines[-1]["step"] if lines else "enrol",
            "rounds": rounds[-1]["round"] if rounds else 0,
            "gap": rounds[-1]["gap"] if rounds else None,
            "lambda": {s: f["lambda"] for s, f in rounds[-1]["sites"].items()} if rounds else None,
            "folder": str(folders[-1]),
        }
    return {
        "server": server is not None,
        "address": f"{federation.host}:{federation.port}",
        "sites": sites,
        "run": last,
    }
