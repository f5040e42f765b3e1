"""Huber's loss whose scale is one more unknown: the joint risk, its derivatives, the training."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import minimize
from sklearn.datasets import load_diabetes
from sklearn.linear_model import HuberRegressor

import dorfl
from dorfl import losses, methods, mixture, scores
from dorfl.federated import scale, server, simulation, training
from dorfl.federated.client import respond, with_unknowns
from dorfl.federated.messages import Broadcast
from dorfl.federated.options import Options
from dorfl.federated.pooled import SumSettings, combine, terms
from dorfl.federated.training import prepare, serve
from dorfl.linear.curvature import Shape
from dorfl.linear.scale import Scaled, proposal2
from dorfl.objective.serialization import read_loss, write_loss
from dorfl.solvers.base import Task

pytestmark = pytest.mark.portable

EPSILON = 1.345
AUTO = losses.huber(scale="auto")


def clients(seed=0, rows=60, dims=3, noise=0.5, dtype=float):
    """Three clients, one of them shifted; one label in twelve is far off."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(3 * rows, dims))
    y = X @ rng.normal(size=dims) + 0.7 + noise * rng.normal(size=3 * rows)
    y[::12] -= 6.0
    y[2::3] += 0.5 * X[2::3, 0]
    return {name: (X[k::3].astype(dtype), y[k::3]) for k, name in enumerate("abc")}


def every_method(dims=3):
    """The five methods and the tilts and scores that a study uses, with either mixture."""
    score = scores.quadratic(0.2, center="client")
    full = scores.quadratic(0.2, matrix=np.eye(dims) + 0.3)
    tilted = {"rho": 6.0, "temperature": 2.0}
    return {
        "erm": methods.erm(),
        "afl": methods.afl(),
        "wafl": methods.wafl(5.0),
        "gdrfl": methods.gdrfl(5.0),
        "dorfl": methods.paper(8.0, 0.5),
        "full": methods.paper(8.0, 0.5, full),
        "by loss": methods.method(score=score, mixture=mixture.agnostic(by="loss"), **tilted),
        "pooled": methods.method(score=score, mixture=mixture.fixed(by="loss"), **tilted),
        "tilt": methods.method(temperature=2.0, mixture="fixed"),
    }


METHODS = every_method()
named = pytest.mark.parametrize("name", METHODS)


def joint(name, loss=AUTO, **given):
    return Scaled(prepare(clients(**given), METHODS[name], loss))


# ── the joint risk ──────────────────────────────────────────────────────────────────────────────


@named
def test_the_joint_risk_is_the_plain_one_in_units_of_the_scale(name):
    """F(θ, σ) = plain risk with δ = εσ, ρσ, τσ and the score times σ, over σ, and ½bσ."""
    theta, sigma = np.array([0.5, -0.2, 0.1, 0.3]), 0.6
    method, data = METHODS[name], clients()
    found = joint(name).evaluate(np.append(theta, sigma))
    plain = prepare(data, method.scaled(sigma), losses.huber(EPSILON * sigma)).evaluate(theta)
    constant = 0.5 * AUTO.consistency * sigma
    np.testing.assert_allclose(found.values, plain.values / sigma + constant, rtol=1e-12)
    np.testing.assert_allclose(found.gradients[:, :-1], plain.gradients / sigma, rtol=1e-9)


def test_the_supremum_is_no_less_than_any_place_gives():
    """Brute force: one row, one column, every place it may go to."""
    method, sigma, theta = methods.wafl(0.9), 0.3, np.array([0.8])
    group = prepare([([[0.4]], [1.5])], method, AUTO, intercept=False)
    x = np.linspace(-30, 30, 2_000_001)
    residual = np.abs(1.5 - theta[0] * x)
    huber = np.where(
        residual < EPSILON * sigma,
        0.5 * residual**2,
        EPSILON * sigma * (residual - 0.5 * EPSILON * sigma),
    )
    best = (huber / sigma - 0.9 * 0.5 * (x - 0.4) ** 2).max()
    found = Scaled(group).evaluate(np.append(theta, sigma)).values[0]
    assert found - 0.5 * AUTO.consistency * sigma == pytest.approx(best, abs=1e-8)


