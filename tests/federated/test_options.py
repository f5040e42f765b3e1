"""One record of options: what it refuses, what it answers to a wrong name, who shares it."""

import inspect
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest

import dorfl
from dorfl import Options, methods
from dorfl.federated.options import about
from dorfl.protocol.settings import Training


@pytest.fixture(scope="module")
def clients():
    return dorfl.datasets.synthetic(seed=0).clients


def test_options_by_name_and_as_a_record_are_the_same(clients):
    one = dorfl.train(clients, methods.afl(), l2=0.1, tol=1e-4)
    two = dorfl.train(clients, methods.afl(), Options(l2=0.1, tol=1e-4))
    three = dorfl.train(clients, methods.afl(), Options(l2=9.0, tol=1e-4), l2=0.1)
    assert np.array_equal(one.theta, two.theta) and np.array_equal(one.theta, three.theta)


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ({"max_round": 3}, "did you mean 'max_rounds'"),
        ({"epsilon": 0.1}, "did you mean 'tolerance'"),
        ({"xyz": 1}, "there are loss, solver, tol"),
    ],
)
def test_a_name_that_is_no_option_is_answered_with_one_that_is(clients, given, answer):
    with pytest.raises(TypeError, match=f"no option '{next(iter(given))}'.*{answer}"):
        dorfl.train(clients, methods.erm(), **given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tol": 0}, {"tol": np.nan}, {"max_rounds": 0}, {"l2": -1}, {"l2": np.inf}, {"batch": 0},
        {"theta_radius": 0}, {"participation": 0}, {"participation": 2}, {"tolerance": -1},
        {"trim": 0.6}, {"curvature": "some"}, {"bytes_per_round": -1},
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Options(**wrong)


def test_options_do_not_change_under_anybody():
    with pytest.raises(FrozenInstanceError):
        Options().tol = 1.0


def test_every_option_says_what_it_is_and_a_study_says_the_same():
    for one in fields(Options):
        assert f"    {one.name} : " in Options.__doc__ and about(one.name)[1:] in Options.__doc__
    shared = {one.name for one in fields(Options)} & set(Training._fields)
    assert shared == set(Training._fields) - {"delta", "model"}  # Options are for a given one
    defaults = {name: getattr(Training(), name) for name in shared}
    differs = {n for n, v in defaults.items() if v != getattr(Options(), n)}
    assert differs == {"tol", "l2"}


def test_every_option_is_a_documented_parameter_of_train():
    parameters = inspect.signature(dorfl.train).parameters
    for one in fields(Options):
        assert parameters[one.name].default is None
        assert f"\n    {one.name} : " in dorfl.train.__doc__
