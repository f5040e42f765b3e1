"""The federation as it is deployed: processes, TLS and keys on the loopback.

One federation with three sites serves the whole module. The coordinator runs in this process,
except where it has to be killed.
"""

import contextlib
import hashlib
import http.client
import json
import os
import re
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pyarrow as pa
import pytest
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.node_pb2 import Node
from pyarrow import csv

from dorfl.flower import keys, running, superlink
from dorfl.flower.attending import attend
from dorfl.flower.fleet import Connection, Rejected
from dorfl.flower.folders import Federation, SiteFolder
from dorfl.flower.serving import free_port
from dorfl.study import coordinator, local
from dorfl.study import model as models
from dorfl.study.ledger import Ledger, mark_of
from dorfl.study.site import Site
from study_cases import (
    METHODS,
    a_site,
    among,
    make_sites,
    make_study,
    secure_sites,
    synthetic_tables,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower")]

DORFL = (sys.executable, "-m", "dorfl")
CANARY = 31337.0625
SECRET = "secret-folder-of"


def tables():
    """Three clients; the first row of each holds a number that must not be seen elsewhere."""
    found = synthetic_tables()
    for k, table in enumerate(found.values()):
        table["x0"] = np.concatenate([[CANARY + k], table["x0"][1:]])
    return found


TABLES = tables()


def dorfl(*words, **options):
    return subprocess.run(
        [*DORFL, *map(str, words)], capture_output=True, text=True, timeout=150, check=False,
        **options,
    )  # fmt: skip


class Deployed(SimpleNamespace):
    """A federation's folder, and its sites as processes."""

    def start_site(self, name):
        words = ["site", "start", self.homes[name], "--data", self.homes[name] / "records.csv"]
        words += ["--server", self.server, "--ca", self.ca]
        log = (self.homes[name] / "output.log").open("ab")
        self.sites[name] = subprocess.Popen([*DORFL, *map(str, words)], stdout=log, stderr=log)
        log.close()

    def stop_site(self, name, how=signal.SIGTERM):
        self.sites[name].send_signal(how)
        self.sites[name].wait()

    def connection(self, name="site-1", *, key=None, server=None, ca=None):
        private = keys.read_private(key or self.homes["site-1"] / "site-1.key")
        made = Connection(server or self.server, ca or self.ca, private, name)
        self.opened.append(made)
        return made

    def run(self, study, watch=lambda *_: None):
        return running.begin(self.federation, study, watch)


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    root = tmp_path_factory.mktemp("deployed")
    federation = Federation.create(root / "fed", "127.0.0.1", free_port())
    homes = {name: root / f"{SECRET}-{name}" for name in TABLES}
    for name, home in homes.items():
        SiteFolder.create(home, name, released=tuple(TABLES[name]), approve=("*",))
        with (home / "site.toml").open(
            "a"
        ) as file:  # many studies, of one small table with a wild row
            file.write(
                "[limits]\ntold = 99\nversions = 99\nmiddles = 99\nalone = 1.0\nbehind = 0\n"
            )
        federation.add_site(name, (home / f"{name}.pub").read_bytes())
        csv.write_csv(pa.table(TABLES[name]), home / "records.csv")
    found = Deployed(
        root=root, federation=federation, homes=homes, sites={}, opened=[],
        server=f"127.0.0.1:{federation.port}", ca=federation.keys / "ca.crt",
    )  # fmt: skip
    started = start_server(federation)
    assert started.returncode == 0, started.stderr
    try:
        for name in TABLES:
            found.start_site(name)
        yield found
    finally:
        for child in found.sites.values():
            child.kill()
            child.wait()
        for line in found.opened:
            line.__exit__()
        dorfl("stop", federation.path)


def same(one, two):
    return np.array_equal(one.theta, two.theta) and np.array_equal(one.lam, two.lam)


def alone(study):
    """The same study in this process, without a network."""
    read = {name: {**t, "y": list(t["y"])} for name, t in TABLES.items()}
    return local.run(coordinator.begin(study, "alone"), make_sites(read)).outcome


def of_one_table(folder):
    """What `dorfl train` makes of the same study and all sites' rows, in one file."""
    parts = [
        pa.table({**table, "site": [name] * len(table["y"])}) for name, table in TABLES.items()
    ]
    csv.write_csv(pa.concat_tables(parts), folder / "all.csv")
    words = ("--table", folder / "all.csv", "--client", "site", "--out", folder / "table")
    done = dorfl("train", folder / "study.toml", *words, "--force", "--budget", 0)
    assert done.returncode == 0, done.stderr
    return models.load(folder / "table")


FEW = "rounds = 4"
LONGER = 'solver = "optimistic"\ntolerance = 1e-12\nrounds = 10'


@pytest.mark.parametrize("method", METHODS)
def test_the_deployed_result_is_the_one_in_process_to_the_bit(deployed, method):
    study = make_study(TABLES, method=METHODS[method], training=FEW)
    end, _ = deployed.run(study)
    assert end.outcome.rounds <= 4
    assert same(end.outcome, alone(study))


def summed(deployed, method):
    """A study of secure sums that a person at every site has approved, and what it gives here."""

    def key_of(name):
        return keys.read_private(deployed.homes[name] / f"{name}.key")

    plain = make_study(TABLES, method=METHODS[method], extra='[columns]\nscaling = "standard"')
    study = among(plain, key_of)
    for home in deployed.homes.values():
        Ledger(home / "ledger.json").approve(mark_of(study))
    read = {name: {**t, "y": list(t["y"])} for name, t in TABLES.items()}
    here = local.run(coordinator.begin(study, "alone"), secure_sites(read, study, key_of))
    return plain.changed(privacy_secure_sum=True), here.outcome


@pytest.mark.parametrize("method", ["erm", "afl"])
def test_secure_sums_give_the_result_in_process_to_the_bit(deployed, method):
    study, here = summed(deployed, method)
    end, folder = deployed.run(study)
    assert here.status == end.outcome.status == "converged"
    assert same(end.outcome, here) and end.outcome.rounds == here.rounds
    assert models.load(folder / "model").fit.clients == ("all sites",)
    rounds = [line for line in read_log(folder) if line["event"] == "round"]
    assert [line["round"] for line in rounds] == [*range(1, here.rounds + 1)]
    assert all([*line["sites"]] == ["all sites"] for line in rounds)


def test_a_secure_sum_waits_for_a_site_that_was_killed_and_gives_the_same_bits(deployed):
    study, here = summed(deployed, "erm")

    def restart():
        deployed.stop_site("site-2", signal.SIGKILL)
        deployed.start_site("site-2")

    def watch(state, event, _):
        if event == "step" and state.step == "sum masked" and len(state.history) == 1:
            deployed.sites["site-2"].send_signal(signal.SIGSTOP)
            threading.Timer(2.0, restart).start()

    end, _ = deployed.run(study, watch)
    assert same(end.outcome, here)


def test_with_whom_to_sum_takes_a_person(deployed):
    study = make_study(TABLES, method=METHODS["erm"], extra='[columns]\nscaling = "standard"')
    study = study._replace(name="unseen").changed(privacy_secure_sum=True)
    with pytest.raises(ValueError, match="waits for approval by a person"):
        deployed.run(study)
    shown = dorfl("site", "approve", deployed.homes["site-1"]).stdout
    assert "unseen" in shown and "site-3 " in shown  # with its key


def test_a_run_that_went_nowhere_leaves_no_model_unless_forced(deployed, tmp_path):
    (tmp_path / "study.toml").write_text('name = "typed"\n[data]\nlabel = "y"\n')
    words = ["run", deployed.federation.path, tmp_path / "study.toml", "--max-rounds", 1]
    done = dorfl(*words, "--solver", "sqp", "--tol", "1e-3")
    folder = deployed.federation.runs()[-1]
    assert done.returncode == 4 and not (folder / "model").exists()
    assert "best constant prediction" in done.stderr
    again = dorfl("resume", deployed.federation.path, "--force")
    assert again.returncode == 4 and "not converged" in again.stderr.splitlines()[-1]
    assert models.load(folder / "model").useless


def test_from_run_to_model_folder_as_people_type_it(deployed, tmp_path):
    text = f'name = "typed"\n[data]\nlabel = "y"\n[method]\n{METHODS["dorfl"]}\n'
    (tmp_path / "study.toml").write_text(text)
    done = dorfl("run", deployed.federation.path, tmp_path / "study.toml")
    assert done.returncode == 0, done.stderr
    assert "3 of 3 answered" in done.stdout and "converged" in done.stdout
    folder = deployed.federation.runs()[-1]
    found = models.load(folder / "model")
    study = make_study(TABLES)
    assert same(found.fit, alone(study))
    assert same(found.fit, of_one_table(tmp_path).fit)
    record = json.loads((folder / "record.json").read_text())
    assert record["status"] == "converged" and record["certificate"]["radius"] > 0
    assert record["study"]["absent"]["then"] == "wait"  # the rule is on record
    rounds = [line for line in read_log(folder) if line["event"] == "round"]
    assert len(rounds) == record["rounds"]
    assert set(rounds[0]["sites"]) == set(TABLES)
    for name, home in deployed.homes.items():
        audit = (home / "results" / folder.name / "audit.csv").read_text().splitlines()
        assert audit[0] == "row,weight,distance,columns"
        assert audit[1].startswith("1,")  # the canary's row is the most suspect of all
        assert len(audit) == len(TABLES[name]["y"]) + 1
    told = json.loads(dorfl("status", deployed.federation.path, "--json").stdout)
    assert told["server"] and told["run"]["state"] == "finished"
    assert set(told["sites"].values()) == {"online"}


def read_log(folder):
    found = running.read_log(folder)
    assert len(found) == len((folder / "log.jsonl").read_text().splitlines())
    return found


# ── the door ─────────────────────────────────────────────────────────────────────────────────────


def test_a_site_that_belongs_is_known_by_name(deployed):
    assert deployed.connection().hello().site == "site-1"
    home = deployed.homes["site-1"]
    words = ["--data", home / "records.csv", "--server", deployed.server, "--ca", deployed.ca]
    done = dorfl("site", "check", home, *words)
    assert done.returncode == 0, done.stderr
    assert "knows this site as 'site-1'" in done.stdout and "100 rows" in done.stdout


def test_a_wrong_authority_is_refused_by_its_name(deployed, tmp_path):
    keys.create_authority(tmp_path, "127.0.0.1")
    with pytest.raises(Rejected, match="not signed by the authority in --ca"):
        deployed.connection(ca=tmp_path / "ca.crt").hello()
    home = deployed.homes["site-1"]
    words = ["--data", home / "records.csv", "--server", deployed.server]
    done = dorfl("site", "check", home, *words, "--ca", tmp_path / "ca.crt")
    assert done.returncode == 2
    assert "not signed by the authority" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unregistered_key_is_refused_by_its_cause(deployed, tmp_path):
    keys.create_pair(tmp_path, "site-1")
    with pytest.raises(Rejected, match="key is not registered"):
        deployed.connection(key=tmp_path / "site-1.key").hello()
    with pytest.raises(Rejected, match="key is not registered"):
        deployed.connection(key=tmp_path / "site-1.key").receive()


def test_a_key_under_another_name_is_refused_by_its_cause(deployed):
    with pytest.raises(Rejected, match="registered for site 'site-1', not for 'site-2'"):
        deployed.connection("site-2").receive()


def test_plaintext_is_refused(deployed):
    with pytest.raises(Rejected, match="plaintext is refused"):
        deployed.connection(server=f"http://{deployed.server}")
    host, port = deployed.server.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as line:
        line.sendall(b"POST /v1/dorfl/hello HTTP/1.1\r\nhost: x\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"HTTP/1.1 2" not in line.recv(4096)
    with plain_server() as address, pytest.raises(Rejected, match="does not speak TLS"):
        deployed.connection(server=address).hello()


@contextlib.contextmanager
def plain_server():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            with contextlib.suppress(OSError):
                line, _ = listener.accept()
                with line:
                    line.recv(4096)
                    line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/register-node",
        "/v1/control/list-nodes",
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/v1/fleet/activate-node",
        "/v1/fleet/pull-messages",
        "/v1/fleet/push-messages",
        "/v1/fleet/../control/list-nodes",
        "/v1/fleet/activate-node/../../control/start-run",
        "/docs",
        "/openapi.json",
    ],
)
def test_what_is_the_coordinators_cannot_be_reached_from_outside(deployed, path):
    signer = deployed.connection().signer  # even a registered site gets no further
    for method in ("GET", "POST"):
        status, told = ask(deployed, method, path, signer.headers(method, path))
        assert status == 403 and "only their questions and answers pass here" in told["error"]


