"""Commands that the package does not have say where they are."""

import subprocess
import sys

import pytest


def dorfl(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "dorfl", *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", ["reproduce", "theory", "benchmark"])
def test_commands_of_the_repository_are_named_in_one_line(name):
    out = dorfl(name, "--seeds", "3")
    assert out.returncode == 2
    assert out.stderr.count("\n") == 1
    assert f"python -m experiments {name}" in out.stderr
    assert name not in dorfl("--help").stdout.split()
