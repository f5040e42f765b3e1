"""Centres by class: every row has the centre of its label, and the supremum stays exact."""

import numpy as np
import pytest

import dorfl
from dorfl import costs, methods, scores
from dorfl.federated.training import prepare

DIMS = 3


def clients_of(classes, count=40, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    return {
        name: (rng.normal(1.5 * labels[:, None] + shift, 1.0, (count, DIMS)), labels)
        for name, shift in (("a", 0.0), ("b", 1.0))
    }


def method_of(center, matrix=None, rho=5.0):
    cost = costs.squared([1.0, 2.0, 1.0], frozen=[2])
    return methods.paper(rho=rho, beta=0.4, cost=cost, score=scores.quadratic(0.4, center, matrix))


def centers_for(classes, seed=1):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(classes, DIMS)) for name in ("a", "b")}


WHOLE = [[1.0, 0.3, 0.2], [0.3, 2.0, 0.1], [0.2, 0.1, 0.5]]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("matrix", [None, WHOLE], ids=["diagonal", "whole"])
@pytest.mark.parametrize("rho", [5.0, np.inf])
def test_each_class_is_as_if_its_centre_were_the_only_one(classes, matrix, rho):
    clients, centers = clients_of(classes), centers_for(classes)
    loss = "logistic" if classes == 2 else "softmax"
    given = {"loss": loss, "classes": np.arange(classes)}
    if np.isinf(rho):
        score = scores.quadratic(0.4, centers, matrix)
        method = methods.method(temperature=2.0, score=score)
        single = [methods.method(temperature=2.0, score=scores.quadratic(0.4, {n: m[c] for n, m in
                  centers.items()}, matrix)) for c in range(classes)]  # fmt: skip
    else:
        method = method_of(centers, matrix, rho)
        single = [
            method_of({n: m[c] for n, m in centers.items()}, matrix, rho) for c in range(classes)
        ]
    group = prepare(clients, method, **given)
    theta = 0.5 * np.random.default_rng(2).normal(size=group.problem.size)
    found, atoms = group.kept(theta).value, group.atoms(theta)
    for c in range(classes):
        alone = prepare(clients, single[c], **given)
        own = group.problem.places(group.target) == c
        np.testing.assert_allclose(found[own], alone.kept(theta).value[own], rtol=1e-12)
        np.testing.assert_allclose(atoms.rows[own], alone.atoms(theta).rows[own], atol=1e-12)
        scored = alone.scored(atoms.rows, group.target)
        np.testing.assert_allclose(group.scored(atoms.rows, group.target)[own], scored[own])


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("mass", [False, True])
def test_gradient_and_curvature_are_those_of_the_risk(classes, mass):
    clients, loss = clients_of(classes), "logistic" if classes == 2 else "softmax"
    heavy = {name: 1.0 + np.arange(len(y)) % 3 for name, (_, y) in clients.items()}
    group = prepare(clients, method_of(centers_for(classes)), loss, mass=heavy if mass else None)
    theta = 0.5 * np.random.default_rng(2).normal(size=group.problem.size)
    step = 1e-5 * np.eye(len(theta))
    up, down = ([group.evaluate(theta + sign * s) for s in step] for sign in (1.0, -1.0))
    slopes = np.array([(a.values - b.values) / 2e-5 for a, b in zip(up, down, strict=True)])
    np.testing.assert_allclose(group.evaluate(theta).gradients, slopes.T, atol=1e-8)
    if classes == 2:  # packed: the lower triangle, row by row
        bends = [(a.gradients[0] - b.gradients[0]) / 2e-5 for a, b in zip(up, down, strict=True)]
        told = group.evaluate(theta, "full").curvature[0]
        np.testing.assert_allclose(told, np.array(bends)[np.tril_indices(len(theta))], atol=1e-6)


def test_no_other_place_is_worse():
    group = prepare(clients_of(2), method_of(centers_for(2)))
    theta = np.array([1.0, -0.5, 0.3, 0.2])
    atoms, rng, weights = group.atoms(theta), np.random.default_rng(3), np.array([1.0, 2.0, np.inf])
    for _ in range(200):
        move = 0.3 * rng.normal(size=atoms.rows.shape) * [1.0, 1.0, 0.0]
        place = atoms.rows + move
        gain = group.problem.loss.value(group.problem.predict(theta, place), group.target)
        paid = 2.5 * ((place - group.rows)[:, :2] ** 2) @ weights[:2]
        assert (gain - group.scored(place, group.target) - paid <= atoms.value + 1e-9).all()


def test_ascent_comes_to_the_same():
    clients, method = clients_of(2, count=20), method_of(centers_for(2), rho=20.0)
    theta = np.array([0.6, -0.5, 0.3, 0.2])
    exact, climbed = prepare(clients, method), prepare(clients, method, tolerance=1e-7)
    np.testing.assert_allclose(climbed.kept(theta).value, exact.kept(theta).value, atol=1e-9)


def test_a_fit_is_saved_and_its_certificate_holds(tmp_path):
    clients = clients_of(2)
    fit = dorfl.train(clients, method_of(centers_for(2)), l2=1e-2)
    assert fit.centers.shape == (2, 2, DIMS)
    fit.save(tmp_path / "fit.json")
    again = dorfl.load(tmp_path / "fit.json")
    np.testing.assert_array_equal(again.centers, fit.centers)
    found = dorfl.certificate.paper(fit, clients)
    assert found.bound >= found.attained - 1e-9


def test_words_that_make_no_sense():
    clients, four = clients_of(2), np.zeros((4, DIMS))
    with pytest.raises(ValueError, match="4 × 3 numbers for client 'a', not 2 × 3"):
        dorfl.train(clients, method_of(four))
    with pytest.raises(ValueError, match="not 0 × 3"):
        dorfl.train(clients, method_of(four), loss="huber")
    method = methods.paper(
        rho=5.0, beta=1.0, cost=costs.squared(label_price=1.0),
        score=scores.quadratic(0.4, np.zeros((2, DIMS))),
    )  # fmt: skip
    with pytest.raises(ValueError, match="label_price"):
        dorfl.train(clients, method)
