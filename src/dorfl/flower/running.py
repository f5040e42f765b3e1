"""A run of a study: its folder, its checkpoints, its log, and what is left when it ends.

runs/RUN/  record.json  checkpoint.json  log.jsonl  model/
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

import dorfl
from dorfl import networks
from dorfl.federation.local import Round
from dorfl.flower import engine, keys
from dorfl.flower.folders import Federation
from dorfl.flower.superlink import Link
from dorfl.study import checkpoint, coordinator, model, results, summing
from dorfl.study.coordinator import State
from dorfl.study.model import Model
from dorfl.study.settings import Study
from dorfl.support import wire
from dorfl.support.files import write_whole
from dorfl.support.text import one_line_each

Watch = Callable[[State, str, dict[str, Any]], object]


def begin(
    federation: Federation, study: Study, watch: Watch, vet: Callable[[Model], object] = id
) -> tuple[State, Path]:
    """Run `study` to its end in a folder of its own, which is made only where no run goes on."""
    for site in study.sites:
        if site not in federation.sites():
            raise ValueError(f"site {site!r} is not registered; see `dorfl server add-site`")
    _able(study.training.model)
    _served(federation)
    if study.privacy.secure_sum:
        study = study.changed(privacy_peers=_peers(federation, study))
    with federation.holding("run", {}):
        folder = _new(federation, study)
        return _go(federation, folder, watch, vet), folder


def _peers(federation: Federation, study: Study) -> tuple[str, ...]:
    """Who sums with whom: every site's registered key, for the others to see."""
    known = federation.sites()
    return tuple(summing.peer(site, keys.public_key(known[site])) for site in sorted(study.sites))


def go_on(
    federation: Federation, folder: Path, watch: Watch, vet: Callable[[Model], object] = id
) -> State:
    """Conduct a run from its last checkpoint to the end.

    `vet` may refuse the model by raising: the run can then be resumed to write it all the same.
    """
    _able(read_record(folder)["study"]["training"]["model"])
    _served(federation)
    _same_keys(federation, folder)
    with federation.holding("run", {}):
        return _go(federation, folder, watch, vet)


def unfinished(federation: Federation, run: str | None = None) -> Path:
    """The run of that name, or else the last, to go on with."""
    runs = federation.runs()
    if run is not None:
        runs = [folder for folder in runs if folder.name == run]
    if not runs:
        which = "run to resume" if run is None else f"run {run!r}"
        raise ValueError(f"{federation.path}: there is no {which}; see `dorfl status`")
    open_ = [folder for folder in runs if "ended" not in read_record(folder)]
    if not open_:
        raise ValueError(f"run {runs[-1].name}: is finished, there is nothing to resume")
    return open_[-1]


def _able(model: str) -> None:
    if model != "linear":
        networks.require()


def _served(federation: Federation) -> None:
    if federation.noted("server") is None:
        raise ValueError(f"{federation.path}: its server is not running; see `dorfl server start`")


def _new(federation: Federation, study: Study) -> Path:
    """A folder for a run of `study`; the roster is fixed now, each name bound to its key."""
    known = federation.sites()
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S-%f")
    run = f"{stamp}-{study.name}"  # so that names sort by time
    folder = federation.path / "runs" / run
    folder.mkdir(parents=True)
    state = coordinator.begin(study, run)
    checkpoint.save(folder / "checkpoint.json", state)
    record = {
        "run": run,
        "study": json.loads(wire.encode(study)),
        "keys": {site: keys.fingerprint(known[site]) for site in state.roster},
        "began": _now(),
        "versions": {"dorfl": dorfl.__version__, "python": platform.python_version()},
    }
    _write(folder / "record.json", record)
    return folder


def _go(
    federation: Federation, folder: Path, watch: Watch, vet: Callable[[Model], object]
) -> State:
    def connect() -> Link:
        server = federation.noted("server")
        if server is None:
            raise httpx.ConnectError("the server is down")
        return Link(server["superlink"], federation.keys / "ca.crt")

    federation.note("run", {"folder": str(folder)})
    state = checkpoint.load(folder / "checkpoint.json")
    state = _conduct(state, folder, connect, federation.sites, watch)
    made = results.model_of(state)
    vet(made)
    model.save(made, folder / "model")
    _write(folder / "record.json", {**read_record(folder), **_ending(state)})
    return state


