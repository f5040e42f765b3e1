"""The selection of the outlier share inside studies: tables, sites, regressions, refusals."""

import re

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import HuberRegressor
from sklearn.preprocessing import StandardScaler

import dorfl
from dorfl import RobustClassifier, RobustRegressor
from dorfl.federated import server
from dorfl.protocol import coordinator, resolution, settings, toml
from dorfl.protocol.messages import Refusal, Reply
from dorfl.protocol.steps import select
from dorfl.selection import outliers
from dorfl.selection.outliers import Candidate, HeldOut, pairs_of
from dorfl.site import local
from dorfl.site.site import Site
from dorfl.support import wire
from dorfl.tabular import audit, held_out, table
from study_cases import a_site, make_sites, make_study, synthetic_tables

AUTO = 'name = "dorfl"'


def rare_rows(seed=0, rows=1200):
    """One row in ten is ten times as far out as the others, and its label is right."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 4))
    X[: rows // 10] *= 10
    return X, (X @ [1.0, -1.0, 0.5, 0.0] + 0.5 * rng.normal(size=rows) > 0).astype(int)


def test_rare_rows_are_trusted_and_wrong_ones_are_not():
    X, y = rare_rows()
    trusting = RobustClassifier().fit(X, y)
    assert "All rows are trusted" in trusting.choice_[0]
    assert np.allclose(trusting.sample_weights_, 1.0)
    wrong = np.arange(len(y)) < len(y) // 10
    X[wrong] *= -1
    wary = RobustClassifier().fit(X, y)
    assert "taken for outliers" in wary.choice_[0]
    assert np.median(wary.sample_weights_[wrong]) < 0.01 < wary.sample_weights_[~wrong].min()
    assert wary.score(X[~wrong], y[~wrong]) > RobustClassifier(outliers=0).fit(X, y).score(
        X[~wrong], y[~wrong]
    )


def test_held_out_rows_select_the_ridge_unless_one_is_given():
    """Classes without noise are better predicted with a hundredth of the usual ridge."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 4))
    signal = X @ [1.0, -1.0, 0.5, 0.0]
    sure, noisy = (signal > 0).astype(int), (signal + 3 * rng.normal(size=600) > 0).astype(int)
    assert dorfl.train([(X, sure)]).l2 == pytest.approx(0.01 / 600)
    assert dorfl.train([(X, noisy)]).l2 == pytest.approx(1 / 600)
    assert dorfl.train([(X, sure)], l2=1 / 600).l2 == pytest.approx(1 / 600)
    model = RobustClassifier().fit(X, sure)
    assert "All rows are trusted" in model.choice_[0] and "a ridge of 0.01/n" in model.choice_[0]


def test_the_held_out_estimate_has_the_ridge_of_the_model(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 4))
    pd.DataFrame(X).add_prefix("c").assign(y=X[:, 0] > X[:, 1]).to_csv(tmp_path / "t.csv")
    study = settings.Study(settings.Data(label="y", file=str(tmp_path / "t.csv")))
    model, rows = table.run(study)
    models, prepared, _ = held_out.train_models(study, model, rows=rows)
    assert model.facts.ridge == 0.01
    for trained in models.values():
        assert trained.fit.l2 == pytest.approx(0.01 / len(prepared.rows.y))


def test_of_many_columns_the_outliers_table_names_one(tmp_path):
    X, y = np.random.default_rng(0).normal(size=(60, 200)), np.arange(60) % 2
    pd.DataFrame(X).add_prefix("c").assign(y=y).to_csv(tmp_path / "wide.csv", index=False)
    data = settings.Data(label="y", file=str(tmp_path / "wide.csv"))
    study = settings.Study(data).changed(method_outliers=0.1)
    why = audit.audit(*table.run(study)).columns
    assert all(re.fullmatch(r"c\d+ \S+ \(usual \S+ to \S+\) [0-9.]+ %.*", line) for line in why)


def test_clients_that_are_numbers_are_listed_by_their_size():
    sites = dict(zip(("10", "2", "1"), synthetic_tables().values(), strict=True))
    assert coordinator.begin(make_study(sites), "run").sites == ("1", "2", "10")


