"""Whether rows that lie far out are wrong or rare: decided from rows held back."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import HuberRegressor
from sklearn.preprocessing import StandardScaler

import dorfl
from dorfl import RobustClassifier, RobustRegressor
from dorfl.data import sketch, spread
from dorfl.federation import server
from dorfl.federation.messages import Broadcast
from dorfl.solvers.base import Task
from dorfl.study import (
    audit,
    comparison,
    coordinator,
    local,
    meaning,
    results,
    settings,
    suspects,
    table,
    toml,
    vetting,
)
from dorfl.study.edges import edges_of
from dorfl.study.limits import Limits
from dorfl.study.messages import Refusal, Reply
from dorfl.study.site import Site
from dorfl.study.suspects import Judged, Trial, Verdict
from dorfl.support import wire
from study_cases import a_site, make_sites, make_study, synthetic_tables

AUTO = 'name = "dorfl"'


def rare_rows(seed=0, rows=1200):
    """One row in ten is ten times as far out as the others, and as right as they are."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 4))
    X[: rows // 10] *= 10
    return X, (X @ [1.0, -1.0, 0.5, 0.0] + 0.5 * rng.normal(size=rows) > 0).astype(int)


def test_rare_rows_are_trusted_and_wrong_ones_are_not():
    X, y = rare_rows()
    trusting = RobustClassifier().fit(X, y)
    assert "are trusted" in trusting.choice_[0] and "rare rather than wrong" in trusting.choice_[0]
    assert np.allclose(trusting.sample_weights_, 1.0)
    wrong = np.arange(len(y)) < len(y) // 10
    X[wrong] *= -1
    wary = RobustClassifier().fit(X, y)
    assert "are held for wrong" in wary.choice_[0]
    assert np.median(wary.sample_weights_[wrong]) < 0.01 < wary.sample_weights_[~wrong].min()
    assert wary.score(X[~wrong], y[~wrong]) > RobustClassifier(outliers=0).fit(X, y).score(
        X[~wrong], y[~wrong]
    )


def skewed_rows(seed=0, rows=1200):
    """Honest rows with a heavy tail, and one in ten a thousand times as far out, mirrored."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3)) * rng.lognormal(sigma=0.6, size=(rows, 1))
    y = np.tanh(X @ [1.0, -1.0, 0.5]) + 0.1 * rng.normal(size=rows)
    wrong = np.arange(rows) < rows // 10
    X[wrong] *= -1000
    return X, y, wrong


def test_beyond_a_gap_rows_count_for_nothing_and_the_tail_before_it_counts():
    X, y, wrong = skewed_rows()
    for share in ("auto", 0.1):
        model = RobustRegressor(outliers=share).fit(X, y)
        weight = model.sample_weights_
        assert np.quantile(weight[wrong], 0.8) < 1e-3 and np.quantile(weight[~wrong], 0.02) > 0.7


@given(st.floats(0.3, 3.0), st.integers(0, 9))
def test_no_tail_is_taken_for_a_gap(heavy, seed):
    rng = np.random.default_rng(seed)
    distance = rng.chisquare(4, size=3000) * rng.lognormal(sigma=heavy / 2, size=3000)
    told = [sketch.of(distance, least=5)]
    assert edges_of(told, 0.1)[0] == spread.edge(told, 0.8)


def test_of_many_columns_the_outliers_table_names_one(tmp_path):
    X, y = np.random.default_rng(0).normal(size=(60, 200)), np.arange(60) % 2
    pd.DataFrame(X).add_prefix("c").assign(y=y).to_csv(tmp_path / "wide.csv", index=False)
    data = settings.Data(label="y", file=str(tmp_path / "wide.csv"))
    study = settings.Study(data).changed(method_outliers=0.1)
    why = audit.audit(*table.run(study)).columns
    assert all(re.fullmatch(r"c\d+ \S+ \(usual \S+ to \S+\) [0-9.]+ %.*", line) for line in why)


def test_clients_that_are_numbers_are_listed_by_their_size():
    sites = dict(zip(("10", "2", "1"), synthetic_tables().values(), strict=True))
    assert coordinator.begin(make_study(sites), "run").roster == ("1", "2", "10")


def test_choose_decides_as_an_estimator_does():
    X, y = rare_rows()
    assert dorfl.defaults.choose([(X, y)]).method.score is None
    X[:120] *= -1
    assert dorfl.defaults.choose([(X, y)]).method.score is not None


@given(st.integers(1, 5000), st.sampled_from(suspects.SIZES), st.sampled_from(suspects.SIZES))
def test_the_rows_of_two_trials_differ_by_many_or_none(rows, one, other):
    first, held = suspects.parts(rows, one)
    second, _ = suspects.parts(rows, other)
    assert not set(first) & set(held)
    for a, b in ((first, second), (first, np.arange(rows))):
        apart = len(set(a.tolist()) ^ set(b.tolist()))
        assert apart == 0 or apart >= 10


def test_a_verdict_is_cautious_where_little_is_known():
    sure = Judged(1000, 300.0, 3.0, 1.0, 0, 50, 3000)
    assert suspects.verdict([sure]).share == 0.0
    assert suspects.verdict([sure._replace(squares=4e4)]).share > 0  # as large, but who knows
    assert suspects.verdict([sure._replace(squares=4e4, far=0)]).share == 0.0  # but what is aside?
    assert suspects.verdict([sure._replace(squares=4e4, missed=1)]).share == 0.0  # nor is it better
    assert suspects.verdict([sure._replace(worse=30.0)]).share == pytest.approx(0.017)
    assert suspects.verdict([]) == suspects.verdict([suspects.NOTHING]) == Verdict(0.1)


def test_numbers_that_contradict_all_others_need_not_harm_by_much():
    """By 2 % of the loss, of which the error is a half: where three in four speak against it."""
    told = Judged(1000, 300.0, 6.0, 9.0, 0, 300, 3000, 0, 225)
    assert suspects.verdict([told]).share == 0.0
    assert suspects.verdict([told._replace(against=226)]).share == 0.1
    assert suspects.verdict([told._replace(against=226, worse=2.9)]).share == 0.0
    assert suspects.verdict([told._replace(against=149, far=149)]).share == 0.0  # and they are few


def test_a_wrong_label_is_no_reason_not_to_judge():
    """Rows of two classes far apart, a fifth with the other's label: all of them are judges."""
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=600)
    X = rng.normal(size=(600, 2)) + 8.0 * truth[:, None]
    y = np.where(rng.random(600) < 0.2, 1 - truth, truth)
    problem = dorfl.train([(X, y)], dorfl.methods.erm(), l2=0.1).problem
    center, shape = np.array([[0.0, 0.0], [8.0, 8.0]]), np.full(2, 0.2)
    told = suspects.judge(problem, [np.zeros(3)] * 2, X, y, center, shape, most=960)
    assert told.far < 0.01 * told.seen and told.rows > 190