@named
def test_gradients_are_those_of_finite_differences(name):
    clients_ = joint(name, losses.huber(scale="auto", least=0.3))
    at = np.array([0.5, -0.2, 0.1, 0.3, 0.6])
    found = clients_.evaluate(at)
    for k in range(len(at)):
        step = 1e-6 * np.eye(len(at))[k]
        up, down = clients_.evaluate(at + step), clients_.evaluate(at - step)
        slope = (up.values - down.values) / 2e-6
        np.testing.assert_allclose(found.gradients[:, k], slope, rtol=1e-6, atol=1e-8)


@named
def test_curvature_in_the_scale_is_that_of_finite_differences(name):
    """∂²F/∂σ∂θ and ∂²F/∂σ², exactly; of rows that count linearly θ's own is a parabola's above."""
    clients_ = joint(name, losses.huber(scale="auto", least=0.3))
    at = np.array([0.5, -0.2, 0.1, 0.3, 0.6])
    found = clients_.evaluate(at, "full")
    up, down = (clients_.evaluate(at + step * np.eye(5)[4]) for step in (1e-6, -1e-6))
    change = (up.gradients - down.gradients) / 2e-6
    np.testing.assert_allclose(found.curvature[:, -5:], change, rtol=2e-5, atol=1e-6)


@given(st.integers(0, 10**6), st.sampled_from(sorted(METHODS)), st.floats(0.02, 0.98))
def test_it_is_jointly_convex(seed, name, share):
    rng = np.random.default_rng(seed)
    clients_ = joint(name, losses.huber(rng.uniform(0.5, 3.0), scale="auto", least=0.1), rows=8)
    ends = [np.append(rng.normal(size=4), np.exp(rng.normal())) for _ in range(2)]
    middle = share * ends[0] + (1.0 - share) * ends[1]
    first, second, between = (clients_.evaluate(at).values for at in (*ends, middle))
    line = share * first + (1.0 - share) * second
    assert (between <= line + 1e-10 * (1.0 + np.abs(line))).all()


def test_the_consistency_constant_makes_the_scale_a_standard_deviation():
    rng = np.random.default_rng(0)
    z = rng.normal(size=400_000)
    for epsilon in (0.7, 1.345, 3.0):
        loss = losses.huber(epsilon, scale="auto")
        assert np.minimum(z**2, epsilon**2).mean() == pytest.approx(loss.consistency, rel=0.01)
        assert proposal2(5.0 * z, loss) == pytest.approx(5.0, rel=0.01)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), st.floats(0.5, 3.0))
def test_proposal_2_solves_its_equation(values, epsilon):
    residuals, loss = np.array(values), losses.huber(epsilon, scale="auto")
    found = proposal2(residuals, loss)
    weights = np.random.default_rng(len(values)).integers(1, 4, size=len(values)).astype(float)
    again = proposal2(np.repeat(residuals, weights.astype(int)), loss)
    assert proposal2(residuals, loss, weights) == pytest.approx(again, rel=1e-9)
    if found > 1e-100:
        mean = np.minimum((residuals / found) ** 2, epsilon**2).mean()
        assert mean == pytest.approx(loss.consistency, rel=1e-6)
    else:  # too few differ from 0 for any scale
        assert np.mean(np.abs(residuals) > 1e-100) * epsilon**2 <= loss.consistency * (1 + 1e-9)


# ── training ────────────────────────────────────────────────────────────────────────────────────


@named
def test_a_fit_is_that_of_plain_huber_with_the_scale_it_found(name):
    data = clients()
    fit = dorfl.train(data, METHODS[name], loss=AUTO, l2=0.01, tol=1e-9)
    assert fit.status == "converged"
    assert fit.rounds <= 25
    assert type(fit.problem.loss) is losses.Huber
    assert fit.problem.loss.delta == pytest.approx(EPSILON * fit.scale, rel=1e-15)
    assert fit.l2 == pytest.approx(0.01 * fit.scale)
    assert fit.theta.shape == (4,)
    plain = dorfl.train(data, fit.problem.method, loss=fit.problem.loss, l2=fit.l2, tol=1e-10)
    assert fit.objective == pytest.approx(plain.objective, rel=1e-7)
    np.testing.assert_allclose(fit.theta, plain.theta, atol=3e-4)
    for k, client in enumerate(data):
        own = dorfl.risk(fit.theta, *data[client], fit.problem.method, loss=fit.problem.loss)
        if fit.problem.method.score is None:
            assert own.value == pytest.approx(fit.risks[k], rel=1e-6)
            np.testing.assert_allclose(own.sample_weights, fit.sample_weights[client], rtol=1e-9)


