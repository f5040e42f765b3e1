"""Nobody is left with the wrong impression: what commands say, and in which order they work."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import confusion_matrix, recall_score, roc_auc_score

from dorfl.tabular import model
from dorfl.tabular.model.facts import Facts, Promise, Promised
from processes import dorfl_

pytestmark = pytest.mark.slow  # every test is a process or several

WORDS = ("--label", "ill", "--client", "ward")
ASIDE = (*WORDS, "--outliers", "0.1")  # one wrong row in 300 is too few to be noticed by itself


def wards(rows=300, clients=3, seed=0, lean=2.0):
    rng = np.random.default_rng(seed)
    pulse = rng.normal(70, 9, rows)
    ill = lean * (pulse - 70) / 9 + rng.logistic(size=rows) > 0
    return pd.DataFrame(
        {
            "ward": [f"ward {k % clients:02d}" for k in range(rows)],
            "pulse": pulse.round(1),
            "year": rng.integers(1986, 2000, rows),
            "sex": rng.choice(["f", "m"], rows),
            "ill": np.where(ill, "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    frame = wards()
    frame.loc[0, "year"] = 1900
    frame.to_csv(home / "data.csv", index=False)
    done = dorfl_("train", "data.csv", *ASIDE, "--out", "model", "-v", cwd=home)
    assert done.returncode == 0, done.stderr
    (home / "said.txt").write_text(done.stdout)
    return home


# ── save first ───────────────────────────────────────────────────────────────────────────────────


def test_the_model_is_saved_before_anything_else_and_an_interrupt_says_so(tmp_path):
    """Interrupted as soon as model.json is there: it is a whole model, and the words say where."""
    rng = np.random.default_rng(0)
    middles = rng.normal(size=(12, 8)) * 2
    kind = rng.integers(0, 12, 1500)
    frame = pd.DataFrame(middles[kind] + rng.normal(size=(1500, 8))).add_prefix("x")
    frame.assign(ill=[f"k{k:02d}" for k in kind], ward="all").to_csv(
        tmp_path / "t.csv", index=False
    )
    running = subprocess.Popen(
        [sys.executable, "-m", "dorfl", "train", "t.csv", *WORDS, "--budget=600", "--shift=1"],
        cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not (tmp_path / "model" / "model.json").exists() and running.poll() is None:
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate()
    assert running.returncode == 130 and "Traceback" not in said
    assert "interrupted; the model is in model" in said
    made = model.load(tmp_path / "model")
    assert len(made.classes) == 12 and not made.facts.held_out
    assert made.facts.certificate


def test_what_follows_has_a_budget(home, tmp_path):
    done = dorfl_(
        "train", home / "data.csv", *WORDS, "--budget", "1e-6", "--out", tmp_path / "m",
        cwd=home,
    )  # fmt: skip
    assert done.returncode == 0
    assert "not measured" in done.stderr and "--budget" in done.stderr
    assert not model.load(tmp_path / "m").facts.held_out


def test_a_model_is_not_written_over_unless_told(home):
    before = (home / "model" / "model.json").read_bytes()
    done = dorfl_("train", "data.csv", *WORDS, "--out", "model", cwd=home)
    assert done.returncode == 2 and "--force" in done.stderr
    assert (home / "model" / "model.json").read_bytes() == before
    done = dorfl_("train", "data.csv", *ASIDE, "--out", "model", "--force", "-q", cwd=home)
    assert done.returncode == 0


# ── what a training ends with ────────────────────────────────────────────────────────────────────


def test_train_ends_with_rows_held_out_beside_erm_and_the_majority(home):
    said = (home / "said.txt").read_text()
    end = said[said.index("On held-out rows") :]
    assert all(name in end for name in ("dorfl", "erm", "majority class", "worst client", "±"))
    assert "over all rows trained with" not in said
    assert "The gap bounds by how much" in said and "--tol" in said
    own, erm, constant = model.load(home / "model").facts.held_out
    assert own.overall.mean > constant.overall.mean and erm.overall.mean > constant.overall.mean
    assert own.loss.mean < constant.loss.mean
    assert set(own.clients) == {"ward 00", "ward 01", "ward 02"}
    frame = wards()
    assert constant.overall.mean == pytest.approx((frame["ill"] == "yes").mean(), abs=0.1)
    card = (home / "model" / "card.md").read_text()
    shown = card[card.index("## Held-out rows") : card.index("## Clients")]
    line = next(line for line in shown.splitlines() if line.startswith("| dorfl |"))
    score, error = 100 * own.overall.mean, 100 * own.overall.error
    assert f"{score:.1f} ± {error:.1f}" in line
    few = sum(one.rows < 20 for one in own.clients.values())  # 20 of each, some not inliers
    assert f"{few} of 3 clients have fewer than 20 inliers and are not ranked" in shown
    assert "| erm |" in shown and "| majority class |" in shown


def test_many_clients_are_the_worst_the_middle_and_the_best(tmp_path):
    wards(1200, clients=40).to_csv(tmp_path / "t.csv", index=False)
    done = dorfl_("train", "t.csv", *WORDS, "-v", cwd=tmp_path, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert "the worst three of 40" in " ".join(done.stdout.split())
    assert done.stdout.count("ward ") < 12


def test_a_model_that_learnt_nothing_gets_no_green_tick_anywhere(tmp_path):
    wards(200).to_csv(tmp_path / "t.csv", index=False)
    done = dorfl_(
        "train",
        "t.csv",
        *WORDS,
        "--outliers",
        0,
        "--max-rounds",
        1,
        "--force",
        cwd=tmp_path,
        FORCE_COLOR="1",
    )
    made = model.load(tmp_path / "model")
    assert done.returncode == 4 and made.useless and made.idle
    red = [line for line in done.stderr.splitlines() if "\x1b[1;31m" in line]
    assert any("learnt nothing" in line for line in red)
    assert any("no better than a constant prediction, the majority class" in line for line in red)
    assert red[-1] == done.stderr.splitlines()[-1] and "not converged" in red[-1]
    assert "the model learnt nothing" in (tmp_path / "model" / "card.md").read_text()
    assert dorfl_("report", "model", cwd=tmp_path).returncode == 0
    page = (tmp_path / "model" / "report.html").read_text()
    assert "does not hold" in page and "✓ holds" not in page
    told = dorfl_("info", "model", cwd=tmp_path)
    assert "warning" in told.stderr


def test_a_model_of_noise_is_refused_and_forced_it_is_still_a_failure(tmp_path):
    rng = np.random.default_rng(0)
    noise = wards(200).assign(ill=rng.choice(["no", "yes"], 200))[["ward", "sex", "ill"]]
    noise.to_csv(tmp_path / "t.csv", index=False)
    words = (*WORDS, "--l2", 1e6)
    done = dorfl_("train", "t.csv", *words, cwd=tmp_path)
    assert done.returncode == 4 and "learnt nothing" in done.stderr, done.stderr
    assert not (tmp_path / "model").exists()
    done = dorfl_("train", "t.csv", *words, "--force", cwd=tmp_path)
    made = model.load(tmp_path / "model")
    assert made.useless and made.fit.status == "converged" and done.returncode == 4


def test_a_stalled_model_is_red_in_compare(home):
    done = dorfl_(
        "compare", "data.csv", *WORDS, "--folds", 2, "--max-rounds", 2, "--tol", 1e-12,
        "--solver", "sqp", "--out", "short", "-v", cwd=home,
    )  # fmt: skip
    said = " ".join(done.stdout.split())
    assert "gdrfl ✗" in done.stdout and "✗ marks a method of which a training fell short" in said
    assert "not converged" in done.stderr
    page = (home / "short" / "index.html").read_text()
    assert "does not hold" in page and "✓ holds" not in page


# ── evaluate, outliers, predict, init ────────────────────────────────────────────────────────────


def test_evaluate_tells_what_accuracy_hides(tmp_path):
    """With a rare class accuracy hardly differs from a constant's; recall and Brier scores do."""
    frame = wards(900, lean=1.0)
    rare = np.random.default_rng(1).random(len(frame)) < 0.08
    frame["ill"] = np.where((frame["ill"] == "yes") & rare, "yes", "no")
    frame.to_csv(tmp_path / "t.csv", index=False)
    dorfl_("train", "t.csv", *WORDS, "--force", "--budget", 0, cwd=tmp_path)
    done = dorfl_("evaluate", "model", "t.csv", "-v", cwd=tmp_path, COLUMNS="80")
    assert "recall" in done.stdout and "Calibration" in done.stdout
    assert f"constant {100 * (frame['ill'] == 'no').mean():.1f} %" in done.stdout
    assert "of class yes" in done.stderr and "are found" in done.stderr
    said = " ".join(done.stderr.split())
    assert "accuracy is no higher than always" in said and "the probabilities are better" in said
    assert "no better here" not in said
    answer = json.loads(dorfl_("evaluate", "model", "t.csv", "--json", cwd=tmp_path).stdout)
    made, y = model.load(tmp_path / "model"), frame["ill"]
    said = made.predict(frame)
    chance = made.probabilities(frame)[:, 1]
    assert answer["overall"]["auc"] == pytest.approx(roc_auc_score(y == "yes", chance), abs=1e-4)
    assert answer["overall"]["brier"] < answer["constant"]["brier"]
    found = answer["classes"]
    assert found["confusion"] == confusion_matrix(y, said).tolist()
    assert found["recall"][1] == pytest.approx(recall_score(y, said, pos_label="yes"))
    assert answer["constant"]["score"] == (y == "no").mean()
    assert sum(b["rows"] if isinstance(b, dict) else b[2] for b in found["calibration"]) == 900


