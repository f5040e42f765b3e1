"""Clients compared by what they give up, F_i − F_i*, rather than by what they have."""

import warnings

import numpy as np
import pytest

import dorfl
from dorfl import methods, mixture, scores
from dorfl.federated import training
from dorfl.federated.training import REGRET_FOLDS, prepare


def two_clients(noise=0.35, seed=0):
    """One client whose labels are partly drawn at random, one that wants another model."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, theta, wrong in (("noisy", (2.0, 1.0), noise), ("other", (1.0, 2.0), 0.0)):
        X = rng.normal(size=(600, 2))
        y = np.where(rng.random(600) < 1 / (1 + np.exp(-3 * X @ theta)), 1, -1)
        found[name] = (X, np.where(rng.random(600) < wrong, -y, y))
    return found


def test_it_does_not_turn_to_a_client_whose_labels_are_noise():
    clients = two_clients()
    by = {
        rule: dorfl.train(clients, methods.method(mixture=mixture.agnostic(rule)))
        for rule in ("loss", "regret")
    }
    assert by["loss"].lam[0] == pytest.approx(1.0, abs=1e-6)  # it cannot be served any better
    assert 0.0 < by["regret"].lam[1] < 1.0
    assert np.ptp(by["regret"].risks) < 1e-4  # both give up the same


@pytest.mark.parametrize(
    "method",
    [
        methods.method(mixture=mixture.agnostic("regret")),
        methods.paper(mixture=mixture.agnostic("regret")),
        methods.paper(
            score=scores.quadratic(0.5, center="client"), mixture=mixture.fixed(by="regret")
        ),
    ],
)  # fmt: skip
def test_it_is_the_risk_less_what_the_client_has_alone(method):
    """F_i* as defined: five models of the client's own on rows they have not seen, or none."""
    clients = dorfl.datasets.synthetic(seed=1).clients
    group = prepare(clients, method)
    plain = methods.method(
        rho=method.rho, temperature=method.temperature, score=method.score, mixture="fixed"
    )
    theta = np.linspace(-1.0, 1.0, group.problem.size)
    whole = prepare(clients, plain)
    own = whole.evaluate(theta).values - group.evaluate(theta).values
    for i, (X, y) in enumerate(clients.values()):
        fold = np.random.default_rng(len(y)).permutation(len(y)) % REGRET_FOLDS
        pinned = plain.score and scores.quadratic(plain.score.weight, center=group.centers[i])
        same = methods.method(
            rho=plain.rho, temperature=plain.temperature, score=pinned, mixture="fixed"
        )
        mass = 0.0
        for k in range(REGRET_FOLDS):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                fit = dorfl.train([(X[fold != k], y[fold != k])], same, l2=1 / len(y), tol=1e-8)
            F = dorfl.risk(fit.theta, X[fold == k], y[fold == k], same, classes=[-1, 1]).value
            share = (fold == k).mean()
            tilted = np.isfinite(plain.temperature)
            mass += share * (np.exp(F / plain.temperature) if tilted else F)
        alone = plain.temperature * np.log(mass) if tilted else mass
        nothing = dorfl.risk(np.zeros(theta.size), X, y, same, classes=[-1, 1]).value
        assert own[i] == pytest.approx(min(alone, nothing), rel=2e-3)


def test_nobody_is_worse_off_alone_than_with_nothing():
    """A client with one row, and one that has rows of one class only."""
    clients = {
        "one": ([[1.0]], [1]),
        "single": ([[1.0], [2.0], [3.0], [2.0], [1.0]], [1] * 5),
        "both": ([[1.0], [-2.0], [0.5], [-1.0]], [1, -1, -1, 1]),
    }
    group = prepare(clients, methods.method(mixture=mixture.agnostic("regret")))
    assert (group.own <= np.log(2.0) + 1e-12).all() and np.isfinite(group.own).all()
    assert group.own[0] == pytest.approx(np.log(2.0))
    assert group.own[1] < 0.1


def test_a_part_of_the_clients_or_rows_keeps_what_they_have_alone():
    group = prepare(two_clients(), methods.method(mixture=mixture.agnostic("regret")))
    assert group.select([1]).own.tolist() == [group.own[1]]
    assert group.take([np.arange(10), np.arange(10)]).own is group.own
    fit = dorfl.train(
        two_clients(), methods.method(mixture=mixture.agnostic("regret")), participation=0.5,
        max_rounds=30,
    )  # fmt: skip
    assert np.isfinite(fit.risks).all()


def test_it_is_refused_where_it_cannot_be():
    rule = mixture.agnostic("regret")
    with pytest.raises(ValueError, match="radius: the constrained problem"):
        methods.method(radius=0.1, mixture=rule)
    private = dorfl.privacy.gaussian(2.0, 1e-5, clip=1.0, rounds=10)
    with pytest.raises(ValueError, match='privacy: by="regret"'):
        dorfl.train(two_clients(), methods.method(mixture=rule), privacy=private)
    with pytest.raises(ValueError, match="choose one of risk, loss, regret"):
        mixture.agnostic("regrets")


def test_what_a_client_has_alone_takes_a_bounded_number_of_rounds(monkeypatch):
    """Few rows in many columns, and worst cases with kinks: 35 rounds a fold once, up to 50."""
    fits, train = [], training.train
    monkeypatch.setattr(
        training,
        "train",
        lambda *given, **more: fits.append(train(*given, **more)) or fits[-1],
    )
    rng = np.random.default_rng(0)
    clients = {name: (rng.normal(size=(8, 12)), np.arange(8) % 2) for name in "abc"}
    prepare(clients, methods.method(rho=1.0, beta=3.0, mixture=mixture.agnostic("regret")))
    assert len(fits) == len(clients) * REGRET_FOLDS
    assert max(fit.rounds for fit in fits) <= 30