@named
def test_an_independent_solver_finds_nothing_lower(name):
    """Over (θ, σ, t): least t with t ≥ F_i, or the mixture of F_i, by SciPy."""
    data = clients(seed=3, rows=30)
    group, _ = scale.prepared(prepare(data, METHODS[name], AUTO))
    clients_, rule = Scaled(group), METHODS[name].mixture
    penalty = np.append(0.02 * group.problem.penalised, 0.0)
    lam = rule.start(group.names, group.counts)

    def pieces(z):
        found = clients_.evaluate(z)
        values, slopes = found.values, found.gradients
        if not rule.adversarial:
            share = rule.shares(values, lam, METHODS[name].temperature)
            level = rule.objective(values, lam, METHODS[name].temperature)
            values, slopes = np.array([level]), (share @ slopes)[None]
        return values + 0.5 * penalty @ z**2, slopes + penalty * z

    def room(z):
        return z[-1] - pieces(z[:-1])[0]

    def slopes(z):
        steep = pieces(z[:-1])[1]
        return np.column_stack([-steep, np.ones(len(steep))])

    start = np.array([0.0, 0.0, 0.0, 0.0, 2.0])
    found = minimize(
        lambda z: z[-1], np.append(start, pieces(start)[0].max() + 0.1),
        jac=lambda z: np.eye(6)[-1], method="SLSQP",
        bounds=[(-9, 9)] * 4 + [(1e-3, 30), (None, None)],
        constraints={"type": "ineq", "fun": room, "jac": slopes},
        options={"maxiter": 500, "ftol": 1e-13},
    )  # fmt: skip
    lowest = found.fun - min(room(found.x).min(), 0.0)
    fit = dorfl.train(data, METHODS[name], loss=AUTO, l2=0.02)
    there = pieces(np.append(fit.theta, fit.scale))[0].max()
    assert there <= lowest + 2e-6 * abs(lowest)
    assert fit.scale == pytest.approx(found.x[-2], rel=5e-3)


@dataclass(frozen=True)
class Owen(losses.ConcomitantHuber):
    """scikit-learn's normalisation, after A. B. Owen (2007): 1 in the place of b."""

    consistency = 1.0


@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_with_its_constant_it_is_scikit_learns_regressor(alpha):
    X, y = load_diabetes(return_X_y=True)
    X = X / X.std(axis=0)
    theirs = HuberRegressor(epsilon=EPSILON, alpha=alpha, max_iter=10_000, tol=1e-10).fit(X, y)
    fit = dorfl.train([(X, y)], methods.erm(), loss=Owen(EPSILON), l2=alpha / len(y), tol=1e-11)
    assert fit.scale == pytest.approx(theirs.scale_, rel=1e-4)
    np.testing.assert_allclose(fit.theta[:-1], theirs.coef_, atol=5e-3)
    # The intercept has a thousandth of the ridge here and none there.
    assert fit.theta[-1] == pytest.approx(theirs.intercept_, rel=1e-3)


def test_without_a_method_the_scale_is_proposal_2():
    X, y = load_diabetes(return_X_y=True)
    fit = dorfl.train([(X, y)], methods.erm(), loss=AUTO, tol=1e-10)
    assert fit.scale == pytest.approx(proposal2(y - fit.predict(X), AUTO), rel=1e-5)


@pytest.mark.parametrize("times", [1e-3, 1000.0])
@pytest.mark.parametrize("name", ["erm", "afl", "dorfl", "by loss", "pooled"])
def test_labels_in_another_unit_give_the_same_model_in_that_unit(name, times):
    data, method = clients(), METHODS[name]
    other = {client: (X, times * y) for client, (X, y) in data.items()}
    one = dorfl.train(data, method, loss=AUTO, l2=0.01)
    two = dorfl.train(other, method.scaled(times), loss=AUTO, l2=0.01 / times)
    assert one.rounds == two.rounds
    assert two.scale == pytest.approx(times * one.scale, rel=1e-6)
    np.testing.assert_allclose(two.theta, times * one.theta, rtol=1e-5, atol=1e-6 * times)