def test_a_label_that_mostly_is_one_number_has_no_tail():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 3))
    y = np.where(rng.random(900) < 0.8, 0.0, rng.poisson(2.0, 900) + 1.0)
    models = [RobustRegressor(method).fit(X, y) for method in ("dorfl", "erm")]
    assert np.array_equal(*(model.coef_ for model in models))


def test_the_third_model_has_to_show_more():
    """Honest rows further out than its edge are none of its judges."""
    before, told = Verdict(0.0), Judged(1000, 300.0, 60.0, 10.0, 0, 250, 3000)
    assert suspects.verdict([told], before) == Verdict(0.083, 0.083, 1000, 0.3, 0.06, suspects.HALF)
    for weak in (told._replace(worse=31.0), told._replace(missed=1), told._replace(squares=4e3)):
        assert suspects.verdict([weak], before) is before
    assert suspects.verdict([], before) is before


def test_what_a_site_tells_for_the_verdict_is_checked():
    good = Judged(100, 30.0, 3.0, 1.0, -2, 5, 300)
    assert vetting.wrong(good, 300, 4, 4, None) is None
    for bad in (
        good._replace(rows=400), good._replace(far=301), good._replace(seen=301),
        good._replace(loss=-1.0), good._replace(worse=-40.0), good._replace(squares=0.01),
        good._replace(missed=101), good._replace(missed=-101), good._replace(unfit=301),
        good._replace(against=301), good._replace(against=-1),
    ):  # fmt: skip
        assert vetting.wrong(bad, 300, 4, 4, None) is not None


