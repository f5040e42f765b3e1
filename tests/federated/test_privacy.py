"""Differential privacy: sensitivity against brute-force neighbours, noise, what is never sent."""

import re
import subprocess
import sys

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

import cases
import dorfl
from dorfl import methods, mixture, privacy, scores
from dorfl.federated import server as serving
from dorfl.federated.client import respond
from dorfl.federated.messages import Broadcast
from dorfl.federated.report_bounds import Limits
from dorfl.federated.server import Server
from dorfl.federated.training import prepare
from dorfl.solvers import Noisy
from dorfl.solvers.base import Setting, Task

CENTER = [1.0, 1.0, 0.2, 0.5, 1.0]
METHOD = methods.paper(score=scores.quadratic(0.5, center=CENTER))


@pytest.fixture(scope="module")
def data():
    return dorfl.datasets.synthetic(seed=3)


def mechanism(**options):
    return privacy.gaussian(**{"epsilon": 2.0, "delta": 1e-5, "seed": 1, **options})


# ── sensitivity ─────────────────────────────────────────────────────────────────────────────────


@cases.slowly(200)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 8),
    temperature=st.sampled_from([0.05, 0.5, 5.0, 500.0, np.inf]),
    clip=st.floats(0.05, 5.0),
    width=st.floats(0.05, 5.0),
    moves=st.booleans(),
)
def test_replacing_any_row_moves_a_report_by_no_more_than_the_sensitivity(
    seed, rows, temperature, clip, width, moves
):
    rng = np.random.default_rng(seed)
    method = methods.method(
        rho=5.0 if moves else None,
        **({"beta": temperature / 5.0} if moves else {"temperature": temperature}),
        score=scores.quadratic(0.3, center=rng.normal(size=2)),
        mixture="agnostic",
    )
    X, y = 3.0 * rng.normal(size=(rows, 2)), rng.choice([-1, 1], rows)
    theta, low = 2.0 * rng.normal(size=3), float(rng.uniform(-2, 1))
    size = mechanism(clip=clip, values=(low, low + width)).sensitivity(rows, temperature)

    def report(X, y):
        group = prepare({"a": (X, y)}, method, classes=[-1, 1])
        risks = group.clipped(theta, clip, (low, low + width))
        return risks.values[0], risks.gradients[0]

    value, gradient = report(X, y)
    for j in range(rows):
        other, label = X.copy(), y.copy()
        other[j], label[j] = rng.choice([0.1, 3.0, 100.0]) * rng.normal(size=2), -y[j]
        moved = report(other, label)
        assert abs(moved[0] - value) <= size.value * (1 + 1e-9) + 1e-12
        assert np.linalg.norm(moved[1] - gradient) <= size.gradient * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("temperature", [0.7, 20.0, np.inf])
def test_both_sensitivities_are_attained(temperature):
    """All rows lowest with gradient u, and one replaced by the highest with gradient −u."""
    rows, clip, low, high = 6, 0.5, 0.1, 2.0
    size = mechanism(clip=clip, values=(low, high)).sensitivity(rows, temperature)

    def report(last):
        f, g = np.full(rows, low), np.full(rows, clip)
        f[-1], g[-1] = last
        weights = np.full(rows, 1 / rows)
        if np.isfinite(temperature):
            weights = np.exp(f / temperature) / np.exp(f / temperature).sum()
        return mixture.tilted_mean(f, temperature), float(weights @ g)

    before, after = report((low, clip)), report((high, -clip))
    assert after[0] - before[0] == pytest.approx(size.value)
    assert before[1] - after[1] == pytest.approx(size.gradient)


def test_a_tilt_too_sharp_for_floats_leaves_a_row_all_the_weight():
    size = mechanism(clip=1.0, values=(0.0, 2.0)).sensitivity(100, 1e-4)
    assert size.value == pytest.approx(2.0, abs=1e-3)
    assert size.gradient == pytest.approx(2.0)


