"""Train a study's neural network, by the method that was resolved for its linear model.

Locations, the outlier share and the scale of residuals come from a linear model that is trained
first. The network replaces that model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dorfl.federated.fit import Fit
from dorfl.federated.simulation import Round
from dorfl.networks.layered import layered
from dorfl.protocol.settings import Study
from dorfl.protocol.steps import finish, network
from dorfl.tabular import results
from dorfl.tabular.model import Model
from dorfl.tabular.model.facts import ClientStatistics
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
    """Train a network on the rows of a linear model, by the same method."""
    from dorfl.networks import tabular  # noqa: PLC0415 - brings in torch

    options = study.training
    plan = tabular.plan_for(
        np.diff(rows.bounds),
        l2=options.l2,
        rounds=options.max_rounds,
        seed=options.seed,
        batch=options.batch,
    )
    return tabular.fit(rows.clients, fit.problem, fit.centers, plan, model, progress)


def model_of(
    study: Study, made: Model, rows: Rows, progress: Callable[[Round], object] | None = None
) -> Model:
    """Return the model of a study with a network; `made` is its linear model."""
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
        message=network.message(trained.objective),
        history=trained.history,
        l2=trained.plan.l2,
    )
    settings = {**made.facts.settings, "training": study.to_json()["training"]}
    clients, reports = [], []
    for name, (X, y) in rows.clients.items():
        weights = trained.sample_weights[name]
        own = finish.client_statistics(
            problem, fit.theta, X, problem.encode(y), weights, made.target, least=1
        )
        clients.append(ClientStatistics(name, len(y), own.learnt.loss, own.score))
        reports.append(own)
    total, learnt = results.totals(reports, fit.lam)
    facts = made.facts._replace(
        notes=(*made.facts.notes, network.NO_CERTIFICATE),
        choice=(network.describe_network(problem, trained.plan), *made.facts.choice),
        clients=tuple(clients),
        weights=total,
        learnt=learnt,
        certificate=None,
        promise=None,
        settings=settings,
    )
    return replace(made, fit=fit, facts=facts)
