"""The Flower carrier: public APIs alone, and a SuperNode that is hostile gets no row."""

import ast
import contextlib
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from deployments import CANARY, SECRET, InOneProcess, until
from typer.testing import CliRunner

import dorfl
from dorfl.carriers import flower
from dorfl.carriers.driver import Outgoing
from dorfl.carriers.folders import Federation, SiteFolder
from dorfl.cli import app
from dorfl.cli.loopback import FlowerLoopback

pytestmark = pytest.mark.xdist_group("carriers")

SOURCE = Path(dorfl.__file__).parent
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}


def imports(path):
    """Return the modules of Flower that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name for name in names if name.split(".")[0] == "flwr")


def test_only_public_modules_of_flower_are_imported_and_a_site_needs_none():
    used = {p.relative_to(SOURCE).as_posix(): set(imports(p)) for p in SOURCE.rglob("*.py")}
    assert not {name: found - PUBLIC for name, found in used.items() if found - PUBLIC}
    assert {name.split("/")[0] for name, found in used.items() if found} == {"flower", "carriers"}
    code = (
        "import dorfl.cli, dorfl.carriers.https, dorfl.carriers.flower, sys\n"
        "sys.exit('flwr' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_init_writes_app_units_and_nginx_with_every_place_filled_in(tmp_path):
    def call(*words):
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, done.output
        return done.stdout

    fed, site = tmp_path / "fed", tmp_path / "site-1"
    call("server", "init", fed, "--host", "fl.example.org")
    call("site", "init", site, "--name", "site-1")
    assert "flwr supernode register" in call("flower", "init", fed)
    call("flower", "init", site, "--ca", fed / "keys" / "ca.crt")
    call("flower", "init", fed)  # twice changes nothing that matters
    made = [*(fed / "flower").iterdir(), *(site / "flower").iterdir()]
    texts = {file.name: file.read_text() for file in made if file.is_file()}
    assert not [name for name, text in texts.items() if re.search(r"@\w+@", text)]
    assert str(fed) in (fed / "flower" / "app" / "pyproject.toml").read_text()
    assert oct((site / "flower" / "supernode.key").stat().st_mode & 0o777) == "0o600"
    assert b"OPENSSH PRIVATE KEY" in (site / "flower" / "supernode.key").read_bytes()
    users = {name: set(re.findall(r"^User=(\w+)", t, re.M)) for name, t in texts.items()}
    assert users["flower-supernode.service"] != users["dorfl-site.service"]
    assert users["flower-superlink.service"] != users["dorfl-coordinator.service"]


class Node:
    def __init__(self, node_id, name):
        self.node_id, self.name = node_id, name


class Grid:
    """A grid that answers as it is told."""

    def __init__(self, *nodes):
        self.nodes, self.pushed = nodes, []

    def get_nodes(self):
        return self.nodes

    def push_messages(self, messages):
        self.pushed += messages
        return [f"m{len(self.pushed)}"]

    def pull_messages(self, ids):
        return []


def test_a_request_goes_to_the_node_of_that_name_and_waits_for_one_that_is_away(monkeypatch):
    made = []
    monkeypatch.setattr("flwr.app.Message", lambda content, node, *_, **__: made.append(node))
    grid = Grid(Node(7, "site-1"), Node(8, "other"))
    answered = []
    line = flower.GridCarrier(grid, lambda: answered.append(True))
    line.exchange([], 0.0)
    assert not answered
    asked = [Outgoing("a", "site-1", b"x"), Outgoing("b", "site-2", b"y")]
    line.exchange(asked, 0.0)
    assert made == [7] and answered  # so a process that waits for the run is refused
    grid.nodes = (*grid.nodes, Node(9, "site-2"))
    line.exchange(asked, 0.0)
    assert made == [7, 9]
    simulated = flower.GridCarrier(Grid(Node(1, ""), Node(2, "")))
    simulated.exchange([Outgoing("a", "s", b""), Outgoing("b", "t", b"")], 0.0)
    assert made == [7, 9, 1, 2]
    assert simulated.rejoin_seconds == 0 < 60 < line.rejoin_seconds
    assert flower.GridCarrier(Grid()).rejoin_seconds > 60  # all SuperNodes are away


# ── the attack ───────────────────────────────────────────────────────────────────────────────────

HOSTILE_CLIENT = """
import glob, json, os, socket
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()

def attempt(work):
    try:
        return repr(work())
    except BaseException as error:
        return type(error).__name__

def ask(place, content):
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(place)
        line.sendall(content)
        line.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: line.recv(1 << 16), b""))

def memory(pid):
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as mem:
        mem.seek(int(maps.readline().split("-")[0], 16))
        return mem.read(4096)

@app.query("attack")
def attack(message, context):
    folder, place = str(context.run_config["folder"]), str(context.node_config["socket"])
    asked = {"agreement": {"run": "r", "site": "site-1"}, "step": "enrol"}
    pids = [p.split("/")[2] for p in glob.glob("/proc/[0-9]*/cmdline")
            if b"\\0site\\0start\\0" + folder.encode() in open(p, "rb").read()]
    found = {
        "uid": os.getuid(), "pids": len(pids),
        "list": attempt(lambda: os.listdir(folder)),
        "table": attempt(lambda: open(folder + "/records.csv").read()),
        "key": attempt(lambda: open(folder + "/site-1.key").read()),
        "memory": [attempt(lambda p=p: memory(p)) for p in pids],
        "files": [attempt(lambda p=p: os.listdir(f"/proc/{p}/fd")) for p in pids],
        "unsigned": attempt(lambda: ask(place, json.dumps(asked).encode())),
        "rubbish": attempt(lambda: ask(place, b"rows, please")),
    }
    reply = ConfigRecord({"found": json.dumps(found)})
    return Message(RecordDict({"found": reply}), reply_to=message)