@pytest.mark.parametrize(("loss", "score"), [("logistic", "full"), ("softmax", "quadratic")])
def test_a_clip_that_clips_nothing_changes_nothing(loss, score):
    case = cases.make(1, loss, score, spread=0.5, rows=20)
    group, theta = case.group(), case.parameters.ravel()
    plain, wide = group.evaluate(theta), group.clipped(theta, 1e6, (-1e6, 1e6))
    assert wide.values == pytest.approx(plain.values)
    assert wide.gradients == pytest.approx(plain.gradients)


# ── noise ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("rounds", [1, 50])
def test_the_noise_is_what_epsilon_and_delta_need_and_hardly_more(epsilon, rounds):
    delta = 1e-5
    found = mechanism(epsilon=epsilon, delta=delta, rounds=rounds)
    s = found.multiplier / np.sqrt(rounds)
    # Balle and Wang (2018), Theorem 8, for the T rounds as one mechanism
    spent = norm.cdf(0.5 / s - epsilon * s) - np.exp(epsilon) * norm.cdf(-0.5 / s - epsilon * s)
    assert spent == pytest.approx(delta, rel=1e-3)
    accountant = RdpAccountant()  # composes round by round, and gives an upper bound
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(found.multiplier), rounds))
    assert epsilon <= accountant.get_epsilon(delta) <= 1.3 * epsilon


def test_a_report_has_the_noise_it_is_said_to_have(data):
    group = prepare(data.clients, METHOD).select([0])
    theta, found = np.full(6, 0.1), mechanism(rounds=4000)
    exact = group.clipped(theta, found.clip, (found.low, found.high))
    drawn = [found.report(group, theta, number) for number in range(1, 1001)]
    noise = found.noise(100, METHOD.temperature)
    values = np.array([v[0] for v, _ in drawn]) - exact.values[0]
    gradients = np.array([g[0] for _, g in drawn]) - exact.gradients[0]
    assert values.std() == pytest.approx(noise.value, rel=0.1)
    assert gradients.std() == pytest.approx(noise.gradient, rel=0.05)
    assert abs(values.mean()) < 4 * noise.value / np.sqrt(1000)
    assert abs(np.corrcoef(values, gradients[:, 0])[0, 1]) < 0.15
    joint = np.array([noise.value, noise.gradient]) / found.sensitivity(100, METHOD.temperature)
    assert joint == pytest.approx(np.sqrt(2.0) * found.multiplier)


def test_the_same_question_gets_the_same_answer_and_another_one_other_noise(data):
    group, found = prepare(data.clients, METHOD), mechanism()
    theta = np.zeros(6)
    once, again = (found.report(group, theta, 1) for _ in range(2))
    assert np.array_equal(once[0], again[0])
    assert np.array_equal(once[1], again[1])
    near = theta + 1e-13  # the risk is the same, so a difference is that of the noise
    assert abs(found.report(group, near, 1)[0] - once[0]).min() > 1e-6
    assert abs(found.report(group, theta, 2)[0] - once[0]).min() > 1e-6
    other = mechanism(seed=2).report(group, theta, 1)
    assert abs(other[0] - once[0]).min() > 1e-6


def test_without_a_seed_the_noise_is_the_operating_system_s_and_is_not_shown():
    first, second = (privacy.gaussian(1.0, 1e-5) for _ in range(2))
    assert first.seed != second.seed
    assert str(first.seed) not in repr(first)


def test_a_site_does_not_answer_beyond_its_budget_nor_sends_curvature(data):
    group, found = prepare(data.clients, METHOD), mechanism(rounds=3)
    task = Task(np.zeros(6), np.ones(3))
    assert all(r.curvature is None for r in respond(group, Broadcast(3, task), 0, found))
    with pytest.raises(ValueError, match="budget is for rounds 1 to 3"):
        respond(group, Broadcast(4, task), 0, found)
    for asked in (
        task._replace(curvature="diagonal"),
        task._replace(batch=5),
        task._replace(kind="local", rate=0.1),
    ):
        with pytest.raises(ValueError, match="only risk and gradient"):
            respond(group, Broadcast(1, asked), 0, found)