def test_a_stiff_curvature_spoils_no_trial():
    """One client's rows may be far out in a column; a risk that cannot be true is another thing."""
    assert not server.Heard(("a",), {}, {"a": server._STIFF, "b": server._UNBENT}).odd
    assert server.Heard(("a",), {}, {"a": "clipped: risk beyond what rows within"}).odd
    assert server.Heard((), {"a": "its risk is not a finite number"}).odd


def shy_of(share):
    """A site that takes no part in the trial of a model which holds so many rows for wrong."""

    class Shy(Site):
        def answer(self, request):
            trial = request.agreement.trial
            if trial is not None and trial.share == share:
                return Refusal("not for trials")
            return super().answer(request)

    return Shy


def test_a_site_that_refuses_a_trial_keeps_nobody_from_training():
    tables = synthetic_tables()
    sites = make_sites(tables) | {"site-2": a_site("site-2", tables["site-2"], shy_of(0.0))}
    end = local.run(coordinator.begin(make_study(tables, method=AUTO), "run-1"), sites)
    assert end.step == "done" and end.verdict == Verdict(suspects.ASSUMED)
    assert meaning.problem_of(end).method.score is not None
    assert "nothing shows" in meaning.chosen(end).words[0]


def test_a_site_answers_only_the_trial_there_is():
    tables = synthetic_tables()
    sites = make_sites(tables)
    state = coordinator.begin(make_study(tables, method=AUTO), "run-1")
    while state.step != "judge":
        if state.trial is not None:
            for odd, says in ((Trial(0.0, 61), "size"), (Trial(0.2, 60), "three shares")):
                asked = coordinator.request(state._replace(trial=odd), "site-1")
                assert says in wire_reply(a_site("site-1", tables["site-1"]), asked)
        asked = {n: wire.encode(coordinator.request(state, n)) for n in state.roster}
        told = {n: coordinator.read(state, n, sites[n].respond(a)) for n, a in asked.items()}
        state = coordinator.receive(state, told)
    asked = coordinator.request(state, "site-1")
    other = asked._replace(models=asked.models + 1e-9)
    assert "none of those that the rounds asked about" in wire_reply(sites["site-1"], other)
    assert wire_reply(sites["site-1"], asked) == ""


def test_a_site_judges_few_models():
    """A count of rows that two models differ in shows, model by model, where single rows lie."""
    tables = synthetic_tables()
    site = a_site("site-3", tables["site-3"], limits=Limits())
    sites = make_sites(tables) | {"site-3": site}
    state = coordinator.begin(make_study(tables, method=AUTO), "run-1")
    while state.step != "judge":
        asked = {n: wire.encode(coordinator.request(state, n)) for n in state.roster}
        told = {n: coordinator.read(state, n, sites[n].respond(a)) for n, a in asked.items()}
        state = coordinator.receive(state, told)
    asked, refused = coordinator.request(state, "site-3"), []
    for number in range(8):
        theta = asked.models[0] * 0.9**number
        sent = Broadcast(100 + number, Task(theta, state.server.solving.lam))
        assert wire_reply(site, asked._replace(step="round", broadcast=sent, models=None)) == ""
        models = np.array([asked.models[1], theta])
        refused.append(wire_reply(site, asked._replace(models=models)))
    assert refused[: Limits().judged] == [""] * Limits().judged
    assert all("trials have been judged" in reason for reason in refused[Limits().judged :])