@pytest.mark.parametrize(("copies", "worst"), [(10, "unsure"), (1, None)])
def test_of_equal_clients_the_larger_loss_is_worst_and_few_rows_name_none(
    home, tmp_path, copies, worst
):
    frame = wards(8).assign(
        pulse=[85, 85, 55, 55, 75, 75, 65, 65], ill=["yes", "yes", "no", "no"] * 2
    )
    frame["ward"] = ["sure"] * 4 + ["unsure"] * 4
    pd.concat([frame] * copies).to_csv(tmp_path / "t.csv", index=False)
    asked = ("evaluate", home / "model", tmp_path / "t.csv")
    answer = json.loads(dorfl_(*asked, "--json", cwd=home).stdout)
    assert len({c["score"] for c in answer["clients"]}) == 1
    assert answer["worst"] == worst
    said = dorfl_(*asked, cwd=home).stdout
    assert f"Worst       {worst or 'not named: no client has 20 held-out inliers'}" in said


def test_outliers_show_values_against_what_is_usual(home):
    done = dorfl_("outliers", "model", "data.csv", "--top", 1, "--json", cwd=home)
    first = json.loads(done.stdout)["top"][0]
    assert first["row"] == 1
    assert first["columns"].startswith("year 1900 (usual 1986 to 1999)")
    shown = dorfl_("outliers", "model", "data.csv", "--top", 1, "-v", cwd=home, COLUMNS="100")
    assert "shares of the" in shown.stdout and "usual is the middle 95 %" in shown.stdout
    assert "1900" in shown.stdout and "A percentage is a column's share" in shown.stdout
    low = json.loads(done.stdout)["down_weighted"]
    assert f"{low} of 300 rows (" in shown.stdout
    assert f"{low} of 300 rows" in (home / "said.txt").read_text()  # as training counted them
    assert f"{low} of 300 rows" in (home / "model" / "card.md").read_text()


