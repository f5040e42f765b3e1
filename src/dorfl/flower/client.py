"""Train a network by a method of dorfl in a Flower `ClientApp`. Rows stay on its node.

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        return client.train(msg, context, load_data(context), METHOD, Net(), PLAN)

The server uses :class:`dorfl.flower.strategy.RobustStrategy`. A client computes in a round what
it computes in `dorfl.train` (:mod:`dorfl.networks.client`). Between rounds the running mean of its
tilt and the residual of its compression are in `context.state`, which Flower keeps on the node.

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
from torch import Tensor, nn

from dorfl.flower.records import HEADER, Form, pack, read_header, unpack
from dorfl.networks import model as models
from dorfl.networks.agreement import LEAST, Agreed, Search, search
from dorfl.networks.client import Fleet
from dorfl.networks.data import Rows, gather
from dorfl.networks.device import array
from dorfl.networks.identity import differing
from dorfl.networks.model import Network
from dorfl.networks.plan import Plan
from dorfl.networks.supremum import RowLoss
from dorfl.networks.training import check, prepare, takes_integers, terms
from dorfl.objective.methods import Method

_OWN, _RESIDUAL, _AGREED = "dorfl.own", "dorfl.residual", "dorfl.agreed"  # in context.state
_SPENT = "dorfl.spent"  # in context.state; no message resets it


class Refusal(Exception):  # noqa: N818 - not a fault: the server receives it
    """The reason why a client does not answer; sent to the server, so it never quotes rows."""


def train(
    message: Message,
    context: Context,
    rows: Any,
    method: Method,
    model: nn.Module | Callable[[], nn.Module],
    plan: Plan | None = None,
    *,
    loss: str | RowLoss = "softmax",
    score: Any = None,
    classes: Any = None,
    inner_layer: str | None = None,
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
    loss
        The loss of a row, as for :func:`dorfl.networks.train`.
    score
        The outlier score h, as for :func:`dorfl.networks.train`; by default the method's own.
    classes
        The labels; by default 0, 1, …, as many as the model has outputs.
    inner_layer
        The submodule whose output transport moves, as for :func:`dorfl.networks.train`.
    name
        The client's name, which the server sees; by default "client-1" and so on by the node's
        `partition-id`, or else the node's number in Flower.

    Returns
    -------
    Message
        The reply, or a refusal with its reason.
    """
    check(method)
    plan = plan or Plan()
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
        if others := differing(terms(method, plan, score), theirs):
            raise Refusal(f"the server has another {' and '.join(others)} than this client")
        if step == "train":
            agreed = _agreed(message, context) if seeking is not None else None
            _load(module, message)
            fleet = prepare(
                data,
                method,
                module,
                plan,
                score=score,
                inner_layer=inner_layer,
                agreed=agreed,
                **options,
            )
            content = _train(message, context, fleet)
        elif step == "tell":
            content = _report_statistics(message, seeking, _rows(module, data, **options))
        else:
            for key in (_OWN, _RESIDUAL, _AGREED):  # of an earlier training
                context.state.pop(key, None)
            count = int(_rows(module, data, **options).counts[0])
            content = RecordDict({HEADER: ConfigRecord({"name": own, "rows": count})})
    except Refusal as refusal:
        content = RecordDict({HEADER: ConfigRecord({"refusal": str(refusal)})})
    return Message(content, reply_to=message)


def _report_statistics(message: Message, seeking: Search | None, rows: Rows) -> RecordDict:
    """Return the local statistics of this client for a stage of the agreement."""
    stage = read_header(message.content, ConfigRecord, "stage", str)
    if seeking is None or stage not in seeking.stages:
        raise Refusal("the score differs between server and client")
    if rows.counts[0] < LEAST:
        raise Refusal(f"fewer than {LEAST} rows: statistics of so few would reveal single rows")
    statistics = seeking.tell(stage, rows, unpack(message.content, "agreed"))
    return RecordDict({"told": pack(statistics._asdict())})


def _train(message: Message, context: Context, fleet: Fleet) -> RecordDict:
    """Return a round's update θ − θ_i, compressed, and the risk F_i at the server's θ."""
    state, theta = context.state, fleet.network.start()
    _spend(context, fleet.plan)
    fleet = replace(fleet, first=read_header(message.content, ConfigRecord, "stream", int))
    number = read_header(message.content, ConfigRecord, "number", int)
    like = {"values": Form((len(theta),), array(theta).dtype)}
    kept = fleet.begin()
    own = state.get(_OWN, MetricRecord())
    assert isinstance(own, MetricRecord)
    if "seen" in own:
        kept = kept._replace(seen=torch.tensor([own["seen"]], dtype=torch.float64))
    if _RESIDUAL in state:
        kept = kept._replace(residual=_row(unpack(state, _RESIDUAL, like)["values"]))
    pull = None
    if fleet.plan.scaffold:
        pull = _row(unpack(message.content, "pull", like)["values"])
    answer = fleet.answer(theta, number, [0], kept, pull)
    state[_OWN] = MetricRecord({"seen": answer.kept.seen[0].tolist()})
    if answer.kept.residual is not None:
        state[_RESIDUAL] = pack({"values": answer.kept.residual[0]})
    count = int(fleet.rows.counts[0])
    figures = MetricRecord({"risk": float(answer.risks[0]), "num-examples": count})
    return RecordDict({"ways": pack({k: v[0] for k, v in answer.parts.items()}), HEADER: figures})


def _spend(context: Context, plan: Plan) -> None:
    """Count a private round; a `Refusal` if the budget is for no more."""
    if plan.privacy is None:
        return
    before = context.state.get(_SPENT, MetricRecord({"rounds": 0}))
    assert isinstance(before, MetricRecord)
    rounds = int(before["rounds"])  # type: ignore[arg-type]
    if rounds >= plan.privacy.rounds:
        raise Refusal(f"the privacy budget is for {plan.privacy.rounds} rounds and is spent")
    context.state[_SPENT] = MetricRecord({"rounds": rounds + 1})


def _agreed(message: Message, context: Context) -> Agreed:
    """Return the agreed statistics: received with the first request, and kept from then on."""
    if "agreed" in message.content:
        agreed = unpack(message.content, "agreed")
        context.state[_AGREED] = pack(agreed)
        return agreed
    if _AGREED not in context.state:
        raise Refusal("this client has lost the agreed statistics")
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


def _rows(module: nn.Module, data: dict[str, Any], *, loss: str | RowLoss, classes: Any) -> Rows:
    classify = loss in ("softmax", "logistic")
    return gather(data, next(module.parameters()).dtype, classify=classify, classes=classes)


def _name(context: Context) -> str:
    part = context.node_config.get("partition-id")
    return f"node-{context.node_id}" if part is None else f"client-{int(part) + 1}"


def _row(numbers: Any) -> Tensor:
    return torch.from_numpy(numbers)[None]
