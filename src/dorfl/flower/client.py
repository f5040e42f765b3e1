"""What a Flower `ClientApp` calls to train a network by a method of dorfl. Rows stay here.

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        return client.train(msg, context, load_data(context), METHOD, Net(), PLAN)

The other side is :class:`dorfl.flower.strategy.RobustStrategy`. A client's work in a round is that
of `dorfl.train` (:mod:`dorfl.networks.client`). What it keeps from round to round, the running mean
of its tilt and what compression left out, is in `context.state`, which Flower keeps on its node.
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

from dorfl.flower.records import ASK, Form, pack, said, unpack
from dorfl.networks import model as models
from dorfl.networks.agreement import LEAST, Agreed, Search, search
from dorfl.networks.client import Fleet
from dorfl.networks.data import Rows, gather
from dorfl.networks.device import array
from dorfl.networks.identity import differing
from dorfl.networks.model import Network
from dorfl.networks.plan import Plan
from dorfl.networks.rows import RowLoss
from dorfl.networks.training import check, prepare, takes_integers, terms
from dorfl.objective.methods import Method

_OWN, _RESIDUAL, _AGREED = "dorfl.own", "dorfl.residual", "dorfl.agreed"  # in context.state


class Refusal(Exception):  # noqa: N818 - the server is told
    """Why a client does not answer; its words go to the server, so nothing of its rows is in it."""


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
    """The reply to any message of a :class:`~dorfl.flower.strategy.RobustStrategy`.

    Args:
        message: as the `ClientApp` was given it.
        context: the same; its state is changed.
        rows: the client's own, as (X, y), a PyTorch data set or a `DataLoader` of one.
        method: as the server has it; so are `plan` and `score`.
        model: the network, or a function that makes one; its parameters are the server's.
        plan: how it is trained; see :class:`~dorfl.networks.Plan`.
        loss: as for :func:`dorfl.networks.train`; so are `score` and `inner_layer`.
        score: h, where it is not the method's own.
        classes: the labels; without, they are 0, 1, …, as many as the model puts out.
        inner_layer: the submodule whose output transport moves.
        name: the client's, which the server sees; without, "client-1" and so on by the node's
            `partition-id`, or its number in Flower.
    """
    check(method)
    plan = plan or Plan()
    module = models.make(model, plan.seed)
    if classes is None:
        classes = _classes(module, rows, loss)
    words: dict[str, Any] = {"loss": loss, "classes": classes}
    own = name or _name(context)
    data = {own: rows}
    seeking = search(method, score)
    try:
        step = said(message.content, ConfigRecord, "step", str)
        theirs = json.loads(said(message.content, ConfigRecord, "terms", str))
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
                **words,
            )
            content = _train(message, context, fleet)
        elif step == "tell":
            content = _tell(message, seeking, _rows(module, data, **words))
        else:
            for key in (_OWN, _RESIDUAL, _AGREED):  # of an earlier training
                context.state.pop(key, None)
            count = int(_rows(module, data, **words).counts[0])
            content = RecordDict({ASK: ConfigRecord({"name": own, "rows": count})})
    except Refusal as refusal:
        content = RecordDict({ASK: ConfigRecord({"refusal": str(refusal)})})
    return Message(content, reply_to=message)


def _tell(message: Message, seeking: Search | None, rows: Rows) -> RecordDict:
    """What this client tells in a stage of what is found together."""
    stage = said(message.content, ConfigRecord, "stage", str)
    if seeking is None or stage not in seeking.stages:
        raise Refusal("the server has another score than this client")
    if rows.counts[0] < LEAST:
        raise Refusal(f"fewer than {LEAST} rows: what it told would tell of single ones")
    told = seeking.tell(stage, rows, unpack(message.content, "agreed"))
    return RecordDict({"told": pack(told._asdict())})


def _train(message: Message, context: Context, fleet: Fleet) -> RecordDict:
    """One round's work: the way θ − θ_i as it travels, and F_i at the server's θ."""
    state, theta = context.state, fleet.network.start()
    fleet = replace(fleet, first=said(message.content, ConfigRecord, "stream", int))
    number = said(message.content, ConfigRecord, "number", int)
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
    told = MetricRecord({"risk": float(answer.risks[0]), "num-examples": int(fleet.rows.counts[0])})
    return RecordDict({"ways": pack({k: v[0] for k, v in answer.parts.items()}), ASK: told})


def _agreed(message: Message, context: Context) -> Agreed:
    """What was agreed on: told with the first question, and kept from then on."""
    if "agreed" in message.content:
        agreed = unpack(message.content, "agreed")
        context.state[_AGREED] = pack(agreed)
        return agreed
    if _AGREED not in context.state:
        raise Refusal("this client does not know what was agreed on")
    return unpack(context.state, _AGREED)


def _load(module: nn.Module, message: Message) -> None:
    """The server's parameters into the model."""
    own = module.state_dict()
    like = {k: Form(tuple(v.shape), array(v).dtype) for k, v in own.items()}
    found = unpack(message.content, said(message.content, ConfigRecord, "arrays", str), like)
    module.load_state_dict({k: torch.from_numpy(v) for k, v in found.items()})


def _classes(module: nn.Module, rows: Any, loss: str | RowLoss) -> Any:
    """0, 1, …: as many as the model puts out."""
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