def ask(deployed, method, path, headers, body=b""):
    """One request, as it is; the status and what is said."""
    line = http.client.HTTPSConnection(
        deployed.server, timeout=30, context=ssl.create_default_context(cafile=deployed.ca)
    )
    with contextlib.closing(line):
        line.request(method, path, body, headers)
        with line.getresponse() as answer:  # closed also where reading it fails
            content = answer.read()
        return answer.status, json.loads(content) if content else None


def test_the_superlink_listens_on_the_loopback_alone(deployed):
    port = deployed.federation.noted("server")["superlink"]
    socket.create_connection(("127.0.0.1", port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))


def test_a_site_cannot_ask_in_the_coordinators_name(deployed):
    """Not even from the coordinator's machine, in the middle of a run, knowing all numbers."""
    port, ca = deployed.federation.noted("server")["superlink"], deployed.ca
    key, tried = keys.read_private(deployed.homes["site-1"] / "site-1.key"), []

    def watch(state, event, _):
        if event != "round" or len(state.history) != 1:
            return
        with superlink.Link(port, ca) as link:
            front = link._node()
        forged = Message(RecordDict(), front, "query.dorfl", ttl=60.0)  # of this run
        with superlink.FrontNode(port, ca, key) as node:
            node._node = Node(node_id=front)
            for attempt in (node.activate, node.receive, lambda: push(node, forged)):
                with pytest.raises(httpx.HTTPStatusError) as refused:
                    attempt()
                tried.append(refused.value.response.status_code)

    study = make_study(TABLES, training=FEW)
    end, folder = deployed.run(study, watch)
    assert len(tried) == 3 and set(tried) <= {401, 403, 412}  # unknown, or not registered
    assert same(end.outcome, alone(study))
    assert not [e for e in read_log(folder) if e["event"] in ("server lost", "asked again")]


