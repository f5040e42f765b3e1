"""The in-sample certificate: it holds, it is attained, and its suprema are exact."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from scipy.special import logsumexp

import dorfl
from cases import few
from dorfl import costs, losses, methods
from dorfl.certificates import bound as bounding
from dorfl.certificates.bound import Question, Units, _loss, error_terms, reduced, units_of
from dorfl.certificates.certificate import group_of
from dorfl.data.robust import ColumnScales
from dorfl.linear.group import Group
from dorfl.linear.problem import Problem

LOSSES = {"logistic": 2, "softmax": 3, "huber": 0, "squared": 0}


def clients_of(rng, classes, rows=40, dims=3, count=2):
    """Return a θ and the rows of clients, whatever they were trained with."""
    outputs = classes if classes > 2 else 1
    theta = rng.normal(scale=0.4, size=(outputs, dims + 1))
    X = [rng.normal(scale=1.0 + i, size=(rows, dims)) for i in range(count)]
    if classes:
        y = [rng.integers(classes, size=rows) for _ in X]
    else:
        y = [x @ theta[0, :-1] + rng.normal(size=rows) for x in X]
    return theta.ravel(), {f"c{i}": pair for i, pair in enumerate(zip(X, y, strict=True))}


def grouped(name, clients, centers=None, frozen=(), label_price=np.inf, classes=None):
    loss = losses.resolve(name)
    dims = next(iter(clients.values()))[0].shape[1]
    method = methods.method(cost=costs.squared(frozen=frozen, label_price=label_price))
    problem = Problem(method, loss, dims, np.arange(classes or LOSSES[name]))
    rows = np.concatenate([X for X, _ in clients.values()])
    target = [problem.encode(y) for _, y in clients.values()]
    bounds = np.cumsum([0, *(len(y) for y in target)])
    centers = np.zeros((len(clients), dims)) if centers is None else centers
    return Group(problem, tuple(clients), rows, np.concatenate(target), bounds, centers)


def terms_of(group, theta, units):
    return error_terms(group.problem, theta, group.rows, group.target, units)


# ── the suprema ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("frozen", [(), (1,), (0, 1, 2)])
@pytest.mark.parametrize("label_price", [np.inf, 0.05])
def test_few_columns_give_the_loss_of_all_columns(name, frozen, label_price):
    """f of the reduced clients is f of the clients, for every price."""
    if not LOSSES[name] and np.isfinite(label_price):
        return
    rng = np.random.default_rng(3)
    theta, clients = clients_of(rng, LOSSES[name])
    group = grouped(name, clients, rng.normal(size=(2, 3)), frozen, label_price)
    units = units_of(ColumnScales(np.array([1.0, 2.0, 0.5]), rigid=(2,)), frozen)
    plain, small = reduced(group, theta, units)
    for rho in (None, 20.0, 9.0):
        cost = costs.squared(units.moves.tolist(), label_price=label_price)
        problem = replace(group.problem, method=methods.method(rho=rho, cost=cost))
        whole = replace(group, problem=problem).atoms(theta)
        assert np.allclose(_loss(plain, small, rho), whole.value + whole.error, atol=1e-9)


@pytest.mark.parametrize("classes", [2, 3, 5, 0])
def test_the_error_at_its_worst_is_what_a_search_finds(classes):
    """0–1 loss, or absolute error, against every point of a fine grid of places for a row."""
    rng = np.random.default_rng(classes)
    name = {2: "logistic", 0: "huber"}.get(classes, "softmax")
    theta, clients = clients_of(rng, classes, rows=12, dims=2, count=1)
    group = grouped(name, clients, classes=classes)
    found = terms_of(group, theta, Units(np.ones(2), np.ones(2)))
    side = np.arange(-6.0, 6.0, 0.02)
    places = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    out = group.problem.predict(theta, places)
    for rho in (3.0, 5.0, 0.7):
        exact = found.at(rho)
        for j, (row, target) in enumerate(zip(group.rows, group.target, strict=True)):
            if not classes:
                gain = np.abs(out - target)
            elif classes == 2:
                gain = (target * out <= 0).astype(float)
            else:
                gain = (out.argmax(axis=1) != target).astype(float)
            best = (gain - 0.5 * rho * ((places - row) ** 2).sum(axis=1)).max()
            assert best <= exact[j] + 1e-9
            assert best >= exact[j] - 0.05


def test_the_price_of_a_label_counts():
    """Nearly free, every label is wrong; without a price none is."""
    rng = np.random.default_rng(0)
    theta, clients = clients_of(rng, 2)
    units, lam = Units(np.ones(3), np.ones(3)), np.full(2, 0.5)
    asked = bounding.question(0.1)
    found = {}
    for price in (1e-9, 0.05, 1e9, np.inf):
        group = grouped("logistic", clients, label_price=price)
        told = bounding.loss_bounds(group, theta, units, asked)
        found[price] = bounding.bound(told, lam, asked, 0.1, 0.1, of="error")
    assert found[1e-9] >= 1.0
    assert found[np.inf] < found[0.05] < 1.0
    assert found[1e9] == pytest.approx(found[np.inf])


# ── the bound against the worst case ────────────────────────────────────────────────────────────


def primal(gain, cost, drift, share, lam_rows):
    """Maximise E_P[gain] over P within the drift of any inliers: a linear program.

    Row j moves to place x with mass γ_jx; no row has more mass than 1/(1 − ε) of its own.
    """
    rows, places = cost.shape
    mass = cp.Variable((rows, places), nonneg=True)
    limits = [
        cp.sum(mass) == 1.0,
        cp.sum(mass, axis=1) <= lam_rows / (1.0 - share),
        cp.sum(cp.multiply(mass, cost)) <= 0.5 * drift**2,
    ]
    problem = cp.Problem(cp.Maximize(cp.sum(cp.multiply(mass, gain))), limits)
    return float(problem.solve(solver="HIGHS"))


@pytest.mark.parametrize("name", ["logistic", "softmax", "huber"])
@pytest.mark.parametrize("of", few(["loss", "error"]))
def test_an_independent_solver_finds_the_same(name, of):
    """The worst distribution, by a linear program over where rows may go, attains the bound."""
    rng = np.random.default_rng(7)
    theta, clients = clients_of(rng, LOSSES[name], rows=20, dims=1, count=1)
    group = grouped(name, clients)
    assert np.abs(group.rows).max() < bounding.fence(np.abs(group.rows))  # every row is in range
    units, lam = Units(np.ones(1), np.ones(1)), np.ones(1)
    places = np.sort(np.concatenate([group.rows[:, 0], np.linspace(-8, 8, 401)]))[:, None]
    out = group.problem.predict(theta, places)
    cost = 0.5 * (group.rows - places.T) ** 2
    asked = Question((None, *np.geomspace(0.05, 400, 400).tolist()), (0.0, 0.1))
    told = bounding.loss_bounds(group, theta, units, asked)
    coarse = bounding.question(0.1)
    quick = bounding.loss_bounds(group, theta, units, coarse)
    gain = np.empty_like(cost)
    for j, target in enumerate(group.target):
        same = np.full(len(places), target)
        if of == "loss":
            gain[j] = group.problem.loss.value(out, same)
        elif name == "huber":
            gain[j] = np.abs(out - target)
        elif name == "logistic":
            gain[j] = target * out <= 1e-2  # as a supremum: the boundary itself is reached
        else:
            second = np.partition(np.delete(out, int(target), axis=1), -1, axis=1)[:, -1]
            gain[j] = out[:, int(target)] - second <= 1e-2
    for drift in (0.05, 0.2, 0.5):
        worst = primal(gain, cost, drift, 0.1, np.full(20, 1 / 20))
        found = bounding.bound(told, lam, asked, 0.1, drift, of=of)
        assert found == pytest.approx(worst, rel=0.03)
        assert found >= worst - (0.0 if of == "loss" else 0.02)
        usual = bounding.bound(quick, lam, coarse, 0.1, drift, of=of)
        assert worst - (0.0 if of == "loss" else 0.02) <= usual <= 1.15 * worst


def attacked(group, theta, good, drift, of):
    """Return inliers after the worst drift: all moved at one price ρ, or errors bought."""
    rows, target = group.rows[good], group.target[good]
    weights, _ = group.problem.split(theta)
    budget = 0.5 * drift**2
    if of == "error":  # the rows nearest the boundary first, as many as the budget pays for
        margin = target * group.problem.predict(theta, rows)
        price = np.where(margin > 0, 0.5 * margin**2 / (weights[0] @ weights[0]), 0.0) / len(rows)
        order = np.argsort(price)
        bought = order[np.cumsum(price[order]) <= budget]
        moved = rows.copy()
        moved[bought] -= 1.0001 * (
            (target * np.maximum(margin, 0.0))[bought, None]
            * weights[0]
            / (weights[0] @ weights[0])
        )
        return moved
    low, high, moved = 1e-4, 1e9, rows
    own = replace(group, rows=rows, target=target, bounds=np.array([0, len(rows)]))
    for _ in range(60):  # rows may leap at a price: the last that was within the budget counts
        rho = (low * high) ** 0.5
        at = replace(own, problem=replace(own.problem, method=methods.method(rho=rho)))
        atoms = at.atoms(theta)
        within = at.moved(atoms).mean() <= budget
        low, high = (low, rho) if within else (rho, high)
        moved = atoms.rows if within else moved
    return moved


@pytest.mark.parametrize("kind", few(["negate", "cluster", "scale", "flip"], 2))
def test_the_bound_holds_on_hundreds_of_problems(kind):
    """Known inliers, outliers of four kinds, drift at its worst: the bound is never exceeded."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        rows, dims = int(rng.integers(20, 80)), int(rng.integers(1, 6))
        theta = rng.normal(size=dims + 1) * 10 ** rng.uniform(-1, 0.7)
        X = rng.normal(size=(rows, dims))
        y = (X @ theta[:-1] + theta[-1] + rng.logistic(size=rows) > 0).astype(int)
        good = np.ones(rows, dtype=bool)
        good[: int(0.1 * rows)] = False
        if kind == "flip":
            y[~good] = 1 - y[~good]
        elif kind == "cluster":
            X[~good], y[~good] = 5.0 - 10.0 * theta[:-1] / np.linalg.norm(theta[:-1]), 1
        else:
            X[~good] *= -8.0 if kind == "negate" else 8.0
        group = grouped("logistic", {"a": (X, y)})
        units, lam = Units(np.ones(dims), np.ones(dims)), np.ones(1)
        away = np.linalg.norm(X, axis=1)
        good &= away <= bounding.fence(away)  # nothing is stated about rows out of range
        share = 1.0 - good.mean() + 1e-9
        asked = bounding.question(share, thin=2)
        told = bounding.loss_bounds(group, theta, units, asked)
        for drift in (0.0, 0.05, 0.3):
            for of in ("loss", "error"):
                moved = attacked(group, theta, good, drift, of) if drift else X[good]
                out, target = group.problem.predict(theta, moved), group.target[good]
                value = losses.logistic.value(out, target) if of == "loss" else target * out <= 0
                assert 0.5 * ((moved - X[good]) ** 2).sum(axis=1).mean() <= 0.5 * drift**2 * 1.001
                found = bounding.bound(told, lam, asked, share, drift * 1.001, of=of)
                assert float(value.mean()) <= found + 1e-9


