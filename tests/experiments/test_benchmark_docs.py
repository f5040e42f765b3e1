"""The benchmark's page says what its file has, and the file what was run."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.benchmark import KINDS, SETS
from experiments.pages.benchmark import WORST

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def docs(monkeypatch, tmp_path):
    """docs/benchmark.py, with copies of its two files."""
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])
    import benchmark as made  # noqa: PLC0415 - it is beside the page, not in a package

    for name in ("benchmark.md", "benchmark.json"):
        (tmp_path / name).write_text((DOCS / name).read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(made, "DOCS", tmp_path)
    yield made
    sys.modules.pop("benchmark", None)
    sys.modules.pop("refresh", None)


def test_the_page_has_the_tables_of_its_file(docs, tmp_path):
    docs.main(None)
    made = (tmp_path / "benchmark.md").read_text(encoding="utf-8")
    assert made == (DOCS / "benchmark.md").read_text(encoding="utf-8")
    assert "| DOR-FL |" in made


def test_what_was_run_takes_the_place_of_what_was_known(docs, tmp_path):
    folder = tmp_path / "results" / "cells" / "benchmark"
    folder.mkdir(parents=True)
    run = {
        "worst": 0.123456, "mean": 0.5, "attack": None, "weight_of_wrong_rows": None, "rounds": 600,
        "bytes": 1, "words": "rate 1", "curve": [], "lam": [1.0],
    }  # fmt: skip
    for seed in (0, 1):
        told = {"data": "three", "kind": "shift", "method": "AFL", "seed": seed}
        (folder / f"train{seed}.json").write_text(json.dumps({"arguments": told, "result": run}))
    docs.main(tmp_path / "results")
    known = json.loads((tmp_path / "benchmark.json").read_text(encoding="utf-8"))
    assert [one["worst"] for one in known["three"]["shift/AFL"]] == [0.12346, 0.12346]
    assert "lam" not in known["three"]["shift/AFL"][0]
    assert "| AFL |" in (tmp_path / "benchmark.md").read_text(encoding="utf-8")
    assert "12.3 ± 0.0" in (tmp_path / "benchmark.md").read_text(encoding="utf-8")


@pytest.fixture
def worst():
    """The worst client's accuracy on three classes in %, the mean over seeds."""
    known = json.loads((DOCS / "benchmark.json").read_text(encoding="utf-8"))["three"]
    return {cell: 100.0 * np.mean([run["worst"] for run in runs]) for cell, runs in known.items()}


def test_every_data_set_and_kind_of_wrong_rows_has_been_run():
    known = json.loads((DOCS / "benchmark.json").read_text(encoding="utf-8"))
    assert set(known) == set(SETS)
    assert all("clean/FedAvg" in cells for cells in known.values())
    names = ("FedAvg", "AFL", "WAFL", "DOR-FL")
    missing = {f"{kind}/{name}" for kind in KINDS for name in names} - set(known["three"])
    assert not missing


def test_what_the_page_says_of_three_classes_is_what_was_found(worst):
    published = max(one.value for one in WORST["three"])
    assert min(worst["clean/AFL"], worst["clean/DOR-FL"]) > published
    assert worst["negate/DOR-FL"] > worst["negate/AFL, clean rows"] - 1.0
    for name in ("FedAvg", "WAFL"):
        assert worst[f"negate/{name}"] < worst["negate/DOR-FL"] - 8.0
    assert worst["labels/DOR-FL"] >= worst["labels/AFL"]
    assert worst["cluster/AFL"] < worst["cluster/DOR-FL"] - 8.0


def test_three_curves_of_mnist_are_known():
    known = json.loads((DOCS / "benchmark.json").read_text(encoding="utf-8"))["mnist"]
    for name in ("FedAvg", "WAFL", "DOR-FL"):
        stops = [stop for stop, *_ in known[f"clean/{name}"][0]["curve"]]
        assert stops == list(range(20, 200, 20))