def test_normal_residuals_have_the_scale_of_their_standard_deviation():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(6000, 4))
    y = X @ [1.0, -2.0, 0.0, 0.5] + 3.0 + 0.25 * rng.normal(size=6000)
    fit = dorfl.train([(X, y)], methods.erm(), loss=AUTO)
    assert fit.scale == pytest.approx(0.25, rel=0.03)
    y[::10] += 1e4
    wrong = dorfl.train([(X, y)], methods.erm(), loss=AUTO)
    assert wrong.scale == pytest.approx(0.25, rel=0.35)
    np.testing.assert_allclose(wrong.theta[:4], fit.theta[:4], atol=0.05)


@pytest.mark.parametrize("start", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("name", ["erm", "gdrfl", "pooled"])
def test_it_converges_from_any_scale(name, start):
    group = prepare(clients(), METHODS[name], losses.huber(scale="auto", least=1e-4))
    options = Options(l2=0.01)
    theta = np.append(np.zeros(group.problem.size), start)
    begun = serve(group.problem, group.names, group.counts, theta, options)
    info, history = simulation.run(begun, group, seed=0)
    assert info.done == "converged"
    assert len(history) <= 20
    best = dorfl.train(clients(), METHODS[name], options, loss=AUTO, tol=1e-9)
    assert info.theta[-1] == pytest.approx(best.scale, rel=1e-2)
    assert info.objective == pytest.approx(best.history[-1].objective, rel=2e-6)


@pytest.mark.parametrize("labels", ["exact", "constant", "mostly one"])
def test_rows_that_are_met_exactly_leave_a_positive_scale(labels):
    data = clients(noise=0.0)
    X, _ = data["a"]
    y = {"exact": X @ [1.0, 2.0, 3.0], "constant": np.full(60, 7.0)}.get(labels, np.zeros(60))
    if labels == "mostly one":
        y[:9] = np.arange(9)
    fit = dorfl.train([(X, y)], methods.erm(), loss=AUTO)
    assert fit.status == "converged"
    assert 0.0 < fit.scale < 1e-2
    if labels != "mostly one":
        np.testing.assert_allclose(fit.predict(X), y, atol=1e-4)
    else:
        assert np.median(np.abs(fit.predict(X) - y)) < 1e-3


def test_sample_weights_are_as_good_as_copies():
    data, rng = clients(), np.random.default_rng(0)
    counts = {name: rng.integers(1, 4, size=len(y)) for name, (_, y) in data.items()}
    copied = {n: (np.repeat(X, counts[n], axis=0), np.repeat(y, counts[n]))
              for n, (X, y) in data.items()}  # fmt: skip
    for method in (methods.afl(), methods.method(rho=6.0, beta=0.5)):
        one = dorfl.train(data, method, loss=AUTO, sample_weight=counts, tol=1e-9)
        two = dorfl.train(copied, method, loss=AUTO, tol=1e-9)
        assert one.scale == pytest.approx(two.scale, rel=1e-4)
        np.testing.assert_allclose(one.theta, two.theta, atol=1e-4)


@pytest.mark.parametrize("name", ["erm", "gdrfl", "pooled"])
def test_sparse_rows_give_the_same_model(name):
    data = clients()
    data = {n: (np.where(np.abs(X) < 0.5, 0.0, X), y) for n, (X, y) in data.items()}
    thin = {n: (sparse.csr_array(X), y) for n, (X, y) in data.items()}
    one, two = (dorfl.train(rows, METHODS[name], loss=AUTO, l2=0.01) for rows in (data, thin))
    assert one.rounds == two.rounds
    np.testing.assert_allclose(one.theta, two.theta, atol=1e-8)


def test_a_score_of_ones_own_sees_labels_in_their_unit():
    def h(rows, labels):
        return 0.3 * ((labels > 2.0) + 0.1 * (rows**2).sum(axis=1))

    method = methods.method(rho=8.0, beta=0.5, score=scores.custom(h, convex=True))
    group = prepare(clients(rows=15), method, AUTO)
    theta, sigma = np.array([0.5, -0.2, 0.1, 0.3]), 0.25
    found = Scaled(group).evaluate(np.append(theta, sigma))
    plain = prepare(clients(rows=15), method.scaled(sigma), losses.huber(EPSILON * sigma))
    level = 0.5 * AUTO.consistency * sigma
    want = plain.evaluate(theta).values / sigma + level
    np.testing.assert_allclose(found.values, want, atol=1e-5)


def test_single_precision_converges():
    fit = dorfl.train(clients(dtype=np.float32), METHODS["pooled"], loss=AUTO, l2=0.01)
    best = dorfl.train(clients(), METHODS["pooled"], loss=AUTO, l2=0.01)
    assert fit.status == "converged"
    assert fit.scale == pytest.approx(best.scale, rel=1e-3)


def test_training_goes_on_from_a_fit_and_a_theta():
    data = clients()
    fit = dorfl.train(data, methods.gdrfl(5.0), loss=AUTO, l2=0.01)
    again = dorfl.train(data, methods.gdrfl(5.0), loss=AUTO, l2=0.01, start=fit)
    assert again.rounds <= 3
    assert again.scale == pytest.approx(fit.scale, rel=1e-3)
    from_theta = dorfl.train(data, methods.gdrfl(5.0), loss=AUTO, l2=0.01, start=fit.theta)
    assert from_theta.rounds <= fit.rounds


def test_a_fit_is_saved_with_its_scale(tmp_path):
    fit = dorfl.train(clients(), METHODS["dorfl"], loss=AUTO)
    again = dorfl.load(fit.save(tmp_path / "fit.json"))
    assert again.scale == fit.scale
    assert again.problem.loss.delta == fit.problem.loss.delta
    assert read_loss(write_loss(losses.huber(2.0, scale="auto", least=0.5))).least == 0.5


def test_certificates_take_the_scale_as_given():
    data = clients()
    fit = dorfl.train(data, METHODS["dorfl"], loss=AUTO)
    found = dorfl.certificate.paper(fit, data)
    assert found.bound >= found.attained - 1e-9


# ── through messages ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["erm", "dorfl", "pooled"])
def test_a_client_alone_reports_the_same_bits(name):
    data = clients()
    loss = losses.huber(scale="auto", least=1e-4)
    group = prepare(data, METHODS[name], loss)
    at = np.array([0.5, -0.2, 0.1, 0.3, 0.6])
    sent = Broadcast(1, Task(at, np.ones(3) / 3, curvature="full"))
    together = respond(group, sent, 0)
    for k, report in enumerate(together):
        (alone,) = respond(group.select([k]), sent, 0)
        assert alone.value == report.value
        assert (alone.vector == report.vector).all()
        assert alone.curvature.shape == (Shape(1, 4, 1).numbers("full"),)
        assert (alone.curvature == report.curvature).all()


@pytest.mark.parametrize("resolution", ["none", "diagonal", "full"])
def test_every_resolution_of_curvature_will_do(resolution):
    fit = dorfl.train(clients(), METHODS["by loss"], loss=AUTO, l2=0.01, curvature=resolution)
    best = dorfl.train(clients(), METHODS["by loss"], loss=AUTO, l2=0.01, tol=1e-9)
    assert fit.status == "converged"
    assert fit.objective == pytest.approx(best.objective, rel=1e-4)


def test_a_curvature_that_rests_on_one_residual_is_kept_back():
    X = np.random.default_rng(0).normal(size=(40, 2))
    y = X @ [1.0, 2.0]
    y[0] += 0.5
    group = prepare([(X, y)], methods.erm(), losses.huber(scale="auto", least=1e-4))
    at = np.array([1.0, 2.0, 0.0, 1.0])
    sent = Broadcast(1, Task(at, np.ones(1), curvature="full"))
    assert respond(group, sent, 0, least=10)[0].curvature is None
    y[1:20] += 0.5
    group = prepare([(X, y)], methods.erm(), losses.huber(scale="auto", least=1e-4))
    assert respond(group, sent, 0, least=10)[0].curvature is not None


def test_a_client_refuses_a_scale_that_is_none():
    group = prepare(clients(), methods.erm(), AUTO)
    for sigma in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="positive"):
            with_unknowns(group).evaluate(np.append(np.zeros(4), sigma))


