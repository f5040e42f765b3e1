"""The benchmark's page says what its file has, and the file what was run."""

import json
import re
import sys
from itertools import product
from pathlib import Path

import pytest

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


def test_the_record_is_made_from_the_cells_of_a_folder(docs, tmp_path):
    folder = tmp_path / "results" / "cells" / "benchmark"
    folder.mkdir(parents=True)
    run = {"worst": 0.123456, "mean": 0.5, "weight_of_wrong_rows": None, "rounds": 600,
           "bytes": 1, "words": "rate 1", "lam": [1.0]}  # fmt: skip
    methods = ("FedAvg", "AFL", *docs.JUDGED)
    for k, (method, seed) in enumerate(product(methods, (0, 1, 2))):
        cell = {"data": "compas", "kind": "negate", "method": method, "seed": seed}
        (folder / f"train{k}.json").write_text(json.dumps({"arguments": cell, "result": run}))
    known = docs.gathered(tmp_path / "results")
    assert list(known) == ["compas"]
    assert [one["worst"] for one in known["compas"]["negate/AFL"]] == [0.12346] * 3
    assert "lam" not in known["compas"]["negate/AFL"][0]
    made = docs.tables(known)
    assert "| AFL | **12.3±0.0** |" in made["benchmark-compas"]
    assert "| compas | negate | nothing: +0.0±0.0 |" in made["benchmark-verdicts"]


def test_no_cell_is_empty_or_of_fewer_than_three_seeds(docs):
    text = (DOCS / "benchmark.md").read_text(encoding="utf-8")
    for table in re.findall(r"<!-- table: [\w-]+ -->\n(.*?)<!-- /table -->", text, re.DOTALL):
        rows = [line.strip("|").split("|") for line in table.strip().splitlines()]
        assert len(rows) > 2
        assert all(cell.strip() for row in rows for cell in row)
    known = json.loads((DOCS / "benchmark.json").read_text(encoding="utf-8"))
    for cells in known.values():
        assert all(len(runs) >= docs.SEEDS for runs in docs.complete(cells).values())


def test_a_cell_that_is_missing_drops_its_column(docs):
    run = [{"worst": 0.5}] * 3
    cells = {f"negate/{name}": run for name in ("FedAvg", "AFL")} | {"labels/AFL": run}
    cells["scale/FedAvg"] = cells["scale/AFL"] = run[:2]
    assert sorted(docs.complete(cells)) == [("negate", "AFL"), ("negate", "FedAvg")]
