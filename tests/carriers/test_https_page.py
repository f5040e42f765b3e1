"""docs/federation.md and docs/federation-https.md, followed literally; only addresses differ."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deployments import until
from pyarrow import csv

import pages
from dorfl.carriers.https import free_port
from dorfl.tabular import model as models
from study_cases import METHODS, synthetic_tables

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("carriers")]

DOCS = Path(__file__).parents[2] / "docs"
MODULES = Path(os.environ.get("NGINX_MODULES", "/usr/lib/nginx/modules"))
TABLES = {"site-1": synthetic_tables()["site-1"]}
STUDY = (
    f'name = "heart"\n[data]\nlabel = "y"\n[method]\n{METHODS["dorfl"]}\n'
    '[privacy]\nreports = "open"\n'
)


def commands(page, port):
    """Return the lines of a page that call dorfl, with this machine's address."""
    text = (DOCS / page).read_text(encoding="utf-8")
    text = text.replace("--host fl.example.org", f"--host 127.0.0.1 --port {port}")
    text = text.replace("fl.example.org:443", f"127.0.0.1:{port}")
    return [line.strip() for line in re.findall(r"^(dorfl [^\n]*)", text, re.MULTILINE)]


@contextlib.contextmanager
def nginx(root, public, port):
    """Serve the configuration on the page, before a server on `port`, if nginx has the module."""
    module = MODULES / "ngx_stream_module.so"
    if shutil.which("nginx") is None or not module.exists():
        yield False
        return
    found = pages.blocks(DOCS / "federation-https.md")
    (block,) = [one.code for one in found if one.language == "nginx"]
    block = block.replace("listen 443", f"listen 127.0.0.1:{public}").replace("8443", str(port))
    (root / "logs").mkdir(parents=True)
    (root / "nginx.conf").write_text(
        f"load_module {module}; daemon off; pid {root}/pid; error_log {root}/logs/error.log;\n"
        f"events {{}}\n{block}\n"
    )
    child = subprocess.Popen(["nginx", "-p", str(root), "-c", str(root / "nginx.conf")])
    try:
        yield True
    finally:
        child.terminate()
        child.wait()


def test_the_pages_as_they_are_written(tmp_path):
    """By nginx as the page has it too, where Debian's libnginx-mod-stream is there."""
    port, public = free_port(), free_port()
    with nginx(tmp_path / "nginx", public, port) as fronted:
        _follow(tmp_path, port, public if fronted else port)


def _follow(tmp_path, port, public):
    shared, https = commands("federation.md", public), commands("federation-https.md", public)

    def run(command, code=0):
        named = f'dorfl() {{ "{sys.executable}" -m dorfl "$@"; }}\n{command}'
        done = subprocess.run(
            ["bash", "-c", named], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, (command, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def of(words, among):
        (found,) = [line for line in among if line.startswith(words)]
        return found

    run(of("dorfl server init", shared))
    settings = tmp_path / "fed" / "federation.toml"
    settings.write_text(settings.read_text().replace(f"port = {public}", f"port = {port}"))
    run(of("dorfl site init", shared))
    run("cp fed/keys/ca.crt ca.crt; cp site-1/site-1.crt site-1.crt")
    run(of("dorfl server add-site", shared))
    csv.write_csv(pa.table(TABLES["site-1"]), tmp_path / "records.csv")
    text = (tmp_path / "site-1" / "site.toml").read_text()
    released = "released = " + str(list(TABLES["site-1"])).replace("'", '"')
    text = text.replace("open_reports = false", "open_reports = true")
    (tmp_path / "site-1" / "site.toml").write_text(text.replace("released = []", released))
    (tmp_path / "study.toml").write_text(STUDY)
    run(of("dorfl server start", https).split("#")[0] + "--address 127.0.0.1 --detach")
    start = of("dorfl site start", https).split()[1:]
    with (tmp_path / "output.log").open("wb") as log:
        site = subprocess.Popen(
            [sys.executable, "-m", "dorfl", *start], cwd=tmp_path, stdout=log, stderr=log
        )
    try:
        assert "knows this site as 'site-1'" in run(of("dorfl site check", https))
        until(lambda: "online" in run(of("dorfl status", shared)))
        assert "waits for approval" in run(of("dorfl run", https), 2)
        show, approve = [line for line in shared if line.startswith("dorfl site approve")]
        mark = re.search(r"^([0-9a-f]{12}) heart", run(show), re.MULTILINE)[1]
        run(approve.replace("3f9c2a", mark[:6]))
        assert "converged" in run(of("dorfl run", https))
        assert "left" in run(of("dorfl site ledger", shared))
        (made,) = (tmp_path / "fed" / "runs").glob("*/model")
        assert models.load(made).fit.clients == ("site-1",)
        assert "until" in run(of("dorfl server renew", shared))
        run(of("dorfl site renew", shared))
        run(of("dorfl server remove-site", shared))
    finally:
        site.send_signal(signal.SIGTERM)
        site.wait(60)
        run(of("dorfl stop", https))