def test_who_refuses_to_refine_a_model_leaves_the_one_that_is_there():
    class Unrefined(Site):
        def answer(self, request):
            if request.agreement.scatter is not None and request.step == "round":
                return Refusal("has told what it tells")
            return super().answer(request)

    tables = {
        name: {**rows, "y": np.asarray(rows["x0"]) - rows["x1"] + 0.1 * np.asarray(rows["x2"])}
        for name, rows in synthetic_tables().items()
    }
    sites = make_sites(tables)
    study = make_study(tables, method='name = "erm"', extra='task = "regression"')
    whole = local.run(coordinator.begin(study, "run-1"), sites)
    assert whole.refined and whole.scatter is not None
    sites = make_sites(tables) | {"site-2": a_site("site-2", tables["site-2"], Unrefined)}
    end = local.run(coordinator.begin(study, "run-2"), sites)
    assert end.step == "done" and end.outcome.status == "converged"
    # The model is the one of before, and so is the unit that its loss is recorded in.
    assert end.scatter is end.outcome.scatter is None
    assert results.model_of(end).fit.problem.loss == meaning.loss_of(study, 0, meaning.FIRST)


def wire_reply(site, request):
    """Why a site does not answer; nothing where it does."""
    answer = wire.decode(site.respond(wire.encode(request)), Reply).answer
    return answer.reason if isinstance(answer, Refusal) else ""


def test_differential_privacy_suspects_nobody():
    tables = synthetic_tables()
    study = make_study(tables, method=AUTO, privacy="epsilon = 4.0", training="max_rounds = 3")
    end = local.run(coordinator.begin(study, "run-1"), make_sites(tables))
    method = meaning.problem_of(end).method
    assert method.score is None and end.verdict is None and np.isinf(method.temperature)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
def test_the_unit_of_residuals_is_that_of_huber_regressor(share):
    rng = np.random.default_rng(1)
    found = rng.normal(size=3000)
    found[: int(share * 3000)] *= 40
    sigma = spread.scatter([sketch.of(np.abs(found), least=1)])
    assert np.minimum((found / sigma) ** 2, 1.345**2).mean() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("wrong", [0.0, 0.2])
def test_a_regression_does_as_well_as_huber_regressor(wrong):
    """Columns with honest heavy tails, and labels of which some are wildly off."""
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
    assert np.abs(ours.predict(X[1400:]) - truth).mean() < 1.02 * other


def numbers(wrong, seed=3, rows=900):
    """A table of three wards whose label is a number, mirrored and eight times as far in some."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3)) + 1.0
    y = X @ [3.0, -1.0, 0.5] + rng.standard_t(3, size=rows)
    bad = rng.random(rows) < wrong
    told = np.where(bad, np.median(y) - 8.0 * (y - np.median(y)), y)
    names = np.array([f"site-{k + 1}" for k in range(3)])[np.arange(rows) % 3]
    return pd.DataFrame(X).add_prefix("x").assign(y=told, ward=names), y, bad


def test_labels_further_out_than_any_tail_count_little():
    frame, truth, bad = numbers(0.2)
    X, y = frame[["x0", "x1", "x2"]], frame["y"]
    ours = RobustRegressor().fit(X, y, clients=frame["ward"])
    assert any("are held for wrong and hardly count" in words for words in ours.choice_)
    far = np.abs(y - truth) > 30
    assert far.sum() > 50 and ours.sample_weights_[far].max() < 0.01
    assert np.median(ours.sample_weights_[~bad]) > 1.0
    plain = RobustRegressor(outliers=0).fit(X, y, clients=frame["ward"])
    off = [np.abs(model.predict(X) - truth).mean() for model in (ours, plain)]
    assert off[0] < off[1]


def test_labels_beyond_any_tail_count_little_unless_the_bulk_is_served_worse():
    found = Verdict(0.0, 0.0, 100, 0.1, 0.0)
    told = Judged(rows=100, loss=5.0, worse=0.0, squares=1.0, missed=0, far=0, seen=300, unfit=30)
    error = np.sqrt(told.squares) / told.rows
    for share, wrong in ((0.5, True), (-0.5, True), (-2.0, False)):
        parts = [told._replace(worse=share * error * told.rows)]
        assert (suspects.verdict(parts, found, labels=True).labels > 0) == wrong
    few = [told._replace(unfit=15)]  # 5 %: a tail may have as many
    assert suspects.verdict(few, found, labels=True).labels == 0.0


def test_honest_labels_are_trained_with_to_the_last_digit():
    """However heavy their tails: Student's with 1.5 degrees of freedom hardly has a variance."""
    frame, _, _ = numbers(0.0)
    y = frame["y"] + np.random.default_rng(0).standard_t(1.5, size=len(frame))
    models = [RobustRegressor(method).fit(frame[["x0", "x1"]], y) for method in ("dorfl", "erm")]
    assert np.array_equal(*(model.coef_ for model in models))