# ── training ────────────────────────────────────────────────────────────────────────────────────


def accuracy(fit, data):
    X, y = (np.concatenate(part) for part in zip(*data.test.values(), strict=True))
    return fit.score(X, y)


def test_training_in_private_costs_a_little_and_repeats(data):
    plain = accuracy(dorfl.train(data.clients, METHOD, intercept=False), data)
    fits = [
        dorfl.train(data.clients, METHOD, intercept=False, privacy=mechanism(epsilon=8.0))
        for _ in range(2)
    ]
    assert accuracy(fits[0], data) > plain - 0.02
    assert np.array_equal(fits[0].theta, fits[1].theta)
    assert fits[0].status == "spent"
    assert fits[0].rounds == 50


@pytest.mark.parametrize("method", [methods.gdrfl(20), methods.wafl(20)])
def test_without_noise_the_solver_for_noise_finds_the_minimum(method):
    data = dorfl.datasets.synthetic(seed=0, contamination=(0, 0, 0))
    fit = dorfl.train(data.clients, method, solver=Noisy(rounds=1500, rate=0.5, pace=0.02))
    best = dorfl.train(data.clients, method)
    group = prepare(data.clients, method)
    reached = method.mixture.objective(group.evaluate(fit.theta).values, best.lam, np.inf)
    assert reached == pytest.approx(best.objective, rel=0.02)
    assert fit.rounds == 1500


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        (methods.paper(), {}, "centre 'auto'"),
        (methods.paper(score=scores.quadratic(0.5, center="client")), {}, "centre 'client'"),
        (methods.paper(score=METHOD.score, mixture=mixture.agnostic("loss")), {}, "by="),
        (methods.method(beta=1.0, radius=0.1), {}, "radius"),
        (METHOD, {"solver": "sqp"}, "its own solver"),
        (METHOD, {"batch": 10}, "on all rows"),
        (METHOD, {"max_rounds": 10}, "50 rounds"),
    ],
)  # fmt: skip
def test_what_would_tell_of_rows_in_other_ways_is_refused(data, method, options, reason):
    with pytest.raises(ValueError, match=reason):
        dorfl.train(data.clients, method, privacy=mechanism(), **options)


@pytest.mark.parametrize(
    "wrong",
    [{"epsilon": 0.0}, {"delta": 1.0}, {"clip": -1.0}, {"values": (1.0, 1.0)}, {"rounds": 0}],
)
def test_settings_that_protect_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        mechanism(**wrong)


def test_noisy_reports_are_no_lies(data):
    """Bounds may cut noise down, but nobody is left out for it."""
    fit = dorfl.train(
        data.clients, METHOD, privacy=mechanism(epsilon=0.5), limits=Limits(row=6.0), trim=0.3
    )
    assert not any(line.refused for line in fit.history)
    assert np.isfinite(fit.theta).all()


def test_without_the_accountant_the_message_names_it():
    code = (
        "import sys; sys.modules['dp_accounting.pld'] = None\n"
        "from dorfl import privacy\n"
        "try: privacy.gaussian(1.0, 1e-5).multiplier\n"
        "except ValueError as error: print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.search("pip install .*'dp-accounting", out.stdout)


def test_a_private_report_is_a_report_like_any_other(data):
    group = prepare(data.clients, METHOD)
    found = mechanism()
    lam = METHOD.mixture.start(group.names, group.counts)
    solver = found.solver(group.problem, group.counts, lam)
    setting = Setting(METHOD.mixture, METHOD.temperature, np.zeros(6))
    rows = dict(zip(group.names, group.counts.tolist(), strict=True))
    server = Server(rows, solver, solver.init(setting, np.zeros(6), lam))
    sent = serving.broadcast(server)
    for report in respond(group, sent, 0, found):
        assert serving.refuse(server, sent, report) is None
