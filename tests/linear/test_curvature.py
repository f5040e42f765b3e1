"""Curvature as a message: exact, packed, coarsened, within a budget, and what training does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dorfl
from cases import slowly
from dorfl import costs, methods, scores
from dorfl.federated.options import Options
from dorfl.federated.training import prepare, serve
from dorfl.linear import curvature as packing
from dorfl.linear import hessian, kernels
from dorfl.linear.curvature import BUDGET, RESOLUTIONS, Shape
from dorfl.support import wire

METHODS = {
    "erm": methods.erm(),
    "gdrfl": methods.gdrfl(2.0),
    "dorfl": methods.paper(5.0, 0.7, scores.quadratic(0.3)),
    "frozen": methods.gdrfl(2.0, cost=costs.squared(frozen=[1])),
    "tilt": methods.method(temperature=2.0),
    "matrix": methods.paper(
        5.0, 0.7, scores.quadratic(0.3, matrix=np.diag([1.0, 2.0, 0.5, 1.0]) + 0.1)
    ),
}


def problem(method, loss, seed=0, intercept=True):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(120, 4))
    if loss == "softmax":
        y = (X @ rng.normal(size=(4, 3)) + rng.gumbel(size=(120, 3))).argmax(1)
    elif loss == "logistic":
        y = (X @ rng.normal(size=4) + rng.logistic(size=120) > 0).astype(int)
    else:
        y = X @ rng.normal(size=4) + rng.normal(size=120)
    clients = [(X[:50], y[:50]), (1.4 * X[50:] + 0.2, y[50:])]
    group = prepare(clients, method, loss, intercept=intercept)
    return group, 0.4 * rng.normal(size=group.problem.size)


def shape_of(group):
    return Shape(group.problem.outputs, group.problem.dims + group.problem.intercept)


def differences(group, theta, step=1e-5):
    """∇²F_i by central differences of ∇F_i (clients, P, P)."""
    return np.array(
        [
            (
                group.evaluate(theta + step * e).gradients
                - group.evaluate(theta - step * e).gradients
            )
            / (2 * step)
            for e in np.eye(len(theta))
        ]
    ).transpose(1, 0, 2)


@pytest.mark.portable
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("loss", ["logistic", "softmax", "squared"])
@pytest.mark.parametrize("intercept", [True, False])
def test_curvature_is_the_derivative_of_the_gradient(name, loss, intercept):
    rho = 8.0 if loss == "squared" else METHODS[name].rho  # where the supremum is finite
    method = METHODS[name] if np.isinf(METHODS[name].rho) else METHODS[name].priced(rho)
    group, theta = problem(method, loss, intercept=intercept)
    shape, wanted = shape_of(group), differences(group, theta)
    if loss == "softmax":  # the same added to all classes changes nothing; there it is bent upwards
        flat = np.kron(np.eye(3) - 1 / 3, np.eye(shape.width))
    else:
        flat = np.eye(shape.size)
    for resolution in RESOLUTIONS[1:]:
        sizes = shape.sizes(resolution)
        for packed, exact in zip(hessian.curvature(group, theta, resolution), wanted, strict=True):
            made = packing.multiply(packed, sizes, np.eye(shape.size))
            if resolution == "full":
                np.testing.assert_allclose(
                    flat @ made @ flat, exact, atol=2e-6 * np.abs(exact).max()
                )
                assert np.linalg.eigvalsh(made)[0] > 0
            else:
                there = made != 0
                np.testing.assert_allclose(
                    made[there], exact[there], atol=2e-6 * np.abs(exact).max()
                )
            assert packing.is_plausible(packed, sizes)


def test_of_very_many_outputs_that_are_coupled_each_is_told_apart():
    y = np.arange(130) % 65
    X = np.eye(65)[y][:, :3]
    for method, finest in ((methods.erm(), "full"), (methods.gdrfl(9.0), "blocks")):
        problem = prepare([(X, y)], method, "softmax").problem
        made = serve(problem, ("a",), np.array([130]), problem.start, Options())
        assert made.solving.setting.resolution == problem.finest == finest


@pytest.mark.parametrize("resolution", ["diagonal", "blocks", "full"])
def test_of_many_outputs_few_rows_are_looked_at_at_once(resolution, monkeypatch):
    """A row has a matrix of its outputs: of 300 classes, 4096 rows of them would be 3 GB."""
    group, theta = problem(METHODS["gdrfl"], "softmax")
    wanted, heavy = hessian.curvature(group, theta, resolution), hessian.heaviest(group, theta)
    shapes, bend = [], group.problem.loss.hessian
    seen = lambda self, *of: shapes.append(len(of[0])) or bend(*of)  # noqa: E731
    monkeypatch.setattr(type(group.problem.loss), "hessian", seen)
    monkeypatch.setattr(hessian, "_NUMBERS", 7 * 9)  # three classes, seven rows
    np.testing.assert_allclose(hessian.curvature(group, theta, resolution), wanted, rtol=1e-12)
    np.testing.assert_allclose(hessian.heaviest(group, theta), heavy, rtol=1e-12)
    assert max(shapes) == 7


@pytest.mark.parametrize("score", [None, scores.quadratic(0.3)])
def test_few_moving_columns_of_many_classes_are_summed_to_the_same(score, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 6))
    y = (X @ rng.normal(size=(6, 9)) + rng.gumbel(size=(200, 9))).argmax(1)
    y[:9] = np.arange(9)
    method = methods.paper(5.0, 0.7, score, cost=costs.squared(frozen=[0, 2, 5]))
    group = prepare([(X, y)], method, "softmax")
    theta = rng.normal(size=group.problem.size)
    found = hessian.curvature(group, theta, "full")
    monkeypatch.setattr(hessian, "_RANK", -1.0)  # the spread counts as of full rank
    monkeypatch.setattr(hessian, "_moving_columns", lambda pull: np.arange(pull.shape[1]))
    wanted = hessian.curvature(group, theta, "full")
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("rows", [32, 4096])  # at once
def test_many_columns_are_multiplied_by_blas_to_the_same(name, rows, monkeypatch):
    group, theta = problem(METHODS[name], "logistic")
    wanted = hessian.curvature(group, theta, "full")
    monkeypatch.setattr(hessian, "_SMALL", 0)  # columns from which they are many
    monkeypatch.setattr(hessian, "_PIECE", rows)
    np.testing.assert_allclose(
        hessian.curvature(group, theta, "full"), wanted, atol=1e-6 * np.abs(wanted).max()
    )


@pytest.mark.parametrize("name", METHODS)
def test_curvature_where_every_row_weighs_the_same(name):
    group, theta = problem(METHODS[name], "softmax")
    near = hessian.curvature(group, 1e-9 * theta, "full")
    np.testing.assert_allclose(hessian.curvature(group, 0.0 * theta, "full"), near, atol=1e-7)


@pytest.mark.parametrize("filled", [0.05, 1.0])  # one-hot rows are summed in a way of their own
def test_gram_matrices_of_every_pair_of_outputs(filled):
    rng = np.random.default_rng(0)
    place = rng.normal(size=(300, 40)) * (rng.uniform(size=(300, 40)) < filled)
    weight, total = rng.normal(size=(300, 3)), np.zeros((820, 3))
    kernels.gram(place, weight, total)
    upper, lower = np.tril_indices(40)
    np.testing.assert_allclose(total, (place[:, upper] * place[:, lower]).T @ weight, atol=1e-10)
    whole = np.empty(80 * 81 // 2)
    kernels.unfold(np.ascontiguousarray(total.T), 40, whole)
    blocks = np.zeros((3, 40, 40))
    blocks[:, upper, lower] = blocks[:, lower, upper] = total.T
    wanted = np.block([[blocks[0], blocks[1]], [blocks[1], blocks[2]]])
    np.testing.assert_array_equal(whole, packing.pack(wanted, (80,)))


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple), seed=st.integers(0, 999)
)
def test_packed_blocks_multiply_solve_and_coarsen(sizes, seed):
    rng = np.random.default_rng(seed)
    size = sum(sizes)
    root = rng.normal(size=(size, size))
    whole = root @ root.T + 0.1 * np.eye(size)
    packed, mask, first = packing.pack(whole, sizes), np.zeros((size, size)), 0
    for n in sizes:
        mask[first : first + n, first : first + n] = 1.0
        first += n
    vectors = rng.normal(size=(3, size))
    np.testing.assert_allclose(packing.multiply(packed, sizes, vectors), vectors @ (whole * mask))
    assert packing.count(sizes) == len(packed)
    np.testing.assert_array_equal(packing.diagonal(packed, sizes), np.diag(whole))
    base = packing.base(packed, sizes, np.zeros(size))
    np.testing.assert_allclose(base.solve(base.multiply(vectors)), vectors, rtol=1e-6, atol=1e-8)
    full = packing.pack(whole, (size,))
    np.testing.assert_array_equal(packing.coarsen(full, (size,), sizes), packed)
    weights = rng.uniform(size=3)
    np.testing.assert_allclose(
        packing.outer(vectors, weights, sizes),
        packing.pack((weights[:, None] * vectors).T @ vectors, sizes),
    )


def test_a_matrix_no_risk_can_have_is_not_plausible():
    sizes = (2,)
    assert packing.is_plausible(np.array([1.0, 0.9, 1.0]), sizes)
    assert not packing.is_plausible(np.array([1.0, 1.1, 1.0]), sizes)
    assert not packing.is_plausible(np.array([-1.0, 0.0, 1.0]), sizes)


def test_the_finest_resolution_that_a_budget_admits():
    shape = Shape(3, 100)
    assert [shape.numbers(r) for r in RESOLUTIONS] == [0, 300, 15_150, 45_150]
    assert shape.finest(1e9) == "full"
    assert shape.finest(2e5) == "blocks"
    assert shape.finest(1e4) == "diagonal"
    assert shape.finest(100) == "none"
    assert shape.finest(1e9, wish="blocks") == "blocks"
    assert shape.finest(1e9, clients=10_000) == "diagonal"  # a server has to keep them all
    with pytest.raises(ValueError, match="choose one of none, diagonal, blocks, full"):
        shape.finest(1e9, wish="most")


@given(classes=st.integers(2, 6), size=st.floats(0.01, 30.0), seed=st.integers(0, 99))
@slowly(40)
def test_a_row_s_curvature_grows_with_how_far_it_moves(classes, size, seed):
    """E = D (I − S D)⁻¹, and D itself where the row is no maximum, or no solution is to be had."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(classes, 0.5), 20)
    bend = p[:, :, None] * np.eye(classes) - p[:, :, None] * p[:, None, :]
    root = rng.standard_normal((classes, classes))
    spread = size * root @ root.T / classes
    found = kernels.stretch(bend, spread)
    for own, made in zip(bend, found, strict=True):
        exact = own @ np.linalg.inv(np.eye(classes) - spread @ own)
        grown = np.trace(exact) / np.trace(own)
        if min(abs(grown - 0.99), abs(grown - 10.0)) < 1e-6:
            continue
        expected = exact if 0.99 < grown < 10.0 else own
        assert np.abs(made - expected).max() <= 1e-9 * np.abs(expected).max()


