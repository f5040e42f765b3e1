"""The same rows and settings give the same model through every door, in any unit."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from typer.testing import CliRunner

import dorfl
from dorfl.cli import app
from dorfl.protocol import coordinator
from dorfl.site import local
from study_cases import make_sites, make_study

LOADERS = {"breast": load_breast_cancer, "wine": load_wine}


def split(name, *, by_class, spoilt=False, seed=0):
    """A table's clients, and rows to test on; with `spoilt`, one training row in ten times −8."""
    X, y = LOADERS[name](return_X_y=True)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    test, train = order[: len(y) // 3], order[len(y) // 3 :]
    rows = X[train].copy()
    if spoilt:
        rows[: len(train) // 10] *= -8.0
    owner = y[train] if by_class else rng.integers(0, 3, len(train))
    clients = {f"c{k}": (rows[owner == k], y[train][owner == k]) for k in np.unique(owner)}
    return clients, (X[test], y[test])


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("spoilt", [False, True])
def test_the_flagship_call_is_no_constant_on_real_data(name, by_class, spoilt):
    """Raw units, clients that differ: as good as plain training on clean rows."""
    clients, test = split(name, by_class=by_class, spoilt=spoilt)
    clean, _ = split(name, by_class=by_class)
    loss = "logistic" if name == "breast" else "softmax"
    ours = dorfl.train(clients, dorfl.methods.dorfl(), loss=loss)
    rows = sum(len(y) for _, y in clean.values())
    plain = dorfl.train(clean, dorfl.methods.erm(), loss=loss, l2=1.0 / rows)
    error = np.sqrt(0.05 * 0.95 / len(test[1]))
    assert ours.score(*test) >= plain.score(*test) - error


def test_a_regression_in_raw_units_survives_outliers():
    X, y = load_diabetes(return_X_y=True, scaled=False)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(y))
    test, train = order[:140], order[140:]
    rows = X[train].copy()
    rows[:30] *= -8.0
    owner = rng.integers(0, 3, len(train))
    clients = [(rows[owner == k], y[train][owner == k]) for k in range(3)]
    fit = dorfl.train(clients, loss="huber")
    error = np.abs(fit.predict(X[test]) - y[test]).mean()
    assert error < 50.0  # least squares on clean rows 44, the median alone 71


def test_array_estimator_file_and_sites_give_the_same_model(tmp_path):
    clients, _ = split("breast", by_class=False, spoilt=True)
    fit = dorfl.train(clients)
    rows = np.concatenate([X for X, _ in clients.values()])
    labels = np.concatenate([y for _, y in clients.values()])
    owners = np.repeat(list(clients), [len(y) for _, y in clients.values()])
    model = dorfl.RobustClassifier().fit(rows, labels, clients=owners)
    assert fit.gap_kind == "bound"
    np.testing.assert_array_equal(fit.theta, np.append(model.coef_[0], model.intercept_))
    np.testing.assert_array_equal(
        np.concatenate([fit.sample_weights[name] for name in clients]),
        np.concatenate(
            [
                model.sample_weights_[owners == name] / model.sample_weights_[owners == name].sum()
                for name in clients
            ]
        ),
    )
    frame = pd.DataFrame(rows, columns=[f"x{k}" for k in range(rows.shape[1])])
    frame = frame.assign(label=np.where(labels, "yes", "no"), owner=owners)
    frame.to_csv(tmp_path / "all.csv", index=False)
    words = ["train", str(tmp_path / "all.csv"), "--label", "label", "--client", "owner"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "model"), "--budget", "0"])
    assert done.exit_code == 0, done.output
    file = dorfl.load(tmp_path / "model")
    np.testing.assert_array_equal(file.fit.theta, model._trained[0].theta)
    tables = {
        name: {k: v.tolist() for k, v in part.drop(columns="owner").items()}
        for name, part in frame.groupby("owner")
    }
    study = make_study(tables, "label", method="")
    end = local.run(coordinator.begin(study, "run-1"), make_sites(tables))
    np.testing.assert_array_equal(end.outcome.theta, file.fit.theta.ravel())


