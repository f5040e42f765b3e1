"""`dorfl site approve` and `dorfl site ledger`: a person at a site sees, decides and is told."""

import json

import numpy as np
import pyarrow as pa
from typer.testing import CliRunner

from attacking import Attacker, patients
from dorfl.carriers.folders import SiteFolder
from dorfl.cli import ledger as registering
from dorfl.cli import site as commands
from dorfl.study.ledger import Ledger
from dorfl.study.site import Site


def call(*words):
    if not any(c.callback is registering.ledger for c in commands.app.registered_commands):
        registering.register(commands.app)
    return CliRunner().invoke(commands.app, [str(word) for word in words])


def test_a_study_is_shown_approved_and_counted(tmp_path):
    home, table = tmp_path / "s", patients()
    folder = SiteFolder.create(home, "s", released=tuple(table))
    assert folder == SiteFolder.open(home) and folder.approve == ()

    def started():
        book = Ledger(home / "ledger.json")
        return Attacker(Site("s", pa.table(table), folder.released, ledger=book))

    attacker = started()
    assert attacker.agree(attacker.study()) is None and "approve" in attacker.refused[0]
    shown = call("approve", home)
    assert "needs about" in shown.output and "50.0 % are left" in shown.output
    (mark,) = attacker.site.ledger.studies
    assert shown.exit_code == 0 and mark[:12] in shown.output and '"label": "ill"' in shown.output
    assert "NOT approved" in call("ledger", home).output
    assert call("approve", home, "zz").exit_code != 0
    assert call("approve", home, mark[:6]).exit_code == 0
    assert "no study waits" in call("approve", home).output
    agreement = attacker.agree(attacker.study())  # the running site sees it
    assert attacker.ask(agreement, np.zeros(7), 1) is not None
    said = call("ledger", home, "--export", tmp_path / "out.json")
    assert "approved; 1 run(s)" in said.output and "1 question(s)" in said.output
    assert "left: 49" in said.output
    out = json.loads((tmp_path / "out.json").read_text())
    assert out["approved"] == [mark] and len(out["questions"]) == 1
