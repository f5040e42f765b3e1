"""The runs of a federation: their folders, checkpoints, logs and records, on any carrier.

runs/RUN/  record.json  checkpoint.json  transcript.jsonl  log.jsonl  model/
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

import dorfl
from dorfl import networks
from dorfl.carriers import keys
from dorfl.carriers.driver import Carrier, Collection
from dorfl.carriers.envelope import CoordinatorSeal
from dorfl.carriers.folders import LOCK_SECONDS, Federation
from dorfl.carriers.https import Link
from dorfl.federated.simulation import Round
from dorfl.protocol import checkpoint, coordinator, site_keys
from dorfl.protocol.settings import Study
from dorfl.protocol.state import State
from dorfl.protocol.steps import finish
from dorfl.protocol.transcript import Exchange, Transcript
from dorfl.support import wire
from dorfl.support.files import write_whole
from dorfl.support.text import one_line_each
from dorfl.tabular import model, results
from dorfl.tabular.model import Model

Watch = Callable[[State, str, dict[str, Any]], object]


def begin(
    federation: Federation,
    study: Study,
    watch: Watch,
    vet: Callable[[Model], object] = id,
    carrier: Carrier | None = None,
) -> tuple[State, Path]:
    """Run a study to its end; return the last state and the run's folder.

    Parameters
    ----------
    federation
        Whose sites take part. One run at a time holds its lock.
    study
        The study, with its sites named.
    watch
        Called as `watch(state, event, line)` with every line of the log.
    vet
        Called with the model; it raises to refuse that the model is written.
    carrier
        Moves the messages; by default the federation's HTTPS server does.
    """
    for site in study.sites:
        if site not in federation.sites():
            raise ValueError(f"site {site!r} is not registered; see `dorfl server add-site`")
    _check_ready(federation, study.training.model, carrier)
    if study.privacy.summed:
        study = study.changed(privacy_peers=_peers(federation, study))
    with federation.holding("run"):
        folder = _new(federation, study)
        return _go(federation, folder, watch, vet, carrier), folder


def resume(
    federation: Federation,
    folder: Path,
    watch: Watch,
    vet: Callable[[Model], object] = id,
    carrier: Carrier | None = None,
    patience: float = LOCK_SECONDS,
) -> State:
    """Go on with a run from its last checkpoint; return the last state.

    Parameters are those of :func:`begin`. For `patience` seconds, wait for a process that drove the
    run before, and neither ends nor goes on.
    """
    _check_ready(federation, read_record(folder)["study"]["training"]["model"], carrier)
    _check_keys(federation, folder)
    with federation.holding("run", patience):
        return _go(federation, folder, watch, vet, carrier)


def _check_ready(federation: Federation, model: str, carrier: Carrier | None) -> None:
    """Raise ValueError if the run could not begin."""
    if model != "linear":
        networks.require()
    if carrier is None and federation.noted("server") is None:
        raise ValueError(f"{federation.path}: its server is not running; see `dorfl server start`")


def _peers(federation: Federation, study: Study) -> tuple[str, ...]:
    """Return every site's registered key, for the sums of the study."""
    known = federation.sites()
    return tuple(site_keys.peer(site, keys.public_of(known[site])) for site in sorted(study.sites))


def unfinished(federation: Federation, run: str | None = None) -> Path:
    """Return the folder of an unfinished run: the one of this name, or the last."""
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


def progress(federation: Federation, folder: Path) -> str:
    """Return whether a run is "finished", "running" or "interrupted"."""
    if "ended" in read_record(folder):
        return "finished"
    running = (federation.noted("run") or {}).get("folder", "")  # a path from another directory
    return "running" if Path(running).name == folder.name else "interrupted"


def _new(federation: Federation, study: Study) -> Path:
    """Create the folder of a run; its sites are fixed now, and each name bound to its key."""
    known = federation.fingerprints()
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S-%f")
    run = f"{stamp}-{study.name}"  # so that names sort by time
    folder = federation.path / "runs" / run
    folder.mkdir(parents=True)
    state = coordinator.begin(study, run)
    checkpoint.save(folder / "checkpoint.json", state)
    record = {
        "run": run,
        "study": json.loads(wire.encode(study)),
        "keys": {site: known[site] for site in state.sites},
        "began": _now(),
        "versions": {"dorfl": dorfl.__version__, "python": platform.python_version()},
    }
    _write(folder / "record.json", record)
    return folder