def push(node, message):
    """A message to the SuperLink that is the answer to nothing."""
    message.metadata.__dict__["_message_id"] = message.object_id
    message.metadata.__dict__["_src_node_id"] = 1  # the SuperLink's own, as a coordinator's has
    sent = message_to_proto(remove_content_from_message(message))
    node._client.PushMessages(PushMessagesRequest(node=node._node, messages_list=[sent]))


HELLO, NEXT = "/v1/dorfl/hello", "/v1/dorfl/next"


def test_a_signature_serves_for_one_request_and_no_other(deployed, tmp_path):
    signer = deployed.connection().signer
    mine = signer.headers("POST", HELLO)
    assert ask(deployed, "POST", HELLO, mine)[0] == 200
    assert "used before" in ask(deployed, "POST", HELLO, mine)[1]["error"]
    assert "does not fit" in ask(deployed, "POST", NEXT, signer.headers("POST", HELLO))[1]["error"]
    keys.create_pair(tmp_path, "other")
    other = deployed.connection(key=tmp_path / "other.key").signer.headers("POST", HELLO)
    for name in mine:  # no field can be another's, or another time's
        forged = {**signer.headers("POST", HELLO), name: other[name]}
        if other[name] == mine[name]:
            continue
        assert ask(deployed, "POST", HELLO, forged)[0] in (401, 403), name
    assert "not signed" in ask(deployed, "POST", HELLO, {})[1]["error"]
    swapped = signer.headers("POST", HELLO)
    assert ask(deployed, "POST", HELLO, swapped, b"another body")[0] == 413
    answer = "/v1/dorfl/answer/" + "0" * 32
    unasked = ask(deployed, "POST", answer, signer.headers("POST", answer, b"x"), b"x")
    assert unasked[0] in (409, 410)  # it is running already, or nobody asked