def test_outliers_says_why_no_row_can_be_suspect(tmp_path):
    wards(400)[["ward", "sex", "ill"]].to_csv(tmp_path / "t.csv", index=False)
    done = dorfl_("train", "t.csv", *WORDS, "--budget", 0, "--force", cwd=tmp_path)
    assert (tmp_path / "model" / "model.json").exists(), done.stderr
    done = dorfl_("outliers", "model", "t.csv", cwd=tmp_path)
    assert done.returncode == 0  # that no row is suspect is an answer
    assert "columns are all categories or flags" in " ".join(done.stdout.split())
    assert "--method dorfl" not in done.stdout + done.stderr


def test_predict_counts_what_it_has_not_seen(home):
    frame = wards(50, seed=4).drop(columns="ill").astype({"pulse": object})
    frame.loc[:3, "sex"], frame.loc[:1, "pulse"] = "x", None
    frame.to_csv(home / "new.csv", index=False)
    done = dorfl_("predict", "model", "new.csv", "-o", "scored.csv", cwd=home)
    assert "missing, in rows: pulse 2" in done.stderr
    assert "a level the model has not seen, in rows: sex 4" in done.stderr


def test_init_says_what_it_guessed_and_what_else_there_is(home):
    done = dorfl_("init", "data.csv", cwd=home)
    assert "--label was guessed" in done.stderr and "it could also be" in done.stderr
    assert "sex (2 values)" in done.stderr