def test_a_row_without_a_maximum_keeps_its_own_curvature():
    own = np.array([[[0.25, -0.25], [-0.25, 0.25]], [[0.0, 0.0], [0.0, 0.0]]])
    assert (kernels.stretch(own, 2.0 * np.eye(2)) == own).all()  # I − S D is singular


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("name", ["erm", "gdrfl", "dorfl"])
def test_training_ends_at_the_same_optimum_whatever_is_sent(loss, name):
    group, _ = problem(METHODS[name], loss)
    clients = [
        (group.rows[a:b], group.target[a:b])
        for a, b in zip(group.bounds, group.bounds[1:], strict=False)
    ]
    fits = {
        wish: dorfl.train(clients, METHODS[name], loss=loss, l2=1e-3, curvature=wish)
        for wish in RESOLUTIONS
    }
    best = min(fit.objective for fit in fits.values())
    for fit in fits.values():
        assert fit.status == "converged"
        assert fit.objective - best <= 1e-6 * abs(best)
    assert fits["full"].rounds <= fits["none"].rounds
    sent = {wish: fit.history[0].bytes_up for wish, fit in fits.items()}
    assert sent["none"] < sent["diagonal"] < sent["full"]
    assert sent["diagonal"] == 2 * (16 + 16 * group.problem.size)
    assert fits["full"].bytes_up == sum(line.bytes_up for line in fits["full"].history)
    assert fits["full"].bytes_down > 0