def test_choose_tune_and_train_decide_alike():
    for spoilt in (False, True):
        clients, _ = split("wine", by_class=False, spoilt=spoilt)
        choice = dorfl.defaults.choose(clients, loss="softmax")
        fit = dorfl.train(clients, loss="softmax")
        assert (fit.problem.method.score is None) == (choice.method.score is None)
        assert fit.problem.method.rho == choice.method.rho
        tuned = dorfl.tune(
            clients, loss="softmax", grid={"outliers": (0.0, 0.1, 0.25), "shift": (0.25,)}
        )
        assert tuned.method.outliers == choice.decision.share


@settings(max_examples=10)
@given(st.lists(st.sampled_from([1e-3, 1.0, 7.0, 1e3]), min_size=13, max_size=13))
def test_the_units_of_columns_change_no_decision_and_no_prediction(units):
    clients, (X, _) = split("wine", by_class=False, spoilt=True)
    scaled = {name: (rows * units, y) for name, (rows, y) in clients.items()}
    one = dorfl.train(clients, loss="softmax")
    two = dorfl.train(scaled, loss="softmax")
    np.testing.assert_allclose(
        two.predict_proba(X * units), one.predict_proba(X), rtol=1e-4, atol=1e-5
    )


def test_ten_times_as_many_columns_change_no_decision():
    clients, _ = split("wine", by_class=False, spoilt=True)
    wide = {name: (np.tile(rows, 10), y) for name, (rows, y) in clients.items()}
    shares = [dorfl.defaults.choose(c, loss="softmax").decision.share for c in (clients, wide)]
    assert shares[0] == shares[1] > 0


def test_numbers_given_by_hand_replace_single_parts():
    clients, _ = split("breast", by_class=False)
    method = dorfl.methods.dorfl(rho=50.0, outliers=0.2, mixture="agnostic")
    found = dorfl.defaults.choose(clients, method).method
    assert found.rho == 50.0 and found.mixture.adversarial and found.score is not None
    assert dorfl.defaults.choose(clients, dorfl.methods.dorfl(score=None)).method.score is None


def test_the_papers_form_warns_where_it_ignores_clients():
    clients, _ = split("breast", by_class=True)
    with pytest.warns(dorfl.FitWarning, match="no better than a constant"):
        dorfl.train(clients, dorfl.methods.paper(), l2=1e-3)


def test_a_good_fit_warns_of_nothing(recwarn):
    clients, _ = split("breast", by_class=False, spoilt=True)
    dorfl.train(clients)
    assert not [w for w in recwarn if issubclass(w.category, dorfl.FitWarning)]


def test_what_a_study_has_no_setting_for_trains_the_resolved_method():
    clients, test = split("breast", by_class=False)
    fit = dorfl.train(clients, dorfl.methods.dorfl(), theta_radius=1e3, l2=1e-3, tol=1e-4)
    assert fit.score(*test) > 0.9
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(ValueError, match="sparse"):
        dorfl.train([(sparse.csr_array(X), y) for X, y in clients.values()])


def test_a_fit_of_an_open_method_can_be_saved(tmp_path):
    clients, (X, _) = split("breast", by_class=True, spoilt=True)
    fit = dorfl.train(clients)
    again = dorfl.load(fit.save(tmp_path / "fit.json"))
    np.testing.assert_array_equal(again.theta, fit.theta)
    np.testing.assert_array_equal(again.predict(X), fit.predict(X))
    assert json.loads((tmp_path / "fit.json").read_text())["clients"] == list(fit.clients)


@pytest.mark.parametrize(
    ("labels", "loss"),
    [([0, 1], "logistic"), (["a", "b", "c"], "softmax"), (np.linspace(0.0, 5.0, 30), "huber")],
)
@pytest.mark.parametrize("method", [None, dorfl.methods.erm()])
def test_the_loss_fits_the_labels_if_none_is_given(labels, loss, method):
    rng = np.random.default_rng(3)
    clients = [(rng.normal(size=(60, 3)), np.resize(labels, 60)) for _ in range(2)]
    fit = dorfl.train(clients, method, l2=0.01)
    assert fit.problem.loss.name == loss
