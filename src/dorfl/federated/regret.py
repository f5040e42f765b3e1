"""Regret F_i(θ) − F_i*: a client's risk relative to that of its own model.

A client with noisy labels has a large risk under every model, so the worst mixture by risk gives it
weight without effect. The client computes F_i* from its own rows before the first round and
subtracts it from every risk it reports; F_i* itself is never sent.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np

from dorfl.federated import training
from dorfl.linear.group import Group
from dorfl.objective import mixture
from dorfl.objective.mixture import tilted_mean
from dorfl.support.types import Array

FOLDS = 5
_ROUNDS = 30  # of a fold; a model that needs more is no better than a constant


def own_best(group: Group) -> Array:
    """Return F_i* of each client: the cross-validated risk of a model of its own.

    That model has l2 = 1 / n_i and five folds: the risk on training rows would be far too low for
    a small client. F_i* is at most the risk of θ = 0.

    >>> import dorfl
    >>> from dorfl.federated.training import prepare
    >>> data = dorfl.datasets.synthetic(seed=0)
    >>> rule = dorfl.mixture.agnostic(by="regret")
    >>> group = prepare(data.clients, dorfl.methods.method(mixture=rule))
    >>> bool((own_best(group) == group.own).all())
    True
    """
    method = replace(group.problem.method, mixture=mixture.fixed())
    plain = replace(group, problem=replace(group.problem, method=method), own=None)
    constant = plain.evaluate(np.zeros(plain.problem.size)).values
    alone = [_cross_fitted(plain.select([i])) for i in range(len(group.names))]
    return np.minimum(alone, constant)


def _cross_fitted(client: Group) -> float:
    count = int(client.counts[0])
    folds = min(FOLDS, count)
    if folds < 2:
        return np.inf
    fold = np.random.default_rng(count).permutation(count) % folds
    values = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # convergence is not needed
        for k in range(folds):
            kept, held = (client.take([np.flatnonzero(at)]) for at in (fold != k, fold == k))
            fit = training.train(kept, l2=1.0 / count, tol=1e-4, max_rounds=_ROUNDS)
            values.append(float(held.evaluate(fit.theta.ravel()).values[0]))
    weights = np.bincount(fold, client.mass)  # of every fold
    return tilted_mean(np.array(values), client.problem.method.temperature, weights)