def test_a_state_can_be_kept_and_gone_on_from():
    """A server is a pure function of the reports: two of them agree to the last bit."""
    group, theta = scale.prepared(prepare(clients(), METHODS["pooled"], AUTO))
    begun = serve(group.problem, group.names, group.counts, theta, Options(l2=0.01))
    one = two = begun
    for _ in range(4):
        reports = respond(group, server.broadcast(one), 0)
        one, _, _ = server.receive(one, reports)
        two, info, _ = server.receive(two, reports[::-1])
    assert (server.broadcast(one).task.theta == server.broadcast(two).task.theta).all()
    assert info.theta.shape == (5,)


@pytest.mark.parametrize("name", ["erm", "pooled"])
def test_sums_over_clients_train_the_same_model(name):
    """What a secure sum carries, summed in the clear: the pooled risk as one client's."""
    group, theta = scale.prepared(prepare(clients(), METHODS[name], AUTO))
    problem, total = group.problem, float(group.counts.sum())
    begun = serve(problem, ("all",), np.array([int(total)]), theta, Options(l2=0.01))
    tau = METHODS[name].temperature
    for _ in range(40):
        sent = server.broadcast(begun)
        reports = respond(group, sent, 0)
        tilt = SumSettings(reports[0].value, None if np.isinf(tau) else tau)
        numbers = sum(
            terms(report, np.log(report.rows / total), sent.task, tilt, problem.layout)
            for report in reports
        )
        pooled = combine(
            numbers, sent.task, tilt, problem.layout, sent.round, "all", int(total), clients=3
        )
        begun, info, _ = server.receive(begun, [pooled.report])
        if info.done:
            break
    best = dorfl.train(clients(), METHODS[name], loss=AUTO, l2=0.01)
    assert info.done == "converged"
    assert sent.round <= best.rounds + 2
    assert info.objective == pytest.approx(best.history[-1].objective, rel=2e-6)


