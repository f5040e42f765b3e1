"""The softmax supremum where it is hard: many classes, several maxima, rows nearly separated."""

import threading

import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from threadpoolctl import threadpool_info

import dorfl
from cases import centred_top, make
from dorfl.federated.training import prepare
from dorfl.linear import kernels
from dorfl.support.threads import one_blas_thread


class Outputs:
    """Random outputs a (classes, rows) and labels, with an S of a given centred top eigenvalue."""

    def __init__(self, seed, classes, spread, *, scale=1.0, dims=None, rows=kernels.BLOCK):
        rng = np.random.default_rng(seed)
        self.weights = rng.normal(size=(classes, dims or classes))
        self.weights *= np.sqrt(spread / centred_top(self.weights @ self.weights.T))
        self.S = self.weights @ self.weights.T
        self.rows = rng.normal(size=(rows, self.weights.shape[1]))
        self.bias = scale * rng.normal(size=classes)
        self.rows *= scale / np.abs(self.rows @ self.weights.T).std()
        self.a = (self.rows @ self.weights.T + self.bias).T
        self.label = rng.integers(classes, size=rows)
        self.own = np.eye(classes)[self.label].T

    def solve(self):
        """f and g by dorfl, at ρ = 1."""
        theta = np.column_stack([self.weights, self.bias]).ravel()
        method, classes = dorfl.methods.wafl(1.0), np.arange(len(self.S))
        clients = {"c": (self.rows, self.label)}
        atoms = prepare(clients, method, "softmax", classes=classes).atoms(theta)
        return atoms.value, atoms.slope.T

    def height(self, g):
        """log Σ exp(t) − t_y − ½ gᵀSg at t = a + S g."""
        t = self.a + self.S @ g
        return logsumexp(t, axis=0) - (t * self.own).sum(0) - 0.5 * (g * (self.S @ g)).sum(0)

    def climb(self, vertex, steps=3000):
        """Where the fixed-point iteration alone gets from one vertex: slow, and never downhill."""
        g = np.eye(len(self.S))[vertex][:, None] - self.own
        for _ in range(steps):
            before, g = g, softmax(self.a + self.S @ g, axis=0) - self.own
            if np.abs(g - before).max() < 1e-12:
                break
        return g


@pytest.mark.parametrize("classes", [2, 5, 20, 50])
@pytest.mark.parametrize("dims", [3, 60])
@pytest.mark.parametrize(("spread", "scale"), [(0.01, 1), (0.5, 3), (1.5, 1), (1.9, 0.1), (1, 100)])
def test_where_it_is_concave_the_slope_solves_the_equation(classes, dims, spread, scale):
    case = Outputs(classes, classes, spread, scale=scale, dims=dims)
    value, g = case.solve()
    residual = softmax(case.a + case.S @ g, axis=0) - case.own - g
    assert np.abs(residual).max() < 1e-11
    np.testing.assert_allclose(value, case.height(g), atol=1e-12, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [12, 25])
def test_many_classes_are_those_of_brute_force(classes):
    case = make(classes, "softmax", "none", spread=1.6, classes=classes, dims=6, rows=4)
    found = case.group().atoms(case.parameters.ravel()).value
    np.testing.assert_allclose(found, case.brute_f(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("classes", [3, 9, 20])
@pytest.mark.parametrize("dims", [2, 30])
@pytest.mark.parametrize("spread", [2.5, 8.0, 40.0])
@pytest.mark.parametrize("scale", [0.3, 5.0])
def test_screening_never_loses_against_a_climb_from_every_vertex(classes, dims, spread, scale):
    case = Outputs(classes + dims, classes, spread, scale=scale, dims=dims)
    value, g = case.solve()
    np.testing.assert_allclose(value, case.height(g), atol=1e-11, rtol=1e-11)
    best = np.max([case.height(case.climb(c)) for c in range(classes)], axis=0)
    assert (value >= best - 1e-9 * (1 + np.abs(best))).all()


@pytest.mark.parametrize("seed", range(20))
def test_no_maximum_exceeds_the_bounds(seed):
    rng = np.random.default_rng(seed)
    classes, spread = int(rng.integers(2, 15)), 10.0 ** rng.uniform(-0.5, 1.5)
    case = Outputs(seed, classes, spread, scale=10.0 ** rng.uniform(-1, 1))
    norms = np.diag(case.S)
    chords = 0.5 * (norms[:, None] + norms) - case.S
    apart = np.where(np.eye(classes) > 0, 0.0, np.exp(-chords / 3))
    w, reach = np.empty((2, classes, kernels.BLOCK))
    top, total = np.empty((2, kernels.BLOCK))
    label = case.label.astype(float)
    kernels._softmax_bounds(case.a, label, chords, apart, w, reach, top, total)
    for c in range(classes):
        g = case.climb(c)
        height, near = case.height(g), (g + case.own) >= 1 / 3
        assert (height <= top + np.log(total) + 1e-12).all()
        assert (np.exp(height - top) <= np.where(near, reach, np.inf) * (1 + 1e-9)).all()


def test_rows_nearly_separated_move_as_far_as_they_should():
    """A row whose loss is 1e-12 has nothing to gain, one on the wrong side everything."""
    case = Outputs(0, 30, 1.0, scale=40.0, rows=500)
    value, g = case.solve()
    best = np.abs(g).max(axis=0)
    assert (best < 1e-9).any()
    assert (best > 0.999).any()
    np.testing.assert_allclose(value, case.height(case.climb(0)), rtol=1e-10, atol=1e-12)


# ── BLAS ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_client_alone_gets_the_bits_of_the_group_where_blas_would_use_threads(dtype):
    rng = np.random.default_rng(0)
    data = {
        f"c{n}": (rng.normal(size=(n, 900)).astype(dtype), rng.integers(10, size=n))
        for n in (64, 701, 1, 130)
    }
    method = dorfl.methods.paper(rho=5.0, score=dorfl.scores.quadratic(0.5, np.full(900, 0.1)))
    together = prepare(data, method, "softmax")
    theta = rng.normal(size=together.problem.size) / 30
    risks = together.evaluate(theta)
    for i, (name, pair) in enumerate(data.items()):
        alone = prepare({name: pair}, method, "softmax", classes=np.arange(10)).evaluate(theta)
        assert alone.values[0] == risks.values[i]
        np.testing.assert_array_equal(alone.gradients[0], risks.gradients[i])


def test_blas_has_its_threads_back_when_the_last_one_leaves():
    def threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    before, inside, leave = threads(), threading.Event(), threading.Event()

    def other():
        with one_blas_thread():
            inside.set()
            leave.wait(10)

    helper = threading.Thread(target=other)
    with one_blas_thread():
        helper.start()
        inside.wait(10)
        assert set(threads()) == {1}
    assert set(threads()) == {1}
    leave.set()
    helper.join()
    assert threads() == before