def _go(
    federation: Federation,
    folder: Path,
    watch: Watch,
    vet: Callable[[Model], object],
    carrier: Carrier | None,
) -> State:
    federation.note("run", folder=str(folder))
    if carrier is None:
        with contextlib.closing(Link(federation)) as link:
            state = _conduct(federation, folder, watch, link)
    else:
        state = _conduct(federation, folder, watch, carrier)
    made = results.model_of(state)
    vet(made)
    model.save(made, folder / "model")
    _write(folder / "record.json", {**read_record(folder), **_ending(state)})
    return state


def _conduct(federation: Federation, folder: Path, watch: Watch, carrier: Carrier) -> State:
    """Drive a run to its end, with a checkpoint and a line in the log for each step."""
    state = checkpoint.load(folder / "checkpoint.json")
    transcript = Transcript(folder / "transcript.jsonl" if state.study.privacy.summed else None)
    state = transcript.follow(state)  # a checkpoint may be a step behind

    def note(event: str, **details: Any) -> None:
        line = {"time": _now(), "event": event, "step": state.step, **one_line_each(details)}
        with (folder / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(line, ensure_ascii=False) + "\n")
        watch(state, event, line)

    logged = _mended(folder / "log.jsonl")
    note("resumed" if logged else "began", round=len(state.history) + 1)
    for line in state.history[logged.count("round") :]:  # in the checkpoint, not yet in the log
        note("round", **_described(state, line), seconds=None, took={})
    seal = CoordinatorSeal(federation.keys)
    while state.step != "done":
        began, rounds = time.monotonic(), len(state.history)
        collection = Collection(Exchange(state, transcript), carrier, seal, federation.sites, note)
        collection.collect()
        state = collection.step.close()
        checkpoint.save(folder / "checkpoint.json", state)
        seconds = round(time.monotonic() - began, 3)
        if len(state.history) > rounds:
            described = _described(state, state.history[-1])
            note("round", **described, seconds=seconds, took=collection.took)
        else:
            note("done" if state.step == "done" else "step", seconds=seconds)
    return state


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log."""
    return read_lines(folder / "log.jsonl")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a log; a line that a crash cut short is left out."""
    found = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            found.append(json.loads(text))
    return found


def _mended(log: Path) -> list[str]:
    """Return the events logged so far, and end a line that a crash cut short."""
    if log.exists() and not log.read_bytes().endswith(b"\n"):
        with log.open("a", encoding="utf-8") as file:
            file.write("\n")
    return [line["event"] for line in read_log(log.parent)]


def _described(state: State, line: Round) -> dict[str, Any]:
    """Return a round as fields of a log line."""
    by_site = zip(state.reported_rows, line.lam.tolist(), line.risks.tolist(), strict=True)
    return {
        "round": line.round,
        "objective": _number(line.objective),
        "gap": None if state.network_training else _number(line.gap),  # no bound for networks
        "bytes_up": line.bytes_up,
        "bytes_down": line.bytes_down,
        "sites": {site: {"lambda": lam, "risk": _number(risk)} for site, lam, risk in by_site},
        "answered": list(line.answered),
        "extrapolated": [site for site in state.sites if site not in line.answered],
        "refused": line.refused,
        "clipped": line.clipped,
    }


def _number(value: float) -> float | None:
    """Return a finite number as it is, and None otherwise, as JSON has no other."""
    return value if math.isfinite(value) else None


def read_record(folder: Path) -> dict[str, Any]:
    """Return the record of a run."""
    record: dict[str, Any] = json.loads((folder / "record.json").read_text())
    return record


def _ending(state: State) -> dict[str, Any]:
    outcome, bound = state.outcome, finish.certificate_of(state)
    extrapolated = {
        site: rounds
        for site in state.sites
        if (rounds := [line.round for line in state.history if site not in line.answered])
    }
    return {
        "ended": _now(),
        "status": outcome.status,
        "message": outcome.message,
        "rounds": outcome.rounds,
        "objective": outcome.objective,
        "gap": outcome.gap,
        "lambda": dict(zip(state.reported_rows, outcome.lam.tolist(), strict=True)),
        "risks": dict(zip(state.reported_rows, outcome.risks.tolist(), strict=True)),
        "rows": dict(zip(state.sites, state.rows, strict=True)),
        "extrapolated": extrapolated,
        "certificate": None if bound is None else bound._asdict(),
    }


def _check_keys(federation: Federation, folder: Path) -> None:
    """Raise ValueError if a site has another key than when the run began."""
    known = federation.fingerprints()
    for site, mark in read_record(folder)["keys"].items():
        if known.get(site, mark) != mark:
            raise ValueError(f"site {site!r} has another key than when the run began")


def _write(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False).encode())


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
