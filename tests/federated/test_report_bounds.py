"""Clients that are broken or lie: bounds, contradictions, trimmed gradients, what is refused."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.stats.mstats import winsorize

import cases
import dorfl
from dorfl import methods, mixture, scores
from dorfl.data import robust
from dorfl.federated import server as serving
from dorfl.federated.client import respond
from dorfl.federated.messages import Broadcast, Report
from dorfl.federated.report_bounds import Limits, bounds, clip, contradicts, defend
from dorfl.federated.server import Server
from dorfl.federated.training import prepare
from dorfl.linear import curvature as packing
from dorfl.linear import hessian
from dorfl.linear.curvature import Shape
from dorfl.linear.problem import Problem
from dorfl.solvers import Optimistic, Sqp
from dorfl.solvers.base import Setting, Task, trimmed_mean

METHOD = methods.paper(mixture=mixture.capped(0.4))
LIMITS = Limits(row=6.0)


@pytest.fixture(scope="module")
def data():
    return dorfl.datasets.synthetic(seed=3)


@pytest.fixture(scope="module")
def attacks():
    path = Path(__file__).parents[2] / "examples" / "attacks.py"
    spec = importlib.util.spec_from_file_location("attacks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ── bounds ──────────────────────────────────────────────────────────────────────────────────────

EXACT = [pair for pair in cases.PAIRS if pair not in cases.ASCENT]


def at_the_edge(case, seed):
    """The case with every row as long as the longest, which is where bounds are tested hardest."""
    length = np.linalg.norm(case.X, axis=1, keepdims=True)
    X = case.X * (length.max() / length) if seed % 2 else case.X
    return replace(case, X=X), Limits(
        row=float(length.max()) * (1 + 1e-6), target=float(np.abs(case.y).max())
    )


@pytest.mark.parametrize(("loss", "score"), EXACT)
@pytest.mark.parametrize("by", mixture.BY)
def test_no_honest_report_is_clipped_or_contradicts_another(loss, score, by):
    @cases.slowly(25)
    @given(
        case=cases.cases(loss, score),
        seed=st.integers(0, 2**32 - 1),
        kind=st.sampled_from(["evaluate", "local", "paper"]),
        finest=st.sampled_from(["diagonal", "blocks", "full"]),
    )
    def check(case, seed, kind, finest):
        case, limits = at_the_edge(case, seed)
        group = case.group()
        method = replace(group.problem.method, mixture=mixture.agnostic(by=by))
        rng = np.random.default_rng(seed)
        theta = case.parameters.ravel()
        own = None
        if by == "regret":  # what it has alone may be what another θ gives, or no model at all
            alone = [group.evaluate(share * theta).values for share in (0.0, rng.uniform())]
            own = np.minimum(alone[0], alone[1])
        group = replace(group, problem=replace(group.problem, method=method), own=own)
        defence = defend(group.problem, limits, {"client": group.centers[0]})
        if loss == "squared":  # its risk is finite near zero only
            other = theta * rng.uniform(-1, 1)
        else:
            other = theta + rng.normal(size=theta.size)
        seen, steps = [], 1 if loss == "squared" else 3
        for point in (theta, other):
            asked = finest if kind == "evaluate" else "none"
            task = Task(point, np.ones(1), kind, asked, rate=0.01, steps=steps)
            try:
                (report,) = respond(group, Broadcast(1, task), 0)
            except OverflowError:  # as solver 'paper' does with small temperatures
                return
            if np.abs(report.vector).max() > 1e20:
                return
            assert clip(bounds(defence, "client", task), report)[1] == ""
            seen.append((task, report))
        assert not contradicts(defence, *seen)
        assert not contradicts(defence, *seen[::-1])

    check()


def test_without_a_score_the_ceiling_is_reached_at_zero():
    X, y = np.array([[3.0, 0.0], [0.0, 3.0]]), np.array([-1, 1])
    group = prepare({"a": (X, y)}, methods.afl())
    defence = defend(group.problem, Limits(3.0), {"a": np.zeros(2)})
    task = Task(np.zeros(3), np.ones(1))
    assert bounds(defence, "a", task).high == pytest.approx(group.evaluate(np.zeros(3)).values[0])


@pytest.mark.parametrize(
    ("change", "beyond"),
    [
        ({"value": 1e6}, "risk"),
        ({"value": -1e6}, "risk"),
        ({"vector": np.full(6, 1e3)}, "vector"),
        ({"curvature": np.full(6, 1e9)}, "curvature"),
        ({"curvature": packing.pack(1e20 * np.ones((6, 6)), (6,))}, "curvature"),
        ({"value": 1e6, "vector": np.full(6, -1e3)}, "risk and vector"),
    ],
)
def test_what_is_beyond_the_bounds_is_cut_down_to_them(data, change, beyond):
    group = prepare(data.clients, METHOD)
    server = make_server(group, finest="full")
    sent = serving.broadcast(server)
    honest = respond(group, sent, 0)[0]
    limit = bounds(server.defence, honest.client, sent.task)
    cut, words = clip(limit, honest._replace(**change))
    assert beyond in words
    assert limit.low <= cut.value <= limit.high
    assert np.linalg.norm(cut.vector) <= limit.radius * (1 + 1e-12)
    assert (cut.curvature <= limit.curvature * (1 + 1e-12)).all()
    assert serving.refuse(server, sent, cut) is None
    assert clip(limit, cut) == (cut, "") or clip(limit, cut)[1] == ""


@pytest.mark.parametrize(
    ("method", "loss", "reason"),
    [
        (methods.method(rho=1.0, score=scores.custom(lambda x, y: x[:, 0])), "logistic", "custom"),
        (methods.method(beta=1.0, radius=0.1), "logistic", "radius"),
        (methods.gdrfl(5), "huber", "target"),
    ],
)
def test_a_problem_without_bounds_is_named(method, loss, reason):
    problem = Problem(method, dorfl.losses.resolve(loss), 2, np.array([0, 1]))
    with pytest.raises(ValueError, match=reason):
        defend(problem, LIMITS, {})


# ── contradictions ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("solver", ["sqp", "optimistic"])
@pytest.mark.parametrize("rule", [mixture.agnostic(), mixture.fixed()])
def test_a_client_that_contradicts_itself_is_left_out(data, attacks, solver, rule):
    method = methods.gdrfl(20)
    method = replace(method, mixture=rule)
    liar = "client-1"
    lie = attacks.reversed_gradient(prepare(data.clients, method), liar)
    fit = dorfl.train(
        data.clients, method, solver=solver, limits=LIMITS,
        tamper=lambda sent, r: lie(sent, r) if r.client == liar else r,
    )  # fmt: skip
    honest = {name: rows for name, rows in data.clients.items() if name != liar}
    if not rule.adversarial:  # λ = n_i/n: the liar's share goes to the others in equal parts
        counts = np.array([len(y) for _, y in data.clients.values()])
        share = counts / counts.sum()
        method = replace(method, mixture=mixture.fixed(share[1:] + share[0] / 2))
    alone = dorfl.train(honest, method, solver=solver)
    assert fit.status == "converged"
    assert "contradicts" in fit.history[-1].refused[liar]
    assert liar not in fit.history[-1].answered
    assert fit.objective == pytest.approx(alone.objective, rel=1e-4)


def test_when_everyone_contradicts_himself_training_says_so(data):
    with pytest.raises(ValueError, match="no client is left"):
        dorfl.train(
            data.clients, METHOD, limits=LIMITS,
            tamper=lambda sent, report: report._replace(vector=-report.vector),
        )  # fmt: skip


def test_a_stand_in_is_kept_within_the_bounds(data):
    group = prepare(data.clients, METHOD)
    server = make_server(group, Optimistic())
    reports = respond(group, serving.broadcast(server), 0)
    reports[0] = reports[0]._replace(value=1e19, vector=np.full(6, -1e19))
    server, *_ = serving.receive(server, reports)
    server, info, heard = serving.receive(server, respond(group, serving.broadcast(server), 0)[1:])
    assert heard.clipped["client-1"].startswith("clipped: risk and vector")
    assert np.isfinite(info.risks).all()
    assert np.abs(info.risks).max() < 100


# ── trimmed gradients ───────────────────────────────────────────────────────────────────────────


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(3, 9),
    share=st.floats(0.05, 0.45),
    size=st.sampled_from([1.0, 1e6, 1e40]),
)
def test_liars_with_less_than_the_trim_stay_within_the_honest_range(seed, count, share, size):
    rng = np.random.default_rng(seed)
    honest = rng.normal(size=(count, 3))
    lies = size * rng.normal(size=(2, 3))
    weights = np.concatenate([(1 - share) * rng.dirichlet(np.ones(count)), [share / 2, share / 2]])
    found = trimmed_mean(np.vstack([honest, lies]), weights, min(share + 0.01, 0.5))
    slack = 1e-9
    assert (found >= honest.min(axis=0) - slack).all()
    assert (found <= honest.max(axis=0) + slack).all()


def test_trimming_is_the_mean_the_winsorised_mean_and_the_median():
    vectors = np.random.default_rng(0).normal(size=(9, 4))
    equal = np.full(9, 1 / 9)
    assert np.array_equal(trimmed_mean(vectors, equal, 0.0), equal @ vectors)
    assert trimmed_mean(vectors, equal, 0.5) == pytest.approx(np.median(vectors, axis=0))
    cut = np.asarray(winsorize(vectors, (2.5 / 9, 2.5 / 9), axis=0)).mean(axis=0)
    assert trimmed_mean(vectors, equal, 2.5 / 9) == pytest.approx(cut)


def test_sqp_does_not_trim_and_says_so(data):
    with pytest.raises(ValueError, match="'optimistic'"):
        dorfl.train(data.clients, METHOD, solver="sqp", trim=0.3)
    with pytest.raises(ValueError, match="trim"):
        dorfl.train(data.clients, METHOD, trim=0.6)


# ── one lying site does not take over λ ─────────────────────────────────────────────────────────


# On seeds that the cap and the trim were not chosen on.


@pytest.mark.slow
@pytest.mark.parametrize("name", ["huge", "ceiling"])
@pytest.mark.parametrize("seed", [100, 101, 102])
def test_a_takeover_costs_less_than_a_point_with_the_defence_and_the_model_without(
    attacks, name, seed
):
    attack, defence = getattr(attacks, name), attacks.DEFENCES["limits, cap and trim"]
    honest = attacks.accuracy(seed, None, **defence)
    assert attacks.accuracy(seed, attack, **defence) > honest - 1.0
    assert attacks.accuracy(seed, attack) < honest - 50.0


@pytest.mark.slow
def test_a_takeover_without_contradiction_costs_less_than_a_point_on_average(attacks):
    defence, seeds = attacks.DEFENCES["limits, cap and trim"], range(100, 108)
    honest = np.mean([attacks.accuracy(seed, None, **defence) for seed in seeds])
    found = [attacks.accuracy(seed, attacks.convex_ceiling, **defence) for seed in seeds]
    assert np.mean(found) > honest - 1.0
    assert attacks.accuracy(100, attacks.convex_ceiling) < honest - 50.0


@pytest.mark.parametrize("name", ["huge", "ceiling", "reversed_gradient"])
def test_sqp_survives_lies_that_contradict_themselves(attacks, name):
    defence = attacks.DEFENCES["limits and cap"]
    assert "trim" not in defence  # so the solver is sqp
    honest = attacks.accuracy(0, None, **defence)
    assert attacks.accuracy(0, getattr(attacks, name), **defence) > honest - 1.0


def test_honest_training_is_the_same_with_limits_to_the_bit(data):
    plain = dorfl.train(data.clients, METHOD)
    limited = dorfl.train(data.clients, METHOD, limits=Limits(row=60.0))
    assert np.array_equal(plain.theta, limited.theta)
    assert not any(line.clipped or line.refused for line in limited.history)


# ── hostile replies ─────────────────────────────────────────────────────────────────────────────


class Text(str):
    """A string that is more than a string."""

    __slots__ = ()


class Cells(np.ndarray):
    """An array that is more than an array."""


class Told(Report):
    """A report that is more than a report."""


def make_server(group, solver=None, defended=True, finest="diagonal"):
    solver = solver or Sqp()
    problem = group.problem
    setting = Setting(
        problem.method.mixture, problem.method.temperature, np.zeros(problem.size),
        shape=Shape(problem.outputs, problem.dims + problem.intercept), resolution=finest,
    )  # fmt: skip
    lam = problem.method.mixture.start(group.names, group.counts)
    rows = dict(zip(group.names, group.counts.tolist(), strict=True))
    center = dict(zip(group.names, group.centers, strict=True))
    server = Server(rows, solver, solver.init(setting, np.zeros(problem.size), lam))
    if defended:
        server = server._replace(defence=defend(problem, LIMITS, center))
    return server


NUMBERS = st.one_of(
    st.floats(),
    st.sampled_from(
        [0.0, -0.0, 1e-320, 1e6, -1e6, 1e19, -1e19, 1e49, 1e308, np.nan, np.inf, -np.inf]
    ),
)
SCALARS = st.one_of(
    NUMBERS, st.integers(), st.booleans(), st.none(), st.text(max_size=5), st.binary(max_size=5),
    NUMBERS.map(np.float64), st.floats(width=32).map(np.float32), st.integers(-9, 9).map(np.int64),
    st.just(np.ones(2)), st.just([1.0]), st.just({}), st.just(1j), st.just(object()),
)  # fmt: skip
FINITE = st.one_of(
    st.floats(-1e19, 1e19), st.floats(-10, 10), st.sampled_from([0.0, 1e-300, 1e6, -1e6, 1e19])
)
VECTORS = st.one_of(
    st.lists(FINITE, min_size=6, max_size=6).map(np.array),
    st.lists(NUMBERS, min_size=6, max_size=6).map(np.array),
    st.lists(NUMBERS, max_size=9).map(np.array),
    st.sampled_from([
        np.zeros((6, 1)), np.zeros((1, 6)), np.array(1.0), np.zeros(0), np.zeros(6, np.float32),
        np.zeros(6, ">f8"), np.zeros(6, complex), np.zeros(6, object), np.full(6, None),
        np.full(6, "1"), np.zeros(6, np.int64), np.zeros(6, bool), np.zeros(6, "M8[s]"),
        np.zeros(6, [("a", "f8")]), np.zeros(6).view(Cells), np.ma.masked_all(6),
        np.matrix(np.zeros(6)), np.broadcast_to(np.float64(1e40), 6), [0.0] * 6,
    ]),
    SCALARS,
)  # fmt: skip
HOSTILE = st.one_of(
    st.fixed_dictionaries({}, optional={
        "client": st.one_of(
            st.sampled_from(["client-1", "client-9", "", "x" * 99, Text("client-2")]), SCALARS
        ),
        "round": st.one_of(
            st.integers(-2, 5), st.sampled_from([True, 2.0, 2**70, -(10**5000)]), SCALARS
        ),
        "rows": st.one_of(st.integers(-5, 300), SCALARS),
        "value": SCALARS,
        "vector": VECTORS,
        "curvature": VECTORS,
    }),
    st.fixed_dictionaries({"value": FINITE, "vector": VECTORS, "curvature": VECTORS}),
    st.sampled_from([None, "report", 3, (), ("client-2", 2, 200, 0.5), [1], {}, Told, Report]),
)  # fmt: skip


def forged(honest, change):
    if change is Told:
        return Told(*honest)
    return honest._replace(**change) if isinstance(change, dict) else change


@pytest.fixture(scope="module")
def opened(data):
    """Servers that have heard one honest round, and those that have heard none."""
    group = prepare(data.clients, METHOD)
    fresh = [
        make_server(group, solver, defended)
        for solver in (Sqp(), Optimistic())
        for defended in (True, False)
    ]
    one = [serving.receive(s, respond(group, serving.broadcast(s), 0))[0] for s in fresh]
    return group, fresh, one


@pytest.mark.slow
@pytest.mark.parametrize(
    "which", range(4), ids=["sqp", "sqp bare", "optimistic", "optimistic bare"]
)
def test_no_hostile_reply_raises_or_moves_anything_to_where_numbers_end(opened, which):
    group, fresh, one = opened

    @settings(cases.slowly(300), phases=[Phase.generate])
    @given(changes=st.lists(HOSTILE, min_size=1, max_size=3), first=st.booleans())
    def check(changes, first):
        server = fresh[which] if first else one[which]
        for change in changes:
            sent = serving.broadcast(server)
            reports = respond(group, sent, 0)
            reports.insert(2, forged(reports.pop(1), change))
            try:
                server, info, heard = serving.receive(server, reports)
            except ValueError as error:  # the one error there is: a client never heard of
                if "every client must answer once" in str(error) and not server.last:
                    return
                raise
            following = serving.broadcast(server).task
            for numbers in (info.theta, info.lam, following.theta, following.lam):
                assert np.isfinite(numbers).all()
            assert info.lam.sum() == pytest.approx(1.0)
            assert (info.lam >= 0).all()
            assert all(len(name) <= 60 for name in heard.refused)

    check()


@pytest.mark.parametrize("solver", ["sqp", "optimistic"])
def test_training_goes_on_with_the_honest_clients(data, solver):
    rng = np.random.default_rng(0)

    def hostile(sent, report):
        if report.client != "client-1" or sent.round == 1:
            return report
        lie = rng.integers(5)
        return [
            None,
            report._replace(value=float("nan")),
            report._replace(round=sent.round - 1),
            report._replace(vector=np.full(6, np.inf)),
            report._replace(rows=-5),
        ][lie]

    with pytest.warns(UserWarning, match=r"stopped|no further"):
        fit = dorfl.train(data.clients, METHOD, solver=solver, tamper=hostile, max_rounds=60)
    honest = {name: rows for name, rows in data.clients.items() if name != "client-1"}
    alone = dorfl.train(honest, methods.paper())
    for name in honest:
        assert fit.score(*data.test[name]) > alone.score(*data.test[name]) - 0.01
    assert all(len(line.refused) == 1 for line in fit.history[1:])


def test_two_different_answers_of_one_client_are_both_refused_whatever_their_order(data):
    group = prepare(data.clients, METHOD)
    server = make_server(group)
    server, *_ = serving.receive(server, respond(group, serving.broadcast(server), 0))
    reports = respond(group, serving.broadcast(server), 0)
    second = reports[0]._replace(value=reports[0].value + 1.0)
    found = [
        serving.receive(server, many) for many in ([*reports, second], [second, *reports[::-1]])
    ]
    assert found[0][2].refused == {"client-1": "answered twice, differently"}
    assert np.array_equal(found[0][1].theta, found[1][1].theta)
    assert "client-1" not in found[1][2].answered


# ── curvature ───────────────────────────────────────────────────────────────────────────────────

FULL = packing.pack(np.eye(6), (6,))
INDEFINITE = np.eye(6)
INDEFINITE[1, 0] = INDEFINITE[0, 1] = 2.0


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (np.full(21, np.nan), "finite"),
        (np.full(21, np.inf), "finite"),
        (FULL.astype(np.float16), "finite"),
        (FULL.astype(np.float32), "finite"),
        (FULL.astype(object), "finite"),
        (FULL.astype(str), "finite"),
        (FULL[:-1], "shape"),
        (np.eye(6), "shape"),
        (FULL[None], "shape"),
        (FULL.tolist(), "shape"),
        (FULL.view(np.matrix), "shape"),
        (np.zeros(0), "shape"),
        (FULL * 1e21, "too large"),
        (-FULL, "convex"),
        (packing.pack(INDEFINITE, (6,)), "convex"),
    ],
)
def test_what_is_no_curvature_is_refused(data, lie, reason):
    group = prepare(data.clients, METHOD)
    server = make_server(group, finest="full")
    sent = serving.broadcast(server)
    honest = respond(group, sent, 0)[0]
    with np.errstate(invalid="ignore"):
        assert reason in serving.refuse(server, sent, honest._replace(curvature=lie))
    for coarse in (honest.curvature, packing.diagonal(honest.curvature, (6,)), None):
        assert serving.refuse(server, sent, honest._replace(curvature=coarse)) is None


@pytest.mark.parametrize("lie", [-FULL, np.full(21, np.nan), FULL[:-1], "none"])
@pytest.mark.parametrize("method", [methods.afl(), methods.erm()])
def test_a_curvature_that_cannot_be_one_is_left_out_and_training_goes_on(data, method, lie):
    def tamper(_, report):
        if report.client != "client-2" or report.curvature is None:
            return report
        return report._replace(curvature=lie)

    fit = dorfl.train(data.clients, method, tamper=tamper)
    assert fit.status == "converged"
    assert fit.objective == pytest.approx(dorfl.train(data.clients, method).objective, rel=2e-6)
    assert "left out" in fit.history[0].clipped["client-2"]
    assert all("client-2" in line.answered and not line.refused for line in fit.history)


def test_a_finer_curvature_than_was_asked_for_is_refused(data):
    group = prepare(data.clients, METHOD)
    server = make_server(group)
    sent = serving.broadcast(server)
    honest = respond(group, sent, 0)[0]._replace(curvature=FULL)
    assert "shape" in serving.refuse(server, sent, honest)


@given(seed=st.integers(0, 2**32 - 1), limit=st.floats(1e-6, 1e6))
def test_a_limited_curvature_is_as_definite_as_before_and_within(seed, limit):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(4, 4)) * 10.0 ** rng.uniform(-6, 6, size=(4, 1))
    H = root @ root.T
    for sizes in ((4,), (2, 2), (1,) * 4):
        packed = packing.pack(H, sizes)
        cut = packing.limited(packed, sizes, limit)
        bend, before = (packing.diagonal(p, sizes) for p in (cut, packed))
        assert (bend <= limit * (1 + 1e-12)).all()
        assert bend == pytest.approx(np.minimum(before, limit), rel=1e-12)
        assert packing.is_plausible(cut, sizes)


def lying(factor):
    """The second client's curvature, `factor` times what it is; "huge": 1e20 in every direction."""

    def tamper(_, report):
        if report.client != "client-2" or report.curvature is None:
            return report
        lie = FULL * 1e20 if factor == "huge" else report.curvature * factor
        return report._replace(curvature=lie)

    return tamper


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("limits", [None, LIMITS])
@pytest.mark.parametrize("factor", ["huge", 1e6, 0.0])
@pytest.mark.parametrize("method", [methods.afl(), methods.erm()])
def test_a_lie_about_curvature_never_ends_training_as_converged_elsewhere(
    data, method, factor, limits
):
    honest = dorfl.train(data.clients, method)
    fit = dorfl.train(data.clients, method, limits=limits, tamper=lying(factor), max_rounds=60)
    above = fit.objective - honest.objective
    assert fit.status != "converged" or above < 1e-5 * abs(honest.objective)
    if factor != 0.0:
        assert "curvature" in fit.history[0].clipped["client-2"]
    if limits is not None and method.mixture.adversarial:
        assert fit.status == "converged"


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("lie", cases.few(["convex", "huge"]))
def test_who_lies_about_curvature_every_time_does_not_slow_others_down(monkeypatch, lie):
    rng = np.random.default_rng(0)
    scale = 10.0 ** rng.uniform(-1.5, 1.5, 12)
    clients = {}
    for k in range(5):
        X = rng.normal(size=(200, 12)) * scale
        clients[f"client-{k + 1}"] = (
            X,
            X @ (rng.normal(size=12) / scale) + rng.normal(size=200) > 0,
        )

    def tamper(_, report):
        if report.client != "client-2" or report.curvature is None:
            return report
        lied = -report.curvature if lie == "convex" else np.full_like(report.curvature, 1e19)
        return report._replace(curvature=lied)

    honest = dorfl.train(clients, methods.afl())
    fit = dorfl.train(clients, methods.afl(), tamper=tamper)
    words = [line.clipped.get("client-2", "") for line in fit.history]
    assert fit.status == "converged"
    assert fit.objective == pytest.approx(honest.objective, rel=2e-6)
    assert any("mean of the others" in said for said in words)
    assert fit.rounds <= honest.rounds + 5
    if lie == "huge":  # what is cut down is used at first, and then no more
        monkeypatch.setattr(serving, "_MAX_CLIPPED", 10**9)
        slower = dorfl.train(clients, methods.afl(), tamper=tamper, max_rounds=400)
        assert fit.rounds < slower.rounds


