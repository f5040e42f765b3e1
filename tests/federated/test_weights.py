"""Sample and class weights are parts of P̂; sparse rows give what dense ones do."""

import numpy as np
import pytest
from scipy import sparse

import dorfl
from dorfl import costs, methods, mixture, privacy, scores
from dorfl.federated.training import prepare

METHODS = {
    "erm": methods.erm(),
    "wafl": methods.wafl(rho=5.0),
    "dorfl": methods.paper(rho=20.0, beta=0.5, cost=costs.squared(frozen=[2])),
    "by client": methods.method(
        rho=5.0, beta=1.0, score=scores.quadratic(0.5, center="client"), mixture=mixture.agnostic()
    ),
}


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    out = {}
    for name, n in (("a", 60), ("b", 90)):
        X = rng.normal(size=(n, 3)) * (rng.random((n, 3)) < 0.7)
        X[:, 2] = rng.random(n) < 0.5
        out[name] = (X, np.digitize(X[:, 0] + rng.normal(size=n), [-0.5, 0.7]))
    return out


def two(rows):
    return {name: (X, y > 0) for name, (X, y) in rows.items()}


def whole(rows, seed=1):
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, 4, size=len(y)) for name, (_, y) in rows.items()}


@pytest.mark.parametrize("loss", ["logistic", "softmax", "huber"])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_whole_weights_are_repeated_rows_and_zero_is_none(rows, method, loss):
    given = two(rows) if loss == "logistic" else rows
    weights = whole(given)
    again = {
        n: (np.repeat(X, weights[n], 0), np.repeat(y, weights[n])) for n, (X, y) in given.items()
    }
    options = {"loss": loss, "l2": 0.01, "tol": 1e-9}
    one = dorfl.train(given, method, sample_weight=weights, **options)
    other = dorfl.train(again, method, **options)
    np.testing.assert_allclose(one.theta, other.theta, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one.lam, other.lam, atol=1e-4)
    assert one.objective == pytest.approx(other.objective, rel=1e-9)
    for name, p in one.sample_weights.items():
        assert len(p) == len(given[name][1]) and p.sum() == pytest.approx(1.0)
        assert (p[weights[name] == 0] == 0).all()
        copies = np.repeat(p / np.maximum(weights[name], 1), weights[name])
        np.testing.assert_allclose(copies, other.sample_weights[name], rtol=1e-4)


@pytest.mark.parametrize("curvature", ["none", "diagonal", "full"])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_gradients_and_curvature_are_derivatives(rows, method, curvature):
    rng = np.random.default_rng(2)
    mass = {name: rng.exponential(size=len(y)) + 0.01 for name, (_, y) in rows.items()}
    for given, loss in ((two(rows), "logistic"), (rows, "softmax")):
        group = prepare(given, method, loss, mass=mass)
        theta = 0.3 * rng.normal(size=group.problem.size)
        found = group.evaluate(theta, curvature, rows=True)
        step = 1e-5 * np.eye(theta.size)
        slopes = [
            (group.evaluate(theta + e).values - group.evaluate(theta - e).values) / 2e-5
            for e in step
        ]
        np.testing.assert_allclose(found.gradients, np.transpose(slopes), atol=1e-8)
        assert [p.sum() for p in found.weights] == pytest.approx([1.0, 1.0])
        if curvature == "diagonal":
            bends = [
                group.evaluate(theta + e).gradients[:, k]
                - group.evaluate(theta - e).gradients[:, k]
                for k, e in enumerate(step)
            ]
            np.testing.assert_allclose(found.curvature, np.transpose(bends) / 2e-5, atol=1e-6)


def test_the_tilt_multiplies_the_weights(rows):
    X, y = two(rows)["a"]
    w = np.random.default_rng(3).exponential(size=len(y))
    theta, method = np.array([1.0, -0.5, 0.2, 0.1]), METHODS["dorfl"]
    score = scores.quadratic(0.5, center=[0.0, 0.0, 0.0])
    method = methods.method(rho=20.0, beta=0.5, score=score)
    plain = dorfl.risk(theta, X, y, method)
    found = dorfl.risk(theta, X, y, method, sample_weight=w)
    product = w * plain.sample_weights
    np.testing.assert_allclose(found.sample_weights, product / product.sum(), rtol=1e-9)
    same = dorfl.risk(theta, X, y, method, sample_weight=np.full(len(y), 7.0))
    assert same.value == pytest.approx(plain.value, rel=1e-12)