@pytest.mark.parametrize("off", [-3600, -75, 75, 3600])
def test_a_clock_that_is_off_is_told_by_how_much_and_what_is_allowed(deployed, off):
    line = deployed.connection()
    object.__setattr__(line.signer, "clock", lambda: time.time() + off)
    with pytest.raises(Rejected, match=rf"clock is {abs(off)} s .* at most 60 s are allowed"):
        line.hello()


def test_a_copy_of_a_sites_folder_is_refused_and_noted(deployed, tmp_path):
    """The lock is in the folder, so a copy has its own; the server sees that there are two."""
    home = tmp_path / "copy"
    shutil.copytree(deployed.homes["site-1"], home)
    words = ["--server", deployed.server, "--ca", deployed.ca, "--data", home / "records.csv"]
    copy = dorfl("site", "start", home, *words)
    assert copy.returncode == 2
    assert "another process answers for site 'site-1'" in copy.stderr
    again = dorfl("site", "start", deployed.homes["site-1"], *words)
    assert again.returncode == 2 and "the site is running already" in again.stderr
    _, folder = deployed.run(make_study(TABLES, training=FEW))
    noted = [e for e in read_log(folder) if e["event"] == "two processes under one key"]
    assert {e["site"] for e in noted} == {"site-1"}


# ── faults ───────────────────────────────────────────────────────────────────────────────────────


