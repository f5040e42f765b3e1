"""Client, server and engine: what is sent, what is refused, and that a run repeats to the bit."""

import numpy as np
import pytest

import dorfl
from dorfl import methods
from dorfl.federated import server as serving
from dorfl.federated.client import respond
from dorfl.federated.messages import Report
from dorfl.federated.server import Server
from dorfl.federated.training import prepare
from dorfl.linear.curvature import Shape
from dorfl.solvers import Optimistic, Sqp
from dorfl.solvers.base import Setting

METHOD = methods.paper()


@pytest.fixture(scope="module")
def data():
    return dorfl.datasets.synthetic(seed=3)


def make_server(group, solver=None):
    solver = solver or Sqp()
    mixture = group.problem.method.mixture
    setting = Setting(
        mixture, group.problem.method.temperature, np.zeros(group.problem.size),
        shape=Shape(1, group.problem.size),
    )  # fmt: skip
    lam = mixture.start(group.names, group.counts)
    state = solver.init(setting, np.zeros(group.problem.size), lam)
    rows = dict(zip(group.names, group.counts.tolist(), strict=True))
    return Server(rows, solver, state)


def test_a_report_is_d_plus_a_few_numbers_and_no_row(data):
    group = prepare(data.clients, METHOD)
    for report in respond(group, serving.broadcast(make_server(group)), seed=0):
        assert set(report._fields) == {"client", "round", "rows", "value", "vector", "curvature"}
        assert report.vector.shape == report.curvature.shape == (group.problem.size,)


@pytest.mark.parametrize("center", ["auto", "client"])
def test_a_site_of_its_own_sends_the_same_numbers_to_the_bit(data, center):
    method = methods.paper(score=dorfl.scores.quadratic(0.5, center=center))
    together = prepare(data.clients, method)
    sent = serving.broadcast(make_server(together))
    sent = sent._replace(task=sent.task._replace(theta=np.linspace(-0.9, 1.1, 6)))
    for i, report in enumerate(respond(together, sent, seed=0)):
        (alone,) = respond(together.select([i]), sent, seed=0)
        assert alone.value == report.value
        assert np.array_equal(alone.vector, report.vector)
        assert np.array_equal(alone.curvature, report.curvature)


def test_the_order_of_answers_makes_no_difference(data):
    group = prepare(data.clients, METHOD)
    servers = [make_server(group), make_server(group)]
    for _ in range(5):
        sent = serving.broadcast(servers[0])
        reports = respond(group, sent, seed=0)
        servers = [
            serving.receive(servers[0], reports)[0],
            serving.receive(servers[1], reports[::-1])[0],
        ]
    first, second = (serving.broadcast(s).task for s in servers)
    assert np.array_equal(first.theta, second.theta)
    assert np.array_equal(first.lam, second.lam)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"solver": "optimistic", "max_rounds": 40, "batch": 16},
        {"solver": "paper", "max_rounds": 50},
    ],
)
def test_a_run_repeats_to_the_bit_and_follows_its_seed(data, options):
    first = dorfl.train(data.clients, METHOD, seed=5, **options)
    again = dorfl.train(data.clients, METHOD, seed=5, **options)
    assert np.array_equal(first.theta, again.theta)
    assert np.array_equal(first.lam, again.lam)
    if "batch" in options:
        assert not np.array_equal(
            first.theta, dorfl.train(data.clients, METHOD, seed=6, **options).theta
        )


def corrupt(report, **changes):
    return report._replace(**changes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"client": "stranger"}, "not a client"),
        ({"client": ["no name"]}, "not a client"),
        ({"round": 7}, "round"),
        ({"round": np.ones(2)}, "round"),
        ({"rows": 10**9}, "number of rows"),
        ({"rows": np.ones(2)}, "number of rows"),
        ({"value": float("nan")}, "finite"),
        ({"value": float("inf")}, "finite"),
        ({"value": "1.0"}, "finite"),
        ({"vector": np.zeros(2)}, "shape"),
        ({"vector": np.full(6, np.nan)}, "finite"),
        ({"vector": [0.0] * 6}, "shape"),
        ({"vector": np.zeros(6, dtype=object)}, "finite"),
        ({"curvature": np.ones(5)}, "curvature"),
        ({"curvature": np.full(6, -1.0)}, "curvature"),
        ({"curvature": np.full(6, "1")}, "curvature"),
        ({"curvature": np.full(6, None)}, "curvature"),
    ],
)
def test_what_a_server_refuses(data, change, reason):
    group = prepare(data.clients, METHOD)
    server = make_server(group)
    sent = serving.broadcast(server)
    good = respond(group, sent, seed=0)
    assert reason in serving.refuse(server, sent, corrupt(good[0], **change))
    assert serving.refuse(server, sent, good[0]) is None


