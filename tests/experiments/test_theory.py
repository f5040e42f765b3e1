"""The paper's statements: our primal solver against cvxpy, and the whole set as run."""

import subprocess
import sys
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest

from dorfl import datasets, methods, scores
from dorfl.federated.training import prepare, train
from experiments import theory as study
from experiments.suprema import rate, supremum

pytestmark = pytest.mark.portable


def by_cvxpy(gain, cost, reference, beta, *, rho=None, radius=None):
    plan = cp.Variable(cost.shape, nonneg=True)
    allowed = np.isfinite(cost)
    finite = np.where(allowed, cost, 0.0)
    left = cp.sum(plan, axis=0)
    distance = cp.sum(cp.multiply(finite, plan)) + beta * cp.sum(cp.rel_entr(left, reference))
    value = gain @ cp.sum(plan, axis=1)
    limits = [cp.sum(plan) == 1, cp.multiply(plan, ~allowed) == 0]
    if radius is not None:
        limits.append(distance <= radius)
    goal = value if rho is None else value - rho * distance
    return cp.Problem(cp.Maximize(goal), limits).solve(solver=cp.CLARABEL)


@pytest.mark.parametrize("seed", range(4))
def test_the_primal_programs_agree_with_cvxpy(seed):
    rng = np.random.default_rng(seed)
    gain, cost = rng.normal(size=9), rng.exponential(size=(9, 5))
    cost[rng.random((9, 5)) < 0.2] = np.inf
    cost[0] = 1.0
    reference, beta = rng.dirichlet(np.ones(5)), 0.8
    ours = supremum(gain, cost, reference, beta, rho=1.7)
    assert ours == pytest.approx(by_cvxpy(gain, cost, reference, beta, rho=1.7), abs=1e-6)
    ours = supremum(gain, cost, reference, beta, radius=1.2)
    assert ours == pytest.approx(by_cvxpy(gain, cost, reference, beta, radius=1.2), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_every_statement_holds_on_fresh_instances(seed):
    for name in study.PARTS:
        kept = study.cell(seed, name)
        findings = study.findings(kept)
        for statement in findings.statements:
            assert statement.holds, statement
        assert all(figure.series[0].label for figure in findings.figures)


def test_theorem_1_bounds_what_every_client_sends():
    """B₁ and B₂ really bound f and ‖∇_θ L‖ over the ball, on random θ."""
    data = datasets.synthetic(seed=3)
    for loss in ("logistic", "softmax", "huber"):
        group = prepare(data.clients, methods.paper(5, 1, scores.quadratic(0.1)), loss)
        constants = rate(group, 2.0)
        rng = np.random.default_rng(0)
        for _ in range(20):
            theta = rng.normal(size=group.problem.size)
            theta *= 2.0 * rng.random() / np.linalg.norm(theta)
            atoms = group.atoms(theta)
            assert atoms.value.max() <= constants.loss
            reach = np.sqrt((atoms.rows**2).sum(axis=1) + 1)
            assert (np.linalg.norm(atoms.slope, axis=1) * reach).max() <= constants.slope
    assert constants.bound(400) == pytest.approx(2 * constants.bound(1600))
    assert constants.bound(400, epsilon=0.1) > constants.bound(400)


def test_rate_says_what_it_needs():
    clients = datasets.synthetic(seed=3).clients
    with pytest.raises(ValueError, match="beta"):
        rate(prepare(clients, methods.gdrfl(5)), 1.0)
    with pytest.raises(ValueError, match="bounded slope"):
        rate(prepare(clients, methods.paper(5, 1), "squared"), 1.0)


@pytest.mark.slow
def test_the_command_draws_and_judges(tmp_path):
    out = subprocess.run(
        [sys.executable, "-m", "experiments", "theory", "--out", str(tmp_path / "t")],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert out.returncode == 0, out.stdout
    assert "statements fail" not in out.stdout
    names = {path.name for path in (tmp_path / "t").iterdir()}
    figures = {
        f"{n}.{kind}"
        for n in ("outliers", "certificate", "rate", "epsilon")
        for kind in ("png", "svg", "pdf")
    }
    assert names == figures | {"statements.csv"}


def test_a_statement_that_fails_is_seen():
    assert not study.Statement("x", "y", 2.0, 1.0).holds
    assert not study.Statement("x", "y", float("nan"), 1.0).holds


def test_inexact_training_lands_near_the_exact_one():
    data = datasets.synthetic(seed=3)
    method = methods.paper(20, 1)
    exact = train(data.clients, method)
    loose = train(data.clients, method, tolerance=1e-3, tol=1e-5)
    assert loose.objective == pytest.approx(exact.objective, rel=1e-3)