def test_a_site_killed_in_round_two_and_restarted_changes_nothing(deployed):
    study = make_study(TABLES, training=LONGER)

    def watch(state, event, _):
        if event == "round" and len(state.history) == 1:
            # it gets the question of round two, and dies with it
            deployed.sites["site-2"].send_signal(signal.SIGSTOP)
            threading.Timer(2.0, restart).start()

    def restart():
        deployed.stop_site("site-2", signal.SIGKILL)
        deployed.start_site("site-2")

    end, folder = deployed.run(study, watch)
    assert same(end.outcome, alone(study))
    assert {"asked again"} <= {line["event"] for line in read_log(folder)}
    assert json.loads((folder / "record.json").read_text())["stood in"] == {}


def test_a_coordinator_killed_in_round_three_resumes_to_the_same_bits(deployed, tmp_path):
    study = make_study(TABLES, training=LONGER)
    federation = deployed.federation
    (tmp_path / "study.toml").write_text(written("trial"))
    words = ["run", federation.path, tmp_path / "study.toml"]
    before = len(federation.runs())
    child = subprocess.Popen([*DORFL, *map(str, words)], stdout=subprocess.DEVNULL)
    while len(federation.runs()) == before or rounds_of(federation.runs()[-1]) < 2:
        assert child.poll() is None
        time.sleep(0.02)
    child.kill()
    child.wait()
    folder = federation.runs()[-1]
    assert "interrupted" in dorfl("status", federation.path).stdout
    assert "ended" not in running.read_record(folder)
    assert "not converged" in dorfl("resume", federation.path).stderr  # ten rounds for 1e-12
    assert same(models.load(folder / "model").fit, alone(study))
    assert [line["round"] for line in read_log(folder) if line["event"] == "round"] == [
        *range(1, 11)
    ]
    again = dorfl("resume", federation.path, folder.name)
    assert again.returncode == 2 and "is finished" in again.stderr


def written(name):
    return (
        f'name = "{name}"\n[data]\nlabel = "y"\n[method]\n{METHODS["dorfl"]}\n'
        f"[training]\n{LONGER}\n"
    )


def rounds_of(folder):
    log = folder / "log.jsonl"
    return log.read_text().count('"event": "round"') if log.exists() else 0


@pytest.mark.parametrize("victim", ["SuperLink", "server"])
def test_a_server_killed_in_round_two_comes_back_and_the_run_goes_on(deployed, victim):
    study = make_study(TABLES, training=LONGER)
    federation = deployed.federation

    def watch(state, event, _):
        if event == "round" and len(state.history) == 1:
            if victim == "SuperLink":  # the server starts it again
                os.kill(superlink_of(federation), signal.SIGKILL)
            else:
                os.kill(federation.noted("server")["pid"], signal.SIGKILL)
                assert start_server(federation).returncode == 0

    end, folder = deployed.run(study, watch)
    assert same(end.outcome, alone(study))
    events = [line["event"] for line in read_log(folder)]
    assert "server lost" in events and "server back" in events


def start_server(federation):
    return dorfl("server", "start", federation.path, "--address", "127.0.0.1", "--detach")