def test_reports_on_held_out_rows_are_checked():
    pairs = len(pairs_of(3))
    sizes = [pairs] * 4 + [3]
    good = HeldOut(*(np.full(pairs, value) for value in (90.0, 3.0, 4.0, 5.0)), np.ones(3))
    assert select.check_held_out(good, sizes, 300) is None
    for bad in (
        good._replace(rows=np.full(pairs, 301.0)),
        good._replace(rows=np.full(pairs, -1.0)),
        good._replace(variances=np.full(pairs, -1.0)),
        good._replace(errors=np.full(pairs, -1.0)),
        good._replace(differences=np.full(pairs, 1e30)),
        good._replace(differences=np.zeros(pairs + 1)),
        good._replace(losses=np.ones(4)),
        good._replace(losses=np.full(10**5, 0.5)),  # 5e9 pairs if lengths were taken from it
        good._replace(losses=np.array(1.0)),
    ):
        assert select.check_held_out(bad, sizes, 300) is not None


def test_a_stiff_curvature_does_not_end_a_comparison():
    """One client's rows may be far out in a column; an implausible risk is another matter."""
    assert not server.Receipt(
        ("a",), {}, {"a": server._CLIPPED_CURVATURE, "b": server._IGNORED_CURVATURE}
    ).odd
    assert server.Receipt(("a",), {}, {"a": "clipped: risk beyond what rows within"}).odd
    assert server.Receipt((), {"a": "its risk is not a finite number"}).odd


def wire_reply(site, request):
    """Return why a site does not answer; an empty string if it does."""
    answer = wire.decode(site.respond(wire.encode(request)), Reply).answer
    return answer.reason if isinstance(answer, Refusal) else ""


def advance(state, sites, until):
    """Run the study until a condition on its state holds."""
    while not until(state):
        asked = {n: wire.encode(coordinator.request(state, n)) for n in state.sites}
        told = {n: coordinator.read(state, n, sites[n].respond(a)) for n, a in asked.items()}
        state = coordinator.receive(state, told)
    return state


@pytest.mark.parametrize("step", ["select", "compare"])
def test_a_site_that_refuses_the_comparison_keeps_no_other_from_training(step):
    class Shy(Site):
        def answer(self, request):
            return Refusal("no") if request.step == step else super().answer(request)

    tables = synthetic_tables()
    sites = make_sites(tables) | {"site-2": a_site("site-2", tables["site-2"], Shy)}
    end = local.run(coordinator.begin(make_study(tables, method=AUTO), "run-1"), sites)
    assert end.step == "done"
    if step == "select":
        assert end.agreed.decision == outliers.CAUTIOUS
        assert "not all clients took part" in resolution.chosen(end.agreed).words[0]
    assert resolution.problem_of(end.agreed).method.score is not None


def test_a_site_answers_only_the_studys_candidates_and_models():
    tables = synthetic_tables()
    sites = make_sites(tables)
    state = coordinator.begin(make_study(tables, method=AUTO), "run-1")
    state = advance(state, sites, lambda s: s.step == "select")
    asked = coordinator.request(state, "site-1")
    fresh = a_site("site-1", tables["site-1"])
    for odd in (Candidate(0.2), Candidate(0.1, 0.5)):
        forged = asked._replace(candidates=(odd, *asked.candidates[1:]))
        assert "none that the study implies" in wire_reply(fresh, forged)
    limited = asked._replace(agreement=asked.agreement._replace(row_limit=7))
    assert "another number of rows" in wire_reply(fresh, limited)
    state = advance(state, sites, lambda s: s.step == "compare")
    asked = coordinator.request(state, "site-1")
    other = asked._replace(models=asked.models[:1])
    assert "none that the study implies" in wire_reply(sites["site-1"], other)
    assert wire_reply(sites["site-1"], asked) == ""


def test_under_differential_privacy_all_rows_are_trusted():
    tables = synthetic_tables()
    study = make_study(tables, method=AUTO, privacy="epsilon = 4.0", training="max_rounds = 3")
    end = local.run(coordinator.begin(study, "run-1"), make_sites(tables))
    method = resolution.problem_of(end.agreed).method
    assert method.score is None and end.agreed.decision is None and np.isinf(method.temperature)


