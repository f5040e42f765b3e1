"""A Flower `Strategy` that trains a network by any method of :mod:`dorfl.methods`.

    strategy = RobustStrategy(METHOD, Net(), PLAN, min_available_nodes=3)
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=30)

Clients use :func:`dorfl.flower.client.train`. Before the first round clients report how many rows
they have, and the statistics that the score needs. A round is that of `dorfl.train`: the server's
step is :mod:`dorfl.networks.server`, and the same rows, seed and plan give the same model.

A reply is ignored, and logged with the reason, if it has another form than expected, is not finite,
or is a hundred times longer than the median client's so far. A client can still pretend to have a
high risk; :func:`dorfl.mixture.capped` bounds the effect of that.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from torch import Tensor, nn

from dorfl.federated.simulation import Round
from dorfl.flower.records import HEADER, Form, pack, read_header, unpack
from dorfl.networks import model as models
from dorfl.networks import server
from dorfl.networks.client import Reply, in_order
from dorfl.networks.device import array
from dorfl.networks.model import Network
from dorfl.networks.plan import NetworkPlan
from dorfl.networks.scores import Agreed, LocalStatistics, search
from dorfl.networks.training import check_method, terms
from dorfl.objective.methods import Method
from dorfl.support.text import one_line

MAX_ROWS = 10**9  # rows that a client can plausibly have; a larger count is refused
T = TypeVar("T")
_log = logging.getLogger("flwr")


class Client(NamedTuple):
    """A client that takes part."""

    name: str
    rows: int
    node: int


class RobustStrategy(FedAvg):
    """Train the user's own model by AFL, WAFL, GDRFL, DOR-FL or another method.

    All nodes that are connected when training starts take part, `min_available_nodes` at least.

    Parameters
    ----------
    method
        One of :mod:`dorfl.methods`, or any combination of their parts.
    model
        The network, or a function that makes one; clients must have the same architecture.
    plan
        How the network is trained; see :class:`~dorfl.networks.Plan`. `participation` is the share
        of clients that are sampled in a round. The number of rounds is an argument of `start`.
    score
        The outlier score h, as for :func:`dorfl.networks.train`; by default the method's own.
    **options
        Options of Flower's `FedAvg` for evaluation, nodes and keys.

    Attributes
    ----------
    lam
        After `start`: the mixture weight λ of each client.
    history
        After `start`: the rounds. The arrays of the result are the parameters of the trained model,
        averaged if the plan has `average`.
    """

    def __init__(
        self,
        method: Method,
        model: nn.Module | Callable[[], nn.Module],
        plan: NetworkPlan | None = None,
        *,
        score: Any = None,
        **options: Any,
    ) -> None:
        if "fraction_train" in options or "min_train_nodes" in options:
            raise ValueError("fraction_train, min_train_nodes: set the plan's participation")
        options.setdefault("evaluate_metrics_aggr_fn", mean_and_range)
        super().__init__(min_train_nodes=1, **options)
        check_method(method)
        self.method, self.plan = method, plan or NetworkPlan()
        self.fraction_train = self.plan.participation
        self.history: list[Round] = []
        self._module = models.make(model, self.plan.seed)
        self._score, self._search, self._timeout = score, search(method, score), 3600.0
        self._state: server.ServerState | None = None

    @property
    def lam(self) -> dict[str, float]:
        """The mixture weight λ of each client, by name."""
        if self._state is None:
            return {}
        return dict(zip(self._settings.names, self._state.lam.tolist(), strict=True))

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *rest: Any, **given: Any) -> Result:
        """Train; parameters and result as for any strategy of Flower."""
        self._timeout = rest[1] if len(rest) > 1 else given.get("timeout", 3600.0)
        self._state = None
        return super().start(grid, initial_arrays, *rest, **given)

    def summary(self) -> None:
        """Log the method and the settings."""
        name, rho, temperature = self.method.name, self.method.rho, self.method.temperature
        _log.info("\t├──> Method: %s (ρ = %g, ρβ = %g)", name, rho, temperature)
        super().summary()

    # ── before the first round ──────────────────────────────────────────────────────────────────

    def _begin(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Fix the clients, the number of rows of each client, and the agreed statistics."""
        self._network = Network(_loaded(self._module, arrays))
        theta = self._network.start()
        while len(nodes := sorted(grid.get_node_ids())) < self.min_available_nodes:
            _log.info("%d of %d nodes are there", len(nodes), self.min_available_nodes)
            time.sleep(1.0)
        clients = self._enrol(grid, nodes)
        self._agreed: Agreed = {}
        for stage in self._search.stages if self._search else ():
            clients = self._agree(grid, clients, stage)
        self._clients, self._informed = clients, set[int]()
        names, counts = tuple(c.name for c in clients), np.array([c.rows for c in clients])
        self._settings = server.ServerSettings(self.method, self.plan, names, counts)
        self._form = {"values": Form(tuple(theta.shape), array(theta).dtype)}
        self._typical = server.TypicalSizes()
        self.history = []
        self._state = server.begin(self._settings, theta)

    def _enrol(self, grid: Grid, nodes: list[int]) -> list[Client]:
        replies = self._exchange(grid, {node: self._request("enrol") for node in nodes})
        found: dict[str, Client] = {}
        for node in nodes:
            try:
                content = _content(replies.get(node))
                name = read_header(content, ConfigRecord, "name", str)
                rows = read_header(content, ConfigRecord, "rows", int)
                if not name or one_line(name, 100) != name or name in found:
                    raise ValueError(f"name {one_line(name, 100)!r}: is not valid, or taken")
                if not 1 <= rows <= MAX_ROWS:
                    raise ValueError(f"{rows} rows: must be between 1 and {MAX_ROWS}")
                found[name] = Client(name, rows, node)
            except ValueError as error:
                _log.warning("node %d does not take part: %s", node, error)
        return self._enough(sorted(found.values(), key=lambda c: _natural(c.name)))

    def _agree(self, grid: Grid, clients: list[Client], stage: str) -> list[Client]:
        """Carry out one stage of the agreement; return the clients that took part in it."""
        assert self._search is not None
        request = self._request("statistics", stage=stage)
        request["agreed"] = pack(self._agreed)
        replies = self._exchange(grid, {c.node: request for c in clients})
        reported: dict[Client, LocalStatistics] = {}
        for client in clients:
            try:
                arrays = unpack(_content(replies.get(client.node)), "statistics")
                one = LocalStatistics(arrays["values"], arrays["weight"])
                if (
                    one.weight.ndim != 1
                    or (one.weight < 0).any()
                    or (one.weight > client.rows).any()
                ):
                    raise ValueError("weight: must be between 0 and the number of rows")
                reported[client] = one
            except (ValueError, KeyError) as error:
                _log_ignored(client.name, stage, str(error))
        forms = {
            c: (t.values.shape, str(t.values.dtype), t.weight.shape) for c, t in reported.items()
        }
        sizes = {c: float(np.abs(t.values).max(initial=0.0)) for c, t in reported.items()}
        limit = server.MAX_RATIO * server.lower_median(sizes.values())
        common = _most_common(forms.values())
        kept = []
        for client in reported:
            if forms[client] == common and sizes[client] <= limit:
                kept.append(client)
            else:
                _log_ignored(client.name, stage, "is too far from what other clients report")
        kept = self._enough(kept)
        self._agreed[stage] = self._search.combine(stage, [reported[c] for c in kept])
        return kept

    def _enough(self, clients: list[Client]) -> list[Client]:
        if not clients:
            raise ValueError("no client takes part; the log says why")
        return clients

    # ── rounds ──────────────────────────────────────────────────────────────────────────────────

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that bring θ to the clients of the round."""
        if self._state is None:
            self._begin(arrays, grid)
        state = self._state
        assert state is not None
        self._round = request = server.ask(self._settings, state)
        config["server-round"] = server_round
        theta = self._arrays(state.theta)
        connected = set(grid.get_node_ids())
        messages = []
        for i in request.clients:
            client = self._clients[i]
            content = self._request("train", number=request.number, stream=i)
            content[self.arrayrecord_key] = theta
            content[self.configrecord_key] = config
            if self._agreed and i not in self._informed:
                content["agreed"] = pack(self._agreed)
            if client.node in connected:
                messages.append(Message(content, client.node, MessageType.TRAIN))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the server's step; without any usable reply the model stays as it is."""
        state, request = self._state, self._round
        assert state is not None
        usable, refused = self._usable(replies)
        for name, reason in refused.items():
            _log_ignored(name, f"round {server_round}", reason)
        self._informed = (self._informed - set(request.clients)) | set(usable)
        if not usable:
            return self._arrays(state.mean), None
        received = server.no_replies(state)
        for i in in_order(list(usable), self._settings.counts):
            update, risk = usable[i]
            reply = Reply([i], update[None], torch.tensor([risk], dtype=torch.float64))
            server.add_replies(self._settings.plan, request, received, reply)
        self._state, line = server.step(self._settings, state, request, received, refused)
        self.history.append(line)
        metrics = MetricRecord(
            {
                "objective": line.objective,
                "gap": line.gap,
                "risks": line.risks.tolist(),
                "lam": line.lam.tolist(),
            }
        )
        return self._arrays(self._state.mean), metrics

    def _usable(
        self, replies: Iterable[Message]
    ) -> tuple[dict[int, tuple[Tensor, float]], dict[str, str]]:
        """Return update and risk of the usable replies, and why others are ignored."""
        by_node = {reply.metadata.src_node_id: reply for reply in replies}
        usable: dict[int, tuple[Tensor, float]] = {}
        refused = {}
        for i in self._round.clients:
            try:
                content = _content(by_node.get(self._clients[i].node))
                update = torch.from_numpy(unpack(content, "update", self._form)["values"])
                risk = read_header(content, MetricRecord, "risk", float)
                if not np.isfinite(risk):
                    raise ValueError("risk: is not finite")
                usable[i] = (update, risk)
            except ValueError as error:
                refused[self._clients[i].name] = str(error)
        self._typical, absurd = server.find_absurd(usable, self._typical)
        for i, reason in absurd.items():
            refused[self._clients[i].name] = reason
            del usable[i]
        return usable, refused

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return mean, minimum and maximum of the clients' metrics; other values are ignored."""
        usable: list[tuple[Message, frozenset[str]]] = []
        for reply in replies:
            try:
                usable.append((reply, _metrics(_content(reply), self.weighted_by_key)))
            except ValueError as error:
                _log_ignored(
                    f"node {reply.metadata.src_node_id}", f"evaluation {server_round}", str(error)
                )
        common = _most_common(keys for _, keys in usable)
        return super().aggregate_evaluate(
            server_round, [reply for reply, keys in usable if keys == common]
        )

    # ── messages ────────────────────────────────────────────────────────────────────────────────

    def _request(self, step: str, **settings: str | int) -> RecordDict:
        header = {
            "step": step,
            "terms": json.dumps(terms(self.method, self.plan, self._score)),
            "arrays": self.arrayrecord_key,
        }
        return RecordDict({HEADER: ConfigRecord({**header, **settings})})

    def _exchange(self, grid: Grid, requests: Mapping[int, RecordDict]) -> dict[int, Message]:
        messages = [Message(content, node, MessageType.TRAIN) for node, content in requests.items()]
        replies = grid.send_and_receive(messages, timeout=self._timeout)
        return {reply.metadata.src_node_id: reply for reply in replies}

    def _arrays(self, theta: Tensor) -> ArrayRecord:
        return ArrayRecord(self._network.module_at(theta).state_dict())