def superlink_of(federation):
    parent = federation.noted("server")["pid"]
    listed = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, check=True)
    return int(listed.stdout)


def test_ctrl_c_is_safe_and_a_run_is_resumed_by_its_name(deployed, tmp_path):
    federation = deployed.federation
    (tmp_path / "study.toml").write_text(written("stopped"))
    words = ["run", federation.path, tmp_path / "study.toml"]
    before = len(federation.runs())
    child = subprocess.Popen([*DORFL, *map(str, words)], stderr=subprocess.PIPE, text=True)
    while len(federation.runs()) == before or rounds_of(federation.runs()[-1]) < 1:
        assert child.poll() is None
        time.sleep(0.02)
    deployed.sites["site-3"].send_signal(signal.SIGSTOP)  # so that the run cannot end meanwhile
    try:
        second = dorfl(*words)  # it is refused, and leaves no run behind
        assert second.returncode == 2 and "a run is going on already" in second.stderr
        assert len(federation.runs()) == before + 1
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    finally:
        deployed.sites["site-3"].send_signal(signal.SIGCONT)
    assert child.returncode == 130
    (run,) = re.findall(r"nothing is lost: dorfl resume \S+ (\S+)", said)
    deployed.run(make_study(TABLES, training=FEW))  # another one in between
    end = running.go_on(federation, running.unfinished(federation, run), lambda *_: None)
    assert same(end.outcome, alone(make_study(TABLES, training=LONGER)))
    with pytest.raises(ValueError, match="is finished"):
        running.unfinished(federation, run)


def test_another_table_in_the_middle_of_a_run_is_refused_and_named(deployed, tmp_path):
    federation, home = deployed.federation, deployed.homes["site-2"]
    kept = (home / "records.csv").read_bytes()

    def watch(state, event, _):
        if event == "round" and len(state.history) == 1:
            deployed.stop_site("site-2")
            other = {**TABLES["site-2"], "x1": TABLES["site-2"]["x1"][::-1]}  # as many rows
            csv.write_csv(pa.table(other), home / "records.csv")
            deployed.start_site("site-2")

    study = make_study(TABLES, training=LONGER, absent="stand_in = 0")
    try:
        with pytest.raises(ValueError, match="'site-2' does not take part: this site's table has"):
            deployed.run(study, watch)
    finally:
        deployed.stop_site("site-2")
        (home / "records.csv").write_bytes(kept)
        deployed.start_site("site-2")
    end = running.go_on(federation, running.unfinished(federation), lambda *_: None)
    assert same(end.outcome, alone(study))  # with the old table it goes on, to the same bits


def test_a_certificate_is_renewed_while_the_server_runs(deployed):
    def serial():
        host, port = deployed.server.split(":")
        pem = ssl.get_server_certificate((host, int(port)))
        return hashlib.sha256(pem.encode()).hexdigest()

    before = serial()

    def watch(state, event, _):
        if event == "round" and len(state.history) == 1:
            assert "holds until" in dorfl("server", "renew", deployed.federation.path).stdout

    study = make_study(TABLES, training=LONGER)
    end, _ = deployed.run(study, watch)
    assert same(end.outcome, alone(study))
    deadline = time.monotonic() + 60
    while serial() == before:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert deployed.connection().hello().site == "site-1"


def test_a_slow_site_is_stood_in_for_and_its_late_answers_are_noted(deployed):
    absent = 'answer_within = 1.5\nstand_in = 1\nthen = "go on"'
    study = make_study(TABLES, training=LONGER, absent=absent)

    def watch(state, event, _):
        if event == "round" and len(state.history) == 2:
            deployed.sites["site-3"].send_signal(signal.SIGSTOP)
        if event == "round" and len(state.history) == 4:
            deployed.sites["site-3"].send_signal(signal.SIGCONT)
            time.sleep(2.0)  # time for it to answer what it was asked before

    try:
        end, folder = deployed.run(study, watch)
    finally:
        deployed.sites["site-3"].send_signal(signal.SIGCONT)
    record = json.loads((folder / "record.json").read_text())
    assert set(record["stood in"]) == {"site-3"} and {3, 4} <= set(record["stood in"]["site-3"])
    assert "site-3" in end.history[-1].answered  # it is back
    assert "late answer" in {line["event"] for line in read_log(folder)}
    assert np.isfinite(end.outcome.theta).all()