def test_the_way_through_the_paper_is_looser():
    """The mean of the largest 1 − ε is at most Lemma 1's τ log(E exp(f/τ) / (1 − ε))."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        f = rng.gamma(rng.uniform(0.2, 3.0), size=60)
        for share in (0.1, 0.3):
            largest = bounding._largest(f, [round(60 * (1 - share))])[0]
            for tau in np.geomspace(0.1, 50, 20):
                assert largest <= tau * (logsumexp(f / tau) - np.log(60 * (1 - share))) + 1e-12


def test_rows_out_of_range_count_as_outliers_first():
    """Rows at 8 standard deviations are left out; at a larger share others are as well."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(100, 2))
    X[:10] *= 20.0 / np.linalg.norm(X[:10], axis=1)[:, None]
    theta = np.array([1.0, 0.0, 0.0])
    y = (X[:, 0] > 0).astype(int)
    y[:10] = 1 - y[:10]  # misclassified
    y[10:15] = 1 - y[10:15]
    group = grouped("logistic", {"a": (X, y)})
    asked = bounding.question(0.1)
    told = bounding.loss_bounds(group, theta, Units(np.ones(2), np.ones(2)), asked)
    errors = dict(zip(asked.shares, told[0].error[0].tolist(), strict=True))
    assert errors[0.0] == errors[0.05] == errors[0.1] == pytest.approx(5 / 90)
    assert errors[0.2] == pytest.approx(5 / 80)


