"""What a client could have had alone: F_i*, which regret measures its risk against.

A client with noisy labels has a large risk under every model, and the worst mixture by risk turns
to it for nothing. F_i(θ) − F_i* is what a client gives up by sharing a model. F_i* is found by the
client from its own rows, before the first round, and taken off every risk it reports: it is never
sent by itself.
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
_ROUNDS = 30  # of a fold: what takes more is at a kink, of a model that is no better than none


def own_best(group: Group) -> Array:
    """F_i* of each client: its risk on rows its own model has not seen, five folds in turn.

    Its own model has a ridge of 1 / n_i. On rows that it was trained on a small client would look
    far better served alone than it is. Nobody is worse off alone than with no model at all (θ = 0).

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
    nothing = plain.evaluate(np.zeros(plain.problem.size)).values
    alone = [_cross_fitted(plain.select([i])) for i in range(len(group.names))]
    return np.minimum(alone, nothing)


def _cross_fitted(client: Group) -> float:
    count = int(client.counts[0])
    folds = min(FOLDS, count)
    if folds < 2:
        return np.inf
    fold = np.random.default_rng(count).permutation(count) % folds
    values = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a model that is nearly there is good enough
        for k in range(folds):
            kept, held = (client.take([np.flatnonzero(at)]) for at in (fold != k, fold == k))
            fit = training.train(kept, l2=1.0 / count, tol=1e-4, max_rounds=_ROUNDS)
            values.append(float(held.evaluate(fit.theta.ravel()).values[0]))
    weights = np.bincount(fold, client.mass)  # of every fold, in any unit
    return tilted_mean(np.array(values), client.problem.method.temperature, weights)
