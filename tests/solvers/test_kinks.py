"""Where rows have two worst places: risks with kinks, checked by a solver that knows only tangents.

The reference is a level method on cutting planes with the ridge kept exact: its lower bound holds
for every convex objective, and it shares nothing with `sqp` but the clients' values and gradients.
"""

import warnings

import clarabel
import numpy as np
import pytest
from scipy import sparse

import dorfl
from dorfl import costs, methods, scores
from dorfl.federated.training import prepare
from dorfl.linear.curvature import Shape
from dorfl.objective.mixture import agnostic
from dorfl.solvers import sqp
from dorfl.solvers.base import Pieces, Setting

TOL = 1e-6


def program(quadratic, linear, left, right):
    """Min ½ Σ q z² + lᵀz where left z ≤ right: z and a lower bound."""
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    parts = (sparse.csc_matrix(np.diag(quadratic)), linear, sparse.csc_matrix(left), right)
    found = clarabel.DefaultSolver(
        *parts, [clarabel.NonnegativeConeT(len(right))], settings
    ).solve()
    solved = str(found.status) in ("Solved", "AlmostSolved")
    return np.array(found.x), found.obj_val_dual if solved else -np.inf, solved


def lower_bound(clients, method, loss, l2, tol=1e-7):
    """What no θ can be below, of max_i F_i + l2/2 ‖θ‖², to a relative `tol`, in a wide box."""
    group = prepare(clients, method, loss)
    penalty, size = l2 * group.problem.penalised, group.problem.size
    shares = np.array([len(y) for _, y in clients.values()], dtype=float)
    z, low, best, center = np.zeros(size), -np.inf, np.inf, np.zeros(size)
    slopes, levels = np.empty((0, size)), np.empty(0)
    for _ in range(4000):
        told = group.evaluate(z)
        values, gradients = told.values, told.gradients
        if not method.mixture.adversarial:
            assert np.isinf(method.temperature)
            share = shares / shares.sum()
            values, gradients = np.array([share @ values]), (share @ gradients)[None]
        height = float(values.max() + 0.5 * penalty @ z**2)
        if height < best:
            best, center = height, z
        slopes, levels = np.vstack([slopes, gradients]), np.append(levels, values - gradients @ z)
        unit, box = abs(best), np.hstack([np.eye(size), np.zeros((size, 1))])
        left = np.vstack([np.hstack([slopes / unit, -np.ones((len(levels), 1))]), box, -box])
        right = np.concatenate([-levels / unit, np.full(2 * size, 1e3)])
        _, bound, _ = program(
            np.append(penalty / unit, 0.0), np.append(np.zeros(size), 1.0), left, right
        )
        low = max(low, bound * unit)
        if best - low <= tol * unit:
            return low
        middle = (0.5 * (low + best) - levels + 0.5 * penalty @ center**2) / unit
        z, _, solved = program(np.ones(size), -center, (slopes + penalty * center) / unit, middle)
        assert solved
    raise AssertionError(f"between {low} and {best}")


def table(seed, rows, columns, count, classes):
    rng = np.random.default_rng(seed)
    X, theta = rng.normal(size=(rows, columns)), rng.normal(size=(columns, classes))
    who = rng.integers(0, count, size=rows)
    who[:count] = np.arange(count)
    return rng, X, 3 * X @ theta / np.sqrt(columns), who


def separable(seed, rows, columns, count, classes):
    """A few rows with labels that a model can meet: each row ends at a kink of its own."""
    _, X, logits, who = table(seed, rows, columns, count, classes)
    y = logits.argmax(axis=1)
    y[:classes] = np.arange(classes)
    return {f"c{i}": (X[who == i], y[who == i]) for i in range(count)}


def numbers(seed, rows, columns, count):
    """Numbers with heavy tails, and clients that differ."""
    rng, X, logits, who = table(seed, rows, columns, count, 1)
    y = logits[:, 0] + 0.3 * rng.standard_t(3, size=rows) + 0.2 * who
    return {f"c{i}": (X[who == i], y[who == i]) for i in range(count)}


def check(clients, method, loss, l2, rounds):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        fit = dorfl.train(clients, method, loss=loss, l2=l2, tol=TOL)
    low = lower_bound(clients, method, loss, l2)
    gap = (fit.objective - low) / abs(fit.objective)
    told = f"{fit.status} after {fit.rounds} rounds, gap {gap:.1e}, told {fit.relative_gap:.1e}"
    assert fit.status == "converged", told
    assert fit.rounds <= rounds, told
    assert gap <= TOL, told
    assert fit.gap_kind == "bound" and fit.objective - fit.gap <= low + 2e-7 * abs(low), told
    return fit


@pytest.mark.parametrize(("seed", "rows"), [(4, 7), (12, 12)])
def test_rows_at_kinks_of_their_own_converge(seed, rows):
    """Softmax with rows that are cheap to move: 100 and 40 rounds with tangents alone."""
    clients = separable(seed, rows, 3, 2, 3)
    check(clients, methods.wafl(3.0), "softmax", 0.01, rounds=90)


@pytest.mark.parametrize(
    ("seed", "rows", "columns", "delta", "method"),
    [(2, 122, 6, 0.3, methods.gdrfl(1.0)), (6, 72, 5, 0.05, methods.wafl(1.0))],
    ids=["gdrfl", "wafl"],
)
def test_a_slow_decrease_is_not_taken_for_the_end(seed, rows, columns, delta, method):
    """Huber's curvature covers the loss, so promises are small: up to 2.4e-6 were left once."""
    clients = numbers(seed, rows, columns, 3)
    check(clients, method, dorfl.losses.huber(delta), 0.01, rounds=160)


def test_a_tilt_at_a_kink_converges():
    """Six rows, nine columns: with tangents alone 200 rounds left a gap of 8e-4."""
    rng = np.random.default_rng(65)
    X = rng.normal(size=(6, 9))
    y = (X @ rng.normal(size=9) > 0).astype(int)
    y[:2] = (0, 1)
    clients = {"a": (X[::2], y[::2]), "b": (X[1::2], y[1::2])}
    score = scores.quadratic(0.1, "auto", np.ones(9) / 9)
    method = methods.paper(4.0, 2.8, score, cost=costs.squared(np.ones(9)))
    check(clients, method, "logistic", 1e-5, rounds=160)


# ── the parts ───────────────────────────────────────────────────────────────────────────────────


def test_the_number_of_tangents_is_bounded_and_those_with_a_weight_stay():
    rng = np.random.default_rng(0)
    room = Setting(agnostic(), np.inf, np.full(3, 0.1), shape=Shape(1, 3), resolution="full")
    state = sqp.Sqp().init(room, np.zeros(3), np.full(20, 0.05))
    state = state._replace(best=Pieces(np.zeros(20), np.zeros((20, 3)), None))
    for k in range(50):
        seen = Pieces(rng.normal(size=20), rng.normal(size=(20, 3)), None)
        cuts = sqp._with_tangents(state, rng.normal(size=3), seen)
        if k == 0:
            first = cuts
        weights = np.zeros(len(cuts.values))
        weights[:5] = 0.2
        state = state._replace(cuts=cuts._replace(weights=weights))
    assert len(cuts.values) == sqp.CUTS
    np.testing.assert_array_equal(cuts.values[:5], first.values[:5])