def mean_and_range(replies: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """Return the mean of every metric over rows, and its minimum and maximum over clients.

    >>> two = [RecordDict({"metrics": MetricRecord({"num-examples": n, "acc": a})})
    ...        for n, a in ((30, 0.9), (10, 0.5))]
    >>> print(dict(mean_and_range(two, "num-examples")))
    {'acc': 0.8, 'acc-min': 0.5, 'acc-max': 0.9}
    """
    records = [next(iter(reply.metric_records.values())) for reply in replies]
    weights = np.array([float(record[weighted_by_key]) for record in records])  # type: ignore[arg-type]
    found = MetricRecord()
    for key in records[0]:
        if key != weighted_by_key:
            values = np.array([float(record[key]) for record in records])  # type: ignore[arg-type]
            found[key] = round(float(values @ weights / weights.sum()), 12)
            found[f"{key}-min"], found[f"{key}-max"] = float(values.min()), float(values.max())
    return found


def _most_common(values: Iterable[T]) -> T | None:
    return next((value for value, _ in Counter(values).most_common(1)), None)


def _metrics(content: RecordDict, weight: str) -> frozenset[str]:
    """Return the names of a client's metrics; ValueError unless all of them are finite numbers."""
    records = list(content.metric_records.values())
    if len(records) != 1 or not all(
        isinstance(value, int | float) and np.isfinite(value) for value in records[0].values()
    ):
        raise ValueError("metrics must be one record of finite numbers")
    if not 0 < records[0].get(weight, 0) <= MAX_ROWS:  # type: ignore[operator]
        raise ValueError(f"{weight}: is missing, or not between 1 and {MAX_ROWS}")
    return frozenset(records[0])


def _content(reply: Message | None) -> RecordDict:
    """Return the content of a reply; ValueError if it is missing, an error or a refusal."""
    if reply is None:
        raise ValueError("no reply")
    if reply.has_error():
        raise ValueError(f"an error at the client: {one_line(reply.error.reason or 'unknown')}")
    record = reply.content.get(HEADER)
    if isinstance(record, ConfigRecord) and "refusal" in record:
        raise ValueError(one_line(str(record["refusal"])))
    return reply.content


def _loaded(module: nn.Module, arrays: ArrayRecord) -> nn.Module:
    made = copy.deepcopy(module)
    try:
        made.load_state_dict(arrays.to_torch_state_dict())
    except RuntimeError as error:
        raise ValueError(f"initial_arrays: are not those of the model: {error}") from None
    return made


def _natural(name: str) -> list[tuple[str, int]]:
    """Return a sort key by which client-2 comes before client-10.

    >>> sorted(["client-10", "client-2", "b"], key=_natural)
    ['b', 'client-2', 'client-10']
    """
    return [(text, int(n or 0)) for text, n in re.findall(r"(\D*)(\d*)", name)]


def _log_ignored(name: str, when: str, reason: str) -> None:
    _log.warning("%s is ignored in %s: %s", name, when, reason)