@pytest.mark.parametrize("wrong", [0.0, 0.2])
def test_a_regression_does_as_well_as_huber_regressor(wrong):
    """Columns with heavy tails, and labels of which some are wildly off."""
    rng = np.random.default_rng(3)
    X = rng.standard_t(2, size=(2000, 5)) * [1, 10, 100, 1, 1]
    y = X @ [3.0, 0.5, -0.02, 1.0, 0.0] + rng.normal(size=2000)
    train, truth = slice(0, 1400), y[1400:].copy()
    bad = rng.random(1400) < wrong
    y[:1400][bad] *= -8
    scaler = StandardScaler().fit(X[train])
    theirs = HuberRegressor(max_iter=1000).fit(scaler.transform(X[train]), y[train])
    other = np.abs(theirs.predict(scaler.transform(X[1400:])) - truth).mean()
    ours = RobustRegressor().fit(X[train], y[train])
    assert np.abs(ours.predict(X[1400:]) - truth).mean() < 1.03 * other


def test_plain_regression_is_that_of_huber_regressor():
    """The same threshold, although the scales of residuals differ by a factor."""
    frame, _, _ = numbers(0.2)
    X, y = StandardScaler().fit_transform(frame[["x0", "x1", "x2"]]), frame["y"].to_numpy()
    theirs = HuberRegressor(alpha=1e-8, max_iter=1000).fit(X, y)
    ours = RobustRegressor("erm", l2=1e-8, tol=1e-8).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=2e-3, atol=2e-3)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, abs=2e-3)


def numbers(wrong, seed=3, rows=900):
    """Three wards with a numeric label; in some rows it is mirrored and eight times as far."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3)) + 1.0
    y = X @ [3.0, -1.0, 0.5] + rng.standard_t(3, size=rows)
    bad = rng.random(rows) < wrong
    told = np.where(bad, np.median(y) - 8.0 * (y - np.median(y)), y)
    names = np.array([f"site-{k + 1}" for k in range(3)])[np.arange(rows) % 3]
    return pd.DataFrame(X).add_prefix("x").assign(y=told, ward=names), y, bad


def test_outlying_labels_are_down_weighted():
    frame, truth, bad = numbers(0.2)
    X, y = frame[["x0", "x1", "x2"]], frame["y"]
    ours = RobustRegressor().fit(X, y, clients=frame["ward"])
    far = np.abs(y - truth) > 30
    assert far.sum() > 50 and ours.sample_weights_[far].max() < 0.01
    assert np.median(ours.sample_weights_[~bad]) > 1.0
    plain = RobustRegressor(outliers=0).fit(X, y, clients=frame["ward"])
    off = [np.abs(model.predict(X) - truth).mean() for model in (ours, plain)]
    assert off[0] < off[1]


def test_clients_without_held_out_rows_do_not_keep_labels_from_being_compared():
    frame, truth, _ = numbers(0.2)
    places = np.arange(len(frame))
    wards = np.where(places < 880, frame["ward"], places.astype(str))  # twenty of one row each
    X, y = frame[["x0", "x1", "x2"]], frame["y"]
    models = [RobustRegressor(outliers=o).fit(X, y, clients=wards) for o in ("auto", 0)]
    ours, plain = (np.abs(model.predict(X) - truth).mean() for model in models)
    assert ours < 1.05 * plain and "held-out loss" in models[0].choice_[0]


def test_labels_are_compared_if_no_row_can_lie_far_out():
    """All columns are flags, so that there is no share of outliers to compare first."""
    rng = np.random.default_rng(0)
    X = (rng.random((900, 3)) < 0.5).astype(float)
    y = X @ [3.0, -1.0, 0.5] + 0.2 * rng.normal(size=900)
    y[::5] += 40.0
    model = RobustRegressor().fit(X, y)
    found = re.search(
        r"outlying labels are: held-out loss (\S+) instead of (\S+), on", model.choice_[0]
    )
    assert found and float(found[1]) < float(found[2])
    assert model.sample_weights_[::5].max() < 0.01


def test_sites_weigh_labels_as_a_table_does_and_name_them(tmp_path):
    frame, _, _ = numbers(0.2)
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = f'[data]\nfile = "{tmp_path}/t.csv"\nlabel = "y"\nclient = "ward"'
    made, rows = table.run(toml.parse(words))
    tables = {name: own.drop(columns="ward").to_dict("list") for name, own in frame.groupby("ward")}
    study = make_study(tables, method=AUTO, extra='task = "regression"')
    end = local.run(coordinator.begin(study, "run-1"), make_sites(tables))
    assert end.agreed.decision.labels
    assert np.array_equal(end.outcome.theta, made.fit.theta.ravel())
    found = audit.audit(made, rows)
    assert "the model of the other rows predicts" in found.columns[0]
    first = found.row[:50] - 1
    signal = frame[["x0", "x1", "x2"]].to_numpy() @ [3.0, -1.0, 0.5]
    assert np.abs(frame["y"].to_numpy() - signal)[first].min() > 5 and found.weight[50] < 0.01


def test_correct_labels_with_heavy_tails_are_trusted():
    """Student's distribution with 1.5 degrees of freedom hardly has a variance."""
    frame, _, _ = numbers(0.0)
    y = frame["y"] + np.random.default_rng(0).standard_t(1.5, size=len(frame))
    models = [RobustRegressor(method).fit(frame[["x0", "x1"]], y) for method in ("dorfl", "erm")]
    np.testing.assert_allclose(models[0].coef_, models[1].coef_, rtol=0.05)