# ── compare, with many clients ───────────────────────────────────────────────────────────────────


def test_sixty_clients_are_compared_in_eighty_columns(tmp_path):
    wards(1260, clients=63).to_csv(tmp_path / "t.csv", index=False)
    done = dorfl_(
        "compare", "t.csv", *WORDS, "--folds", 2, "--out", "cmp", "-v", cwd=tmp_path, COLUMNS="80"
    )
    assert done.returncode == 0, done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if "│" in line)
    assert "ward " in done.stdout and "± " in done.stdout and "53 more are not shown" in done.stdout
    assert len(done.stdout.splitlines()) < 50
    page = (tmp_path / "cmp" / "index.html").read_text()
    assert "Radar chart" not in page and "All 63 clients" in page


# ── commands people expect ───────────────────────────────────────────────────────────────────────


def test_version_help_and_the_option_that_helps(home, tmp_path):
    assert dorfl_("--version", cwd=home).stdout.startswith("dorfl 0.")
    assert "Usage" in dorfl_("train", "-h", cwd=home).stdout
    frame = wards(60)
    frame.loc[:2, "ward"] = "attic"
    frame.to_csv(tmp_path / "t.csv", index=False)
    done = dorfl_("train", "t.csv", *WORDS, cwd=tmp_path)
    assert done.returncode == 3
    assert all(
        option in done.stderr for option in ("--small merge", "--small drop", "--minimum-rows")
    )


def test_tune_writes_a_study_that_trains(home, tmp_path):
    done = dorfl_("tune", "data.csv", *WORDS, "--out", tmp_path / "s.toml", "-v", cwd=home)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "of 20 combinations" in said and "the plainest that no other beats" in said
    done = dorfl_(
        "train", tmp_path / "s.toml", "--out", tmp_path / "m", "--budget", 0, "--json", cwd=home
    )
    assert done.returncode == 0, done.stderr
    settings = json.loads(done.stdout)["settings"]["method"]
    assert {"outliers", "shift"} <= set(settings)


@pytest.mark.parametrize("confidence", [None, 0.95])
def test_an_in_sample_certificate_says_that_it_is_not_about_rows_to_come(confidence):
    bound = Promised("all", 0.1, 0.1, 0.9)
    promise = Promise(0.1, 0.1, "It is.", "", (bound,), (), (), (), confidence)
    stated = Facts(promise=promise).promised
    assert ("not a statement about rows to come" in stated) == (confidence is None)
