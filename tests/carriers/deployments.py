"""One federation of three sites on each carrier, with the same handles for tests.

A deployment says in `cannot` which scenarios of test_conformance.py do not apply to it, and why.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest
from folder_carrier import FolderCarrier, answer
from pyarrow import csv

from dorfl.carriers import runs
from dorfl.carriers.driver import Carrier, Exchanged
from dorfl.carriers.flower import attend_socket
from dorfl.carriers.folders import Federation, SiteFolder
from dorfl.carriers.https import Link, RejectedError, attend_server, free_port
from dorfl.cli import site as commands
from dorfl.cli.loopback import FlowerLoopback
from dorfl.protocol import checkpoint, coordinator, toml
from dorfl.site import local
from study_cases import ROOMY, make_sites, synthetic_tables

DORFL = (sys.executable, "-m", "dorfl")
CANARY = 31337.0625  # in the first row of each table; must not be found at the coordinator
SECRET = "secret-folder-of"
PATIENCE = 600.0  # seconds until a test gives up


def _tables():
    found = synthetic_tables()
    for k, table in enumerate(found.values()):
        table["x0"] = np.concatenate([[CANARY + k], table["x0"][1:]])
    return found


TABLES = _tables()


def dorfl(*words, **options):
    """Run a command of dorfl as people do."""
    return subprocess.run(
        [*DORFL, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        **options,
    )


def alone(study, tables=None):
    """Return the outcome of a study in this process, without any carrier."""
    read = {name: {**t, "y": list(t["y"])} for name, t in (tables or TABLES).items()}
    return local.run(coordinator.begin(study, "alone"), make_sites(read)).outcome


def same(one, two):
    return np.array_equal(one.theta, two.theta) and np.array_equal(one.lam, two.lam)


def until(condition, message=""):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.02)


def rounds_of(folder):
    log = folder / "log.jsonl"
    return log.read_text().count('"event": "round"') if log.exists() else 0


def events_of(folder):
    return [line["event"] for line in runs.read_log(folder)]


class Unhurried(Carrier):
    """A carrier that waits for every site that is present, however slow the machine is.

    So the seconds that a study gives its sites run out for those alone that a test sends away.
    """

    def __init__(self, carrier, away):
        self.carrier, self.away = carrier, away

    def exchange(self, requests, patience):
        replies, events, end = {}, [], time.monotonic() + PATIENCE
        while True:
            found = self.carrier.exchange([r for r in requests if r.id not in replies], patience)
            replies, events = {**replies, **found.replies}, [*events, *found.events]
            awaited = {sent.site for sent in requests if sent.id not in replies}
            if awaited <= self.away or time.monotonic() > end:
                return Exchanged(replies, tuple(events))


class InProcess(Carrier):
    """Answer by functions in this process; a site that has none is away."""

    def __init__(self, endpoints):
        self.endpoints = endpoints

    def exchange(self, requests, patience):
        present = {sent: self.endpoints.get(sent.site) for sent in requests}
        replies = {sent.id: respond(sent.content) for sent, respond in present.items() if respond}
        if not replies:
            time.sleep(min(patience, 0.05))
        return Exchanged(replies)


class Deployment(contextlib.AbstractContextManager):
    """Folders of a coordinator and its sites; subclasses connect them."""

    name: str
    marks: ClassVar[tuple] = ()  # of pytest, for all scenarios
    cannot: ClassVar[dict[str, str]] = {}  # scenario → reason
    in_this_process = False  # whether sites are endpoints in this process
    has_short_studies = False  # because an exchange takes seconds
    answer_within = 1  # seconds, for sites that a test sends away

    def __init__(self, root):
        self.root, self.away = root, set()
        self.federation = Federation.create(root / "fed", "127.0.0.1", free_port())
        self.homes, self.hosts = {}, contextlib.ExitStack()
        for name, table in TABLES.items():
            self.add_site(name, table)

    def add_site(self, name, table):
        home = self.root / f"{SECRET}-{name}" / name
        rules = ROOMY._asdict() | {"networks": True}  # many studies of one small table
        del rules["released"], rules["approve"]
        SiteFolder.create(home, name, tuple(table), ("trial",), **rules)
        self.federation.add_site((home / f"{name}.crt").read_bytes())
        csv.write_csv(pa.table(table), home / "records.csv")
        self.homes[name] = home

    @property
    def ca(self):
        return self.federation.keys / "ca.crt"

    @property
    def server(self):
        return f"127.0.0.1:{self.federation.port}"

    def endpoint(self, name):
        """Return an endpoint of the site, opened anew from its folder, in this process."""
        home = SiteFolder.open(self.homes[name])
        return commands._open(home, home.path / "records.csv", self.ca)[1]

    def run(self, study, at=None):
        """Run a study; `at` has what to do once a round is over. Return the run's folder."""
        before = set(self.federation.runs())

        def watch(state, event, _):
            if event == "round":
                (at or {}).get(len(state.history), lambda: None)()

        self.begin(study, watch)
        (folder,) = set(self.federation.runs()) - before
        return folder

    def begin(self, study, watch):
        with contextlib.closing(Link(self.federation)) as link:
            carrier = Unhurried(self.carrier() or link, self.away)
            runs.begin(self.federation, study, watch, carrier=carrier)

    def carrier(self):
        """Return the carrier; None is the federation's HTTPS server."""

    def pause_site(self, name):
        self.away.add(name)

    def go_on_site(self, name):
        self.away.discard(name)

    @contextlib.contextmanager
    def sent_away(self, name):
        """Do not wait for the replies of a site."""
        self.away.add(name)
        try:
            yield
        finally:
            self.away.discard(name)

    @contextlib.contextmanager
    def held(self, name, after):
        """Host a site that answers no later round until the block ends, so that no run ends."""
        respond, go_on = self.endpoint(name).respond, threading.Event()

        def reply(request):
            if (found := re.search(rb'"round":(\d+)', request)) and int(found[1]) > after:
                go_on.wait(PATIENCE)
            return respond(request)

        with self.hosting(name, reply):
            try:
                yield
            finally:
                go_on.set()

    def resume(self, folder):
        runs.resume(self.federation, folder, lambda *_: None, carrier=self.carrier())

    def outcome(self, folder):
        return checkpoint.load(folder / "checkpoint.json").outcome

    def state(self, folder):
        return checkpoint.load(folder / "checkpoint.json")

    def record(self, folder):
        return json.loads((folder / "record.json").read_text())

    def kill_coordinator(self, study, after):
        """Run a study until `after` rounds are over, and kill the coordinator; its folder."""
        file = self.root / "study.toml"
        file.write_text(toml.to_toml(study))
        before = set(self.federation.runs())

        def far_enough():
            assert child.poll() is None
            made = set(self.federation.runs()) - before
            return made and rounds_of(next(iter(made))) >= after

        with self.held("site-3", after):
            child = subprocess.Popen(
                [*DORFL, "run", str(self.federation.path), str(file)], stdout=subprocess.DEVNULL
            )
            until(far_enough)
            child.kill()
            child.wait()
        (folder,) = set(self.federation.runs()) - before
        return folder