def test_a_site_that_sends_rubbish_is_refused_recorded_and_survived(deployed):
    """It answers honestly for a round, then with whatever it likes."""
    name = "liar"
    home = deployed.root / f"{SECRET}-{name}"
    SiteFolder.create(home, name)
    added = dorfl("server", "add-site", deployed.federation.path, home / "liar.pub", "--name", name)
    assert added.returncode == 0, added.stderr

    class Liar(Site):
        asked = 0

        def respond(self, data):
            honest = super().respond(data)
            self.asked += b'"step":"round"' in data
            rubbish = [b"", b"\xff" * 9, honest.replace(b'"rows":', b'"rows":-'), b"{}" * 999]
            return honest if self.asked < 2 else rubbish[self.asked % 4]

    pair = {"site-1": TABLES["site-1"], name: TABLES["site-2"]}
    with attending(deployed, a_site(name, pair[name], Liar), home):
        end, folder = deployed.run(make_study(pair, training="rounds = 4", absent="stand_in = 9"))
    assert np.isfinite(end.outcome.theta).all() and np.isfinite(end.outcome.lam).all()
    refused = [line.refused.get(name) for line in end.history]
    assert refused[0] is None and all(refused[1:])
    assert [line["site"] for line in read_log(folder) if line["event"] == "answer refused"]


def wake(connection):
    """End what a thread waits for. It hangs up itself: a line closed under it fails otherwise."""
    with contextlib.suppress(OSError, AttributeError):
        connection._line.sock.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def attending(deployed, site, home):
    """A site in a thread of this process, whatever it is made of."""
    connection = deployed.connection(site.name, key=home / f"{site.name}.key")
    stop = threading.Event()

    def work():
        with contextlib.suppress(Rejected):  # it may be let go
            attend(site, connection, stop, lambda _: None)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield connection
    finally:
        stop.set()
        while thread.is_alive():  # it may be between two requests
            wake(connection)
            thread.join(0.2)
        connection.__exit__()


