"""The commands as a person types them."""

import subprocess
import sys


def dorfl(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "dorfl.cli", *arguments], capture_output=True, text=True, check=False
    )


def test_help_teaches():
    out = dorfl("reproduce", "--help")
    assert out.returncode == 0
    assert "Example: dorfl reproduce synthetic" in out.stdout


def test_reproduce_prints_the_table():
    out = dorfl("reproduce", "synthetic", "--seeds", "1")
    assert out.returncode == 0
    for name in ("erm", "afl", "wafl", "gdrfl", "dorfl", "Bayes rule"):
        assert name in out.stdout


def test_a_wrong_part_is_named():
    out = dorfl("reproduce", "nothing")
    assert out.returncode == 2
    assert "synthetic" in out.stderr
