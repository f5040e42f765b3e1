"""Benchmarks that nobody runs every day still run: each once, as small as it can be."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("carriers")]
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_a_federation_of_three_sites_is_timed():
    found = runpy.run_path(str(BENCHMARKS / "sites.py"))["measure"](3)
    assert found["sites"] == 3 and found["seconds a round"] > 0


def test_what_secure_sums_cost_is_measured(capsys):
    run = runpy.run_path(str(BENCHMARKS / "secure.py"))["run"]
    for mode in ("open", "summed"):
        run(3, "erm", mode)
    told, summed = (line.split(" | ") for line in capsys.readouterr().out.splitlines())
    assert (told[2], summed[2]) == ("open", "summed") and told[-1] == summed[-1]  # one risk


def test_one_lying_site_chooses_theta_and_reads_a_row_of_the_others(capsys):
    """What docs/threat-model.md says is not covered. If this fails, the page can promise more."""
    found = runpy.run_path(str(BENCHMARKS / "sum_liar.py"))
    run = found["run"]
    run.__globals__["COLUMNS"] = 2
    run(3)
    _, _, off, read, _ = (cell.strip() for cell in capsys.readouterr().out.split("|")[:5])
    assert float(off) < 0.02 and read == "2 of 2"


def test_what_can_be_computed_from_sums_is_measured(capsys):
    run = runpy.run_path(str(BENCHMARKS / "sum_leaks.py"))["run"]
    run.__globals__.update(SITES=(1, 3), ROWS=12, LIMITS={"starts": 1, "steps": 2})
    run("iris")
    assert len(capsys.readouterr().out.splitlines()) == 2