def test_what_a_site_pushes_takes_up_so_much_memory_and_no_more(deployed):
    """Unasked, or longer than any answer can be, nothing of it is read, and the run goes on."""
    name, big = "flood", b"x" * (60 * 2**20)
    home = deployed.root / f"{SECRET}-{name}"
    SiteFolder.create(home, name)
    deployed.federation.add_site(name, (home / "flood.pub").read_bytes())
    server = deployed.federation.noted("server")["pid"]
    processes = (server, superlink_of(deployed.federation))
    before = [most_memory(p) for p in processes]
    signer = deployed.connection(name, key=home / "flood.key").signer
    said = []

    def unasked(size):
        path = "/v1/dorfl/answer/" + secrets.token_hex(16)
        headers = {**signer.headers("POST", path, big), "content-length": str(size)}
        with contextlib.suppress(OSError):  # it is cut off while it sends
            said.append(ask(deployed, "POST", path, headers, big)[0])

    threads = [threading.Thread(target=unasked, args=(len(big) + k * 2**22,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(said) <= {410, 413}
    assert most_memory(server) - before[0] < 2**25

    class Flood(Site):
        asked = 0

        def respond(self, data):
            self.asked += b'"step":"round"' in data
            return super().respond(data) if self.asked < 2 else big

    pair = {"site-1": TABLES["site-1"], name: TABLES["site-2"]}
    patient = "answer_within = 1\nstand_in = 9"
    study = make_study(pair, training="rounds = 4", absent=patient)
    with attending(deployed, a_site(name, pair[name], Flood), home):
        end, folder = deployed.run(study)
    assert np.isfinite(end.outcome.theta).all() and len(end.history) == 4
    assert json.loads((folder / "record.json").read_text())["stood in"] == {name: [2, 3, 4]}
    long = [e for e in read_log(folder) if e["event"] == "answer too long"]
    assert {(e["site"], e["bytes"]) for e in long} == {(name, len(big))}
    grown = [most_memory(p) - was for p, was in zip(processes, before, strict=True)]
    assert max(grown) < 2**26
    assert deployed.connection().hello().site == "site-1"
    deployed.federation.remove_site(name)


def most_memory(pid):
    """The most that a process has had, in bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", text)[1])


def test_words_of_a_site_forge_no_lines(deployed):
    """A refusal is printed and logged as one line, whatever is in it."""
    name = "loud"
    home = deployed.root / f"{SECRET}-{name}"
    SiteFolder.create(home, name)
    deployed.federation.add_site(name, (home / "loud.pub").read_bytes())
    forged = "no\r\nround   9  gap 0.0\x1b[2J\u2028x"

    class Loud(Site):
        def respond(self, data):
            told = json.loads(super().respond(data))
            return json.dumps({**told, "answer": {"reason": forged}}).encode()

    pair = {"site-1": TABLES["site-1"], name: TABLES["site-2"]}
    reason = "no round 9 gap 0.0 \\[2J x"
    with attending(deployed, Loud(name, pair[name]), home), pytest.raises(ValueError, match=reason):
        deployed.run(make_study(pair))
    left = dorfl("server", "remove-site", deployed.federation.path, name)
    assert left.returncode == 0 and name not in deployed.federation.sites()
    with pytest.raises(Rejected, match="key is not registered"):
        deployed.connection(name, key=home / "loud.key").hello()


def test_a_site_can_leave_a_run_and_is_not_waited_for(deployed):
    name = "leaver"
    home = deployed.root / f"{SECRET}-{name}"
    SiteFolder.create(home, name, released=tuple(TABLES["site-2"]), approve=("*",))
    deployed.federation.add_site(name, (home / "leaver.pub").read_bytes())
    pair = {"site-1": TABLES["site-1"], name: TABLES["site-2"]}

    def watch(state, event, _):
        if event == "round" and len(state.history) == 1:
            deployed.federation.remove_site(name)

    study = make_study(pair, training="rounds = 4", absent="answer_within = 1\nstand_in = 0")
    with attending(deployed, a_site(name, pair[name], Patient), home):
        _, folder = deployed.run(study, watch)
    record = json.loads((folder / "record.json").read_text())
    assert record["stood in"] == {name: [2, 3, 4]}


class Patient(Site):
    """Takes its time, so that it has not answered a question when it is let go."""

    def respond(self, data):
        time.sleep(0.5 if b'"step":"round"' in data else 0.0)
        return super().respond(data)


def test_the_same_key_or_name_twice_is_refused(deployed, tmp_path):
    public = deployed.homes["site-1"] / "site-1.pub"
    again = dorfl("server", "add-site", deployed.federation.path, public, "--name", "site-7")
    assert again.returncode == 2 and "registered already, for site 'site-1'" in again.stderr
    other = keys.create_pair(tmp_path, "new")
    taken = dorfl("server", "add-site", deployed.federation.path, other, "--name", "site-1")
    assert taken.returncode == 2 and "registered with another key" in taken.stderr


def test_a_second_server_or_run_is_refused(deployed):
    second = dorfl("server", "start", deployed.federation.path, "--address", "127.0.0.1")
    assert second.returncode == 2
    with deployed.federation.holding("run", {}), pytest.raises(ValueError, match="already"):
        deployed.run(make_study(TABLES))


# ── privacy; last, when all of the above has been logged and stored ──────────────────────────────


def test_no_row_and_no_path_of_a_site_is_anywhere_on_the_server(deployed):
    deployed.run(make_study(TABLES, training=FEW))
    seen = 0
    for file in deployed.federation.path.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not re.search(rb"3133[789]\.06", content), file  # fewer digits turn up by chance
            assert SECRET.encode() not in content, file
            assert b"records.csv" not in content, file
            seen += 1
    assert seen > 15
    assert any(
        b"31337" in home.joinpath("records.csv").read_bytes() for home in deployed.homes.values()
    )


def test_private_keys_are_their_owners_alone(deployed):
    secret = [*deployed.federation.keys.glob("*.key"), *deployed.root.glob(f"{SECRET}*/*.key")]
    assert len(secret) >= 5  # the authority's, the server's, three sites'
    assert {oct(file.stat().st_mode & 0o777) for file in secret} == {"0o600"}
