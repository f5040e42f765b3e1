"""A study's network: trained on the rows and by the method that its linear model has settled.

Where rows lie, whether those far out are wrong and how far residuals scatter is found by training a
linear model first; the network takes the place of that model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dorfl.federated.fit import Fit
from dorfl.federated.simulation import Round
from dorfl.networks.layered import Layered, layered
from dorfl.protocol import constant, learning
from dorfl.protocol.settings import Study
from dorfl.site import serving
from dorfl.support.types import Array
from dorfl.tabular import results
from dorfl.tabular.model import Model
from dorfl.tabular.model.facts import Learnt, Served
from dorfl.tabular.rows import Rows

if TYPE_CHECKING:
    from dorfl.networks.training import NetworkFit


def train(
    study: Study,
    fit: Fit,
    rows: Rows,
    progress: Callable[[Round], object] | None = None,
    model: object = "mlp",
) -> NetworkFit:
    """A network in the place of the linear model `fit`, on the same rows."""
    from dorfl.networks import tabular  # noqa: PLC0415 - brings in torch

    words = study.training
    plan = tabular.plan_for(
        np.diff(rows.bounds), l2=words.l2, rounds=words.max_rounds, seed=words.seed,
        batch=words.batch,
    )  # fmt: skip
    return tabular.fit(rows.clients, fit.problem, fit.centers, plan, model, progress)


def model_of(
    study: Study, made: Model, rows: Rows, progress: Callable[[Round], object] | None = None
) -> Model:
    """The model of a study that asks for a network; `made` is its linear model."""
    trained = train(study, made.fit, rows, progress)
    old = made.fit.problem
    problem = layered(old)
    fit = replace(
        made.fit,
        problem=problem,
        theta=trained.theta.astype(np.float64),
        lam=trained.lam,
        risks=trained.risks,
        objective=trained.objective,
        gap=trained.gap_estimate if old.method.mixture.adversarial else np.nan,
        rounds=trained.rounds,
        status="trained",
        message=learning.message(trained.objective),
        history=trained.history,
        l2=trained.plan.l2,
    )
    weights = [trained.sample_weights[name] for name in rows.names]
    settings = {**made.facts.settings, "training": study.to_json()["training"]}
    served, counts, learnt = _served(made, problem, fit, rows, weights)
    facts = made.facts._replace(
        notes=(*made.facts.notes, learning.NO_CERTIFICATE),
        choice=(learning.words(problem, trained.plan), *made.facts.choice),
        clients=served,
        weights=results.histogram(counts),
        learnt=learnt,
        certificate=None,
        promise=None,
        settings=settings,
    )
    return replace(made, fit=fit, facts=facts)


def _served(
    made: Model, problem: Layered, fit: Fit, rows: Rows, weights: list[Array]
) -> tuple[tuple[Served, ...], list[tuple[int, ...]], Learnt]:
    """How each client is served, rows by their weight, and whether anything was learnt."""
    served, counts, parts = [], [], []
    for (name, (X, y)), p in zip(rows.clients.items(), weights, strict=True):
        told = serving.served(problem, fit.theta, X, problem.encode(y), p, made.target, least=1)
        served.append(Served(name, len(y), told.learnt.loss, told.score))
        counts.append(told.weights)
        parts.append(told.learnt)
    return tuple(served), counts, Learnt(*constant.against(parts, fit.lam))
