"""A quarter of the sites lie, mostly without contradicting themselves: who is found out."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import dorfl
from dorfl import methods, mixture
from dorfl.federation import apart
from dorfl.oracle.curvature import Shape


def _load():
    path = Path(__file__).parents[2] / "benchmarks" / "liars.py"
    spec = importlib.util.spec_from_file_location("liars", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LIARS = _load()
GROSS = [  # what the defence is to stop; slopes are as long as it lets through
    "takeover by the largest risk that passes",
    "labels flipped",
    "labels by a rule turned by 90°",
    "IPM, ε = 0.5",
    "ALIE, z = 2",
    "against Krum",
    "a slope of 0.5 on the honest mean",
]


@pytest.mark.parametrize("sites", [4, 8])
@pytest.mark.parametrize("words", GROSS)
def test_liars_are_set_aside_and_hardly_hurt(words, sites):
    case = LIARS.case(200, sites)
    attack = LIARS.ATTACKS[words]
    fit = LIARS.train(case, attack, 0.25)
    left = {*fit.history[-1].clipped, *fit.history[-1].refused}
    assert fit.status == "converged"
    assert left == set(case.liars)
    assert LIARS.lost(case, attack, 0.25) < 2.0


@pytest.mark.slow
@pytest.mark.parametrize("sites", [4, 8])
@pytest.mark.parametrize("words", GROSS)
def test_over_twenty_seeds_a_lie_costs_less_than_a_point_and_never_two(words, sites):
    cases = [LIARS.case(100 + seed, sites) for seed in range(20)]
    points = [LIARS.lost(case, LIARS.ATTACKS[words], 0.25) for case in cases]
    assert np.mean(points) < 1.0
    assert np.max(points) < 2.0


def test_the_same_lies_do_harm_where_nobody_is_suspected():
    case = LIARS.case(200, 4)
    takeover = LIARS.ATTACKS["takeover by the largest risk that passes"]
    caught = LIARS.train(case, takeover, 0.0).history[-1].refused  # where trials show it up
    assert set(caught) == set(case.liars) or LIARS.lost(case, takeover, 0.0) > 30.0
    assert LIARS.lost(case, LIARS.ATTACKS["a slope of 0.5 on the honest mean"], 0.0) > 2.0


@pytest.mark.parametrize("sites", [4, 8])
def test_honest_sites_that_differ_are_taken_back(sites):
    case = LIARS.case(201, sites)
    plain, wary = LIARS.train(case), LIARS.train(case, liars=0.25)
    assert not wary.history[-1].clipped
    assert wary.theta == pytest.approx(plain.theta, abs=0.02)


def test_a_lie_about_curvature_hides_no_pull():
    rng = np.random.default_rng(0)
    vectors = 0.01 * rng.normal(size=(8, 3))
    vectors[5] = [1.0, 0.0, 0.0]
    bends = np.full((8, 3), 0.2)
    bends[5] = [1e6, 0.2, 0.2]  # as if a step along the pull were not worth while
    told = apart.pulls(vectors, bends, Shape(1, 3), np.full(8, 500), 2)
    assert apart.find(told, 2).who == (5,) and apart.find(told, 2).sure


def test_a_column_that_one_site_alone_has_is_no_pull():
    rng = np.random.default_rng(0)
    vectors, bends = 0.01 * rng.normal(size=(8, 3)), np.full((8, 3), 0.2)
    vectors[:, 2] = bends[:, 2] = 0.0
    vectors[5, 2], bends[5, 2] = 0.05, 0.01
    told = apart.pulls(vectors, bends, Shape(1, 3), np.full(8, 500), 2)
    assert not apart.find(told, 2).sure


def test_where_nobody_can_tell_it_says_so():
    clients = dorfl.datasets.synthetic(0).clients
    with pytest.raises(ValueError, match="last word"):
        dorfl.train(clients, methods.dorfl(mixture=mixture.agnostic()), liars=0.25)
    with pytest.raises(ValueError, match="without noise"):
        dorfl.train(clients, methods.erm(), liars=0.25, batch=10)
    with pytest.raises(ValueError, match=r"below 0\.5"):
        dorfl.train(clients, methods.erm(), liars=0.5)