def test_a_budget_of_bytes_is_kept():
    group, _ = problem(METHODS["dorfl"], "softmax")
    clients = [(group.rows[:50], group.target[:50]), (group.rows[50:], group.target[50:])]
    for budget in (200.0, 1000.0, 1e6):
        fit = dorfl.train(
            clients, METHODS["dorfl"], loss="softmax", l2=1e-3, bytes_per_round=budget
        )
        curvature = [line.bytes_up / 2 - 16 - 8 * 15 for line in fit.history]
        assert max(curvature) <= budget
        assert fit.status == "converged"


def test_a_few_rows_of_thousands_of_columns_are_trained_with_the_whole_curvature():
    """60 rows of 3,000 columns: 14 rounds; with the diagonal alone 200 were too few."""
    assert Shape(1, 3001).finest(BUDGET, clients=3) == "full"
    assert BUDGET <= wire.LIMIT // 2  # or no message holds it


@pytest.mark.parametrize("solver", ["sqp", "optimistic", "paper"])
def test_training_goes_on_where_nobody_tells_curvature(solver):
    data = dorfl.datasets.synthetic(seed=0)
    rounds = 20 if solver == "paper" else None
    fit = dorfl.train(
        data.clients,
        methods.gdrfl(20.0),
        solver=solver,
        max_rounds=rounds,
        tamper=lambda _, report: report._replace(curvature=None),
    )
    if solver == "paper":
        assert np.isnan(fit.gap)
    else:
        best = dorfl.train(data.clients, methods.gdrfl(20.0)).objective
        assert fit.status == "converged"
        assert fit.objective - best <= 1e-5 * abs(best)