class InOneProcess(Deployment):
    """Sites are endpoints in this process; a site that is stopped has none."""

    name = "in-process"
    in_this_process = True
    cannot: ClassVar = {"kill server": "there is no server"}

    def __enter__(self):
        self.endpoints = {}
        for name in self.homes:
            self.start_site(name)
        return self

    def __exit__(self, *_):
        self.hosts.close()

    def start_site(self, name):
        self.endpoints[name] = self.endpoint(name).respond

    def stop_site(self, name, how=None):
        self.endpoints.pop(name, None)

    def pause_site(self, name):
        super().pause_site(name)
        self.stop_site(name)

    def go_on_site(self, name):
        super().go_on_site(name)
        self.start_site(name)

    def carrier(self):
        return InProcess(self.endpoints)

    @contextlib.contextmanager
    def hosting(self, name, respond):
        """Answer for a site by a function from envelope to envelope."""
        before = self.endpoints.get(name)
        self.endpoints[name] = respond
        try:
            yield
        finally:
            self.endpoints[name] = before

    def kill_coordinator(self, study, after):
        class Killed(BaseException):
            pass

        def watch(state, event, _):
            if event == "round" and len(state.history) == after:
                raise Killed

        before = set(self.federation.runs())
        with contextlib.suppress(Killed):
            self.begin(study, watch)
        (folder,) = set(self.federation.runs()) - before
        return folder


