"""`dorfl train` measures the method that the user gets, with few trainings and one save."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from dorfl.cli import app
from dorfl.protocol.settings import Data, Study
from dorfl.protocol.steps.round import TrainingRound
from dorfl.protocol.steps.select import Select
from dorfl.support import files
from dorfl.tabular import audit, evaluation, held_out, model, table
from dorfl.tabular.rows import open_split, rows_for

WORDS = ("--label", "ill", "--client", "ward")


def wards(folder, wrong=0.1, rows=900, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 4))
    ill = X @ [2.0, -1.0, 0.5, 0.0] + rng.logistic(size=rows) > 0
    bad = rng.random(rows) < wrong
    X[bad] *= -8.0
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame["ill"], frame["ward"] = np.where(ill, "yes", "no"), rng.choice(["n", "s", "w"], rows)
    frame.to_csv(folder / "rows.csv", index=False)
    return frame, bad


def run(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture
def trainings(monkeypatch):
    """A list with an entry for every training: candidates at the same time are one."""
    made = []
    begin_round, begin_select = TrainingRound.begin, Select.begin

    def count_round(self, state):
        made.append("candidate" if state.agreed.candidate is not None else "training")
        return begin_round(self, state)

    def count_select(self, state):
        after = begin_select(self, state)
        if after.step == "select":
            made.append("candidates")
        return after

    monkeypatch.setattr(TrainingRound, "begin", count_round)
    monkeypatch.setattr(Select, "begin", count_select)
    return made


@pytest.mark.parametrize(
    ("wrong", "given", "most"),
    [(0.1, (), 4), (0.0, ("--outliers", 0), 2), (0.1, ("--outliers", 0.1), 3)],
)
def test_a_training_takes_at_most_four(tmp_path, trainings, wrong, given, most):
    """Selection, the model, the method on four fifths, ERM there; plain training is ERM."""
    wards(tmp_path, wrong)
    run("train", tmp_path / "rows.csv", *WORDS, *given, "--out", tmp_path / "m")
    assert len(trainings) == most
    assert trainings.count("candidates") == (not given)
    held = model.load(tmp_path / "m").facts.held_out
    assert [one.method for one in held] == ["dorfl", "erm", "majority class"]


def test_the_model_is_saved_once_and_its_evaluation_beside_it(tmp_path, monkeypatch):
    wards(tmp_path)
    written = []
    whole = files.write_whole

    def count(path, data):
        written.append(path.name)
        whole(path, data)

    monkeypatch.setattr(files, "write_whole", count)
    run("train", tmp_path / "rows.csv", *WORDS, "--out", tmp_path / "m")
    assert written.count("model.json") == written.count("evaluation.json") == 1
    assert written.index("model.json") < written.index("evaluation.json")
    made = model.load(tmp_path / "m")
    assert made.facts.held_out and made.facts.promise
    evaluation_file = tmp_path / "m" / "evaluation.json"
    about = json.loads(evaluation_file.read_text())
    evaluation_file.write_text(json.dumps({**about, "model": "of another model"}))
    assert not model.load(tmp_path / "m").facts.held_out
    evaluation_file.write_text("[]")
    with pytest.raises(model.ModelError, match=r"evaluation\.json is damaged"):
        model.load(tmp_path / "m")
    evaluation_file.unlink()
    alone = model.load(tmp_path / "m")
    np.testing.assert_array_equal(alone.fit.theta, made.fit.theta)


def test_the_estimate_uses_the_decision_of_the_model(tmp_path, monkeypatch):
    """A decision to trust all rows makes the held-out model ERM, whatever four fifths would say."""
    wards(tmp_path, 0.1)
    study = Study(Data("ill", file=str(tmp_path / "rows.csv"), client="ward"))
    decided, rows = table.run(study)
    assert decided.facts.outliers in (0.1, 0.25)
    trusting, _ = table.run(study.changed(method_outliers=0.0))
    assert trusting.facts.outliers == 0.0
    own, erm, _ = held_out.evaluate_methods(study, trusting, rows)
    assert own.overall == erm.overall and own.all_rows is None
    own, erm, _ = held_out.evaluate_methods(study, decided, rows)
    assert own.overall.mean > erm.overall.mean + 2 * own.overall.error


def test_train_evaluate_compare_and_outliers_agree(tmp_path):
    """The same definition everywhere: rows, inliers and errors."""
    _, bad = wards(tmp_path, 0.1)
    rows_csv, made = tmp_path / "rows.csv", tmp_path / "m"
    answer = json.loads(run("train", rows_csv, *WORDS, "--out", made, "--json").stdout)
    listed = json.loads(run("outliers", made, rows_csv, "--json").stdout)
    evaluated = json.loads(run("evaluate", made, rows_csv, "--json").stdout)
    low = answer["down_weighted"]
    assert low == listed["down_weighted"] == evaluated["down_weighted"]
    assert 0.9 * bad.sum() <= low < bad.sum() + 90  # and the outermost of the others
    assert evaluated["overall"]["inliers"]["rows"] == 900 - low
    loaded = model.load(made)
    for found, known in zip(evaluated["clients"], loaded.facts.clients, strict=True):
        assert found["loss"] == pytest.approx(known.loss, rel=1e-6)
    study = Study(Data("ill", file=str(rows_csv), client="ward"))
    rows = rows_for(loaded, open_split(study))
    weight, scores = audit.row_weights(loaded, rows), evaluation.row_scores(loaded, rows)
    assert (weight < 0.5).sum() == low
    assert evaluated["overall"]["inliers"]["mean"] == pytest.approx(scores[weight >= 0.5].mean())
    compared = json.loads(run("compare", rows_csv, *WORDS, "--folds", 3, "--json").stdout)
    assert compared["best"] == "dorfl" and compared["rows"] == 900
    assert abs(compared["inliers"] - (900 - low)) < 30
    own, held = compared["methods"]["dorfl"], loaded.facts.held_out[0]
    for kind, other in (("inliers", held.overall), ("all_rows", held.all_rows)):
        apart = abs(own[kind]["mean"] - other.mean)
        assert apart < 3 * np.hypot(own[kind]["error"], other.error)
    assert own["inliers"]["mean"] > own["all_rows"]["mean"] + 0.03


def test_progress_counts_the_rounds_that_the_result_names(tmp_path):
    wards(tmp_path)
    done = run("train", tmp_path / "rows.csv", *WORDS, "--out", tmp_path / "m", "--verbose")
    rounds = [line for line in done.stderr.splitlines() if line.startswith("round ")]
    last = int(rounds[-1].split()[1].rstrip(":,"))
    assert last == model.load(tmp_path / "m").fit.rounds
    assert f"in {last} rounds, after " in " ".join(done.stdout.split())


def test_a_decision_about_labels_holds_for_the_estimate_too(tmp_path, trainings):
    """Rows whose labels are far from the model's reference have no weight on four fifths either."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2))
    cost, bad = X @ [3.0, 1.0] + 0.5 * rng.normal(size=600), rng.random(600) < 0.2
    cost[bad] = -3.0 * X[bad, 0] + 10.0
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(cost=cost, ward=rng.choice(["n", "s"], 600))
    frame.to_csv(tmp_path / "rows.csv", index=False)
    study = Study(Data("cost", file=str(tmp_path / "rows.csv"), client="ward"))
    study = study.changed(method_outliers=0.0)
    made, _ = table.run(study)
    rows = rows_for(made, open_split(study))
    good = ~bad[rows.order]
    seen, y = np.column_stack([rows.X, np.ones(600)])[good], rows.y[good]
    theta = np.linalg.lstsq(seen, y, rcond=None)[0]
    reference = (*theta.tolist(), float(np.std(seen @ theta - y)))
    labelled = replace(made, facts=made.facts._replace(reference=reference))
    trainings.clear()
    own, erm, median = held_out.evaluate_methods(study, labelled, rows)
    assert trainings == ["training", "training"]
    assert own.overall.mean < 0.9 * erm.overall.mean and own.overall.mean < median.overall.mean
    assert own.overall.rows < 0.9 * own.all_rows.rows and own.overall.mean < own.all_rows.mean
