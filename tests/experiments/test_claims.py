"""What a reviewer asks first: a constant, paired errors, failures first, the row counts as said."""

from pathlib import Path

import numpy as np
import pytest

import dorfl
from dorfl.report.content import Table, blocks
from experiments import Part, adult, claims, study, synthetic
from experiments.claims import Claim, Situation
from experiments.pages import synthetic as synthetic_page
from experiments.tuning import CONSTANT, NAMES, OURS, constant, scored

README = Path(__file__).parents[2] / "README.md"


def test_a_constant_beats_erm_afl_and_wafl_and_is_shown():
    data = dorfl.datasets.synthetic(seed=0)
    found = synthetic.table(0, intercept=False)
    always = found[CONSTANT]["study"]
    labels = np.concatenate([y for _, y in data.test.values()])
    assert always["accuracy"][0] == pytest.approx(max(np.mean(labels == 1), np.mean(labels == -1)))
    assert always["balanced"] == [0.5] * 4
    for name in ("ERM", "AFL", "WAFL", "GDRFL"):
        assert found[name]["study"]["accuracy"][0] < always["accuracy"][0]
    assert always == scored(constant(data.clients), data.test)


@pytest.mark.slow
def test_every_table_of_methods_has_a_constant_balanced_accuracy_and_log_loss(tmp_path):
    page = study.reproduce(study.plans(Part.synthetic, 2), tmp_path)
    tables = {block.name: block for block in blocks(page) if isinstance(block, Table)}
    for name in ("synthetic", "synthetic-paper"):
        assert CONSTANT in [row[0] for row in tables[name].rows]
        assert {"accuracy", "balanced accuracy", "log loss"} <= set(tables[name].columns)
    for name in ("kinds", "bad-client"):
        for measure in ("", "-balanced", "-loss"):
            assert CONSTANT in [row[0] for row in tables[name + measure].rows]


def test_the_main_table_is_what_a_user_has_and_the_paper_s_setting_is_named():
    data = dorfl.datasets.synthetic(seed=0)
    fit = dorfl.train(data.clients)  # as the README has it
    main, paper = (synthetic.table(0, intercept=intercept) for intercept in (True, False))
    assert main[OURS]["study"] == scored(fit.decision, data.test)
    assert main[OURS]["study"]["accuracy"][1] == fit.score(*data.test["client-1"])
    section = synthetic_page.section([main] * 2, [paper] * 2)
    titles = [block.title for block in section.blocks if isinstance(block, Table)]
    assert "Synthetic study, with an intercept" in titles
    assert "The paper's own setting: no intercept" in titles
    columns = next(b.columns for b in section.blocks if isinstance(b, Table) and "own" in b.title)
    assert "DOR-FL ahead by" in columns


def test_no_difference_is_a_tie_and_failures_come_first():
    nothing = Claim.paired("A beats B", "the paper", [0.01, -0.02, 0.03, -0.01])
    assert nothing.verdict == "tie" and nothing.finding.holds is None
    assert "a tie" in nothing.finding.claim
    made = [
        Claim.paired("holds", "ours", [1.0, 1.1, 0.9]),
        nothing,
        Claim.paired("fails", "ours", [-1.0, -1.1, -0.9]),
        Claim.single("one run", "ours", "3", False),
    ]
    counts, every = claims.tables(made)
    assert list(zip(counts.columns, counts.rows[0], strict=True)) == [
        ("fails", 2), ("tie", 1), ("holds", 1),
    ]  # fmt: skip
    assert [row[0] for row in every.rows] == ["fails", "fails", "tie", "holds"]


def test_a_difference_is_paired_by_seed():
    easy, hard = np.array([90.0, 60.0, 80.0]), np.array([89.0, 59.2, 78.9])  # seeds differ by far
    assert Claim.paired("", "", easy - hard).verdict == "holds"
    assert np.std(easy, ddof=1) > 10.0 * np.mean(easy - hard)  # unpaired, nothing would be seen


def test_several_leads_are_judged_by_the_weakest():
    leads = {"over B": [-5.0, 9.0, -8.0], "over C": [-0.1, -0.11, -0.12], "over D": [2.0, 2.0, 2.1]}
    found = Claim.every("A is ahead", "ours", leads)
    assert found.verdict == "fails" and "(smallest lead: over C)" in found.text  # B only ties
    assert Claim.every("A is ahead", "ours", {"over D": leads["over D"]}).verdict == "holds"
    by_three = Claim.every("A is 3 ahead", "ours", {"over D": leads["over D"]}, margin=3.0)
    assert by_three.verdict == "fails" and by_three.found.startswith("+2.03")  # the lead itself


def test_a_tie_with_large_errors_is_not_called_nothing():
    assert claims.effect([-30.0, 1.0, -1.0]).startswith("undecided: −10.0")
    assert claims.effect([0.1, 0.0, -0.2]).startswith("nothing")


def test_the_summary_says_helps_nothing_and_hurts():
    cases = [
        Situation("one", [-1.0, -1.01], [2.0, 2.1]),
        Situation("two", [3.0, 3.1], [0.0, 0.0]),
    ]
    rows = claims.summary(cases).rows
    assert [row[0] for row in rows] == ["two", "one"]
    assert rows[0][1].startswith("helps: +3.0") and rows[0][2].startswith("nothing")
    assert rows[1][1].startswith("hurts: −1.0")


@pytest.mark.slow
def test_every_method_has_a_step_length_that_suits_it():
    for name in NAMES:
        found = adult.method(0, name)["budget"]
        assert min(adult.LENGTHS) < found["length"] < max(adult.LENGTHS)  # the grid does not end
        assert found["tuned"]["accuracy"][0] > max(0.845, found["theorem"]["accuracy"][0])
        assert found["tuned"]["loss"][0] < 0.33  # the steps are not so long that it diverges


def test_the_share_of_wrong_rows_is_what_is_said():
    data = dorfl.datasets.synthetic(seed=0)
    wrong = np.concatenate(list(data.outliers.values()))
    assert f"{wrong.sum()} of {len(wrong)} rows" == synthetic_page.WRONG
    for page in (README, README.parent / "docs/gallery/plot_wrong_rows.py"):
        text = page.read_text(encoding="utf-8")
        assert "70 of 800" in text and "training row in ten" not in text