def _conduct(
    state: State,
    folder: Path,
    connect: Callable[[], Link],
    registered: Callable[[], dict[str, bytes]],
    watch: Watch,
) -> State:
    current, began = state, time.monotonic()

    def note(event: str, **details: Any) -> None:
        line = {"time": _now(), "event": event, "step": current.step, **one_line_each(details)}
        with (folder / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(line, ensure_ascii=False) + "\n")
        watch(current, event, line)

    def keep(following: State, took: dict[str, float]) -> None:
        nonlocal current, began
        checkpoint.save(folder / "checkpoint.json", following)
        before, current = current, following
        seconds, began = round(time.monotonic() - began, 3), time.monotonic()
        if len(following.history) > len(before.history):
            described = _described(following, following.history[-1])
            note("round", **described, seconds=seconds, took=took)
        else:
            note("done" if following.step == "done" else "step", seconds=seconds)

    logged = _mended(folder / "log.jsonl")
    note("resumed" if logged else "began", round=len(state.history) + 1)
    for line in state.history[logged.count("round") :]:  # kept, but not logged: it was killed
        note("round", **_described(state, line), seconds=None, took={})
    return engine.conduct(state, connect, registered, keep, note)


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's log."""
    return read_lines(folder / "log.jsonl")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; one that a crash cut short is left out."""
    found = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            found.append(json.loads(text))
    return found


def _mended(log: Path) -> list[str]:
    """The events logged so far; the log ends with a whole line from now on."""
    if log.exists() and not log.read_bytes().endswith(b"\n"):
        with log.open("a", encoding="utf-8") as file:
            file.write("\n")
    return [line["event"] for line in read_log(log.parent)]


def _described(state: State, line: Round) -> dict[str, Any]:
    """A round as one line of a log: numbers by site, no rows."""
    by_site = zip(state.shown, line.lam.tolist(), line.risks.tolist(), strict=True)
    return {
        "round": line.round,
        "objective": _number(line.objective),
        "gap": _number(line.gap) if state.learning is None else None,  # a network's is no bound
        "bytes_up": line.bytes_up,
        "bytes_down": line.bytes_down,
        "sites": {site: {"lambda": lam, "risk": _number(risk)} for site, lam, risk in by_site},
        "answered": list(line.answered),
        "stood in": [site for site in state.roster if site not in line.answered],
        "refused": line.refused,
        "clipped": line.clipped,
    }


def _number(value: float) -> float | None:
    """As JSON can say it."""
    return value if math.isfinite(value) else None


def read_record(folder: Path) -> dict[str, Any]:
    """What is on record of a run."""
    record: dict[str, Any] = json.loads((folder / "record.json").read_text())
    return record


def _ending(state: State) -> dict[str, Any]:
    assert state.outcome is not None
    outcome, bound = state.outcome, coordinator.certificate(state)
    stood_in = {
        site: rounds
        for site in state.roster
        if (rounds := [line.round for line in state.history if site not in line.answered])
    }
    return {
        "ended": _now(),
        "status": outcome.status,
        "message": outcome.message,
        "rounds": outcome.rounds,
        "objective": outcome.objective,
        "gap": outcome.gap,
        "lambda": dict(zip(state.shown, outcome.lam.tolist(), strict=True)),
        "risks": dict(zip(state.shown, outcome.risks.tolist(), strict=True)),
        "rows": dict(zip(state.roster, state.rows, strict=True)),
        "stood in": stood_in,
        "certificate": None if bound is None else bound._asdict(),
    }


def _same_keys(federation: Federation, folder: Path) -> None:
    known = federation.sites()
    for site, mark in read_record(folder)["keys"].items():
        if site in known and keys.fingerprint(known[site]) != mark:
            raise ValueError(f"site {site!r} has another key than when the run began")


def _write(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False).encode())


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
