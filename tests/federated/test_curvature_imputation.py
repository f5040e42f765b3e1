"""Clients that keep their curvature to themselves do not leave the others without."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dorfl
from dorfl import losses, methods
from dorfl.federated import pooled
from dorfl.federated.curvature_imputation import impute
from dorfl.federated.messages import Report
from dorfl.linear import curvature
from dorfl.linear.curvature import Shape
from dorfl.solvers.base import Task

SHAPE = Shape(2, 3)


def told(rng, resolution):
    """A convex risk's curvature at that resolution, packed, or nothing."""
    if resolution == "none":
        return None
    root = rng.normal(size=(SHAPE.size, SHAPE.size))
    return curvature.pack(root @ root.T, SHAPE.sizes(resolution))


@given(
    st.lists(st.sampled_from(curvature.RESOLUTIONS), min_size=1, max_size=7), st.integers(0, 2**16)
)
def test_who_tells_enough_has_its_own_and_the_mean_of_those_stands_for_the_others(found, seed):
    rng = np.random.default_rng(seed)
    given = [told(rng, resolution) for resolution in found]
    whole, stands = impute(SHAPE, given)
    ranks = sorted(curvature.RESOLUTIONS.index(one) for one in found if one != "none")
    if not ranks:
        assert whole is None and not stands
        return
    wanted = curvature.RESOLUTIONS[ranks[(len(ranks) - 1) // 2]]
    sizes, own = SHAPE.sizes(wanted), []
    for one, resolution, row in zip(given, found, whole, strict=True):
        if curvature.coarser(resolution, wanted) == wanted:
            expected = curvature.coarsen(one, SHAPE.sizes(resolution), sizes)
            assert np.array_equal(row, expected)
            own.append(expected)
    assert len(own) > 0.5 * len(ranks) - 1e-9  # most of those who tell any
    assert stands == (len(own) < len(found))
    for resolution, row in zip(found, whole, strict=True):
        if curvature.coarser(resolution, wanted) != wanted:
            np.testing.assert_allclose(row, np.mean(own, axis=0), rtol=1e-12)


def test_curvature_of_one_table_is_not_copied():
    table = np.ones((4, 3))
    whole, stands = impute(Shape(1, 2), list(table))
    assert whole is table and not stands


def make_clients(count=8, rows=150, columns=12):
    rng = np.random.default_rng(3)
    scale = 10.0 ** rng.uniform(-1.5, 1.5, columns)
    clients, theta = {}, rng.normal(size=columns) / scale
    for k in range(count):
        X = rng.normal(size=(rows, columns)) * scale
        clients[f"c{k}"] = (X, X @ theta + 0.5 * rng.standard_t(3, size=rows))
    return clients


def without(names):
    """What takes the curvature out of some clients' reports."""

    def tamper(_, report):
        return report._replace(curvature=None) if report.client in names else report

    return tamper


CASES = {
    "mixture fixed": (methods.erm(), lambda y: y > 0, {}),
    "mixture worst": (methods.afl(), lambda y: y > 0, {}),
    "huber": (methods.erm(), lambda y: y, {"loss": losses.huber(0.05)}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("silent", [("c0",), ("c1", "c4", "c5")])
def test_training_is_as_good_and_hardly_longer_where_some_tell_no_curvature(case, silent):
    method, of, extra = CASES[case]
    clients = {name: (X, of(y)) for name, (X, y) in make_clients().items()}
    everyone = dorfl.train(clients, method, l2=1e-3, **extra)
    some = dorfl.train(clients, method, l2=1e-3, tamper=without(silent), **extra)
    nobody = dorfl.train(clients, method, l2=1e-3, tamper=without(clients), **extra)
    assert everyone.status == some.status == "converged"
    assert some.objective == pytest.approx(everyone.objective, rel=1e-4)
    assert some.rounds <= everyone.rounds + 6
    assert some.rounds < nobody.rounds  # who went without


def test_of_a_sum_the_others_stand_for_who_tells_none():
    shape, task = Shape(1, 2), Task(np.zeros(2), np.ones(1), curvature="full")
    bend = np.array([2.0, 0.5, 1.0])
    tilt, total = pooled.SumSettings(), np.zeros(pooled.size(task, shape))
    for k in range(4):
        report = Report(f"c{k}", 1, 10, 1.0, np.ones(2), None if k == 2 else bend)
        total += pooled.terms(report, np.log(0.25), task, tilt, shape)
    seen = pooled.combine(total, task, tilt, shape, 1, "all", 40, 1.0, 4)
    np.testing.assert_allclose(seen.report.curvature, bend, rtol=1e-12)
    assert seen.imputed
    none = np.zeros_like(total)
    for k in range(2):
        none += pooled.terms(
            Report(f"c{k}", 1, 10, 1.0, np.ones(2), None), np.log(0.5), task, tilt, shape
        )
    assert pooled.combine(none, task, tilt, shape, 1, "all", 20, 1.0, 2).report.curvature is None
