"""The robust risk, its gradient and its sample weights."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax

import dorfl
import reference
from cases import ASCENT, PAIRS, SCORES, cases, make, slowly
from dorfl.federated.training import prepare
from dorfl.support import threads as threading

pytestmark = pytest.mark.portable


def is_smooth(case) -> bool:
    """Whether no row is about to jump between two maximisers, where there is no gradient."""
    step = 1e-6 * np.sign(np.random.default_rng(0).normal(size=case.parameters.shape))
    one, two = (case.risk(case.parameters + sign * step).gradient for sign in (1, -1))
    return bool(np.abs(one - two).max() < 1e-3)


@pytest.mark.parametrize(("loss", "score"), PAIRS)
def test_value_gradient_and_weights_are_those_of_brute_force(loss, score):
    @slowly(15)
    @given(cases(loss, score, rows=st.just(3), tilted=st.booleans()))
    def check(case):
        found = case.risk()
        value, gradient, weights = case.brute()
        assert found.value == pytest.approx(value, rel=1e-9, abs=1e-9)
        np.testing.assert_allclose(found.sample_weights, weights, rtol=1e-8, atol=1e-9)
        assume(is_smooth(case))
        scale = 1 + np.abs(gradient).max()
        np.testing.assert_allclose(found.gradient, gradient, rtol=1e-9, atol=1e-9 * scale)

    check()


@pytest.mark.parametrize(("loss", "score"), [pair for pair in PAIRS if pair not in ASCENT])
def test_gradient_is_that_of_the_value(loss, score):
    @slowly(15)
    @given(cases(loss, score, rows=st.just(10)))
    def check(case):
        assume(is_smooth(case))
        numerical = reference.numerical_gradient(
            lambda p: case.risk(p).value, case.parameters, 1e-4
        )
        scale = 1 + np.abs(numerical).max()
        if loss == "huber":  # whose second derivative jumps
            np.testing.assert_allclose(case.risk().gradient, numerical, atol=1e-3 * scale)
        else:
            np.testing.assert_allclose(case.risk().gradient, numerical, atol=1e-5 * scale)

    check()


@pytest.mark.parametrize("loss", SCORES)
def test_weights_are_softmax_of_f_and_sum_to_one(loss):
    case = make(5, loss, "full", spread=0.5, rows=1000)
    weights = case.risk().sample_weights
    f = case.group().atoms(case.parameters.ravel()).value
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(weights, softmax(f / (case.rho * case.beta)), rtol=1e-10)


def test_labels_of_any_two_values_and_no_intercept():
    case = make(2, "logistic", "quadratic", spread=2.0, rows=20)
    names = np.where(case.y > 0, "yes", "no")
    found = dorfl.risk(case.parameters, case.X, names, case.method, classes=["no", "yes"])
    assert found.value == case.risk().value
    without = dorfl.risk(case.theta, case.X, case.y, case.method, classes=[-1, 1])
    zero = case.risk(np.append(case.theta, 0.0))
    assert without.value == pytest.approx(zero.value, rel=1e-14)
    np.testing.assert_allclose(without.gradient, zero.gradient[:-1], rtol=1e-12)


# ── the log domain ──────────────────────────────────────────────────────────────────────────────


def far_rows(tau, spread_out, dtype):
    """Rows with |f|/ρβ up to 1e6: most of it the quadratic score's."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3))
    rho, rho2 = 2.0, 0.5
    distance = np.sqrt(1e6 * tau / (rho2 * rho / (rho + 2 * rho2)))  # penalty = 1e6 τ
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    X *= (
        distance
        * (np.linspace(0, 1, 50) ** 4 if spread_out else np.linspace(0.99999, 1, 50))[:, None]
    )
    y = rng.choice([-1, 1], 50)
    score = dorfl.scores.quadratic(rho2, np.zeros(3))
    method = dorfl.methods.method(rho=rho, temperature=tau, score=score)
    return X.astype(dtype), y, method, reference.Quadratic(rho2, np.zeros(3), np.ones(3))