def test_sites_weigh_labels_as_a_table_does_and_say_which(tmp_path):
    frame, truth, _ = numbers(0.2)
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = f'[data]\nfile = "{tmp_path}/t.csv"\nlabel = "y"\nclient = "ward"'
    made, rows = table.run(toml.parse(words))
    tables = {name: own.drop(columns="ward").to_dict("list") for name, own in frame.groupby("ward")}
    study = make_study(tables, method=AUTO, extra='task = "regression"')
    end = local.run(coordinator.begin(study, "run-1"), make_sites(tables))
    assert 0.1 < end.verdict.labels < 0.2
    assert np.array_equal(end.outcome.theta, made.fit.theta.ravel())
    assert made.facts.promise.outliers == end.verdict.labels
    ours, plain, _ = comparison.held_out(toml.parse(words), made)
    assert ours.overall < 2.0 < 0.5 * ours.all_rows and ours.overall < plain.overall
    found = audit.audit(made, rows)
    assert "does not fit: the other rows say" in found.columns[0]
    first = found.row[:50] - 1
    assert np.abs(frame["y"].to_numpy() - truth)[first].min() > 10 and found.weight[50] < 0.01


def test_what_labels_are_measured_against_is_a_model_of_the_run():
    frame, _, _ = numbers(0.2)
    tables = {name: own.drop(columns="ward").to_dict("list") for name, own in frame.groupby("ward")}
    study, sites = make_study(tables, method=AUTO, extra='task = "regression"'), make_sites(tables)
    state = coordinator.begin(study, "run-1")
    while state.trial is None or not state.trial.labels:
        asked = {n: wire.encode(coordinator.request(state, n)) for n in state.roster}
        told = {n: coordinator.read(state, n, sites[n].respond(a)) for n, a in asked.items()}
        state = coordinator.receive(state, told)
    odd = coordinator.request(state._replace(reference=state.reference + 1e-9), "site-1")
    assert "none of those that the rounds asked about" in wire_reply(sites["site-1"], odd)


@pytest.mark.parametrize(("sign", "left_out"), [(1, False), (-1, True)])
def test_rows_held_out_are_measured_without_suspects_alone(tmp_path, sign, left_out):
    """Where far-out rows are trusted no row is left out; else as many as are held for wrong."""
    X, y = rare_rows()
    X[:120] *= sign
    frame = pd.DataFrame(X).add_prefix("x").assign(ill=y, ward=np.arange(len(y)) % 3)
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = f'[data]\nfile = "{tmp_path}/t.csv"\nlabel = "ill"\nclient = "ward"'
    study = toml.parse(words)
    made, _ = table.run(study)
    assert (made.facts.promise.outliers > 0) is left_out
    assert all((m.all_rows is not None) is left_out for m in comparison.held_out(study, made))


def test_rounds_of_trials_are_not_taken_from_those_of_the_training():
    tables = synthetic_tables()
    study = make_study(tables, method=AUTO, training="max_rounds = 3\ntol = 1e-12")
    end = local.run(coordinator.begin(study, "run"), make_sites(tables))
    assert end.spent > 3 and end.outcome.rounds == len(end.history) == 3