def by(kind, answer):
    """Return the deployment of a carrier of your own between this thread and one for all sites.

    `kind(folder)` makes the carrier. `answer(folder, site, respond)` is called again and again for
    each site. The folder may have files, a socket or an address.
    """

    class Own(InOneProcess):
        name = kind.__name__

        def __enter__(self):
            super().__enter__()
            self.ended = threading.Event()
            self.thread = threading.Thread(target=self.attend, daemon=True)
            self.thread.start()
            return self

        def __exit__(self, *error):
            self.ended.set()
            self.thread.join(PATIENCE)
            super().__exit__(*error)

        def attend(self):
            while not self.ended.wait(0.005):
                for name, respond in list(self.endpoints.items()):
                    answer(self.root / "shared", name, respond)

        def carrier(self):
            return kind(self.root / "shared")

    return Own


class OverHttps(Deployment):
    """A server and sites as processes, with mutual TLS."""

    name = "https"
    marks = (pytest.mark.slow,)
    environments: ClassVar = {}  # of a site's process, by name

    def __enter__(self):
        self.sites = {}
        self.start_server()
        for name in self.homes:
            self.start_site(name)
        until(lambda: len(self.federation.present()) == len(self.homes))
        return self

    def __exit__(self, *_):
        self.hosts.close()
        for child in self.sites.values():
            child.kill()
            child.wait()
        dorfl("stop", self.federation.path)

    def start_server(self):
        words = ("server", "start", self.federation.path, "--address", "127.0.0.1", "--detach")
        started = dorfl(*words)
        assert started.returncode == 0, started.stderr

    def kill_server(self):
        os.kill(self.federation.noted("server")["pid"], signal.SIGKILL)
        self.start_server()

    def start_site(self, name):
        home = self.homes[name]
        words = ["site", "start", home, "--data", home / "records.csv"]
        words += ["--server", self.server, "--ca", self.ca]
        with (home / "output.log").open("ab") as log:
            self.sites[name] = subprocess.Popen(
                [*DORFL, *map(str, words)],
                stdout=log,
                stderr=log,
                env=self.environments.get(name),
            )

    def stop_site(self, name, how=signal.SIGKILL):
        self.sites[name].send_signal(how)
        self.sites[name].wait()

    def pause_site(self, name):
        super().pause_site(name)
        self.sites[name].send_signal(signal.SIGSTOP)

    def go_on_site(self, name):
        super().go_on_site(name)
        self.sites[name].send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def hosting(self, name, respond, *, stop=True):
        if stop and name in self.sites:
            self.stop_site(name)
        home = SiteFolder.open(self.homes[name])

        async def work():
            with contextlib.suppress(RejectedError):
                await attend_server(self.server, self.ca, home, respond, lambda _: None)

        try:
            with in_thread(work):
                yield
        finally:
            if stop and name in self.sites:
                self.start_site(name)


