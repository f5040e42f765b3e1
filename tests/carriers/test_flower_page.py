"""docs/federation-flower.md, followed literally; the units' own lines do systemd's part."""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deployments import alone, same, until
from pyarrow import csv
from test_flower import nginx

from dorfl.carriers.https_server import free_port
from dorfl.study import model as models
from study_cases import METHODS, make_study, synthetic_tables

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("carriers")]

PAGE = Path(__file__).parents[2] / "docs" / "federation-flower.md"
NAMES, TABLES = ("site-1",), synthetic_tables()
STUDY = (
    f'name = "heart"\n[data]\nlabel = "y"\n[method]\n{METHODS["erm"]}\n[training]\nrounds = 2\n'
    '[privacy]\nreports = "open"\n'
)


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory() as found:
        yield Path(found)


@contextlib.contextmanager
def unit(file, **places):
    """Run a unit as systemd would: its environment, its credentials and its command."""
    text = file.read_text().replace("\\\n", " ")
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
            words, env={**os.environ, "PATH": path_of(), **env}, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
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
    return {"state": "/var/lib/flower", "run": "/run/dorfl", "host": "HOST:PORT", "data": "DATA"}[
        name
    ]


def path_of():
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def commands():
    """Return the blocks of the page, each as lines of a shell."""
    found = re.findall(r"(?:^    .*\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [
        "\n".join(line[4:] for line in block.splitlines()) for block in found if "┌" not in block
    ]


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
def test_the_page_as_it_is_written(place):
    coordinator, put, site, registering, running, simulated, resuming = commands()
    assert "systemctl enable" in put and "sockets=" in simulated and 'resume="last"' in resuming
    port = free_port()
    env = {
        **os.environ, "FLWR_HOME": str(place / "home"), "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1", "PATH": path_of(),
    }  # fmt: skip

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
            file.write_text(file.read_text().replace(":8000", f":{superlink}").replace(
                "--port 8000", f"--port {superlink}"))  # fmt: skip
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
                unit(own / "flower-supernode.service", host=f"127.0.0.1:{port}",
                     state=place / f"{name}-node", **here)
            )  # fmt: skip
            text = (own / "flower-supernode.service").read_text()
            assert "User=flower" in text and "SupplementaryGroups=dorfl-socket" in text
        shown = run(running)
        time.sleep(0.5)
    assert "model:" in shown, shown
    (made,) = (place / "fed" / "runs").glob("*/model")
    pair = {name: TABLES[name] for name in NAMES}
    study = make_study(pair, method=METHODS["erm"], training="rounds = 2")
    assert same(models.load(made).fit, alone(study, pair))