def flipped(share, one_sided, seed=0):
    """Clients' rows, some labels wrong: any of them, or those of one class alone."""
    data = dorfl.datasets.synthetic(seed, contamination=(0.0, 0.0, 0.0))
    rng, found = np.random.default_rng(seed), {}
    for name, (X, y) in data.clients.items():
        first, last = np.unique(y)
        wrong = (rng.random(len(y)) < share) & ((y == first) if one_sided else True)
        found[name] = (X, np.where(wrong, first + last - y, y))
    return found


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.3])
def test_wrong_labels_inside_the_bulk_are_not_tilted_towards(share, one_sided):
    """A tilt would make them count more, drift cost a class: what is left is plain training."""
    clients = flipped(share, one_sided)
    method = dorfl.defaults.choose(clients).method
    assert np.isinf(method.temperature) and np.isinf(method.rho) and method.score is None
    ours, plain = (dorfl.train(clients, m, tol=1e-9) for m in (method, dorfl.methods.erm()))
    np.testing.assert_allclose(ours.theta, plain.theta, atol=1e-5)


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.3])
def test_wrong_labels_inside_the_bulk_do_no_client_and_no_class_more_harm_than_erm(
    share, one_sided
):
    test = dorfl.datasets.synthetic(0, contamination=(0.0, 0.0, 0.0)).test
    parts = [(n, X, y) for n, (X, y) in flipped(share, one_sided).items()]
    X, y = (np.concatenate([part[k] for part in parts]) for k in (1, 2))
    owner = np.concatenate([np.full(len(part), name) for name, _, part in parts])
    ours, plain = (RobustClassifier(method).fit(X, y, clients=owner) for method in ("dorfl", "erm"))
    for rows, labels in test.values():
        for group in (labels >= -1, labels == -1, labels == 1):
            assert ours.score(rows[group], labels[group]) == plain.score(rows[group], labels[group])


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.25])
def test_up_to_one_row_in_four_may_be_wrong(share):
    data = dorfl.datasets.synthetic(0, contamination=(share,) * 3)
    choice = dorfl.defaults.choose(data.clients)
    assert (choice.method.score is not None) == (share > 0)
    assert ("nearest 50 %" in choice.words[0]) == (share >= 0.2)
    fit = dorfl.train(data.clients, choice.method, intercept=False)
    right = np.mean([fit.score(*rows) for rows in data.test.values()])
    assert right > 0.9


def test_a_federation_tries_the_nearer_half_as_a_table_does():
    tables = synthetic_tables(contamination=(0.25,) * 3)
    end = local.run(coordinator.begin(make_study(tables, method=AUTO), "run"), make_sites(tables))
    assert end.verdict.assumed == suspects.HALF and end.edge == end.edges[1] < end.edges[0]
    assert "nearest 50 %" in meaning.chosen(end).words[0]
    for refuses in (0.0, suspects.HALF):
        sites = make_sites(tables) | {"site-2": a_site("site-2", tables["site-2"], shy_of(refuses))}
        end = local.run(coordinator.begin(make_study(tables, method=AUTO), "run-2"), sites)
        assert end.step == "done" and end.edge == end.edges[0]


def test_where_no_column_can_be_far_out_there_is_no_tilt():
    """Flags alone, and a label eight times too far in one row of five: labels can be wrong yet."""
    rng = np.random.default_rng(0)
    X = (rng.random((600, 3)) < [0.3, 0.5, 0.1]).astype(float)
    truth = X @ [1.0, -2.0, 3.0] + rng.normal(size=600)
    honest = [RobustRegressor(method=m).fit(X, truth).coef_ for m in ("dorfl", "erm")]
    assert np.array_equal(*honest)
    y = truth.copy()
    y[::5] = np.median(y) - 8.0 * (y[::5] - np.median(y))
    ours, plain = (RobustRegressor(method=m).fit(X, y) for m in ("dorfl", "erm"))
    off = [np.abs(model.predict(X) - X @ [1.0, -2.0, 3.0]).mean() for model in (ours, plain)]
    assert off[0] < 0.5 * off[1]
    assert ours.sample_weights_[np.abs(y - truth) > 20].max() < 0.01
    assert np.isinf(dorfl.defaults.choose([(X, y)], outliers=0.0, loss="huber").method.temperature)
