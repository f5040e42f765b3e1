"""The compiled pass: its elementary functions, and rows of every length and number."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

import dorfl
from dorfl.federated.training import prepare
from dorfl.linear import simd
from dorfl.linear.kernels import (
    _NARROW,
    SIMD_DIGEST,
    _exp,
    _logistic_block,
    _logistic_point,
    _twice_artanh,
)
from dorfl.linear.simd import AT_ONCE

pytestmark = pytest.mark.portable


def test_a_change_of_simd_is_a_change_of_the_kernels():
    """Numba's cache sees changes of kernels.py alone: a stale one would hold old instructions."""
    digest = hashlib.sha256(Path(simd.__file__).read_bytes()).hexdigest()[:16]
    assert digest == SIMD_DIGEST, f'set SIMD_DIGEST = "{digest}" in dorfl/linear/kernels.py'


@pytest.mark.parametrize(("like", "accuracy"), [(0.0, 4e-16), (np.float32(0.0), 1e-10)])
def test_polynomials_are_as_exact_as_they_say(like, accuracy):
    x = np.concatenate([-np.geomspace(1e-300, 700.0, 3000), np.linspace(-3.0, 0.0, 3000)])
    found = np.array([_exp(each, like) for each in x])
    np.testing.assert_allclose(found, np.exp(x), rtol=accuracy)
    e = np.concatenate([np.geomspace(1e-300, 1.0, 3000), np.linspace(1e-3, 1.0, 3000)])
    found = np.array([_twice_artanh(each / (2.0 + each), like) for each in e])
    np.testing.assert_allclose(found, np.log1p(e), rtol=2.0 * accuracy)


@pytest.mark.parametrize("like", [0.0, np.float32(0.0)])
def test_a_row_at_the_top_weighs_exactly_one(like):
    """Σ (w − 1) is then zero where all rows are alike, however large ρβ is."""
    assert _exp(0.0, like) == 1.0


@pytest.mark.parametrize(
    "spread", [0.0, 1e-9, 0.05, _NARROW, np.nextafter(_NARROW, 1.0), 3.9, 50.0]
)
@pytest.mark.parametrize(("like", "accuracy"), [(0.0, 1e-14), (np.float32(0.0), 1e-9)])
def test_rows_of_a_block_are_as_exact_as_one_alone(spread, like, accuracy):
    """Where the spread is narrow, float32 rows take one look: the next number above takes more."""
    rng = np.random.default_rng(0)
    ends = [0.5 * spread, -40.0, 40.0, 0.0]
    output = np.concatenate([ends, rng.normal(scale=4.0, size=AT_ONCE - len(ends))])
    label = np.where(rng.random(AT_ONCE) < 0.5, 1.0, -1.0)
    value, slope = np.empty((2, AT_ONCE))
    _logistic_block(output, label, AT_ONCE, spread, like, value, slope)
    alone = np.array([_logistic_point(y * a, spread) for a, y in zip(output, label, strict=True)])
    np.testing.assert_allclose(value, alone[:, 0], rtol=accuracy, atol=accuracy)
    np.testing.assert_allclose(slope, -label * alone[:, 1], rtol=accuracy, atol=accuracy)


@pytest.mark.parametrize("dims", [1, 2, 5, 8, 15, 16, 17, 47, 64, 65, 108, 129, 1030])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_every_length_and_number(dims, dtype):
    """Lanes overlap, end with a row or beyond it, and with the table: sums are those of NumPy."""
    counts = (1, 7, 8, 9, 63, 64, 65, 130, 3)
    rng = np.random.default_rng(dims)
    table = rng.standard_normal((sum(counts), dims)).astype(dtype)
    y = np.where(rng.random(len(table)) < 0.5, 1, -1)
    y[0], y[-1] = 1, -1
    edges = np.cumsum(counts)[:-1]
    parts = list(zip(np.split(table, edges), np.split(y, edges), strict=True))
    theta = rng.standard_normal(dims) / np.sqrt(dims)
    found = prepare(parts, dorfl.methods.erm(), intercept=False).evaluate(theta)
    close = {"rtol": 2e-5, "atol": 2e-6} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-13}
    for (X, label), value, gradient in zip(parts, found.values, found.gradients, strict=True):
        margin = label * (X.astype(np.float64) @ theta)
        slope = -label / (1.0 + np.exp(margin))
        np.testing.assert_allclose(value, np.logaddexp(0.0, -margin).mean(), **close)
        np.testing.assert_allclose(gradient, slope @ X.astype(np.float64) / len(X), **close)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_client_answers_the_same_bits_whoever_else_there_is(dtype):
    """Rows are climbed together: those of the next client must not decide how many steps it takes.

    That shows in few draws, where a last row is as far from its label as can be.
    """
    rng = np.random.default_rng(7)
    for _ in range(60):
        dims, sizes = int(rng.integers(1, 40)), rng.integers(2, 120, size=3)
        clients = {
            f"c{k}": (rng.normal(size=(n, dims)).astype(dtype), np.arange(n) % 2)
            for k, n in enumerate(sizes)
        }
        method = dorfl.methods.wafl(float(10.0 ** rng.uniform(-1.0, 1.5)))
        group = prepare(clients, method)
        theta = rng.normal(size=group.problem.size) * rng.choice([0.3, 2.0]) / np.sqrt(dims)
        together = group.evaluate(theta)
        for k, (name, rows) in enumerate(clients.items()):
            alone = prepare({name: rows}, method).evaluate(theta)
            assert alone.values[0] == together.values[k]
            assert np.array_equal(alone.gradients[0], together.gradients[k])
