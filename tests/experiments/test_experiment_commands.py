"""The commands of the experiments as a person types them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def experiments(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "experiments", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_help_teaches():
    out = experiments("reproduce", "--help")
    assert out.returncode == 0
    assert "Example: python -m experiments reproduce synthetic" in out.stdout


@pytest.mark.slow
def test_reproduce_leaves_a_page_with_figures_and_tables(tmp_path):
    folder = tmp_path / "results"
    for _ in range(2):  # the second time from what the first one kept
        out = experiments("reproduce", "synthetic", "--seeds", "1", "--out", str(folder))
        assert out.returncode == 0, out.stderr
        for name in ("ERM", "AFL", "WAFL", "GDRFL", "DOR-FL", "report.html"):
            assert name in out.stdout
    assert (folder / "report.html").stat().st_size > 1_000_000
    for name in ("accuracy-kept.png", "weights.svg", "contamination.pdf", "mixture.csv"):
        assert (folder / "figures" / name).is_file()
    for suffix in ("csv", "md", "tex"):
        assert (folder / "tables" / f"synthetic.{suffix}").is_file()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    out = experiments("reproduce", "sensitivity", "--out", str(tmp_path / "file" / "results"))
    assert out.returncode == 5
    assert "Not a directory" in out.stderr
    assert "Traceback" not in out.stderr


def test_a_wrong_part_is_named():
    out = experiments("reproduce", "nothing")
    assert out.returncode == 2
    assert "synthetic" in out.stderr


def test_a_command_without_torch_says_so_in_a_line():
    script = "import sys; sys.modules['torch'] = None; from experiments.__main__ import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", script, "benchmark"], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"pip install 'torch" in done.stderr
    assert b"fault of dorfl" not in done.stderr
