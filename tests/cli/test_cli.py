"""The commands as a person types them."""

import subprocess
import sys

import pytest


def dorfl(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "dorfl", *arguments], capture_output=True, text=True, check=False
    )


def test_help_teaches():
    out = dorfl("reproduce", "--help")
    assert out.returncode == 0
    assert "Example: dorfl reproduce synthetic" in out.stdout


@pytest.mark.slow
def test_reproduce_leaves_a_page_with_figures_and_tables(tmp_path):
    folder = tmp_path / "results"
    for _ in range(2):  # the second time from what the first one kept
        out = dorfl("reproduce", "synthetic", "--seeds", "1", "--out", str(folder))
        assert out.returncode == 0, out.stderr
        for name in ("ERM", "AFL", "WAFL", "GDRFL", "DOR-FL", "report.html"):
            assert name in out.stdout
    assert (folder / "report.html").stat().st_size > 1_000_000
    for name in ("data.png", "weights.svg", "contamination.pdf", "mixture.csv"):
        assert (folder / "figures" / name).is_file()
    for suffix in ("csv", "md", "tex"):
        assert (folder / "tables" / f"synthetic.{suffix}").is_file()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    out = dorfl("reproduce", "sensitivity", "--out", str(tmp_path / "file" / "results"))
    assert out.returncode == 5
    assert "Not a directory" in out.stderr
    assert "Traceback" not in out.stderr


def test_a_wrong_part_is_named():
    out = dorfl("reproduce", "nothing")
    assert out.returncode == 2
    assert "synthetic" in out.stderr