@pytest.mark.parametrize("spread_out", [True, False])
@pytest.mark.parametrize("tau", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_far_rows_overflow_nothing(spread_out, tau, dtype):
    X, y, method, score = far_rows(tau, spread_out, dtype)
    theta = np.array([0.3, -0.2, 0.1, 0.05])
    found = dorfl.risk(theta, X, y, method)
    value, gradient, weights = reference.risk(
        theta[:3], theta[3], X, y, "logistic", 2.0, tau / 2.0, score=score
    )
    # an output of size |θᵀx| carries its rounding into f, and f/τ into the logarithm of p
    eps = 8 * np.finfo(dtype).eps * np.abs(X @ theta[:3]).max() + 1e-15 * np.abs(value)
    shift = eps / tau + 1e-9
    assert found.value == pytest.approx(value, abs=eps + 1e-9, rel=1e-9)
    np.testing.assert_allclose(found.sample_weights, weights, rtol=np.expm1(2 * shift), atol=1e-300)
    scale = np.abs(X).max() * (shift + np.finfo(dtype).eps)
    np.testing.assert_allclose(found.gradient, gradient, atol=4 * scale + 1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_losses_overflow_nothing(dtype):
    X = np.array([[1e3], [-1e3], [999.0], [0.0]], dtype)
    y, tau = np.array([-1, -1, -1, 1]), 1e-3
    found = dorfl.risk([1.0], X, y, dorfl.methods.method(temperature=tau))
    f = np.logaddexp(0, -y * X[:, 0].astype(float))  # f/τ up to 1e6
    assert found.value == pytest.approx(tau * (logsumexp(f / tau) - np.log(4)), rel=1e-12)
    np.testing.assert_allclose(found.sample_weights, softmax(f / tau), atol=1e-12)
    np.testing.assert_allclose(found.gradient, [1e3], rtol=1e-6)


@pytest.mark.parametrize("temperature", [1e3, 1e6, 1e9, 1e12, 1e15, 1e20])
def test_a_weak_tilt_tends_to_the_mean(temperature):
    """T log mean exp(f/T) = mean f + var f / 2T + …: the logarithm must not eat the mean."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 3)), rng.choice([-1, 1], 200)
    theta = np.array([1.0, -1.0, 0.5])
    f = np.logaddexp(0, -y * (X @ theta))
    found = dorfl.risk(theta, X, y, dorfl.methods.method(temperature=temperature))
    expected = f.mean() + 0.5 * f.var() / temperature
    assert found.value == pytest.approx(expected, abs=1e-9 + 1 / temperature**2)


@pytest.mark.parametrize(("loss", "score"), [pair for pair in PAIRS if pair not in ASCENT])
def test_float32_rows_give_the_same_to_their_accuracy(loss, score):
    case = make(11, loss, score, spread=0.5, rows=300, frozen=score == "threshold")
    options = {"loss": case.chosen_loss, "classes": case.classes}
    X = case.X.astype(np.float32)
    short = dorfl.risk(case.parameters, X, case.y, case.method, **options)
    full = dorfl.risk(case.parameters, X.astype(float), case.y, case.method, **options)
    assert short.value == pytest.approx(full.value, rel=2e-6, abs=2e-6)
    np.testing.assert_allclose(short.gradient, full.gradient, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(short.sample_weights, full.sample_weights, rtol=1e-4)


# ── the same to the bit ─────────────────────────────────────────────────────────────────────────


def clients(loss, rows, dims, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    out = {}
    for i, n in enumerate(rows):
        X = rng.normal(size=(n, dims)).astype(dtype)
        y = rng.integers(3, size=n) if loss == "softmax" else rng.choice([-1, 1], n)
        out[f"c{i}"] = (X, y)
    return out


def method_for_bits(dims):
    return dorfl.methods.paper(rho=2.0, score=dorfl.scores.quadratic(0.5, np.full(dims, 0.1)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss", ["logistic", "softmax", "squared"])
def test_the_number_of_threads_changes_no_bit(monkeypatch, loss, dtype):
    data = clients(loss, (13_000, 100, 9_000), 10, dtype)
    group = prepare(data, method_for_bits(10), loss)
    assert group.rows.size > 200_000
    theta = np.random.default_rng(1).normal(size=group.problem.size) * 0.3
    answers = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(threading, "THREADS", threads)
        monkeypatch.setattr(threading, "_pool", None)
        answers.append((*group.evaluate(theta)[:2], group.atoms(theta).value))
        if threading._pool is not None:
            threading._pool.shutdown()
    for other in answers[1:]:
        for a, b in zip(answers[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("loss", ["logistic", "softmax", "huber"])
def test_a_client_alone_gets_the_bits_of_the_stacked_group(loss):
    data = clients(loss, (70, 5000, 1, 129), 4)
    classes = {"logistic": [-1, 1], "softmax": [0, 1, 2]}.get(loss)
    together = prepare(data, method_for_bits(4), loss, classes=classes)
    theta = np.random.default_rng(1).normal(size=together.problem.size)
    risks = together.evaluate(theta)
    for i, (name, pair) in enumerate(data.items()):
        alone = prepare({name: pair}, method_for_bits(4), loss, classes=classes).evaluate(theta)
        assert alone.values[0] == risks.values[i]
        np.testing.assert_array_equal(alone.gradients[0], risks.gradients[i])
        chosen = together.select([i]).evaluate(theta)
        np.testing.assert_array_equal(chosen.gradients[0], risks.gradients[i])


@pytest.mark.parametrize("rows", [63, 64, 65, 4096, 4097, 10_001])
@pytest.mark.parametrize("temperature", [0.05, np.inf])
def test_blocks_and_chunks_lose_no_row(rows, temperature):
    (X, y) = clients("logistic", (rows,), 3)["c0"]
    theta = np.array([1.0, -2.0, 0.5])
    found = dorfl.risk(theta, X, y, dorfl.methods.method(temperature=temperature))
    margin = y * (X @ theta)
    f = np.logaddexp(0, -margin)
    p = softmax(f / temperature)
    tilted = np.isfinite(temperature)
    value = temperature * (logsumexp(f / temperature) - np.log(rows)) if tilted else f.mean()
    gradient = X.T @ (-p * y / (1 + np.exp(margin)))
    assert found.value == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(found.gradient, gradient, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(found.sample_weights, p, rtol=1e-10)
