"""The federation as it is deployed: processes, TLS and keys on the loopback.

One federation with three sites serves the whole module. The coordinator runs in this process,
except where it has to be killed.
"""

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import httpx
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

from dorfl.flower import keys, running
from dorfl.flower.fleet import Connection, Rejected
from dorfl.flower.folders import Federation, SiteFolder
from dorfl.flower.serving import attend, free_port
from dorfl.study import coordinator, local
from dorfl.study import model as models
from dorfl.study.site import Site
from study_cases import METHODS, a_site, make_sites, make_study, synthetic_tables

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
        folder = running.new(self.federation, study)
        return running.go(self.federation, folder, watch), folder


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
    done = dorfl("train", folder / "study.toml", *words)
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
        deployed.connection(key=tmp_path / "site-1.key").activate()


def test_a_key_under_another_name_is_refused_by_its_cause(deployed):
    with pytest.raises(Rejected, match="registered for site 'site-1', not for 'site-2'"):
        deployed.connection("site-2").activate()


def test_plaintext_is_refused(deployed):
    with pytest.raises(Rejected, match="plaintext is refused"):
        deployed.connection(server=f"http://{deployed.server}")
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"http://{deployed.server}/v1/fleet/activate-node", timeout=5)
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
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/v1/fleet/get-fab",
        "/v1/fleet/../control/list-nodes",
        "/v1/fleet/activate-node/../../control/start-run",
        "/docs",
        "/openapi.json",
    ],
)
def test_what_is_the_coordinators_cannot_be_reached_from_outside(deployed, path):
    signed = deployed.connection()._sign()  # even a registered site gets no further
    with httpx.Client(verify=ssl.create_default_context(cafile=deployed.ca)) as client:
        for method in ("GET", "POST"):
            url = httpx.URL(f"https://{deployed.server}", raw_path=path.encode())
            answer = client.send(httpx.Request(method, url, headers=signed))
            assert answer.status_code == 403
            assert "only fleet traffic passes here" in answer.json()["error"]


def test_the_superlink_listens_on_the_loopback_alone(deployed):
    port = deployed.federation.noted("server")["superlink"]
    socket.create_connection(("127.0.0.1", port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))


def test_a_signature_of_yesterday_and_one_by_another_key_are_refused(deployed, tmp_path):
    keys.create_pair(tmp_path, "other")
    mine = deployed.connection()._sign()
    other = deployed.connection(key=tmp_path / "other.key")._sign()
    stamp = next(k for k, v in mine.items() if v.startswith("20"))
    signature = next(k for k in mine if "signature" in k.lower())
    with httpx.Client(verify=ssl.create_default_context(cafile=deployed.ca)) as client:
        url = f"https://{deployed.server}/v1/dorfl/hello"
        assert client.post(url, headers=mine).status_code == 200
        forged = {**mine, signature: other[signature], stamp: other[stamp]}
        assert "does not fit" in client.post(url, headers=forged).json()["error"]
        old = {**mine, stamp: "2020-01-01T00:00:00+00:00"}
        assert client.post(url, headers=old).status_code == 401
        assert "not signed" in client.post(url).json()["error"]


# ── faults ───────────────────────────────────────────────────────────────────────────────────────


def test_a_site_killed_in_round_two_and_restarted_changes_nothing(deployed):
    study = make_study(TABLES, training=LONGER)

    def watch(state, event, _):
        if event == "round" and len(state.history) == 1:
            deployed.stop_site("site-2", signal.SIGKILL)
            # back only once the question of round two waits for it
            threading.Timer(1.0, deployed.start_site, ["site-2"]).start()

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
    again = dorfl("resume", federation.path)
    assert again.returncode == 2 and "nothing to resume" in again.stderr


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


def test_ctrl_c_is_safe(deployed, tmp_path):
    federation = deployed.federation
    (tmp_path / "study.toml").write_text(written("stopped"))
    words = ["run", federation.path, tmp_path / "study.toml"]
    before = len(federation.runs())
    child = subprocess.Popen([*DORFL, *map(str, words)], stderr=subprocess.PIPE, text=True)
    while len(federation.runs()) == before or rounds_of(federation.runs()[-1]) < 1:
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "nothing is lost" in said
    end = running.go(federation, running.unfinished(federation), lambda *_: None)
    assert same(end.outcome, alone(make_study(TABLES, training=LONGER)))


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
    connection = deployed.connection(name, key=home / "liar.key")
    stop = threading.Event()
    liar = threading.Thread(
        target=attend, args=(a_site(name, pair[name], Liar), connection, stop, lambda _: None)
    )
    liar.start()
    try:
        end, folder = deployed.run(make_study(pair, training="rounds = 4", absent="stand_in = 9"))
    finally:
        stop.set()
        liar.join()
    assert np.isfinite(end.outcome.theta).all() and np.isfinite(end.outcome.lam).all()
    refused = [line.refused.get(name) for line in end.history]
    assert refused[0] is None and all(refused[1:])
    assert [line["site"] for line in read_log(folder) if line["event"] == "answer refused"]


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
