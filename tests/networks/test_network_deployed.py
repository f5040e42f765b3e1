"""A network trained by sites as they are deployed: processes, TLS and keys on the loopback."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv
from typer.testing import CliRunner

from dorfl.carriers.folders import Federation, SiteFolder
from dorfl.carriers.https import free_port
from dorfl.cli import app
from dorfl.tabular import model
from processes import dorfl_
from study_cases import synthetic_tables

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("carriers")]

TABLES = synthetic_tables()
ROUNDS = 40
STUDY = f"""name = "deep"
sites = ["site-1", "site-2", "site-3"]
[data]
label = "y"
[method]
name = "dorfl"
outliers = 0.1
mixture = "agnostic"
[training]
model = "mlp"
batch = 0
max_rounds = {ROUNDS}
[privacy]
reports = "open"
"""
ONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@contextlib.contextmanager
def deployed(root):
    """A federation of three sites, each with its table, that allow networks."""
    federation = Federation.create(root / "fed", "127.0.0.1", free_port())
    words = ["--server", f"127.0.0.1:{federation.port}", "--ca", federation.keys / "ca.crt"]
    for name, rows in TABLES.items():
        home = SiteFolder.create(root / name, name, tuple(rows), ("*",)).path
        policy = (home / "site.toml").read_text()
        for allowed in ("networks", "allow_open_reports"):
            policy = policy.replace(f"{allowed} = false", f"{allowed} = true")
        (home / "site.toml").write_text(policy)
        federation.add_site((home / f"{name}.crt").read_bytes())
        csv.write_csv(pa.table(rows), home / "records.csv")
    served = dorfl_("server", "start", "fed", "--address", "127.0.0.1", "--detach", cwd=root)
    assert served.returncode == 0, served.stderr
    sites = []
    try:
        for name in TABLES:
            start = ["site", "start", name, "--data", f"{name}/records.csv", *words]
            child = subprocess.Popen(
                [sys.executable, "-m", "dorfl", *map(str, start)], cwd=root,
                stdout=subprocess.DEVNULL, env={**os.environ, **ONE},
            )  # fmt: skip
            sites.append(child)
        yield
    finally:
        for child in sites:
            child.kill()
            child.wait()
        dorfl_("stop", "fed", cwd=root)


def test_run_resume_and_train_give_one_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)
    parts = [pa.table({**rows, "site": [name] * len(rows["y"])}) for name, rows in TABLES.items()]
    csv.write_csv(pa.concat_tables(parts), tmp_path / "all.csv")
    with deployed(tmp_path):
        with subprocess.Popen(
            [sys.executable, "-m", "dorfl", "run", "fed", "study.toml"], cwd=tmp_path,
            stdout=subprocess.PIPE, text=True, env={**os.environ, **ONE},
        ) as first:  # fmt: skip
            for line in first.stdout:  # until a round is over, with 39 to come
                if line.startswith("round   1"):
                    first.send_signal(signal.SIGINT)
                    break
        assert first.returncode == 130
        done = dorfl_("resume", "fed", cwd=tmp_path, **ONE)
        assert done.returncode == 0, done.stderr
        ledger = dorfl_("site", "ledger", "site-1", cwd=tmp_path).stdout
        assert "1 of 20 runs" in ledger
    (run,) = (tmp_path / "fed" / "runs").iterdir()
    made = model.load(run)
    words = ("--table", "all.csv", "--client", "site", "--out", "table", "--budget", 0)
    done = dorfl_("train", "study.toml", *words, cwd=tmp_path, **ONE)
    assert done.returncode == 0, done.stderr
    here = model.load(tmp_path / "table")
    np.testing.assert_array_equal(made.fit.theta, here.fit.theta)
    np.testing.assert_array_equal(made.fit.lam, here.fit.lam)
    assert made.network and made.fit.rounds == ROUNDS
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    rounds = [line["round"] for line in lines if line["event"] == "round"]
    assert rounds == list(range(1, ROUNDS + 1))
    for words in (
        ("info", run),
        ("evaluate", run, "all.csv"),
        ("predict", run, "all.csv", "--out", "predicted.csv"),
        ("report", run),
        ("outliers", run, "all.csv"),
    ):
        told = CliRunner().invoke(app, [str(word) for word in words])
        assert told.exit_code == 0, told.output
    own = model.load(tmp_path / "site-2" / "results" / run.name / "model")
    np.testing.assert_array_equal(own.fit.theta, made.fit.theta)