# ── as users meet it ────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def data():
    return dorfl.datasets.synthetic(seed=0)


@pytest.mark.parametrize("method", [methods.paper(), methods.erm(), methods.gdrfl(5)])
def test_any_model_is_certified_in_sample(data, method):
    fit = dorfl.train(data.clients, method)
    found = dorfl.certify(fit, data.clients, outliers=0.1, drift=0.1, confidence=None)
    assert found.error == pytest.approx(1.0 - found.accuracy)
    assert 0.0 < found.loss < found.every.loss + 1e-12
    assert found.every.accuracy <= min(at.accuracy for at in found.clients.values()) + 1e-12
    for lam in np.random.default_rng(0).dirichlet(np.ones(3), size=5):
        assert found.at(who=lam).loss <= found.every.loss + 1e-12
    for name, rows in data.clients.items():
        clean = ~data.outliers[name]
        true = fit.score(rows[0][clean], rows[1][clean])
        assert found.clients[name].accuracy <= true + 1e-12
    assert found.words.startswith("In sample: ") and "not a statement" in found.assumption
    with pytest.raises(ValueError, match="not evaluated"):
        found.at(0.123)


@pytest.mark.parametrize("confidence", [None, 0.95])
def test_words_do_not_depend_on_the_unit_of_a_column(data, confidence):
    fit = dorfl.train(data.clients, methods.erm())
    scale = np.array([10.0, 0.1, 1.0, 3.0, 1.0])
    other = replace(fit, theta=fit.theta / np.append(scale, 1.0))
    clients = {name: (X * scale, y) for name, (X, y) in data.clients.items()}
    here = dorfl.certify(fit, data.clients, confidence=confidence)
    there = dorfl.certify(other, clients, confidence=confidence)
    assert there.loss == pytest.approx(here.loss)
    assert there.accuracy == pytest.approx(here.accuracy)