def test_rounds_of_candidates_are_not_taken_from_those_of_the_training():
    tables = synthetic_tables()
    study = make_study(tables, method=AUTO, training="max_rounds = 3\ntol = 1e-15")
    end = local.run(coordinator.begin(study, "run"), make_sites(tables))
    assert end.spent > 3 and end.outcome.rounds == len(end.history) <= 3


def test_a_study_takes_few_exchanges():
    """All candidates are trained in the same messages, and the training starts from the best."""
    tables, steps = synthetic_tables(), []
    state = coordinator.begin(make_study(tables, method=AUTO), "run")
    local.run(state, make_sites(tables), lambda s: steps.append(s.step))
    assert len(steps) <= 22  # 26 when candidates were trained one after the other


def flipped(share, one_sided, seed=0):
    """Clients' rows with some labels wrong: any of them, or those of one class alone."""
    data = dorfl.datasets.synthetic(seed, contamination=(0.0, 0.0, 0.0))
    rng, found = np.random.default_rng(seed), {}
    for name, (X, y) in data.clients.items():
        first, last = np.unique(y)
        wrong = (rng.random(len(y)) < share) & ((y == first) if one_sided else True)
        found[name] = (X, np.where(wrong, first + last - y, y))
    return found


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.2])
def test_wrong_classes_do_no_more_harm_than_to_plain_training(share, one_sided):
    test = dorfl.datasets.synthetic(0, contamination=(0.0, 0.0, 0.0)).test
    clients = flipped(share, one_sided)
    ours = dorfl.train(clients)
    rows = sum(len(y) for _, y in clients.values())
    plain = dorfl.train(clients, dorfl.methods.erm(), l2=1 / rows)
    X, y = (np.concatenate(part) for part in zip(*test.values(), strict=True))
    hits = (ours.predict(X) == y).astype(float) - (plain.predict(X) == y)
    assert hits.mean() > -2.0 * hits.std() / np.sqrt(len(y)) - 0.005


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25])
def test_up_to_one_row_in_four_may_be_an_outlier(share):
    data = dorfl.datasets.synthetic(0, contamination=(share,) * 3)
    choice = dorfl.defaults.choose(data.clients)
    assert (choice.method.score is not None) == (share > 0)
    fit = dorfl.train(data.clients)
    assert np.mean([fit.score(*rows) for rows in data.test.values()]) > 0.88


def test_if_no_column_can_have_outliers_there_is_no_tilt():
    rng = np.random.default_rng(0)
    X = (rng.random((600, 3)) < [0.3, 0.5, 0.1]).astype(float)
    truth = X @ [1.0, -2.0, 3.0] + rng.normal(size=600)
    y = truth.copy()
    y[::5] = np.median(y) - 8.0 * (y[::5] - np.median(y))
    ours, plain = (RobustRegressor(method=m).fit(X, y) for m in ("dorfl", "erm"))
    off = [np.abs(model.predict(X) - X @ [1.0, -2.0, 3.0]).mean() for model in (ours, plain)]
    assert off[0] < 1.05 * off[1]
    assert np.isinf(dorfl.defaults.choose([(X, y)], outliers=0.0, loss="huber").method.temperature)
