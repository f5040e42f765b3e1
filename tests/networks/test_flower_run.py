"""The example project as people run it: `flwr run`, in simulation and with SuperNodes."""

import importlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
import torch

import dorfl
from dorfl.carriers.https import free_port

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("carriers")]
EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-app"
ROUNDS = 2


def commands(folder):
    """Flower's commands with the Python of these tests, wherever Flower itself is installed."""
    folder.mkdir()
    for entry in distribution("flwr").entry_points.select(group="console_scripts"):
        file = folder / entry.name
        file.write_text(
            f"#!{sys.executable}\nimport sys\nfrom {entry.module} import {entry.attr}\n"
            f"sys.exit({entry.attr}())\n"
        )
        file.chmod(0o755)
    return folder


def environment(root, short):
    source = Path(dorfl.__file__).parents[1]
    return os.environ | {
        "PATH": f"{commands(root / 'bin')}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(source), "FLWR_HOME": str(root / "home"), "OMP_NUM_THREADS": "1",
        "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": short,
    }  # fmt: skip


@contextmanager
def process(words, root, env):
    """A process of this test's own, ended with all it started."""
    with (root / f"{Path(words[0]).name}-{free_port()}.log").open("wb") as log:
        running = subprocess.Popen(
            [shutil.which(words[0], path=env["PATH"]), *words[1:]],
            cwd=root, env=env, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield running
    finally:
        running.send_signal(signal.SIGINT)
        try:
            running.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


@contextmanager
def superlink(root, env, *words):
    port, control = free_port(), free_port()
    words = ["flower-superlink", "--insecure", "--disable-runtime-dependency-installation",
             "--host", "127.0.0.1", "--port", str(port),
             "--control-api-address", f"127.0.0.1:{control}", *words]  # fmt: skip
    (root / "home").mkdir()
    (root / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n"
    )
    with process(words, root, env) as running:
        until = time.monotonic() + 120
        while time.monotonic() < until and running.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        yield port


def flwr_run(root, env, *words):
    config = f"num-server-rounds={ROUNDS} outliers=0.1 method='dorfl'"
    done = subprocess.run(
        ["flwr", "run", str(root / "app"), "--stream", "--run-config", config, *words],
        capture_output=True, text=True, timeout=500, check=False, cwd=root, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test accuracy" in done.stdout, done.stdout
    with np.load(root / "model.npz", allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays}


@pytest.fixture
def place(tmp_path):
    shutil.copytree(EXAMPLE, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    with tempfile.TemporaryDirectory() as short:  # Ray's sockets need short paths
        yield tmp_path, environment(tmp_path, short)


def in_process(monkeypatch):
    """The same model, rows and words by `dorfl.train`."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    task = importlib.import_module("flowerapp.task")
    config = {"seed": 0, "outliers": 0.1, "method": "dorfl"}
    method, plan = task.training(config)
    torch.manual_seed(plan.seed)
    clients = {f"client-{i + 1}": task.load_data(i, config)[0] for i in range(3)}
    fit = dorfl.train(
        clients, method, model=task.Net(), options=plan, rounds=ROUNDS, max_parameters=1
    )
    return {name: value.numpy() for name, value in fit.model.state_dict().items()}


def same(there, here):
    assert set(there) == set(here)
    for name, numbers in here.items():
        assert there[name].dtype == numbers.dtype == np.float32
        assert np.array_equal(there[name], numbers), name


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Flower's simulation needs Ray: pip install 'flwr[simulation]'",
)
def test_the_example_in_simulation_is_dorfl_train_bit_for_bit(place, monkeypatch):
    with superlink(*place, "--simulation"):
        found = flwr_run(*place, "--federation-config", "num-supernodes=3")
    same(found, in_process(monkeypatch))


def test_the_example_on_supernodes_is_dorfl_train_bit_for_bit(place, monkeypatch):
    with superlink(*place) as port:
        words = [
            ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}",
             "--host", "127.0.0.1", "--port", str(free_port()),
             "--node-config", f"partition-id={i} num-partitions=3"]
            for i in range(3)
        ]  # fmt: skip
        with process(words[0], *place), process(words[1], *place), process(words[2], *place):
            found = flwr_run(*place)
    same(found, in_process(monkeypatch))
