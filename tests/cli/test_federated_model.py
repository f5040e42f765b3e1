"""What is said of a model, by every command, when its rows were never in one place."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from dorfl.protocol import coordinator, settings, toml
from dorfl.site import local
from dorfl.tabular import model, results
from study_cases import a_site, make_sites, mixed_tables

pytestmark = pytest.mark.slow  # every test is a process or several

LABELS = ("ill", "grade", "cost")


def dorfl(*words):
    done = subprocess.run(
        [sys.executable, "-m", "dorfl", *map(str, words)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    return done.stdout


def federated(label, extra=""):
    tables = mixed_tables()
    for table in tables.values():
        for other in set(LABELS) - {label}:
            table.pop(other)
    asked = toml.parse(f'[data]\nlabel = "{label}"\n{extra}')
    if asked.privacy.epsilon is None:
        asked = asked.changed(privacy_reports="open")
    asked = settings.among(asked, tuple(tables))
    return local.run(coordinator.begin(asked, "run-1"), make_sites(tables)), tables


@pytest.fixture(scope="module", params=["ill", "cost"])
def home(request, tmp_path_factory):
    """A model of sites, one site's file, and all sites' in one."""
    folder = tmp_path_factory.mktemp("federated")
    end, tables = federated(request.param, "[method]\noutliers = 0.1")
    model.save(results.model_of(end), folder / "model")
    frames = {name: pd.DataFrame(table) for name, table in tables.items()}
    frames["site-1"].to_csv(folder / "own.csv", index=False)
    whole = pd.concat([frame.assign(site=name) for name, frame in frames.items()])
    whole.to_csv(folder / "all.csv", index=False)
    return folder


def test_info_and_report_tell_all_that_is_known(home):
    said = dorfl("info", home / "model", "-v")
    # The folder of a run will do.
    assert dorfl("info", home, "-v") == said.replace(f"{home / 'model'}", f"{home}")
    assert "site-1" in said and "Up to 10 %" in said
    dorfl("report", home / "model")
    page = (home / "model" / "report.html").read_text()
    assert "Held-out rows" not in page and "Weights of rows" in page
    assert "within UW distance" in page
    card = (home / "model" / "card.md").read_text()
    made = model.load(home / "model")
    assert f"{made.facts.clients[0].loss:.4f}" in card


def test_every_command_for_rows_takes_it(home):
    made = model.load(home / "model")
    told = json.loads(dorfl("evaluate", home / "model", home / "all.csv", "--client", "site",
                            "--json"))  # fmt: skip
    for found, known in zip(told["clients"], made.facts.clients, strict=True):
        assert found["name"] == known.name and found["rows"] == known.rows
        assert found["loss"] == pytest.approx(known.loss)
        # A site tells it of blocks of five rows.
        off = 6 / known.rows if made.fit.problem.loss.classifies else 1e-2 * known.score
        assert found["score"] == pytest.approx(known.score, abs=off)
    found = json.loads(dorfl("certify", home / "model", home / "all.csv", "--client", "site",
                             "--paper", "--json"))  # fmt: skip
    assert found["bound"] == pytest.approx(made.facts.certificate.bound)
    own = json.loads(dorfl("certify", home / "model", home / "own.csv", "--site", "site-1",
                           "--paper", "--json"))  # fmt: skip
    assert own["is_certificate"]
    found = json.loads(dorfl("certify", home / "model", home / "all.csv", "--client", "site",
                             "--in-sample", "--json"))  # fmt: skip
    promised = [line.accuracy for line in made.facts.promise.clients]
    assert [line["accuracy"] for line in found["clients"]] == pytest.approx(promised, abs=0.05)
    listed = json.loads(dorfl("outliers", home / "model", home / "own.csv", "--site", "site-1",
                              "--json"))  # fmt: skip
    assert listed["rows"] == made.facts.clients[0].rows and listed["top"][0]["client"] == "site-1"
    dorfl("predict", home / "model", home / "all.csv", "-o", home / "scored.csv")
    scored = pd.read_csv(home / "scored.csv")["prediction"]
    told = made.predict(pd.read_csv(home / "all.csv"))
    if made.classifies:
        assert (scored == told).all()
    else:
        np.testing.assert_allclose(scored, told)


def test_what_was_not_told_is_left_out(tmp_path):
    private = '[method]\nname = "gdrfl"\n[training]\nmax_rounds = 5\n[privacy]\nepsilon = 8.0\n'
    end, _ = federated("ill", private)
    made = results.model_of(end)
    assert made.facts.certificate is made.facts.promise is made.facts.learnt is None
    assert [served.loss for served in made.facts.clients] == [None, None]
    model.save(made, tmp_path / "model")
    assert "site-2" in dorfl("info", tmp_path / "model", "-v")
    dorfl("report", tmp_path / "model")


def test_a_model_of_another_version_is_refused_with_the_remedy(tmp_path):
    made = results.model_of(federated("ill")[0])
    older = {**model.folder.to_json(made), "version": 1, "dorfl": "0.2.0"}
    with pytest.raises(ValueError, match=r"version 1.*train again, or use dorfl 0\.2\.0"):
        model.folder.from_json(older, tmp_path)


def test_a_site_of_its_own_can_look_into_its_model(tmp_path):
    tables = {name: {k: v for k, v in t.items() if k not in ("grade", "cost")}
              for name, t in mixed_tables().items()}  # fmt: skip
    words = '[data]\nlabel = "ill"\n[method]\noutliers = 0.1\n[privacy]\nreports = "open"\n'
    asked = settings.among(toml.parse(words), tuple(tables))
    messages = {}

    def done(agreement, *rest):
        written = results.write_site(tmp_path / agreement.site, agreement, *rest)
        messages[agreement.site] = written
        return written

    sites = {name: a_site(name, table, done=done) for name, table in tables.items()}
    local.run(coordinator.begin(asked, "run-1"), sites)
    weights = pd.read_csv(tmp_path / "site-2" / "audit.csv")["weight"]
    low = f"{(weights < 0.5).sum()} of {len(weights)} rows have less than half"
    assert low in messages["site-2"]
    own = tmp_path / "site-2" / "model"
    pd.DataFrame(tables["site-2"]).to_csv(tmp_path / "own.csv", index=False)
    assert "label ill (" in dorfl("info", own)
    dorfl("report", own)
    dorfl("certify", own, tmp_path / "own.csv", "--site", "site-2")
    dorfl("outliers", own, tmp_path / "own.csv", "--site", "site-2")
