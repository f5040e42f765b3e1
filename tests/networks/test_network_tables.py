"""A table's network: by estimator and command alike, saved without pickle, scored without dorfl."""

import json
import os
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from dorfl import RobustClassifier, RobustRegressor
from dorfl.networks import tabular
from dorfl.tabular import model
from dorfl.tabular.model import ModelError

ROUNDS = 150
BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, *_):
        if name in ("torch", "dorfl.networks.tabular"):
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Blocked())
"""


def crescents(n=400, seed=0):
    """Two classes that no straight line tells apart, in two clients."""
    X, y = make_moons(n, noise=0.15, random_state=seed)
    return X, np.where(y == 1, "ill", "well"), np.where(np.arange(n) % 3 == 0, "north", "south")


def small(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))


def dorfl(*words, torch=True, code=0):
    """The command, in a process of its own; without PyTorch if so asked."""
    script = ("" if torch else BLOCK) + "from dorfl.cli import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, words)], capture_output=True, text=True,
        check=False, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table with categories, missing values and wrong rows, and its network."""
    home = tmp_path_factory.mktemp("network")
    X, y, site = crescents()
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "kind": np.where(X[:, 0] > 0, "p", "q")})
    frame.loc[:19, "a"] = frame.loc[:19, "a"] * -40
    frame.loc[30:50, "b"] = np.nan
    frame.assign(site=site, y=y).to_csv(home / "rows.csv", index=False)
    told = dorfl(
        "train", home / "rows.csv", "--label", "y", "--client", "site", "--model", "mlp",
        "--outliers", "0.1", "--max-rounds", ROUNDS, "--budget", "600", "-o", home / "model",
        "--verbose",
    )  # fmt: skip
    return home, told


def test_a_network_learns_what_a_linear_model_cannot():
    X, y, site = crescents()
    network = RobustClassifier(model="mlp").fit(X, y, clients=site)
    linear = RobustClassifier().fit(X, y, clients=site)
    fresh, labels, _ = crescents(seed=1)
    assert network.score(fresh, labels) > 0.95 > linear.score(fresh, labels) + 0.05
    assert set(network.client_weights_) == {"north", "south"}
    assert not hasattr(network, "coef_")


def test_an_estimator_with_a_network_is_one_for_scikit_learn():
    X, y, _ = crescents(200)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), RobustClassifier(model="mlp", max_rounds=30)),
        {"robustclassifier__l2": [1e-3, 10.0]}, cv=2,
    ).fit(X, y)  # fmt: skip
    best = search.best_estimator_[-1]
    assert best.get_params()["model"] == "mlp" and best.l2 == 1e-3 and best.n_iter_ == 30
    again = clone(best).fit(search.best_estimator_[:-1].transform(X), y)
    for kept in (again, pickle.loads(pickle.dumps(best))):
        np.testing.assert_array_equal(kept.predict_proba(X), best.predict_proba(X))
    np.testing.assert_allclose(best.predict_proba(X).sum(1), 1.0)


@pytest.mark.parametrize(
    "made",
    [
        lambda: small(2, 1),
        small,
        small(2, 2),
    ],
    ids=["one output", "told its widths", "two outputs"],
)  # fmt: skip
def test_a_module_of_ones_own(made):
    X, y, _ = crescents(200)
    found = RobustClassifier("erm", model=made, max_rounds=100).fit(X, y)
    assert found.score(X, y) > 0.75
    assert found.decision_function(X).shape == (200,) and found.predict_proba(X).shape == (200, 2)
    assert isinstance(found.network_, nn.Module)


def test_a_regression_is_in_the_unit_of_its_label():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    y = 1000 + 50 * X[:, 0] * X[:, 1]
    assert RobustRegressor(model="mlp").fit(X[:300], y[:300]).score(X[300:], y[300:]) > 0.8
    assert RobustRegressor().fit(X[:300], y[:300]).score(X[300:], y[300:]) < 0.2