def test_class_weights_multiply_sample_weights(rows):
    given = two(rows)
    by_row = {name: np.where(y, 3.0, 1.0) for name, (_, y) in given.items()}
    options = {"l2": 0.01, "tol": 1e-9}
    one = dorfl.train(given, METHODS["dorfl"], class_weight={True: 3.0}, **options)
    other = dorfl.train(given, METHODS["dorfl"], sample_weight=by_row, **options)
    np.testing.assert_allclose(one.theta, other.theta, rtol=1e-7)
    even = dorfl.train(given, methods.erm(), class_weight="balanced", **options)
    ill = [p[given[name][1]].sum() for name, p in even.sample_weights.items()]
    assert even.lam @ ill == pytest.approx(0.5)


def test_weights_that_make_no_sense_are_refused(rows):
    given = two(rows)
    for weights, why in [
        ({"a": np.ones(60)}, "none for client 'b'"),
        ([np.ones(60)], "1 lists of weights for 2"),
        ([np.ones(60), np.ones(89)], "90 rows"),
        ([np.ones(60), np.full(90, np.nan)], "finite"),
        ([np.ones(60), -np.ones(90)], "not negative"),
        ([np.ones(60), np.zeros(90)], "client 'b': all its weights are zero"),
    ]:
        with pytest.raises(ValueError, match=why):
            dorfl.train(given, methods.erm(), sample_weight=weights)
    with pytest.raises(ValueError, match="no class 'maybe'"):
        dorfl.train(given, methods.erm(), class_weight={"maybe": 2.0})
    with pytest.raises(ValueError, match="balanced"):
        dorfl.train(given, methods.erm(), class_weight="even")
    noise = privacy.gaussian(1.0, 1e-5, clip=1.0, rounds=3)
    with pytest.raises(ValueError, match="privacy"):
        dorfl.train(given, methods.erm(), class_weight="balanced", privacy=noise)


@pytest.mark.parametrize("loss", ["logistic", "softmax", "huber"])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("weigh", [False, True])
def test_sparse_rows_give_what_dense_ones_do(rows, method, loss, weigh):
    given = two(rows) if loss == "logistic" else rows
    thin = {name: (sparse.csr_matrix(X), y) for name, (X, y) in given.items()}
    options = {
        "loss": loss,
        "l2": 0.01,
        "tol": 1e-9,
        "sample_weight": whole(rows) if weigh else None,
    }
    one, other = dorfl.train(thin, method, **options), dorfl.train(given, method, **options)
    np.testing.assert_allclose(one.theta, other.theta, rtol=1e-5, atol=1e-6)
    assert one.rounds <= other.rounds + 1
    X, _ = given["a"]
    np.testing.assert_allclose(one.predict(sparse.coo_array(X)), one.predict(X))
    theta = other.theta
    for curvature in ("diagonal", "full"):
        looks = [
            prepare(r, method, loss).evaluate(theta.ravel(), curvature, rows=True)
            for r in (thin, given)
        ]
        np.testing.assert_allclose(looks[0].values, looks[1].values, rtol=1e-12)
        np.testing.assert_allclose(looks[0].gradients, looks[1].gradients, atol=1e-12)
        np.testing.assert_allclose(looks[0].curvature, looks[1].curvature, atol=1e-10)


@pytest.mark.slow
def test_a_wide_sparse_table_is_never_made_dense(monkeypatch):
    rng = np.random.default_rng(0)
    n, d = 20_000, 5_000
    X = sparse.random_array((n, d), density=1e-3, format="csr", rng=rng)
    y = X @ rng.normal(size=d) + 0.1 * rng.normal(size=n) > 0
    largest = []
    plain = sparse.csr_array.toarray

    def watched(self, *given, **options):
        largest.append(self.shape[0] * self.shape[1])
        return plain(self, *given, **options)

    monkeypatch.setattr(sparse.csr_array, "toarray", watched)
    fit = dorfl.train([(X, y)], methods.wafl(rho=1e3), l2=1e-4, tol=1e-3)
    assert fit.status == "converged" and fit.score(X, y) > 0.6
    assert max(largest, default=0) <= 16_000_000 < n * d


def test_what_sparse_rows_cannot_have_is_said(rows):
    thin = {name: (sparse.csr_array(X), y) for name, (X, y) in two(rows).items()}
    step = scores.threshold(1.0, column=0, level=1.0, softness=0.1, label=True)
    with pytest.raises(ValueError, match="toarray"):
        dorfl.train(thin, methods.method(rho=5.0, beta=1.0, score=step))
    fit = dorfl.train(thin, methods.wafl(rho=5.0), l2=0.01)
    with pytest.raises(ValueError, match="toarray"):
        dorfl.certificate.paper(fit, thin)
    bad = sparse.csr_array(np.array([[np.nan, 1.0]]))
    with pytest.raises(ValueError, match="NaN"):
        dorfl.train([(bad, [1])], methods.erm())
