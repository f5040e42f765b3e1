"""The first screen says what this is, and a claim that does not hold says whose it was."""

from dorfl.report.content import Figure, Section, Series, Text
from experiments import Part, study
from experiments.cells import Cell
from experiments.claims import Claim
from experiments.study import Made, Plan


def test_three_figures_first_and_what_does_not_hold_on_top_of_the_claims(tmp_path, monkeypatch):
    monkeypatch.setattr(study.cells, "run", lambda cells, *_: [None] * len(cells))
    made_claims = [
        Claim(f"claim {k}", "the paper" if k else "ours", str(k), "fails" if k == 2 else "holds")
        for k in range(5)
    ]
    picture = Figure("f", "F", "x", "y", [Series("a", [1, 2], [1, 2])])
    made = Made([Section("S", [Text(["Words."])])], made_claims, [picture], made_claims[3:])
    page = study.reproduce([Plan([Cell("synthetic", "table", {"seed": 0})], lambda _: made)] * 2,
                           tmp_path)  # fmt: skip
    assert len(page.cards) == 3 and page.cards[0] == made_claims[3].finding
    assert page.opening == [picture, picture]
    counts, claims = page.sections[0].blocks
    assert claims.rows[0] == ("fails", "claim 2", "the paper", "2")
    assert counts.rows == [(2, 0, 8)]
    assert counts.title == "2 claims fail, 0 tie, 8 hold"


def test_a_part_that_was_not_run_has_no_chapter_and_is_named_at_the_end(monkeypatch, tmp_path):
    monkeypatch.setattr(study, "find_spec", lambda _: None)
    monkeypatch.setattr(study, "find_folder", lambda: None)
    (plan,) = study.plans(Part.networks, seeds=1)
    assert plan.cells == []
    page = study.reproduce([plan], tmp_path)
    (section,) = page.sections
    assert section.title == "Environment and seeds"
    said = section.blocks[0].paragraphs[-1]
    assert said.startswith("Not run: Networks, tuned alike (It needs PyTorch: pip install")
