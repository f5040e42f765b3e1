"""`dorfl demo federation`, the first thing a team of sites tries: processes, TLS and keys."""

import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from processes import dorfl_

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("carriers")]


def test_three_sites_train_the_model_that_one_process_does(tmp_path):
    """One site is too small for a trial, and withholds it: the others go on without."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = dorfl_("demo", "federation", "--keep", tmp_path / "demo", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The same model as in one process, to the last bit" in done.stdout
    # Half a minute on two cores, with kernels to compile; other tests share the machine.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 50
    assert not _processes_in(tmp_path)


def test_over_stock_flower_they_train_it_too(tmp_path):
    done = dorfl_("demo", "federation", "--flower", "--keep", tmp_path / "demo", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The same model as in one process, to the last bit" in done.stdout
    assert not _processes_in(tmp_path)


def test_a_demo_that_is_ended_leaves_nothing_running(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-m", "dorfl", "demo", "federation"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    assert child.stdout is not None
    for line in child.stdout:
        if re.search(r"enrol: sent", line):
            break
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=600)
    assert not _processes_in(tmp_path) and not list(tmp_path.iterdir())


def _processes_in(folder: Path) -> list[str]:
    """The processes that were started with something in the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes().decode(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        if str(folder) in command:
            found.append(command.replace("\0", " "))
    return found