def test_labels_that_a_line_does_not_fit_count_in_full_for_a_network():
    """Where a line has no part in what the label is, far from it says nothing."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    y = X[:, 0] + 0.1 * rng.normal(size=400)
    y[::5] *= -50
    told = [RobustRegressor(model=m, max_rounds=20).fit(X, y).choice_ for m in ("linear", "mlp")]
    says = [any("outlying labels are" in words for words in choice) for choice in told]
    assert says == [True, False]


def test_wrong_rows_count_less_and_do_less_harm():
    X, y, _ = crescents(600)
    X[:60] *= -40
    network = RobustClassifier(model="mlp", outliers=0.1).fit(X, y)
    fresh, labels, _ = crescents(seed=1)
    assert network.score(fresh, labels) > 0.93
    assert np.median(network.sample_weights_[:60]) < 0.1 < 0.5 < network.sample_weights_[60:].mean()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"tol": 1e-7}, "max_rounds"),
        ({"class_weight": "balanced"}, "repeat rows"),
        ({"model": "cnn"}, "choose one of linear, mlp"),
        ({"model": nn.Linear(7, 1)}, "does not take rows"),
        ({"model": 7}, "give a torch.nn.Module"),
    ],
)
def test_what_a_network_cannot_do_is_said(words, said):
    X, y, _ = crescents(60)
    with pytest.raises(ValueError, match=said):
        RobustClassifier(**{"model": "mlp", **words}).fit(X, y)


def test_a_network_is_not_certified():
    X, y, _ = crescents(60)
    with pytest.raises(ValueError, match="for linear models"):
        RobustClassifier(model="mlp", max_rounds=5).fit(X, y).certify()


def test_rounds_and_decay_follow_the_rows():
    small, large = (
        tabular.plan_for(np.array([n]), l2=None, rounds=None, seed=0) for n in (200, 30_000)
    )
    assert (small.rounds, large.rounds) == (500, 2000) and small.l2 > 100 * large.l2


def test_the_same_rows_and_words_give_the_same_network(tmp_path):
    X, y, site = crescents(120)
    frame = pd.DataFrame({"x0": X[:, 0], "x1": X[:, 1], "site": site, "y": y})
    frame.to_csv(tmp_path / "rows.csv", index=False, float_format="%.17g")
    (tmp_path / "study.toml").write_text(
        '[data]\nfile = "rows.csv"\nlabel = "y"\nclient = "site"\n'
        '[training]\nmodel = "mlp"\nmax_rounds = 20\n'
    )
    dorfl("train", tmp_path / "study.toml", "-o", tmp_path / "model", "--budget", "0")
    dorfl("train", tmp_path / "study.toml", "-o", tmp_path / "again", "--budget", "0")
    loaded, again = model.load(tmp_path / "model"), model.load(tmp_path / "again")
    np.testing.assert_array_equal(loaded.fit.theta, again.fit.theta)
    found = RobustClassifier(model="mlp", max_rounds=20).fit(X, y, clients=site)
    theta = np.concatenate([p.detach().numpy().ravel() for p in found.network_.parameters()])
    np.testing.assert_array_equal(theta, loaded.fit.theta)
    np.testing.assert_array_equal(list(found.client_weights_.values()), loaded.fit.lam)
    np.testing.assert_allclose(found.predict_proba(X), loaded.probabilities(frame), atol=1e-5)


def test_train_says_how_it_does_beside_the_simplest(folder):
    home, told = folder
    for words in ("dorfl, mlp", "erm, linear", "majority class", "A network with layers of 64"):
        assert words in told
    held = model.load(home / "model").facts.held_out
    assert [entry.method for entry in held] == ["dorfl, mlp", "erm, linear", "majority class"]
    assert held[0].overall.mean > held[2].overall.mean


def test_the_folder_works_with_the_other_commands_and_without_torch(folder):
    home, _ = folder
    rows, made = home / "rows.csv", home / "model"
    assert "trained" in dorfl("info", made, torch=False)
    assert "Worst" in dorfl("evaluate", made, rows, torch=False)
    dorfl("predict", made, rows, "-o", home / "scored.csv", torch=False)
    dorfl("report", made, torch=False)
    assert "(ill, well)" in (made / "report.html").read_text()
    assert "A network (logistic loss)" in (made / "card.md").read_text()
    assert "for linear models" in dorfl("certify", made, rows, torch=False, code=2)


def test_outliers_lists_the_rows_that_hardly_counted(folder):
    home, _ = folder
    told = json.loads(dorfl("outliers", home / "model", home / "rows.csv", "--json"))
    assert sum(entry["row"] <= 20 for entry in told["top"][:15]) >= 13


def test_score_py_needs_numpy_alone(folder, tmp_path):
    home, _ = folder
    dorfl("predict", home / "model", home / "rows.csv", "-o", tmp_path / "mine.csv", torch=False)
    shutil.copytree(home / "model", tmp_path / "model")
    block = (
        "import sys; sys.modules['torch'] = sys.modules['dorfl'] = sys.modules['pandas'] = None\n"
    )
    run = "import runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", block + run, tmp_path / "model" / "score.py", home / "rows.csv"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (tmp_path / "other.csv").write_text(done.stdout)
    mine, other = pd.read_csv(tmp_path / "mine.csv"), pd.read_csv(tmp_path / "other.csv")
    assert (mine["prediction"] == other["prediction"]).all()
    np.testing.assert_allclose(mine.iloc[:, 1:], other.iloc[:, 1:], atol=1e-12)


def test_a_damaged_folder_is_refused(folder, tmp_path):
    home, _ = folder
    shutil.copytree(home / "model", tmp_path / "model")
    numbers = tmp_path / "model" / "model.safetensors"
    whole = numbers.read_bytes()
    numbers.write_bytes(whole[:-4] + b"\x00\x00\xc0\x7f")
    with pytest.raises(ModelError, match="is not the file"):
        model.load(tmp_path / "model")
    numbers.unlink()
    with pytest.raises(ModelError, match="missing"):
        model.load(tmp_path / "model")


def test_a_linear_model_leaves_no_network_behind(folder, tmp_path):
    home, _ = folder
    shutil.copytree(home / "model", tmp_path / "model")
    dorfl(
        "train", home / "rows.csv", "--label", "y", "-o", tmp_path / "model", "--force",
        "--budget", "0",
    )  # fmt: skip
    assert not (tmp_path / "model" / "model.safetensors").exists()
    assert not model.load(tmp_path / "model").network


def test_without_torch_train_says_what_to_install(folder, tmp_path):
    home, _ = folder
    told = dorfl(
        "train", home / "rows.csv", "--label", "y", "--model", "mlp", "-o", tmp_path / "m",
        torch=False, code=2,
    )  # fmt: skip
    assert "pip install 'torch" in told and "fault" not in told
