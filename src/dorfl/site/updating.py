"""A network's rounds at a site: only what the study says is done.

An update has a number for every parameter, in every round: far more than the rows have. A person
allows networks or does not (:attr:`~dorfl.site.policy.Policy.networks`); with that the
site trusts the coordinator not to work rows out. What is checked is that the request fits the
study: its network, from the θ that its seed gives, no further than its steps can lead, on all rows.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorfl.data.validation import Clients
from dorfl.federated.messages import Broadcast, Report
from dorfl.linear.group import Group
from dorfl.networks.layered import Layered
from dorfl.protocol import learning
from dorfl.protocol.messages import Agreement, Answer, Finished, Outcome, Request
from dorfl.site import serving
from dorfl.site.consent import Refused
from dorfl.site.ledger import mark_of
from dorfl.support.types import Array

if TYPE_CHECKING:
    from torch import Tensor

    from dorfl.networks.client import LocalClients, RobustRisks
    from dorfl.site.site import Site

_REACH = 8.0  # rates; no step of Adam is longer than (1 − β₁) / √((1 − β₁²/β₂)(1 − β₂)) = 7.3


class Own(NamedTuple):
    """What a site has of its rows for a network's rounds; made once for each agreement."""

    mark: str
    group: Group
    fleet: LocalClients
    start: Array


def answer(site: Site, request: Request) -> Answer:
    """The answer to a question about a network."""
    agreement, step = request.agreement, request.step
    if agreement.study.training.model == "linear" or agreement.candidate is not None:
        raise Refused("a network is not what the study trains now")
    if step == "network" and request.broadcast is not None:
        return _report(site, agreement, request.broadcast)
    if step == "finish" and request.outcome is not None:
        return _finish(site, agreement, request.outcome)
    raise Refused("is no question of this protocol")


def _report(site: Site, agreement: Agreement, sent: Broadcast) -> Report:
    own, task, number = _own(site, agreement), sent.task, sent.round
    plan = own.fleet.plan
    if task.theta.shape != own.start.shape or task.theta.dtype != np.float32:
        raise Refused("θ has another shape than the model agreed on")
    if not 1 <= number <= plan.rounds + 1:
        raise Refused("the round's number is out of range")
    last = number == plan.rounds + 1
    if task[2:] != learning.asked(task.theta, task.lam, last=last)[2:]:
        raise Refused("the task is none that the study implies: one step on all rows")
    if np.abs(task.theta - own.start).max() > _REACH * plan.used_server_optimizer.lr * (number - 1):
        raise Refused("θ is further from where it began than the study's steps lead")
    if last:
        found = _found(site, own, task.theta)
        value, way = float(found.values[0]), np.empty(0, np.float32)
    else:
        if np.isfinite(own.fleet.tilt.temperature):
            _found(site, own, task.theta)
        told = own.fleet.reply(_tensor(task.theta), number, [0], own.fleet.begin())
        value, way = float(told.risks[0]), told.updates[0].numpy()
    return Report(site.name, number, len(own.group.target), value, way)


def _finish(site: Site, agreement: Agreement, outcome: Outcome) -> Finished:
    own = _own(site, agreement)
    if site.done is not None:
        site.done(agreement, own.group, outcome, site.places(agreement))
    group, least = own.group, agreement.study.privacy.least
    weights = _found(site, own, outcome.theta).sample_weights[0]
    return serving.served(
        group.problem, outcome.theta, group.rows, group.target, weights, agreement.target, least
    )


def risks_of(group: Group, theta: Array) -> Array:
    """F_i at θ of clients, with any model."""
    if not isinstance(group.problem, Layered):
        return group.evaluate(theta).values
    from dorfl.networks import tabular  # noqa: PLC0415 - brings in torch

    return tabular.evaluated(_rows(group), group.problem, theta, group.centers).values


def _own(site: Site, agreement: Agreement) -> Own:
    """What the site has for these rounds, made where it has not."""
    mark, own = mark_of(agreement), site.own
    if own is None or own.mark != mark:
        from dorfl.networks import tabular  # noqa: PLC0415 - brings in torch

        group = site.group(agreement)
        problem, rows = group.problem, _rows(group)
        assert isinstance(problem, Layered)
        plan = learning.planned(agreement, group.counts, agreement.decay)
        fleet = tabular.ready(rows, problem, group.centers, plan)
        own = site.own = Own(mark, group, fleet, fleet.network.start().numpy())
    return own


def _found(site: Site, own: Own, theta: Array) -> RobustRisks:
    """The risk and the weights of rows at θ; Refused where one row is too much of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a supremum that may be a local one
        found = own.fleet.risks(_tensor(theta))
    if found.sample_weights[0].max() * site.policy.least > 1.0 + 1e-9:
        raise Refused(
            f"fewer than {site.policy.least} rows stand behind the update; nothing is sent"
        )
    return found


def _rows(group: Group) -> Clients:
    (name,) = group.names
    return {name: (group.rows, group.problem.decode(group.target))}


def _tensor(numbers: Array) -> Tensor:
    import torch  # noqa: PLC0415

    return torch.from_numpy(numbers.copy())