"""
HOSTILE_SERVER = """
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()

@app.main()
def main(grid, context):
    sent = [Message(RecordDict(), node, "query.attack") for node in grid.get_node_ids()]
    for reply in grid.send_and_receive(sent, timeout=120):
        print("ATTACK", reply.content["found"]["found"], flush=True)
"""
NO_CAPABILITIES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--groups=65534")
# Python may lie in a folder of root; reading files of root is all that the site may do beside.
ANOTHER_USER = (
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
)


class ApartLoopback(FlowerLoopback):
    """The SuperNode and the site's process run as different users."""

    def start(self, name, command, **env):
        prefix = {"site": ANOTHER_USER, "supernode": NO_CAPABILITIES}.get(name.split("-")[-1], ())
        super().start(name, [*prefix, *command], **env)


def hostile_app(folder):
    """Write a Flower app that looks for rows."""
    text = (SOURCE / "carriers" / "flower_app" / "pyproject.toml").read_text()
    head, _, _ = text.partition("[tool.flwr.app.config]")
    (folder / "dorflapp").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(f'{head}[tool.flwr.app.config]\nfolder = ""\n')
    (folder / "dorflapp" / "__init__.py").touch()
    (folder / "dorflapp" / "client_app.py").write_text(HOSTILE_CLIENT)
    (folder / "dorflapp" / "server_app.py").write_text(HOSTILE_SERVER)
    return folder


@contextlib.contextmanager
def nginx(federation, root):
    """Serve the configuration that `dorfl flower init` wrote, by Debian's nginx."""
    (root / "logs").mkdir(parents=True)
    written = (federation.path / "flower" / "nginx.conf").read_text()
    written = written.replace("listen ", "listen 127.0.0.1:")
    (root / "nginx.conf").write_text(
        f"daemon off; pid {root}/pid; error_log {root}/logs/error.log; user root;\n"
        f"events {{}}\nhttp {{ access_log off; {written} }}\n"
    )
    child = subprocess.Popen(["nginx", "-p", str(root), "-c", str(root / "nginx.conf")])
    try:
        yield
    finally:
        child.terminate()
        child.wait()


PATHS = [
    "/v1/control/list-runs",
    "/v1/control/start-run",
    "/v1/runtime/acquire-task",
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/x/../../control/list-runs",
    "/v1//control/list-runs",
    "/health",
    "/docs",
]


def status_of(port, path, ca):
    context = ssl.create_default_context(cafile=str(ca))
    url = f"https://127.0.0.1:{port}{path}"
    try:
        with urllib.request.urlopen(url, data=b"", timeout=30, context=context) as response:
            return response.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.fixture
def place():
    """A folder that other users can pass through; pytest's own they cannot."""
    with tempfile.TemporaryDirectory() as found:
        Path(found).chmod(0o711)
        yield Path(found)


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("setpriv") and shutil.which("nginx")),
    reason="needs root, setpriv and nginx",
)
def test_a_hostile_app_in_a_supernode_gets_no_row_and_nginx_keeps_control_inside(place):
    made = InOneProcess(place)  # its folders; no site is started
    federation, home = made.federation, made.homes["site-1"]
    loopback = ApartLoopback(place / "f", federation, {home: home / "records.csv"})
    loopback.gateway = federation.port
    sockets = place / "f" / "sockets"
    sockets.mkdir(parents=True)
    flower.write_site(SiteFolder.open(home), made.ca)
    for path in (home.parent, *home.parent.rglob("*"), sockets):
        os.chown(path, 65534, 65534)
    home.chmod(0o700)
    sockets.chmod(0o750)
    flower.write_coordinator(federation, loopback.port)
    with nginx(federation, place / "n"), loopback:
        site = loopback.processes["site-1-site"]
        until(lambda: loopback.socket(home).exists() or site.poll() is not None)
        assert site.poll() is None, (place / "f" / "site-1-site.log").read_text()
        for path in PATHS:
            assert status_of(federation.port, path, made.ca) in (400, 403, 404), path
        assert not flower.control_answers(f"127.0.0.1:{federation.port}", made.ca)
        assert flower.control_answers(f"127.0.0.1:{loopback.port}", made.ca)
        study = (
            'name = "unseen"\nsites = ["site-1"]\n[data]\nlabel = "y"\n'
            '[privacy]\nreports = "open"\n'
        )
        honest = loopback.run(study=study)  # through nginx, SuperNode and socket
        assert "waits for approval by a person" in honest.stdout
        done = loopback.flwr(
            "run",
            str(hostile_app(place / "hostile")),
            "here",
            "--stream",
            "--run-config",
            f'folder="{home}"',
        )
    (line,) = re.findall(r"ATTACK (\{.*\})", done.stdout)
    found = json.loads(line)
    assert found["uid"] != 65534 and found["pids"] >= 1  # it ran, and saw the site's process
    for name in ("list", "table", "key"):
        assert found[name] == "PermissionError", found[name]
    assert set(found["memory"]) | set(found["files"]) == {"PermissionError"}
    assert "no signed envelope" in found["unsigned"] and "no signed envelope" in found["rubbish"]
    assert not re.search(r"3133[789]", done.stdout + done.stderr)
    assert f"{CANARY}" in (home / "records.csv").read_text() and SECRET in str(home)


def test_nothing_is_run_without_the_federations_folder(tmp_path):
    with pytest.raises(ValueError, match="is no federation"):
        flower.run_study(None, {"federation": str(tmp_path), "resume": "", "study": ""})
    made = Federation.create(tmp_path / "fed", "127.0.0.1", 1)
    with pytest.raises(ValueError, match="no run to resume"):
        flower.run_study(None, {"federation": str(made.path), "resume": "last", "study": ""})
