"""A study among sites, in process: same numbers as pooled training, and what each side refuses."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dorfl
from cases import few
from dorfl.data import preprocessing
from dorfl.federated.messages import Report
from dorfl.protocol import checkpoint, coordinator, resolution
from dorfl.protocol.messages import Refusal, Refused, Reply, Reports, Request
from dorfl.protocol.resolution import plan_of
from dorfl.protocol.settings import among
from dorfl.protocol.steps import finish
from dorfl.protocol.toml import parse
from dorfl.selection import defaults
from dorfl.site import local
from dorfl.site.journal import Journal
from dorfl.site.site import Site
from dorfl.support import wire
from dorfl.tabular import model as models
from dorfl.tabular import results
from study_cases import METHODS, a_site, make_sites, make_study, mixed_tables, synthetic_tables

TABLES = synthetic_tables()


def run(study, tables, **options):
    return local.run(coordinator.begin(study, "run-1"), make_sites(tables, **options))


def in_process(study, tables, y_of, method, **options):
    """What `dorfl.train` makes of the same rows, transformed together."""
    label = study.data.label
    rows = {s: {n: v for n, v in table.items() if n != label} for s, table in tables.items()}
    transform = preprocessing.fit(rows, plan_of(study))
    clients = {s: (transform.apply(r, np.float32).X, y_of(tables[s])) for s, r in rows.items()}
    count = sum(len(y) for _, y in clients.values())
    options = {"l2": 1.0 / count, "tol": study.training.tol, **options}
    return dorfl.train(clients, method, **options), transform, clients


@pytest.mark.parametrize(
    "method",
    [
        *METHODS.values(),
        'name = "dorfl"',
        'name = "dorfl"\ncenter = "auto"\nrho = 20\nbeta = 1',
        'name = "gdrfl"\ncap = 0.5',
    ],
)
def test_a_study_ends_as_training_in_process_does_to_the_bit(method):
    study = make_study(TABLES, method=method)
    end = run(study, TABLES)
    fit, transform, clients = in_process(
        study,
        TABLES,
        lambda t: np.array(t["y"]) == "yes",
        resolution.problem_of(end.agreed).method,
        start=end.selection.start,
    )
    assert end.outcome.status == "converged"
    assert end.agreed.transform == transform
    assert end.outcome.rounds == fit.rounds
    assert np.array_equal(end.outcome.theta, fit.theta)
    assert np.array_equal(end.outcome.lam, fit.lam)
    found = finish.certificate_of(end)
    if study.method.name in ("erm", "afl"):
        assert found is None
    else:
        whole = dorfl.certificate.paper(fit, clients)
        assert found.radius == pytest.approx(whole.radius, rel=1e-9)
        assert found.bound == pytest.approx(whole.bound, rel=1e-9)
        assert found.attained == pytest.approx(whole.attained, rel=1e-9)


def test_three_classes_categories_and_gaps():
    tables = mixed_tables()
    study = make_study(tables, "grade", '[columns]\nuse = ["x", "ward"]')
    end = run(study, tables)
    slim = {s: {n: t[n] for n in ("x", "ward", "grade")} for s, t in tables.items()}
    method = resolution.problem_of(end.agreed).method
    assert end.centers.shape == (2, 3, len(end.agreed.transform.names))  # classes lie apart
    centers = dict(zip(end.sites, end.centers, strict=True))
    fit, *_ = in_process(
        study,
        slim,
        lambda t: np.array(t["grade"]).astype(int),
        replace(method, score=replace(method.score, center=centers)),
        loss="softmax",
    )
    assert end.agreed.classes == ("0", "1", "2")
    assert np.array_equal(end.outcome.theta, fit.theta.ravel())


def test_a_site_takes_no_centre_of_a_class_but_its_own():
    """Another one would be where its few rows, or one of them, are measured from."""
    tables, states = mixed_tables(), []
    study = make_study(tables, "grade", '[columns]\nuse = ["x", "ward"]')
    local.run(coordinator.begin(study, "run-1"), make_sites(tables), states.append)
    state, site = next(s for s in states if s.step == "cutoff"), make_sites(tables)["site-1"]
    request = coordinator.request(state, "site-1")
    for c in range(3):
        center = request.agreement.center.copy()
        center[c, 0] += 1e-9
        forged = request._replace(
            agreement=request.agreement._replace(center=center, run=f"other-{c}")
        )
        with pytest.raises(Refused, match="not the one that this site reported"):
            site.answer(forged)
    assert site.answer(request).rows > 0


def test_a_regression_scales_its_label_without_pooling():
    tables = mixed_tables()
    study = make_study(
        tables, "cost", 'task = "regression"\n[columns]\nuse = ["x", "ward"]', METHODS["erm"]
    )
    end = run(study, tables)
    model = results.model_of(end)
    told = np.concatenate([model.predict(t) for t in tables.values()])
    true = np.concatenate([np.array(t["cost"], dtype=float) for t in tables.values()])
    assert np.nanmean(np.abs(told - true)) < 0.7 * np.nanmean(np.abs(true - np.nanmedian(true)))
    assert end.rows == tuple(sum(v is not None for v in t["cost"]) for t in tables.values())


def test_the_model_folder_holds_the_model(tmp_path):
    end = run(make_study(TABLES), TABLES)
    models.save(results.model_of(end), tmp_path / "model")
    back = models.load(tmp_path / "model")
    assert np.array_equal(back.fit.theta, end.outcome.theta)
    assert back.classes == ("no", "yes")
    card = (tmp_path / "model" / "card.md").read_text()
    assert "site-1" in card and "Worst-case risk" in card


def test_in_words_the_method_follows_the_rule_of_the_defaults():
    study = make_study(TABLES, method="outliers = 0.15\nshift = 0.5")
    end = run(study, TABLES)
    method = resolution.problem_of(end.agreed).method
    assert method.rho == defaults.REFERENCE_NORM[True] / 0.5
    assert method.score.weight == pytest.approx(defaults.STEEPNESS * method.temperature)
    X = [end.agreed.transform.apply(table).X for table in TABLES.values()]
    units = end.agreed.scales.units
    far = [
        np.sum(((x - c) / units) ** 2, axis=1) / dict(end.agreed.cutoffs)[0.15]
        for x, c in zip(X, end.centers, strict=True)
    ]
    # Seven rows in ten lie within the cutoff, where the score is ρ₂; sketches are that precise.
    assert np.mean(np.concatenate(far) <= 1.0) == pytest.approx(0.7, abs=0.02)
    assert method.score.at(X[0][:1], end.centers[0])[0] == pytest.approx(
        method.score.weight * far[0][0]
    )


def test_a_site_keeps_the_model_and_finds_its_own_outliers(tmp_path):
    tables = synthetic_tables()
    told = []
    sites = {
        name: a_site(name, table, done=lambda a, *rest: told.append(
            results.write_site(tmp_path / a.site, a, *rest)))
        for name, table in tables.items()
    }  # fmt: skip
    end = local.run(coordinator.begin(make_study(tables), "run-1"), sites)
    assert len(told) == 3
    assert np.array_equal(models.load(tmp_path / "site-1" / "model").fit.theta, end.outcome.theta)
    bad = dorfl.datasets.synthetic(seed=0).outliers["client-3"]
    lines = (tmp_path / "site-3" / "audit.csv").read_text().splitlines()[1 : bad.sum() + 1]
    found = {int(line.split(",")[0]) - 1 for line in lines}
    assert len(found & set(np.flatnonzero(bad))) > 0.9 * bad.sum()


# ── what leaves a site ───────────────────────────────────────────────────────────────────────────


def numbers_in(plain):
    if isinstance(plain, dict) and "f8" in plain:
        yield from wire.read(plain, np.ndarray, "", False).ravel().tolist()
    elif isinstance(plain, dict):
        for item in plain.values():
            yield from numbers_in(item)
    elif isinstance(plain, list):
        for item in plain:
            yield from numbers_in(item)
    elif isinstance(plain, float | int):
        yield float(plain)


def test_no_row_leaves_a_site():
    tables = mixed_tables()
    for k, table in enumerate(tables.values()):
        table["x"][3] = 31337.25 + k  # a number of one row alone
        table["ward"][5] = f"canary-ward-{k}"  # a level of one row alone
    replies = []

    class Overheard(Site):
        def respond(self, data):
            replies.append(super().respond(data))
            return replies[-1]

    study = make_study(tables, "ill", '[columns]\nuse = ["x", "ward"]')
    sites = {name: a_site(name, table, Overheard) for name, table in tables.items()}
    local.run(coordinator.begin(study, "run-1"), sites)
    values = {v for t in tables.values() for v in t["x"] if v is not None}
    assert len(replies) > 10
    for reply in replies:
        assert b"canary" not in reply
        assert not values & set(numbers_in(json.loads(reply)))


# ── what a site refuses ──────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def middle():
    """The state in which round 3 is asked."""
    states = []
    local.run(coordinator.begin(make_study(TABLES), "run-1"), make_sites(TABLES), states.append)
    return next(s for s in states if s.step == "round" and s.server.round == 3)


def refusal(site, request):
    reply = wire.decode(site.respond(wire.encode(request)), Reply)
    return reply.answer.reason if isinstance(reply.answer, Refusal) else None


def test_a_site_answers_what_is_right(middle):
    site = a_site("site-1", TABLES["site-1"])
    assert refusal(site, coordinator.request(middle, "site-1")) is None


def changed(request, **changes):
    task = request.broadcast.task._replace(**changes)
    return request._replace(broadcast=request.broadcast._replace(task=task))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: changed(r, theta=np.zeros(3)), "shape"),
        (lambda r: changed(r, kind="dump"), "task"),
        (lambda r: changed(r, curvature="rows"), "task"),
        (lambda r: changed(r, kind="local", steps=10**6), "task"),
        (lambda r: changed(r, batch=50), "study implies"),
        (lambda r: changed(r, theta=np.full(6, np.nan)), "does not fit this site"),
        (lambda r: r._replace(broadcast=r.broadcast._replace(round=0)), "range"),
        (lambda r: r._replace(step="rows"), "not a request"),
        (lambda r: r._replace(broadcast=None), "not a request"),
    ],
)
def test_a_site_checks_what_it_is_asked(middle, change, reason):
    site = a_site("site-1", TABLES["site-1"])
    assert reason in refusal(site, change(coordinator.request(middle, "site-1")))


def test_a_site_keeps_to_its_name_its_columns_and_its_minimum(middle):
    request = coordinator.request(middle, "site-1")
    assert "registered for 'site-1'" in refusal(a_site("site-9", TABLES["site-1"]), request)
    some = a_site("site-1", TABLES["site-1"], released=("x0", "x1", "y"))
    assert "'x2' is not released" in refusal(some, request)
    assert "threshold rule" in refusal(a_site("site-1", TABLES["site-1"], least=10), request)
    few = {name: values[:8] for name, values in TABLES["site-1"].items()}
    assert "fewer rows" in refusal(a_site("site-1", few), request)


def test_a_site_notices_a_transformation_of_other_columns(middle):
    request = coordinator.request(middle, "site-1")
    table = {**TABLES["site-1"], "name": ["someone"] * len(TABLES["site-1"]["y"])}
    parts = (preprocessing.Category("name", ("someone",)), *request.agreement.transform.parts[1:])
    sneaky = preprocessing.Transform(parts, {})
    request = request._replace(agreement=request.agreement._replace(transform=sneaky))
    assert "not agreed on" in refusal(a_site("site-1", table), request)


def test_labels_outside_the_classes_are_refused_without_naming_them(middle):
    table = {**TABLES["site-1"], "y": ["secret"] * 5 + [*TABLES["site-1"]["y"][5:]]}
    reason = refusal(a_site("site-1", table), coordinator.request(middle, "site-1"))
    assert "not among the study's classes" in reason
    assert "secret" not in reason


@given(st.binary(max_size=300))
def test_a_site_survives_any_bytes(data):
    site = a_site("site-1", TABLES["site-1"])
    reply = wire.decode(site.respond(data), Reply)
    assert isinstance(reply.answer, Refusal)


# ── what the coordinator refuses ─────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def reply(middle):
    site = a_site("site-1", TABLES["site-1"])
    data = site.respond(wire.encode(coordinator.request(middle, "site-1")))
    return wire.decode(data, Reply)


def test_a_good_answer_is_read(middle, reply):
    assert coordinator.read(middle, "site-1", wire.encode(reply)).client == "site-1"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"site": "site-2"}, "another site's name"),
        ({"run": "run-2"}, "another run"),
        ({"step": "enrol"}, "answers step 'enrol'"),
        ({"client": "site-2"}, "for another site"),
        ({"round": 2}, "does not answer round"),
        ({"rows": -1}, "number of rows"),
        ({"value": float("inf")}, "finite"),
        ({"vector": np.zeros(5)}, "shape"),
        ({"vector": np.array([np.nan] * 6)}, "finite"),
    ],
)
def test_a_wrong_answer_is_refused_by_its_reason(middle, reply, change, reason):
    if set(change) <= set(Reply._fields):
        bad = reply._replace(**change)
    else:
        bad = reply._replace(answer=reply.answer._replace(**change))
    with pytest.raises(ValueError, match=reason):
        coordinator.read(middle, "site-1", wire.encode(bad))


def test_an_answer_to_another_question_is_refused(middle, reply):
    site = a_site("site-1", TABLES["site-1"])
    first = coordinator.begin(middle.study, "run-1")
    enrolled = wire.decode(site.respond(wire.encode(coordinator.request(first, "site-1"))), Reply)
    with pytest.raises(ValueError, match="no answer to step 'round'"):
        coordinator.read(middle, "site-1", wire.encode(enrolled._replace(step="round")))


NUMBERS = st.sampled_from([-1, 0, 1, 4, 10**9, -1e305, 1e305, -0.5, 3.5])


def tampered(plain, data):
    """The same message with one number, text or list in it changed."""
    places = []

    def walk(node):
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(plain["answer"])
    node, key = data.draw(st.sampled_from(places))
    node[key] = data.draw(NUMBERS | st.just("") | st.just([]) | st.just({}))
    return plain


@pytest.mark.slow
@pytest.mark.parametrize("scaling", ["robust", "standard"])
@given(data=st.data())
def test_tampered_statistics_are_refused_or_harmless(scaling, data):
    """Whatever one site tells before training: no crash, and nothing that is not finite."""
    tables = mixed_tables(sizes=(60, 60))
    study = make_study(tables, "cost", 'task = "regression"\n[columns]\nuse = ["x", "ward"]\n'
                       f'scaling = "{scaling}"')  # fmt: skip
    state, sites = coordinator.begin(study, "run-1"), make_sites(tables)
    target = data.draw(st.sampled_from(["enrol", "columns", "scales", "location", "cutoff"]))
    while state.step != "round":
        answers = {}
        for name, site in sites.items():
            reply = site.respond(wire.encode(coordinator.request(state, name)))
            if state.step == target and name == "site-2":
                reply = json.dumps(tampered(json.loads(reply), data)).encode()
            try:
                answers[name] = coordinator.read(state, name, reply)
            except ValueError:
                return  # refused
        try:
            state = coordinator.receive(state, answers)
        except ValueError:
            return  # what the sites tell does not go together
    assert all(
        np.isfinite([p.center, p.spread, p.fill]).all() for p in state.agreed.transform.numeric
    )
    assert all(p.spread > 0 for p in (*state.agreed.transform.numeric, state.agreed.target))
    assert np.isfinite(state.centers).all() and all(
        0 < cutoff < np.inf for _, cutoff in state.agreed.cutoffs
    )


def answers_of(state, names):
    sites = make_sites(TABLES)
    asked = {name: wire.encode(coordinator.request(state, name)) for name in names}
    return {n: coordinator.read(state, n, sites[n].respond(data)) for n, data in asked.items()}


def test_a_refused_report_is_survived_and_recorded(middle):
    answers = answers_of(middle, ("site-1", "site-3"))
    after = coordinator.receive(middle, answers, {"site-2": "its risk is not a finite number"})
    line = after.history[-1]
    assert line.answered == ("site-1", "site-3")
    assert line.refused == {"site-2": "its risk is not a finite number"}
    assert np.isfinite(after.server.solving.trial).all()


def test_a_refusal_before_training_ends_the_study_by_name():
    tables = synthetic_tables()
    sites = make_sites(tables)
    sites["site-2"] = a_site("site-2", tables["site-2"], released=("x0", "y"))
    study = make_study(tables, extra='[columns]\nuse = ["x0", "x1"]')
    with pytest.raises(ValueError, match=r"'site-2' does not take part: column 'x1'"):
        local.run(coordinator.begin(study, "run-1"), sites)


def test_sites_with_other_columns_are_told_which():
    tables = synthetic_tables()
    tables["site-3"].pop("x4")
    with pytest.raises(ValueError, match="column 'x4'"):
        run(make_study(tables), tables)


# ── the rule for absent sites ────────────────────────────────────────────────────────────────────


def test_before_and_in_the_first_round_everyone_is_waited_for():
    state = coordinator.begin(make_study(TABLES), "run-1")
    assert coordinator.waiting(state, {"site-1", "site-2"}) == ("site-3",)
    while state.step != "round":
        state = coordinator.receive(state, answers_of(state, state.sites))
    assert coordinator.waiting(state, {"site-1", "site-2"}) == ("site-3",)


@pytest.mark.parametrize(("then", "waits"), [("wait", True), ("go on", False)])
def test_a_last_report_stands_in_for_so_many_rounds(then, waits):
    study = make_study(TABLES, absent=f'stand_in = 2\nthen = "{then}"', training="max_rounds = 6")
    state = coordinator.begin(study, "run-1")
    while state.step != "round":
        state = coordinator.receive(state, answers_of(state, state.sites))
    state = coordinator.receive(state, answers_of(state, state.sites))
    there = ("site-1", "site-3")
    for _ in range(2):
        assert coordinator.waiting(state, set(there)) == ()
        state = coordinator.receive(state, answers_of(state, there))
        assert state.history[-1].answered == there
    assert coordinator.waiting(state, set(there)) == (("site-2",) if waits else ())
    assert coordinator.waiting(state, set()) == state.sites  # somebody has to answer


def test_the_order_of_answers_makes_no_difference(middle):
    answers = answers_of(middle, middle.sites)
    one = coordinator.receive(middle, answers)
    two = coordinator.receive(middle, dict(reversed(answers.items())))
    assert np.array_equal(one.server.solving.trial, two.server.solving.trial)


# ── studies as people write them ─────────────────────────────────────────────────────────────────

BASE = 'name = "s"\nsites = ["a"]\n[data]\nlabel = "y"\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name = ", "TOML"),
        ('name = "s"\nsites = ["a"]', r"\[data\] label is missing"),
        ('name = "s"\n[data]\nlabel = "y"', "no site"),
        (BASE.replace('"s"', '"../s"'), "letters, digits"),
        (BASE + "[methd]\n", "did you mean 'method'"),
        (BASE + '[columns]\nuse = ["y"]', "also one of the columns"),
        (BASE + '[columns]\nuse = ["x", "x"]', "twice"),
        (BASE + "[method]\nrho = -1", "positive"),
        (BASE + "[method]\noutliers = 0.6", "a share from 0 to 0.4"),
        (BASE + '[method]\nname = "magic"', "choose one of"),
        (BASE + "[method]\nrho = nan", "NaN"),
        (BASE + "[training]\nmax_rounds = 0", "at least 1"),
        (BASE + "[training]\nmax_rounds = 1.5", "whole number"),
        (BASE + '[training]\ncurvature = "some"', "choose one of auto, none, diagonal"),
        (BASE + "[training]\nbytes_per_round = -1", "at least 0"),
        (BASE + "[training]\nbytes_per_round = 99999999", "at most 33554432"),
        (
            BASE + 'task = "classification"\n[training]\nloss = "squared"',
            "is not for classification",
        ),
        (BASE + '[absent]\nthen = "give up"', "wait, go on"),
        (BASE + "[privacy]\nminimum_rows = 2", "minimum_rows"),
        (BASE.replace('"y"', '" "'), "label: is empty"),
        (BASE + 'classes = ["a", "a"]', "classes names one twice"),
        (BASE + f"[method]\nrho = 1{'0' * 400}", "rho: is too large a number"),
        (BASE + f"[columns]\nuse = {'[' * 5000}{']' * 5000}", "nested too deeply"),
        (BASE + "[method]\ncap = 5.0", "cap = 5.0: must be at most 1"),
        (BASE.replace('["a"]', '["a", "b"]') + "[method]\ncap = 0.4", "at least 1/2 for 2 sites"),
        (BASE + "[training]\nseed = -1", "seed = -1: must be at least 0"),
        (BASE + "[privacy]\nepsilon = 1e-320", "epsilon = 1e-320: must be at least 1e-06"),
        (BASE + "[privacy]\nepsilon = 1.0\nclip = 1e308", "clip = .*: must be at most 1000000"),
        (BASE + "[privacy]\nepsilon = 1.0\nhighest = 1e308", "highest = .*at most 1000000"),
        (BASE + "[privacy]\ndelta = 2.0", "delta = 2.0: must be at most 0.999999"),
        (BASE + f"[privacy]\nminimum_rows = 1{'0' * 400}", "must be at most 1000000000"),
        (BASE + f"[absent]\nstand_in = 1{'0' * 400}", "must be at most 1000000000"),
        (BASE + "[absent]\nanswer_within = 1e300", "must be at most 31536000"),
    ],
)
def test_a_study_that_cannot_be_run_says_why(text, reason):
    with pytest.raises(ValueError, match=reason):
        among(parse(text), ())


def test_a_study_without_sites_takes_all_that_are_registered():
    text = 'name = "s"\n[data]\nlabel = "y"'
    study = among(parse(text), ("b", "a", "c"))
    assert study.privacy.reports == "summed"
    with pytest.raises(ValueError, match="sums need three sites"):
        among(parse(text), ("b", "a"))
    study = among(parse(f'{text}\n[privacy]\nreports = "open"'), ("b", "a"))
    assert coordinator.begin(study, "r").sites == ("a", "b")
    assert wire.decode(wire.encode(study), type(study)) == study


def test_a_request_holds_what_a_restarted_site_needs(middle):
    request = wire.decode(wire.encode(coordinator.request(middle, "site-2")), Request)
    assert refusal(a_site("site-2", TABLES["site-2"]), request) is None


class Liar(Site):
    """Honest until training, then badly served beyond measure, and leading away."""

    def local(self, step, request):
        answer = super().local(step, request)
        if isinstance(answer, Reports):
            return Reports({place: self.lie(own) for place, own in answer.reports.items()})
        return self.lie(answer) if isinstance(answer, Report) else answer

    @staticmethod
    def lie(report):
        return report._replace(value=1e6, vector=-1e3 * report.vector)


def accuracy(end):
    test = dorfl.datasets.synthetic(seed=0).test.values()
    X, y = (np.concatenate(parts) for parts in zip(*test, strict=True))
    table = {f"x{j}": X[:, j] for j in range(X.shape[1])}
    scaled = end.agreed.transform.apply(table, np.float32).X
    theta = end.outcome.theta
    return np.mean(np.where(scaled @ theta[:-1] + theta[-1] > 0, 1, -1) == y)


@pytest.mark.slow
def test_a_liar_does_not_take_over(tmp_path):
    tables = {**TABLES, "site-4": synthetic_tables(seed=1)["site-2"]}
    method = 'name = "dorfl"\nmixture = "agnostic"\nby = "risk"\n'
    honest = run(make_study(tables, method=method + "cap = 0.3"), tables)

    def with_a_liar(study, keep=lambda _: None):
        sites = {**make_sites(TABLES), "site-4": a_site("site-4", tables["site-4"], Liar)}
        return local.run(coordinator.begin(study, "run-1"), sites, keep)

    bounded = with_a_liar(make_study(tables, method=method, training="max_rounds = 40"))
    assert accuracy(bounded) > accuracy(honest) - 0.02  # no scaled rows have such a risk

    kept = []
    study = make_study(tables, method=method + "cap = 0.3", extra="[defence]\nrow = 8.0")
    defended = with_a_liar(study, kept.append)
    assert any("site-4" in {**line.refused, **line.clipped} for line in defended.history)
    assert accuracy(defended) > accuracy(honest) - 0.01
    path = tmp_path / "checkpoint.json"
    for state in [s for s in kept if s.step == "round"][
        :4
    ]:  # a coordinator that comes back defends itself as before
        checkpoint.save(path, state)
        again = checkpoint.load(path)
        assert wire.encode(coordinator.request(again, "site-1")) == wire.encode(
            coordinator.request(state, "site-1")
        )
        assert again.server.exposed == state.server.exposed
        assert (again.server.defence is None) == (state.server.defence is None)


@pytest.mark.slow
def test_differential_privacy_sends_noise_and_nothing_exact():
    private = "epsilon = 8.0\nclip = 2.0"
    study = make_study(TABLES, method=METHODS["gdrfl"], training="max_rounds = 20", privacy=private)
    first = run(study, TABLES, secret=b"a")
    assert first.outcome.status == "spent"
    assert finish.certificate_of(first) is None
    assert np.array_equal(first.outcome.theta, run(study, TABLES, secret=b"a").outcome.theta)
    assert not np.array_equal(first.outcome.theta, run(study, TABLES, secret=b"b").outcome.theta)
    exact = run(make_study(TABLES, method=METHODS["gdrfl"], training="max_rounds = 20"), TABLES)
    assert not np.array_equal(first.history[0].risks, exact.history[0].risks)  # at θ = 0: log 2
    assert np.allclose(exact.history[0].risks, np.log(2))
    with pytest.raises(ValueError, match=r"outliers = 0"):
        make_study(TABLES, privacy=private)


def asked_in(step, study, sites):
    """The state at a step, with everyone having answered before."""
    state = coordinator.begin(study, "run-1")
    while state.step != step:
        answers = {}
        for name in state.sites:
            data = sites[name].respond(wire.encode(coordinator.request(state, name)))
            answers[name] = coordinator.read(state, name, data)
        state = coordinator.receive(state, answers)
    return state


def reason_of(site, request):
    answer = wire.decode(site.respond(wire.encode(request)), Reply).answer
    return answer.reason if isinstance(answer, Refusal) else None


def test_a_run_cannot_ask_for_one_thing_twice_over(tmp_path):
    private = make_study(TABLES, method=METHODS["gdrfl"], privacy="epsilon = 1.0")
    sites = {
        name: a_site(name, table, secret=b"s", journal=Journal(tmp_path / name))
        for name, table in TABLES.items()
    }
    request = coordinator.request(asked_in("round", private, sites), "site-1")
    assert reason_of(sites["site-1"], request) is None
    weaker = private._replace(privacy=private.privacy._replace(epsilon=2.0))
    restarted = a_site(
        "site-1", TABLES["site-1"], secret=b"s", journal=Journal(tmp_path / "site-1")
    )
    for site in (sites["site-1"], restarted):
        changed = request._replace(agreement=request.agreement._replace(study=weaker))
        assert "another question" in reason_of(site, changed)
        task = request.broadcast.task
        moved = request.broadcast._replace(task=task._replace(theta=task.theta + 1.0))
        assert "another question" in reason_of(site, request._replace(broadcast=moved))
        assert reason_of(site, request) is None  # the same again, to the bit
    where = request._replace(step="location", broadcast=None)
    assert "not a request" in reason_of(sites["site-1"], where)  # nothing is centred here


@pytest.mark.parametrize("run", ["", "/tmp/elsewhere", "../up", "a/b", ".hidden", "x" * 200])
def test_a_run_s_name_cannot_be_a_path(run):
    request = coordinator.request(coordinator.begin(make_study(TABLES), run), "site-1")
    assert "name" in reason_of(make_sites(TABLES)["site-1"], request)


@pytest.mark.parametrize("method", few(["dorfl", "afl"]))
def test_a_site_decides_how_fine_a_curvature_it_tells_and_training_goes_on(method):
    study = make_study(TABLES, method=METHODS[method], training="tol = 1e-7")
    ends = []
    for told in (("full",) * 3, ("none", "diagonal", "full"), ("diagonal", "full", "blocks")):
        sites = make_sites(TABLES)
        for site, finest in zip(sites.values(), told, strict=True):
            site.policy = site.policy._replace(curvature=finest)
        sizes = {name: set() for name in sites}

        def note(state, sizes=sizes):
            for name, (_, report) in (state.server.last if state.server else {}).items():
                sizes[name].add(None if report.curvature is None else report.curvature.size)

        ends.append(local.run(coordinator.begin(study, "run-1"), sites, note).outcome)
        expected = {"none": None, "diagonal": 6, "blocks": 21, "full": 21}
        for name, finest in zip(sites, told, strict=True):
            assert sizes[name] == {expected[finest]}, finest
    for end in ends:
        assert end.status == "converged"
        assert end.objective == pytest.approx(ends[0].objective, rel=1e-6)
        away = np.linalg.norm(end.theta - ends[0].theta)  # the objective is flat around its best
        assert away < 1e-2 * np.linalg.norm(end.theta)
    assert ends[0].rounds <= min(end.rounds for end in ends)


@pytest.mark.slow
def test_a_study_asks_for_no_more_than_its_words_and_bytes_say():
    for words, size in (
        ("", 21), ('curvature = "diagonal"', 6), ("bytes_per_round = 100", 6),
        ("bytes_per_round = 10", None), ('curvature = "none"', None),
    ):  # fmt: skip
        states = [coordinator.begin(make_study(TABLES, training=words), "run-1")]
        local.run(states[0], make_sites(TABLES), states.append)
        last = next(s for s in states if s.server and s.server.last).server.last
        told = {None if r.curvature is None else r.curvature.size for _, r in last.values()}
        assert told == {size}, words


def test_a_site_knows_no_other_curvature(middle):
    with pytest.raises(ValueError, match="choose one of none, diagonal"):
        a_site("site-1", TABLES["site-1"], curvature="some")


def test_a_site_may_insist_on_differential_privacy():
    site = a_site("site-1", TABLES["site-1"], epsilon=1.0)
    for privacy, fine in (("", False), ("epsilon = 2.0", False), ("epsilon = 0.5", True)):
        study = make_study(TABLES, method=METHODS["gdrfl"], privacy=privacy)
        reason = reason_of(site, coordinator.request(coordinator.begin(study, "run-1"), "site-1"))
        assert (reason is None) == fine


def test_half_a_character_is_not_text():
    state = coordinator.begin(make_study(TABLES), "run-1")
    reply = wire.encode(Reply("run-1", "site-1", "enrol", Refusal("X")))
    with pytest.raises(ValueError, match="not text"):
        coordinator.read(state, "site-1", reply.replace(b'"X"', b'"\\ud800"'))
    with pytest.raises(ValueError, match="not text"):
        wire.decode(b'{"\\ud800": 1.0}', dict[str, float])


@pytest.mark.parametrize("lie", [{"value": 1e307}, {"spent": -1.0}, {"error": -1.0}])
def test_an_impossible_part_of_the_certificate_is_refused(lie):
    study, sites = make_study(TABLES), make_sites(TABLES)
    state = asked_in("finish", study, sites)
    data = sites["site-1"].respond(wire.encode(coordinator.request(state, "site-1")))
    honest = wire.decode(data, Reply)
    part = honest.answer.part._replace(**lie)
    bad = honest._replace(answer=honest.answer._replace(part=part))
    with pytest.raises(ValueError, match="certificate"):
        coordinator.read(state, "site-1", wire.encode(bad))


def test_rows_are_believed_up_to_a_limit():
    state = coordinator.begin(make_study(TABLES), "run-1")
    data = make_sites(TABLES)["site-1"].respond(wire.encode(coordinator.request(state, "site-1")))
    honest = wire.decode(data, Reply)
    bad = honest._replace(answer=honest.answer._replace(rows=2**62))
    with pytest.raises(ValueError, match="impossible number of rows"):
        coordinator.read(state, "site-1", wire.encode(bad))
    study = make_study(TABLES, extra="[defence]\nmost_rows = 150", method=METHODS["erm"])
    assert run(study, TABLES).outcome.lam.tolist() == [100 / 400, 150 / 400, 150 / 400]