class OverFlower(Deployment):
    """A stock SuperLink with TLS, and for each site its process and its SuperNode."""

    name = "flower"
    marks = (pytest.mark.slow,)
    has_short_studies = True
    loopback = FlowerLoopback
    cannot: ClassVar = {  # each run takes a minute or two
        "absent": "each step waits 90 s for a SuperNode; simulation has the same code without",
        "network": "carried as any other study, by the same code as in simulation",
        "secure sums": "carried as any other study, by the same code as in simulation",
    }

    def __enter__(self):
        sites = {home: home / "records.csv" for home in self.homes.values()}
        self.flower = self.loopback(self.root / "f", self.federation, sites).__enter__()
        return self

    def __exit__(self, *_):
        self.hosts.close()
        self.flower.__exit__()

    def run(self, study, at=None):
        before = set(self.federation.runs())
        ended, done, left = threading.Event(), [], dict(at or {})

        def work():
            done.append(self.flower.run(study=toml.to_toml(study)))
            ended.set()

        with in_background(work):
            while not ended.wait(0.05):
                made = set(self.federation.runs()) - before
                passed = rounds_of(next(iter(made))) if made else 0
                for number in [number for number in left if number <= passed]:
                    left.pop(number)()
        made = set(self.federation.runs()) - before
        self._check_ended(next(iter(made), None), done[0])
        return next(iter(made))

    def _check_ended(self, folder, done):
        """Wait for the ServerApp, which outlives `flwr run` if the SuperLink was killed."""
        if folder is not None:
            until(lambda: not self.federation.noted("run"))
        if folder is None or "ended" not in self.record(folder):
            raise ValueError(done.stdout + done.stderr)

    def begin(self, study, watch):
        self.run(study)

    def resume(self, folder):
        self._check_ended(folder, self.flower.run(resume=folder.name))

    def start_site(self, name):
        self.flower.start_site(self.homes[name])

    def stop_site(self, name, how=signal.SIGKILL):
        self.flower.stop(f"{name}-site", how)

    def kill_server(self):
        self.flower.stop("superlink", signal.SIGKILL)
        self.flower.start_superlink()

    def kill_all_of_the_coordinator(self):
        self.flower.stop("superexec", signal.SIGKILL)  # and the ServerApp with it
        self.kill_server()
        self.flower.start_superexec()

    def kill_coordinator(self, study, after):
        before = set(self.federation.runs())

        def work():
            self.flower.run(study=toml.to_toml(study))

        with self.held("site-3", after), in_background(work):
            until(lambda: any(rounds_of(f) >= after for f in set(self.federation.runs()) - before))
            self.kill_all_of_the_coordinator()
        (folder,) = set(self.federation.runs()) - before
        return folder

    @contextlib.contextmanager
    def hosting(self, name, respond):
        self.stop_site(name)
        place = self.flower.socket(self.homes[name])
        try:
            with in_thread(lambda: attend_socket(place, respond)):
                yield
        finally:
            self.start_site(name)


class SimulatedLoopback(FlowerLoopback):
    """A SuperLink for simulation, without SuperNodes."""

    superlink_options = ("--simulation",)

    def add_supernode(self, home):
        pass

    def run(self, **config):
        nodes = f"num-supernodes={len(self.sites)}"
        sockets = str(self.folder / "sockets")
        return super().run("--federation-config", nodes, sockets=sockets, **config)


class InSimulation(OverFlower):
    """Flower's simulation: any node carries a request to the socket of any site."""

    name = "simulation"
    marks = (
        pytest.mark.slow,
        pytest.mark.skipif(
            importlib.util.find_spec("ray") is None,
            reason="needs Ray: pip install 'flwr[simulation]'",
        ),
    )
    loopback = SimulatedLoopback
    answer_within = 20  # an exchange takes 0.1 to 0.3 s once nodes are up
    cannot: ClassVar = {
        "kill server": "a simulation ends with its SuperLink",
        "kill coordinator": "a simulation ends with its SuperLink",
    }

    def pause_site(self, name):
        super().pause_site(name)
        self.stop_site(name)

    def go_on_site(self, name):
        super().go_on_site(name)
        self.start_site(name)


@contextlib.contextmanager
def in_background(work):
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE)
        assert not thread.is_alive()


@contextlib.contextmanager
def in_thread(work):
    """Run a coroutine in a thread until the block ends."""
    loop, started = asyncio.new_event_loop(), threading.Event()
    task = None

    def body():
        nonlocal task
        task = loop.create_task(work())
        started.set()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
            loop.run_until_complete(asyncio.sleep(0.05))  # TLS connections end
        finally:
            loop.close()

    thread = threading.Thread(target=body)
    thread.start()
    started.wait()
    try:
        yield
    finally:
        if not loop.is_closed():
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)
        thread.join()


KINDS = {
    kind.name: kind
    for kind in (InOneProcess, by(FolderCarrier, answer), OverHttps, OverFlower, InSimulation)
}  # test_conformance.py runs its scenarios on each