def test_a_refused_report_is_survived_once_the_client_is_known(data):
    group = prepare(data.clients, METHOD)
    server = make_server(group)
    server, *_ = serving.receive(server, respond(group, serving.broadcast(server), seed=0))
    reports = respond(group, serving.broadcast(server), seed=0)
    bad = corrupt(reports[1], value=float("nan"))
    server, info, heard = serving.receive(server, [reports[0], bad, reports[2]])
    assert heard.refused == {reports[1].client: "its risk is not a finite number"}
    assert np.isfinite(info.theta).all()


def test_a_client_that_answers_twice_counts_once(data):
    group = prepare(data.clients, METHOD)
    server = make_server(group)
    reports = respond(group, serving.broadcast(server), seed=0)
    _, _, heard = serving.receive(server, [*reports, reports[0]])
    assert heard.refused == {reports[0].client: "answered twice"}


def test_a_client_that_never_answered_is_named(data):
    with pytest.raises(ValueError, match=r"'client-2' has sent no usable report"):
        dorfl.train(data.clients, METHOD, absent=lambda number, name: name == "client-2")


def test_training_survives_clients_that_do_not_answer(data):
    whole = dorfl.train(data.clients, METHOD)
    fit = dorfl.train(
        data.clients, METHOD, absent=lambda number, name: name == "client-1" and number in (2, 3)
    )
    assert fit.history[1].answered == ("client-2", "client-3")
    assert fit.objective == pytest.approx(whole.objective, abs=1e-4)


def test_what_stands_in_for_the_absent_is_not_what_a_model_costs(data):
    """A stand-in is too low; once everyone answers again, their own numbers are the objective."""
    whole = dorfl.train(data.clients, METHOD)
    fit = dorfl.train(
        data.clients, METHOD, absent=lambda number, name: name != "client-1" and 2 <= number <= 4
    )
    everyone = [line for line in fit.history if len(line.answered) == 3]
    assert len(everyone) < len(fit.history) and fit.status == "converged"
    least = min(line.objective for line in everyone)
    assert least >= whole.objective - whole.gap - 1e-9 * abs(whole.objective)
    assert fit.objective == pytest.approx(whole.objective, rel=1e-4)


def test_a_round_that_nobody_answers_shows_nothing(data):
    fit = dorfl.train(data.clients, METHOD, absent=lambda number, name: number in (2, 4, 5))
    lines = {line.round: line for line in fit.history}
    assert lines[2].objective == lines[1].objective and not lines[2].answered
    assert lines[5].objective == lines[4].objective == lines[3].objective
    assert fit.status == "converged"


def test_partial_participation_reaches_the_same_model(data):
    method = methods.gdrfl(20)
    whole = dorfl.train(data.clients, method, intercept=False)
    fit = dorfl.train(
        data.clients, method, participation=0.67, max_rounds=400, intercept=False,
        solver=Optimistic(), tol=1e-5,
    )  # fmt: skip
    assert {len(r.answered) for r in fit.history[1:]} == {2}
    risks = prepare(data.clients, method, intercept=False).evaluate(fit.theta).values
    assert risks.max() == pytest.approx(whole.objective, rel=0.01)


def test_sqp_refuses_to_sample_clients(data):
    with pytest.raises(ValueError, match="'optimistic'"):
        dorfl.train(data.clients, METHOD, solver="sqp", participation=0.5)


def test_reports_are_plain_values():
    assert Report("a", 1, 2, 0.5, np.zeros(1)) == Report("a", 1, 2, 0.5, np.zeros(1))