# ── minimum counts ──────────────────────────────────────────────────────────────────────────────


def test_a_curvature_of_few_rows_is_left_out_and_the_rest_is_told(data):
    X, y = data.clients["client-1"]
    task = Task(np.append(np.ones(5), 0.0), np.ones(1), curvature="full")
    for method in (methods.erm(), METHOD):
        at_zero = task._replace(theta=np.zeros(6))
        (report,) = respond(prepare({"a": (X, y)}, method), Broadcast(1, at_zero), 0, least=10)
        assert report.curvature is not None
    certain = np.tile(np.where(y > 0, 9.0, -9.0)[:, None], 5)
    certain[0] = 0.0  # the one row that the model is in doubt of
    group = prepare({"a": (certain, y)}, methods.erm())
    assert hessian.heaviest(group, task.theta)[0] > 0.9
    assert respond(group, Broadcast(1, task), 0, least=10)[0].curvature is None


@pytest.mark.parametrize("classes", [2, 4])
def test_the_share_of_the_heaviest_row_is_what_its_removal_takes_away(classes):
    rng = np.random.default_rng(classes)
    X, y = np.ones((30, 1)), np.arange(30) % classes
    X += rng.normal(size=X.shape)
    loss = "softmax" if classes > 2 else "logistic"
    group = prepare({"a": (X, y)}, methods.erm(), loss, intercept=True)
    theta = rng.normal(size=group.problem.size)
    shares = []
    whole = hessian.curvature(group, theta, "diagonal")[0].reshape(group.problem.outputs, -1)
    for j in range(30):  # of the intercept's entry, where every row is 1
        rest = group.take([np.delete(np.arange(30), j)])
        without = hessian.curvature(rest, theta, "diagonal")[0].reshape(whole.shape)
        shares.append(1.0 - without[:, -1] * 29 / 30 / whole[:, -1])
    assert hessian.heaviest(group, theta)[0] == pytest.approx(np.max(shares), abs=1e-9)


def test_a_centre_of_few_rows_is_not_given():
    rows = np.random.default_rng(0).normal(size=(9, 2))
    assert robust.local_center(rows).kept <= 9
    with pytest.raises(ValueError, match="fewer than 10 rows"):
        robust.local_center(rows, least=10)
