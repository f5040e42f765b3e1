"""The paper's study: cells that run once, one page that shows them, and what must be on it."""

import json

import numpy as np
import pytest

from browser import CHROMIUM, browser
from dorfl.report.content import Table, blocks
from dorfl.report.page import write
from experiments import Part, cardio, cells, study, synthetic
from experiments.cells import Cell


def results(function, seeds):
    return [function(seed) for seed in range(seeds)]


@pytest.mark.slow
def test_a_cell_runs_once_and_again_only_when_something_changed(tmp_path):
    asked = [Cell("synthetic", "sensitivity", {"seed": seed}) for seed in (0, 1)]
    seen = []
    first = cells.run(asked, tmp_path, lambda cell, fresh: seen.append((cell.name, fresh)))
    again = cells.run(asked, tmp_path, lambda cell, fresh: seen.append((cell.name, fresh)))
    assert first == again
    assert sorted(fresh for _, fresh in seen) == [False, False, True, True]
    assert first == [synthetic.sensitivity(0), synthetic.sensitivity(1)]  # in any process the same

    path = next((tmp_path / "cells" / "synthetic").glob("*seed=1.json"))
    record = json.loads(path.read_text())
    for damaged in (json.dumps(record | {"code": "other"}), path.read_text()[:-30], "", "[]"):
        path.write_text(damaged)
        seen.clear()
        assert cells.run(asked, tmp_path, lambda cell, fresh: seen.append(fresh)) == first
        assert seen == [False, True]


@pytest.mark.slow
def test_what_others_found_is_kept_when_a_cell_fails(tmp_path):
    fine = Cell("synthetic", "sensitivity", {"seed": 0})
    wrong = Cell("synthetic", "sensitivity", {"seed": -1})
    with pytest.raises(ValueError, match="non-negative"):
        cells.run([fine, wrong], tmp_path, workers=1)
    seen = []
    cells.run([fine], tmp_path, lambda cell, fresh: seen.append(fresh))
    assert seen == [False]


@pytest.mark.slow
def test_the_synthetic_study_shows_the_paper_s_picture():
    found = [synthetic.table(seed, intercept=False) for seed in range(10)]
    mean = {n: np.mean([r[n]["study"]["accuracy"] for r in found], axis=0) for n in found[0]}
    best, oracle = mean["DOR-FL"], mean[synthetic.ORACLE]
    assert best[0] >= 0.948
    assert (best >= oracle - 0.01).all()
    for name in ("ERM", "AFL", "WAFL", "GDRFL"):
        assert mean[name][0] <= best[0] - 0.15
        assert (mean[name] <= best).all()


@pytest.mark.slow
def test_a_wrong_centre_costs_little_and_less_with_clients_by_size():
    found = results(synthetic.sensitivity, 5)
    least = {n: np.mean([r[n] for r in found], axis=0).min() for n in found[0]}
    assert least["DOR-FL"] >= 0.88
    assert least["DOR-FL, clients by size"] >= 0.93
    assert least["DOR-FL, clients by regret"] > least["DOR-FL, clients by loss"]


@pytest.mark.slow
def test_entry_errors_cost_dor_fl_little(cardio_records):
    row = cardio.table(0)
    erm, ours, oracle = (
        row[name]["contaminated"]["accuracy"][0] for name in ("ERM", "DOR-FL", cardio.ORACLE)
    )
    assert ours - erm >= 0.7 * (oracle - erm)
    assert row["DOR-FL"]["contaminated"]["recall"] >= 0.8


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    todo = [plan for part in (Part.synthetic, Part.sensitivity) for plan in study.plans(part, 2)]
    return study.reproduce(todo, folder), folder


@pytest.mark.slow
def test_the_page_says_what_the_cells_found(page):
    made, _ = page
    tables = {block.name: block for block in blocks(made) if isinstance(block, Table)}
    found = [synthetic.table(seed, intercept=False) for seed in range(2)]
    row = next(row for row in tables["synthetic-paper"].rows if row[0] == "DOR-FL")
    for column, cell in zip((0, 1, 2, 3), (row[1], *row[4:7]), strict=True):
        values = [100 * r["DOR-FL"]["study"]["accuracy"][column] for r in found]
        assert cell.mean == pytest.approx(np.mean(values))
        assert cell.error == pytest.approx(np.std(values, ddof=1) / np.sqrt(2))
    paper = next(row for row in tables["synthetic-paper"].rows if "DOR-FL in the" in row[0])
    assert paper[1:] == [95.4, None, None, 84.6, 91.3, 99.2, None]
    assert [card.holds for card in made.cards][:2] == [True, True]


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium: apt-get install chromium")
def test_the_page_opens_in_a_browser(page):
    made, folder = page
    path = write(made, folder / "report.html")
    with browser() as tab:
        for width in (1280, 360):
            tab.resize(width, 800)
            tab.open(path)
            tab.wait_for(
                "document.documentElement.dataset.drawn === "
                "String(document.querySelectorAll('.plot').length)"
            )
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.evaluate("document.querySelectorAll('.plot').length") >= 8
        assert tab.heard("Runtime.exceptionThrown", "Log.entryAdded") == []
        asked = {event["request"]["url"] for event in tab.heard("Network.requestWillBeSent")}
        assert {url for url in asked if not url.startswith("data:")} == {path.as_uri()}
