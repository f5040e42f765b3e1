"""docs/federation-flower.md, followed literally; the units' own lines do systemd's part."""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from deployments import PATIENCE, alone, rounds_of, same, until
from pyarrow import csv
from test_flower import nginx

import pages
from dorfl.carriers.folders import Federation
from dorfl.carriers.https import free_port
from dorfl.tabular import model as models
from study_cases import METHODS, make_study, synthetic_tables

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("carriers")]

PAGE = Path(__file__).parents[2] / "docs" / "federation-flower.md"
EXAMPLES = Path(__file__).parents[2] / "examples" / "deployment"
NAMES, TABLES = ("site-1",), synthetic_tables()
STUDY = (
    f'name = "heart"\n[data]\nlabel = "y"\n[method]\n{METHODS["erm"]}\n[training]\nmax_rounds = 2\n'
    '[privacy]\nreports = "open"\n'
)


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory() as found:
        yield Path(found)


# What systemd does for `ProtectSystem=strict`, `ProtectHome=yes` and its writable directories.
SANDBOX = """
mount --make-rprivate /
while [ "$1" != -- ]; do mkdir -p "$1" && mount --bind "$1" "$1"; shift; done
mount -o remount,bind,ro /
shift; exec "$@"
"""
WRITABLE = {
    "StateDirectory=flower": "state",
    "RuntimeDirectory=dorfl": "run",
    "CacheDirectory=dorfl": "cache",
}


