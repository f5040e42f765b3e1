"""`dorfl site approve` and `dorfl site ledger`: a person at a site sees, decides and is told."""

import json

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from attacking import Attacker, StoppedError, patients
from dorfl.carriers.folders import SiteFolder
from dorfl.cli import site as commands
from dorfl.site import approval
from dorfl.site.ledger import Ledger
from dorfl.site.site import Site


def call(*words):
    return CliRunner().invoke(commands.app, [str(word) for word in words])


def test_a_study_is_shown_approved_and_counted(tmp_path):
    home, table = tmp_path / "s", patients()
    folder = SiteFolder.create(home, "s", tuple(table), allow_open_reports=True)
    assert folder == SiteFolder.open(home) and folder.policy.approve == ()

    def started():
        book = Ledger(home / "ledger.json")
        return Attacker(Site("s", pa.table(table), folder.policy, ledger=book))

    attacker = started()
    with pytest.raises(StoppedError):
        attacker.agree(attacker.study())
    assert "approve" in attacker.refused[0]
    shown = call("approve", home)
    assert "Mode: open." in shown.output and "null" not in shown.output
    (mark,) = attacker.site.ledger.studies
    assert shown.exit_code == 0 and mark[:12] in shown.output and "predicts 'ill'" in shown.output
    assert "NOT approved" in call("ledger", home).output
    assert call("approve", home, "zz").exit_code != 0
    assert call("approve", home, mark[:6]).exit_code == 0
    assert "no study waits" in call("approve", home).output
    agreement = attacker.agree(attacker.study())  # the running site sees it
    assert attacker.ask(agreement, np.zeros(7), 1) is not None
    said = call("ledger", home, "--export", tmp_path / "out.json")
    assert "approved; 1 run(s)" in said.output and "1 of 20 runs" in said.output
    out = json.loads((tmp_path / "out.json").read_text())
    assert out["approved"] == [mark] and out["studies"][mark]["runs"] == ["run"]


def test_the_text_of_a_study_writes_no_line_of_the_page_in_the_terminal(tmp_path):
    home, table = tmp_path / "s", patients()
    folder = SiteFolder.create(home, "s", tuple(table), allow_open_reports=True)
    study = Attacker(Site("s", pa.table(table), folder.policy)).study()
    study = study._replace(sites=("s", "q" * 78 + ").", "Mode: private. " * 9, "\nMode: private."))
    Ledger(home / "ledger.json").meet(study, approval.summary(study, folder.policy))
    lines = call("approve", home).output.splitlines()
    (mode,) = [line for line in lines if line.strip().startswith("Mode:")]
    assert mode.startswith("Mode: open.")
