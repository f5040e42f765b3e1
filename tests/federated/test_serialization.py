"""A fit that is saved and loaded: the same to the last bit, and nothing damaged is let in."""

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import dorfl
from dorfl import costs, losses, methods, mixture, scores
from dorfl.federated.serialization import ModelError
from dorfl.linear.base import Terms
from dorfl.objective.base import Loss


def saved(tmp_path, *given, **options):
    data = dorfl.datasets.synthetic(seed=0)
    fit = dorfl.train(data.clients, *given, **options)
    return fit, dorfl.load(fit.save(tmp_path / "fit.json")), data


@pytest.mark.parametrize(
    "method",
    [
        methods.erm(),
        methods.paper(cost=costs.squared(frozen=[1])),
        methods.method(
            rho=20.0, beta=1.0, score=scores.quadratic(0.5, center="client"),
            mixture=mixture.capped(0.6),
        ),
        methods.method(radius=0.3, beta=1.0),
    ],
)  # fmt: skip
def test_what_is_loaded_is_what_was_saved(tmp_path, method):
    fit, again, data = saved(tmp_path, method, l2=0.01, tol=1e-4)
    X, y = data.test["client-1"]
    for name in ("theta", "lam", "risks", "centers"):
        np.testing.assert_array_equal(getattr(again, name), getattr(fit, name))
    for name in ("clients", "objective", "gap", "rounds", "status", "message", "rho", "l2"):
        assert getattr(again, name) == getattr(fit, name)
    assert again.radius == fit.radius and repr(again) == repr(fit)
    np.testing.assert_array_equal(again.predict_proba(X), fit.predict_proba(X))
    np.testing.assert_array_equal(again.predict(X), fit.predict(X))
    assert [line.gap for line in again.history] == [line.gap for line in fit.history]
    risks = [dorfl.risk(one.theta, X, y, one.problem.method).value for one in (fit, again)]
    assert risks[0] == risks[1]


@pytest.mark.parametrize(
    "names", [["no", "yes"], [3, 7], [0.5, 1.5], [False, True], ["a", "b", "c"]]
)
def test_labels_come_back_as_they_were(tmp_path, names):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = np.array(names)[np.digitize(X[:, 0], np.linspace(-0.5, 0.5, len(names) - 1))]
    loss = "softmax" if len(names) > 2 else "logistic"
    fit = dorfl.train([(X, y)], methods.erm(), loss=loss, l2=0.1)
    again = dorfl.load(fit.save(tmp_path / "fit.json"))
    assert again.predict(X).tolist() == fit.predict(X).tolist()
    assert again.problem.classes.dtype.kind == fit.problem.classes.dtype.kind


def test_a_regression_comes_back(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    fit = dorfl.train([(X, X @ [1.0, 2.0])], methods.erm(), loss=losses.huber(0.7), l2=0.1)
    again = dorfl.load(fit.save(tmp_path / "fit.json"))
    assert again.problem.loss == fit.problem.loss
    np.testing.assert_array_equal(again.predict(X), fit.predict(X))


def test_what_is_damaged_is_refused(tmp_path):
    saved(tmp_path, methods.paper())
    path = tmp_path / "fit.json"
    whole = json.loads(path.read_text())
    for name, wrong in [
        ("version", 9), ("theta", [[1.0]]), ("labels", [0]), ("labels", [1, 0]),
        ("labels", [0, "a"]), ("labels", [[0], [1]]), ("labels", {"a": 1}),
        ("lambda", [0.9, 0.9, 0.9]),
        ("clients", ["a", "a", "b"]), ("dims", 2**60), ("dims", -1), ("rounds", "many"),
        ("history", [{}]), ("history", 3), ("loss", {"name": "os.system"}), ("method", None),
        ("centers", []), ("gap", "x"),
    ]:  # fmt: skip
        path.write_text(json.dumps({**whole, name: wrong}))
        with pytest.raises(ModelError, match=r"fit\.json: "):
            dorfl.load(path)
    path.write_text(json.dumps(whole).replace(str(whole["objective"]), "NaN"))
    with pytest.raises(ModelError, match="no JSON"):
        dorfl.load(path)
    path.write_bytes(b"\x80\x04\x95pickle")
    with pytest.raises(ModelError, match="no JSON"):
        dorfl.load(path)
    with pytest.raises(ModelError, match="holds no"):
        dorfl.load(tmp_path / "nothing")


@pytest.mark.parametrize("dims", [10**7, 2**53 - 1])
def test_a_size_that_theta_does_not_have_is_refused_before_it_is_allocated(tmp_path, dims):
    saved(tmp_path, methods.paper())
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dims": dims}))
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match="theta has the wrong shape"):
            dorfl.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_what_cannot_be_written_is_said(tmp_path):
    data = dorfl.datasets.synthetic(seed=0)
    own = scores.custom(lambda rows, labels: np.zeros(len(rows)))
    fit = dorfl.train(data.clients, methods.method(rho=np.inf, beta=1.0, score=own), max_rounds=60)
    with pytest.raises(ValueError, match="of your own"):
        fit.save(tmp_path / "fit.json")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ModelError, match="only linear models"):
        replace(fit, problem=Terms(methods.erm(), np.zeros(2))).save(tmp_path / "fit.json")
    with pytest.raises(TypeError, match="unexpected keyword argument 'kind'"):
        Loss(kind=7)