def sandboxed(text, places):
    """Return what to put before a unit's command, so that it can write where its unit says."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return []
    assert {"ProtectSystem=strict", "ProtectHome=yes", "PrivateTmp=yes"} <= {*text.splitlines()}
    allowed = [places["tmp"], *re.findall(r"^ReadWritePaths=(.+)$", text, re.MULTILINE)]
    allowed += [places[name] for line, name in WRITABLE.items() if f"\n{line}\n" in text]
    words = ["unshare", "--mount", *(["--net"] if "PrivateNetwork=yes" in text else [])]
    return [*words, "sh", "-ec", SANDBOX, "sh", *map(str, allowed), "--"]


@contextlib.contextmanager
def unit(file, **places):
    """Run a unit as systemd would: its environment, credentials, command and file system."""
    text = file.read_text().replace("\\\n", " ")
    places |= {"tmp": file.parent / f"{file.name}.tmp", "cache": file.parent / f"{file.name}.cache"}
    places["tmp"].mkdir(exist_ok=True)
    for old, new in places.items():
        text = text.replace(places_of(old), str(new))
    text = text.replace("--port 9094", f"--port {free_port()}")  # which may be taken here
    kept = file.parent / f"{file.name}.credentials"
    kept.mkdir(exist_ok=True)
    for name, source in re.findall(r"^LoadCredential=([^:]+):(.+)$", text, re.MULTILINE):
        shutil.copy(source, kept / name)
    env = dict(
        word.split("=", 1)
        for line in re.findall(r"^Environment=(.+)$", text, re.MULTILINE)
        for word in line.split()
    )
    Path(env.get("FLWR_HOME", kept)).mkdir(parents=True, exist_ok=True)
    (command,) = re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)
    words = shlex.split(command.replace("%d", str(kept)))
    words[0] = shutil.which(Path(words[0]).name, path=path_of()) or words[0]
    with file.with_suffix(".log").open("ab") as log:
        child = subprocess.Popen(
            [*sandboxed(text, places), *words],
            env={
                **os.environ,
                "HOME": "/nonexistent",
                "TMPDIR": str(places["tmp"]),
                "PATH": path_of(),
                **env,
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            child.wait()


def places_of(name):
    return {
        "state": "/var/lib/flower",
        "run": "/run/dorfl",
        "cache": "/var/cache/dorfl",
        "host": "HOST:PORT",
        "data": "DATA",
        "tmp": "/no/unit/names/this",
    }[name]


def path_of():
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def commands():
    """Return the blocks of the page, each as lines of a shell."""
    return [one.code for one in pages.blocks(PAGE) if one.language == "sh"]


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
def test_the_page_as_it_is_written(place):
    coordinator, put, site, registering, running, simulated, resuming = commands()
    assert "systemctl enable" in put and "sockets=" in simulated and 'resume="last"' in resuming
    port = free_port()
    env = {
        **os.environ,
        "FLWR_HOME": str(place / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": path_of(),
    }

    def run(script):
        named = f'dorfl() {{ "{sys.executable}" -m dorfl "$@"; }}\n{script}'
        done = subprocess.run(
            ["bash", "-ec", named], cwd=place, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (script, done.stdout, done.stderr)
        return done.stdout

    run(f"dorfl server init fed/ --host 127.0.0.1 --port {port}")
    run("cp fed/keys/ca.crt ca.crt")
    for name in NAMES:
        run(f"dorfl site init {name}/ --name {name}")
        text = (place / name / "site.toml").read_text()
        released = "released = " + str(list(TABLES[name])).replace("'", '"')
        text = text.replace("open_reports = false", "open_reports = true")
        text = text.replace("released = []", released).replace(
            "approve = []", 'approve = ["heart"]'
        )
        (place / name / "site.toml").write_text(text)
        csv.write_csv(pa.table(TABLES[name]), place / f"{name}.csv")
        run(site.replace("site-1", name))
    run(coordinator)
    (place / "fed" / "study.toml").write_text(STUDY)
    superlink = free_port()
    for file in (place / "fed" / "flower").glob("*"):
        if file.is_file():  # another port than 8000, which may be taken
            file.write_text(
                file.read_text()
                .replace(":8000", f":{superlink}")
                .replace("--port 8000", f"--port {superlink}")
            )
    (place / "home").mkdir()
    (place / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{superlink}"\n'
        f'root-certificates = "{place}/ca.crt"\n'
    )
    flower = place / "fed" / "flower"
    federation = type("Fed", (), {"path": place / "fed"})
    with contextlib.ExitStack() as stack:
        stack.enter_context(nginx(federation, place / "nginx"))
        stack.enter_context(unit(flower / "flower-superlink.service", state=place / "superlink"))
        until(lambda: b"Uvicorn running" in (flower / "flower-superlink.log").read_bytes())
        stack.enter_context(unit(flower / "dorfl-coordinator.service"))
        for name in NAMES:
            text = registering.replace("site-1.crt", f"{name}/{name}.crt")
            text = text.replace("site-1.pub", f"{name}/flower/{name}.pub").replace("site-1", name)
            run(text)
            own, here = place / name / "flower", {"run": place / f"{name}-run"}
            here["run"].mkdir()
            stack.enter_context(
                unit(own / "dorfl-site.service", data=place / f"{name}.csv", **here)
            )
            until((here["run"] / "site.sock").exists)
            stack.enter_context(
                unit(
                    own / "flower-supernode.service",
                    host=f"127.0.0.1:{port}",
                    state=place / f"{name}-node",
                    **here,
                )
            )
            text = (own / "flower-supernode.service").read_text()
            assert "User=flower" in text and "SupplementaryGroups=dorfl-socket" in text
        first = subprocess.Popen(["bash", "-ec", running], cwd=place, env=env)
        until(lambda: any(rounds_of(made) for made in (place / "fed" / "runs").glob("*")))
        (number,) = re.findall(r'"run-id": "?(\d+)', run("flwr ls here --format json"))
        run(f"flwr stop {number} here")
        first.wait(PATIENCE)
        assert "round (" in run(f"flwr log {number} here --show")
        until(lambda: Federation.open(place / "fed").noted("run") is None)
        assert "interrupted" in run("dorfl status fed/")
        shown = run(resuming)
    assert "model:" in shown, shown
    (made,) = (place / "fed" / "runs").glob("*/model")
    pair = {name: TABLES[name] for name in NAMES}
    study = make_study(pair, method=METHODS["erm"], training="max_rounds = 2")
    assert same(models.load(made).fit, alone(study, pair))
    assert [*(place / "site-1" / "flower" / "dorfl-site.service.cache").rglob("*.nbc")]
    assert [*(flower / "dorfl-coordinator.service.cache").rglob("*.nbi")]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_understands_every_line_of_the_units(place):
    def run(*words):
        done = subprocess.run(
            [*words],
            cwd=place,
            env={**os.environ, "PATH": path_of()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    dorfl_ = (sys.executable, "-m", "dorfl")
    run(*dorfl_, "server", "init", "fed", "--host", "fl.example.org")
    run(*dorfl_, "site", "init", "site-1", "--name", "site-1")
    run(*dorfl_, "flower", "init", "fed")
    run(*dorfl_, "flower", "init", "site-1", "--ca", "fed/keys/ca.crt")
    units = [*place.glob("*/flower/*.service")]
    for file in EXAMPLES.glob("*.service"):
        text = file.read_text().replace(
            "/opt/dorfl/bin/dorfl", shutil.which("dorfl", path=path_of()) or sys.executable
        )
        (place / file.name.replace("dorfl", "https")).write_text(text)
    units += place.glob("https-*.service")
    assert len(units) == 6
    assert run("systemd-analyze", "verify", *map(str, units)) == ""
