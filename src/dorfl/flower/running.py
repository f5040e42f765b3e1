"""A run of a study: its folder, its checkpoints, its log, and what is left when it ends.

runs/RUN/  record.json  checkpoint.json  log.jsonl  model/
"""

from __future__ import annotations

import datetime
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dorfl
from dorfl import model
from dorfl.files import write_whole
from dorfl.flower import engine, keys
from dorfl.flower.folders import Federation
from dorfl.flower.superlink import Link
from dorfl.protocol import checkpoint, coordinator, result, wire
from dorfl.protocol.coordinator import State
from dorfl.protocol.study import Study

Watch = Callable[[State, str, dict[str, Any]], object]


def new(federation: Federation, study: Study) -> Path:
    """A folder for a run of `study`; the roster is fixed now, each name bound to its key."""
    known = federation.sites()
    for site in study.sites:
        if site not in known:
            raise ValueError(f"site {site!r} is not registered; see `dorfl server add-site`")
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


def unfinished(federation: Federation) -> Path:
    """The last run, to go on with."""
    runs = federation.runs()
    if not runs:
        raise ValueError(f"{federation.path}: there is no run to resume; see `dorfl run`")
    if "ended" in read_record(runs[-1]):
        raise ValueError(f"run {runs[-1].name}: is finished, there is nothing to resume")
    return runs[-1]


def go(federation: Federation, folder: Path, watch: Watch) -> State:
    """Conduct a run from its last checkpoint to the end."""

    def connect() -> Link:
        server = federation.noted("server")
        if server is None:
            raise ValueError(
                f"{federation.path}: its server is not running; see `dorfl server start`"
            )
        return Link(server["superlink"], federation.keys / "ca.crt")

    _same_keys(federation, folder)
    connect().close()
    with federation.holding("run", {"folder": str(folder)}):
        return _go(checkpoint.load(folder / "checkpoint.json"), folder, connect, watch)


def _go(state: State, folder: Path, connect: Callable[[], Link], watch: Watch) -> State:
    current, began = state, time.monotonic()

    def note(event: str, **details: Any) -> None:
        line = {"time": _now(), "event": event, "step": current.step, **details}
        with (folder / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(line, ensure_ascii=False) + "\n")
        watch(current, event, line)

    def keep(following: State) -> None:
        nonlocal current, began
        checkpoint.save(folder / "checkpoint.json", following)
        before, current = current, following
        seconds, began = time.monotonic() - began, time.monotonic()
        if before.step == "round":
            note("round", **engine.describe(following, seconds))
        else:
            note("done" if following.step == "done" else "step", seconds=round(seconds, 3))

    note("resumed" if state.step != "enrol" else "began", round=len(state.history) + 1)
    state = engine.conduct(state, connect, keep, note)
    model.save(result.model_of(state), folder / "model")
    _write(folder / "record.json", {**read_record(folder), **_ending(state)})
    return state


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
        "lambda": dict(zip(state.roster, outcome.lam.tolist(), strict=True)),
        "risks": dict(zip(state.roster, outcome.risks.tolist(), strict=True)),
        "rows": dict(zip(state.roster, state.rows, strict=True)),
        "stood in": stood_in,
        "certificate": None if bound is None else bound._asdict(),
    }


def _same_keys(federation: Federation, folder: Path) -> None:
    known = federation.sites()
    for site, mark in read_record(folder)["keys"].items():
        if site not in known or keys.fingerprint(known[site]) != mark:
            raise ValueError(f"site {site!r} has another key than when the run began")


def _write(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False).encode())


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