def test_frozen_columns_do_not_move(data):
    fit = dorfl.train(data.clients, methods.erm())
    free = dorfl.certify(fit, data.clients, drift=0.3, confidence=None)
    some = dorfl.certify(fit, data.clients, drift=0.3, frozen=[0, 1], confidence=None)
    assert some.loss < free.loss
    for confidence in (None, 0.95):
        none = dorfl.certify(
            fit, data.test, 0.0, 0.3, frozen=range(5), confidence=confidence, reference=data.clients
        )
        assert none.accuracy == pytest.approx(none.at(drift=0.0).accuracy, abs=0.01)


def test_blocks_of_rows_only_loosen_it(data):
    fit = dorfl.train(data.clients, methods.paper())
    group = group_of(fit, data.clients)
    units = Units(np.ones(5), np.ones(5))
    asked = bounding.question(0.1, thin=3)
    one, blocks = (bounding.loss_bounds(group, fit.theta, units, asked, least) for least in (1, 7))
    for mine, theirs in zip(one, blocks, strict=True):
        assert all((b >= a - 1e-12).all() for a, b in zip(mine, theirs, strict=True))


def test_what_is_not_a_share_or_a_drift_is_refused(data):
    fit = dorfl.train(data.clients, methods.erm())
    with pytest.raises(ValueError, match="outliers"):
        dorfl.certify(fit, data.clients, outliers=0.5)
    with pytest.raises(ValueError, match="drift"):
        dorfl.certify(fit, data.clients, drift=-1.0)
    with pytest.raises(ValueError, match="confidence"):
        dorfl.certify(fit, data.clients, confidence=1.0)
    with pytest.raises(ValueError, match="columns"):
        dorfl.certify(fit, [(np.ones((9, 2)), np.ones(9))])


def test_regressions_get_a_loss_and_an_error():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = X @ [1.0, 2.0, 0.0] + 0.3 * rng.normal(size=300)
    for loss in ("huber", "squared"):
        fit = dorfl.train([(X, y)], methods.erm(), loss=loss)
        found = dorfl.certify(fit, [(X, y)], 0.05, 0.1, confidence=None)
        assert found.accuracy is None
        out = fit.problem.predict(fit.theta, X)
        assert np.abs(out - y).mean() <= found.error < 1.0
        assert fit.problem.loss.value(out, y).mean() <= found.loss < 1.0
        assert "mean absolute error" in found.words
