"""The benchmark on the study's page."""

from dorfl.report.content import Table, blocks
from dorfl.report.tables import as_markdown
from experiments import Part, study
from experiments import benchmark as bench


def run(worst, mean=0.9, **more):
    return {"worst": worst, "mean": mean, "rounds": 3, "bytes": 1e6,
            "words": "rate 1", **more}  # fmt: skip


def told(monkeypatch, tmp_path, worst):
    monkeypatch.setattr(study, "find_folder", lambda: None)
    (plan,) = study.plans(Part.networks, seeds=1)
    assert [cell.function for cell in plan.cells] == ["both"] * 9
    monkeypatch.setattr(
        study.cells, "run", lambda cells, *_: [run(worst[c.arguments["method"]]) for c in cells]
    )
    return study.reproduce([plan], tmp_path)


def test_a_small_part_of_the_benchmark_is_a_section(monkeypatch, tmp_path):
    worst = {"FedAvg": 0.6, "AFL": 0.7, "WAFL": 0.62, "DOR-FL": 0.8, bench.CLEAN: 0.805}
    page = told(monkeypatch, tmp_path, worst)
    assert [card.holds for card in page.cards] == [True, True]
    table = next(b for b in blocks(page) if isinstance(b, Table) and b.name.endswith("worst"))
    lines = as_markdown(table).splitlines()
    assert "| DOR-FL | **80.0** | **80.0** |" in lines
    assert "| *AFL, clean rows* |  | *80.5* |" in lines
    assert "| *AFL, published* | *77.3* |  |" in lines


def test_what_does_not_hold_is_said(monkeypatch, tmp_path):
    worst = {"FedAvg": 0.6, "AFL": 0.77, "WAFL": 0.62, "DOR-FL": 0.78, bench.CLEAN: 0.80}
    page = told(monkeypatch, tmp_path, worst)
    assert [card.holds for card in page.cards] == [False, False]
