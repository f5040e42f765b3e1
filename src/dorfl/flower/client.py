"""Train a network by a method of dorfl in a Flower `ClientApp`. Rows stay on its node.

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        return client.train(msg, context, load_data(context), METHOD, Net(), PLAN)

The server uses :class:`dorfl.flower.strategy.RobustStrategy`. A client computes in a round what
it computes in `dorfl.train` (:mod:`dorfl.networks.client`). Between rounds the running mean of its
tilt is in `context.state`, which Flower keeps on the node.

With `Plan(privacy=…)` a client clips the gradients of its rows and adds noise, and it does not
answer more rounds in a run than the noise is for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import nn

from dorfl.flower.records import HEADER, Form, pack, read_header, unpack
from dorfl.networks import model as models
from dorfl.networks.checkpoint import differences
from dorfl.networks.client import LocalClients
from dorfl.networks.data import ClientRows, gather
from dorfl.networks.device import array, tensor
from dorfl.networks.model import Network
from dorfl.networks.plan import NetworkPlan
from dorfl.networks.scores import LEAST, Agreed, Search, search
from dorfl.networks.supremum import RowLoss
from dorfl.networks.training import check_method, prepare, takes_integers, terms
from dorfl.objective.methods import Method

_OWN, _AGREED = "dorfl.own", "dorfl.agreed"  # records in context.state
_SPENT = "dorfl.spent"  # record in context.state; no message resets it


class RefusalError(Exception):
    """The reason why a client does not reply; sent to the server, so it never quotes rows."""


def train(
    message: Message,
    context: Context,
    rows: Any,
    method: Method,
    model: nn.Module | Callable[[], nn.Module],
    plan: NetworkPlan | None = None,
    *,
    loss: str | RowLoss = "softmax",
    score: Any = None,
    classes: Any = None,
    name: str | None = None,
) -> Message:
    """Return the reply to any message of a :class:`~dorfl.flower.strategy.RobustStrategy`.

    Parameters
    ----------
    message
        The message that the `ClientApp` received.
    context
        The context that the `ClientApp` received; its state is changed.
    rows
        The client's rows, as (X, y), a PyTorch data set or a `DataLoader` of one.
    method
        The method; the server must have the same one.
    model
        The network, or a function that makes one; its parameters are set to the server's.
    plan
        How the network is trained; see :class:`~dorfl.networks.Plan`. The server's must be equal.
    loss, score
        As for :func:`dorfl.networks.train`.
    classes
        The labels; by default 0, 1, …, as many as the model has outputs.
    name
        The client's name, which the server sees; by default "client-1" and so on by the node's
        `partition-id`, or else the node's number in Flower.

    Returns
    -------
    Message
        The reply, or a refusal with its reason.
    """
    check_method(method)
    plan = plan or NetworkPlan()
    module = models.make(model, plan.seed)
    if classes is None:
        classes = _classes(module, rows, loss)
    options: dict[str, Any] = {"loss": loss, "classes": classes}
    own = name or _name(context)
    data = {own: rows}
    seeking = search(method, score)
    try:
        step = read_header(message.content, ConfigRecord, "step", str)
        theirs = json.loads(read_header(message.content, ConfigRecord, "terms", str))
        if others := differences(terms(method, plan, score), theirs):
            raise RefusalError(f"the server has another {' and '.join(others)} than this client")
        if step == "train":
            agreed = _agreed(message, context) if seeking is not None else None
            _load(module, message)
            options |= {"score": score, "agreed": agreed}
            local = prepare(data, method, module, plan, **options)
            content = _train(message, context, local)
        elif step == "statistics":
            content = _report_statistics(message, seeking, _rows(module, data, **options))
        else:
            for key in (_OWN, _AGREED):  # of an earlier training
                context.state.pop(key, None)
            count = int(_rows(module, data, **options).counts[0])
            content = RecordDict({HEADER: ConfigRecord({"name": own, "rows": count})})
    except RefusalError as refusal:
        content = RecordDict({HEADER: ConfigRecord({"refusal": str(refusal)})})
    return Message(content, reply_to=message)


def _report_statistics(message: Message, seeking: Search | None, rows: ClientRows) -> RecordDict:
    """Return the local statistics of this client for a stage of the agreement."""
    stage = read_header(message.content, ConfigRecord, "stage", str)
    if seeking is None or stage not in seeking.stages:
        raise RefusalError("the score differs between server and client")
    if rows.counts[0] < LEAST:
        raise RefusalError(f"fewer than {LEAST} rows: their statistics would reveal single rows")
    statistics = seeking.report(stage, rows, unpack(message.content, "agreed"))
    return RecordDict({"statistics": pack(statistics._asdict())})


def _train(message: Message, context: Context, local: LocalClients) -> RecordDict:
    """Return a round's update θ − θ_i and the risk F_i at the server's θ."""
    state = context.state
    theta = local.network.start()
    _spend(context, local.plan)
    local = replace(local, first=read_header(message.content, ConfigRecord, "stream", int))
    number = read_header(message.content, ConfigRecord, "number", int)
    means = local.begin()
    own = state.get(_OWN, MetricRecord())
    assert isinstance(own, MetricRecord)
    if "means" in own:
        means = tensor(np.array([own["means"]]), means)
    reply = local.reply(theta, number, [0], means)
    state[_OWN] = MetricRecord({"means": reply.means[0].tolist()})
    count = int(local.rows.counts[0])
    figures = MetricRecord({"risk": float(reply.risks[0]), "num-examples": count})
    return RecordDict({"update": pack({"values": reply.updates[0]}), HEADER: figures})


def _spend(context: Context, plan: NetworkPlan) -> None:
    """Count a private round; a `RefusalError` if the budget is for no more."""
    if plan.privacy is None:
        return
    before = context.state.get(_SPENT, MetricRecord({"rounds": 0}))
    assert isinstance(before, MetricRecord)
    rounds = int(before["rounds"])  # type: ignore[arg-type]
    if rounds >= plan.privacy.rounds:
        raise RefusalError(f"the privacy budget is for {plan.privacy.rounds} rounds and is spent")
    context.state[_SPENT] = MetricRecord({"rounds": rounds + 1})


def _agreed(message: Message, context: Context) -> Agreed:
    """Return the agreed statistics: received with the first request, and kept from then on."""
    if "agreed" in message.content:
        agreed = unpack(message.content, "agreed")
        context.state[_AGREED] = pack(agreed)
        return agreed
    if _AGREED not in context.state:
        raise RefusalError("this client has lost the agreed statistics")
    return unpack(context.state, _AGREED)


def _load(module: nn.Module, message: Message) -> None:
    """Set the model's parameters to the server's."""
    own = module.state_dict()
    like = {k: Form(tuple(v.shape), array(v).dtype) for k, v in own.items()}
    found = unpack(message.content, read_header(message.content, ConfigRecord, "arrays", str), like)
    module.load_state_dict({k: torch.from_numpy(v) for k, v in found.items()})


def _classes(module: nn.Module, rows: Any, loss: str | RowLoss) -> Any:
    """Return the labels 0, 1, …, as many as the model has outputs."""
    if loss == "logistic":
        return np.arange(2)
    if loss != "softmax":
        return None
    network = Network(module)
    first = gather([rows], network.start().dtype, classify=False)
    x = replace(first, integers=takes_integers(network.module, first)).read(0, np.arange(1))[0]
    with torch.no_grad(), network.evaluating():
        return np.arange(models.call(network.module, x).shape[-1])


def _rows(
    module: nn.Module, data: dict[str, Any], *, loss: str | RowLoss, classes: Any
) -> ClientRows:
    classify = loss in ("softmax", "logistic")
    return gather(data, next(module.parameters()).dtype, classify=classify, classes=classes)


def _name(context: Context) -> str:
    part = context.node_config.get("partition-id")
    return f"node-{context.node_id}" if part is None else f"client-{int(part) + 1}"