def test_a_client_that_is_away_does_not_end_it():
    fit = dorfl.train(
        clients(), methods.afl(), loss=AUTO, absent=lambda number, name: number == 3 and name == "b"
    )
    best = dorfl.train(clients(), methods.afl(), loss=AUTO)
    assert fit.objective == pytest.approx(best.objective, rel=1e-4)


# ── what does not go together ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": methods.method(radius=0.1, beta=1.0)}, "radius: goes with a loss of a given"),
        ({"method": methods.method(mixture=mixture.agnostic(by="regret"))}, 'by="regret"'),
        ({"solver": "optimistic"}, "use solver 'sqp'"),
        ({"batch": 10}, "use solver 'sqp'"),
        ({"theta_radius": 2.0}, "use solver 'sqp'"),
        ({"limits": dorfl.federated.report_bounds.Limits(9.0, 9.0)}, "scale is unknown"),
        ({"privacy": dorfl.privacy.gaussian(1.0, 1e-5, clip=1.0, rounds=5)}, "∂F/∂σ"),
    ],
)
def test_what_it_cannot_be_used_with_says_so(given, words):
    method = given.pop("method", methods.erm())
    with pytest.raises(ValueError, match=words):
        dorfl.train(clients(), method, loss=AUTO, **given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"scale": "mad"},
        {"scale": 0.0},
        {"delta": -1.0, "scale": "auto"},
        {"scale": "auto", "least": -1.0},
    ],
)
def test_a_scale_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="huber"):
        losses.huber(**wrong)


def test_a_risk_needs_the_scale():
    X, y = clients()["a"]
    with pytest.raises(ValueError, match=r"scale=fit\.scale"):
        dorfl.risk(np.zeros(4), X, y, methods.erm(), loss=AUTO)
    assert replace(AUTO, delta=2.0).at(3.0).delta == 6.0
    assert training.Scale(AUTO.consistency).needs.every_client
