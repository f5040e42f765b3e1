"""The native Flower app: the same model as `dorfl.train`, and replies that are not to be trusted.

Messages are carried by a grid of this process; test_flower_run.py has Flower's own.
"""

import doctest
import logging

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.app import MetricRecord as Metrics
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from test_network_training import blobs, model
from torch.utils.data import DataLoader, TensorDataset

from dorfl import methods, mixture, privacy
from dorfl.flower import client
from dorfl.flower import strategy as strategies
from dorfl.flower.strategy import RobustStrategy
from dorfl.networks import adam, distance, sgd, train
from dorfl.networks.model import Network, make
from dorfl.networks.plan import Plan
from dorfl.networks.training import prepare

pytestmark = pytest.mark.filterwarnings("ignore:on the way of")  # ReLU has kinks, rows are few
NODES = (71, 39, 7, 99)  # Flower's are random, and so not in the order of the clients
PLAN = Plan(
    batch_size=16, local_epochs=1, max_parameters=1
)  # one client at a time, as a node of Flower has


@pytest.fixture(autouse=True)
def in_a_run():
    """A message says whose it is, which Flower knows in the processes it starts."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


class Loopback(Grid):
    """Nodes of this process; `spoil(node, ask, reply)` is what arrives instead of a reply."""

    def __init__(self, clients, answer, spoil=None):
        self.clients, self.answer, self.spoil = clients, answer, spoil
        self.contexts = {
            NODES[i]: Context(1, NODES[i], {"partition-id": i}, RecordDict(), {})
            for i in range(len(clients))
        }
        self.asked = []

    def set_run(self, run):
        raise NotImplementedError

    run = property(lambda self: None)
    create_message = get_nodes = push_messages = pull_messages = set_run

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            context, ask = self.contexts[node], dict(message.content["dorfl"])
            self.asked.append((node, ask, set(message.content)))
            reply = self.answer(message, context, self.clients[context.node_config["partition-id"]])
            reply = reply if self.spoil is None else self.spoil(node, ask, reply)
            if reply is not None:
                replies.append(reply)
        return replies


def app(clients, method, plan=PLAN, rounds=3, *, spoil=None, made=model, **words):
    """A run of the app: the strategy after it, and its result's θ."""
    module = make(made, plan.seed)

    def answer(message, context, rows):
        return client.train(message, context, rows, method, module, plan, **words)

    grid = Loopback(list(clients.values()), answer, spoil)
    strategy = RobustStrategy(
        method, module, plan, score=words.get("score"), fraction_evaluate=0.0,
        min_available_nodes=len(clients),
    )  # fmt: skip
    result = strategy.start(grid, ArrayRecord(module.state_dict()), rounds)
    strategy.theta = np.concatenate([a.ravel() for a in result.arrays.to_numpy_ndarrays()])
    strategy.grid = grid
    return strategy


def named(clients):
    return {f"client-{i}": rows for i, rows in enumerate(clients.values(), 1)}


@pytest.mark.parametrize(
    ("method", "given"),
    [
        (methods.erm(), {}),
        (methods.afl(), {"participation": 0.67}),
        (
            methods.wafl(5.0),
            {
                "local_steps": 2,
                "local_epochs": 0,
                "server_optimizer": adam(0.05),
                "optimizer": sgd(1.0),
            },
        ),
        (methods.gdrfl(5.0), {}),
        (methods.paper(5, 4), {"average": 0.5}),
        (methods.paper(5, 4, mixture=mixture.capped(0.6, by="loss")), {}),
        (methods.afl(), {"local_steps": 1, "privacy": privacy.gaussian(5.0, 1e-3, rounds=4)}),
    ],
    ids=["erm", "afl", "wafl", "gdrfl", "dorfl", "dorfl-loss", "private"],
)
def test_the_app_gives_the_model_of_train_bit_for_bit(method, given):
    clients, plan = named(blobs()), PLAN.changed(**given)
    here = train(clients, method, model, plan.changed(rounds=4))
    there = app(clients, method, plan, 4)
    assert np.array_equal(there.theta, here.theta)
    assert np.array_equal(list(there.lam.values()), here.lam)
    assert tuple(there.lam) == here.clients
    for ours, theirs in zip(there.history, here.history, strict=True):
        assert ours.answered == theirs.answered and ours.refused == {}
        assert np.array_equal(ours.risks, theirs.risks, equal_nan=True)
        assert (ours.bytes_up, ours.bytes_down) == (theirs.bytes_up, theirs.bytes_down)


def test_a_private_client_answers_no_more_rounds_than_its_noise_is_for(caplog):
    plan = Plan(rounds=2, privacy=privacy.gaussian(5.0, 1e-3, rounds=2))
    strategy = app(named(blobs()), methods.erm(), plan, 2)
    first = strategy.theta
    strategy.start(strategy.grid, strategy._arrays(torch.tensor(first)), 1)  # the same run
    assert "the privacy budget is for 2 rounds and is spent" in caplog.text


def test_what_clients_agree_on_travels_once_and_gives_the_same_model():
    clients, tilted = named(blobs()), methods.method(temperature=5.0, mixture="agnostic")
    for score in (distance(5.0), distance(5.0, components=1)):
        here = train(clients, tilted, model, PLAN.changed(rounds=3, max_loss=5.0), score=score)
        there = app(clients, tilted, PLAN.changed(max_loss=5.0), score=score)
        assert np.array_equal(there.theta, here.theta)
        told = [(node, ask["number"]) for node, ask, keys in there.grid.asked
                if ask["step"] == "train" and "agreed" in keys]  # fmt: skip
        assert len(told) == 3 and {number for _, number in told} == {1}


def test_clients_together_are_the_app_up_to_rounding():
    clients = named(blobs())
    together = train(clients, methods.paper(5, 4), model, Plan(batch_size=16, rounds=3))
    there = app(clients, methods.paper(5, 4), Plan(batch_size=16))
    assert there.theta == pytest.approx(together.theta, abs=1e-4)


def test_rows_may_be_a_loader():
    clients = named(blobs())
    sets = {k: TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
            for k, (X, y) in clients.items()}  # fmt: skip
    loaders = {k: DataLoader(one, batch_size=4) for k, one in sets.items()}
    theta = app(clients, methods.afl()).theta
    assert np.array_equal(app(sets, methods.afl()).theta, theta)
    assert np.array_equal(app(loaders, methods.afl()).theta, theta)


def test_pictures_and_a_client_without_some_class():
    rng = np.random.default_rng(0)
    labels = (np.arange(12) % 2, np.arange(20) % 3)  # the first has no row of the third class
    clients = {
        f"client-{i}": (rng.normal(size=(len(y), 1, 6, 6)).astype(np.float32), y)
        for i, y in enumerate(labels, 1)
    }
    cnn = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(32, 3)
    )
    method = methods.gdrfl(20.0)
    here = train(clients, method, cnn, PLAN.changed(rounds=3))
    assert np.array_equal(app(clients, method, made=cnn).theta, here.theta)


def test_a_regression():
    rng = np.random.default_rng(0)
    clients = {
        f"client-{i}": (rng.normal(size=(30, 2)).astype(np.float32), rng.normal(size=30))
        for i in (1, 2)
    }
    line, method = torch.nn.Linear(2, 1), methods.paper(5, 4)
    here = train(clients, method, line, PLAN.changed(rounds=3), loss="squared")
    assert np.array_equal(app(clients, method, made=line, loss="squared").theta, here.theta)


def test_a_second_training_starts_anew():
    clients, method = named(blobs()), methods.paper(5, 4)
    one = app(clients, method, PLAN)
    module = make(model, 0)
    again = one.start(one.grid, ArrayRecord(module.state_dict()), 3)
    theta = np.concatenate([a.ravel() for a in again.arrays.to_numpy_ndarrays()])
    assert np.array_equal(theta, one.theta)


def changed(reply, **records):
    for key, record in records.items():
        reply.content[key] = record
    return reply


def way(numbers):
    return ArrayRecord({"values": Array(numbers)})


def refusing(reply):
    return Message(RecordDict({"dorfl": ConfigRecord({"refusal": "no\x1b[2J"})}), reply_to=reply)


SIZE = sum(p.numel() for p in model().parameters())
PICKLE = Array("object", (1,), "numpy.ndarray", b"\x80\x04N.")
HUGE = Array(np.zeros(SIZE, np.float32))
HUGE.data = HUGE.data.replace(f"({SIZE},)".encode(), b"(9" + b"9" * (len(str(SIZE)) - 1) + b",)")
BAD = {
    "nothing": lambda r: None,
    "error": lambda r: Message(Error(0, "no"), reply_to=r),
    "refusal": refusing,
    "empty": lambda r: Message(RecordDict(), reply_to=r),
    "shape": lambda r: changed(r, update=way(np.zeros(SIZE + 1, np.float32))),
    "type": lambda r: changed(r, update=way(np.zeros(SIZE, np.float64))),
    "names": lambda r: changed(r, update=ArrayRecord({"other": Array(np.zeros(SIZE, np.float32))})),
    "nan": lambda r: changed(r, update=way(np.full(SIZE, np.nan, np.float32))),
    "pickle": lambda r: changed(r, update=ArrayRecord({"values": PICKLE})),
    "short": lambda r: changed(r, update=ArrayRecord({"values": HUGE})),
    "long update": lambda r: changed(r, update=way(np.full(SIZE, 1e6, np.float32))),
    "no risk": lambda r: changed(r, dorfl=Metrics({"num-examples": 3})),
    "risk is a list": lambda r: changed(r, dorfl=Metrics({"risk": [1.0]})),
    "infinite risk": lambda r: changed(r, dorfl=Metrics({"risk": float("inf")})),
    "huge risk": lambda r: changed(r, dorfl=Metrics({"risk": 1e6})),
}


@pytest.mark.parametrize("how", BAD)
def test_a_bad_reply_is_left_out_and_said(how, caplog, monkeypatch):
    clients, method = named(blobs()), methods.afl()

    def spoil(node, ask, reply):
        bad = ask["step"] == "train" and ask["stream"] == 1 and ask["number"] == 2
        return BAD[how](reply) if bad else reply

    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.WARNING, "flwr")
    there = app(clients, method, spoil=spoil)
    first, second, third = there.history
    assert second.answered == ("client-1", "client-3")
    assert tuple(second.refused) == ("client-2",)
    assert second.risks[1] == first.risks[1]  # what was last heard stands
    assert third.answered == tuple(there.lam)
    assert np.isfinite(there.theta).all()
    assert "client-2 is ignored in round 2" in caplog.text and "\x1b" not in caplog.text


def test_the_others_stand_in_for_who_is_silent():
    clients = named(blobs())

    def spoil(node, ask, reply):
        return None if ask["step"] == "train" and ask["stream"] == 1 else reply

    there = app(clients, methods.erm(), rounds=1, spoil=spoil)
    local = prepare(clients, methods.erm(), model, PLAN)
    theta, counts = local.network.start(), local.rows.counts
    updates = [local.reply(theta, 1, [i], local.begin()[[i]]).updates[0] for i in (0, 2)]
    mean = (counts[0] * updates[0] + counts[2] * updates[1]) / (counts[0] + counts[2])
    assert there.theta == pytest.approx((theta - mean).numpy(), abs=1e-6)
    assert there.history[0].answered == ("client-1", "client-3")


def test_a_round_without_any_answer_changes_nothing():
    def spoil(node, ask, reply):
        return None if ask["step"] == "train" else reply

    there = app(named(blobs()), methods.afl(), rounds=2, spoil=spoil)
    assert there.history == []
    assert np.array_equal(there.theta, Network(make(model, 0)).start().numpy())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"method": methods.method(mixture="fixed", name="afl")}, "another method"),
        ({"score": lambda x, y: x.abs().sum(1)}, "another score"),
        ({"plan": PLAN.changed(max_loss=3.0)}, "another plan"),
    ],
)
def test_a_client_of_another_training_is_refused_and_the_difference_is_logged(
    words, named, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.WARNING, "flwr")
    rows, module, method = list(blobs().values()), make(model, 0), methods.afl()
    given = {"method": method, "plan": PLAN}

    def answer(message, context, own):
        other = context.node_config["partition-id"] == 1
        used = {**given, **words} if other else dict(given)
        first = used.pop("method"), module, used.pop("plan")
        return client.train(message, context, own, *first, **used)

    strategy = RobustStrategy(method, module, PLAN, fraction_evaluate=0.0, min_available_nodes=3)
    strategy.start(Loopback(rows, answer), ArrayRecord(module.state_dict()), 1)
    assert tuple(strategy.lam) == ("client-1", "client-3")
    assert f"the server has {named} than this client" in caplog.text


def test_who_cannot_be_enrolled_is_left_out():
    clients = named(blobs())
    bad = {
        "rows": ConfigRecord({"name": "x", "rows": 10**12}),
        "name": ConfigRecord({"name": "client-1", "rows": 12}),
        "line": ConfigRecord({"name": "a\nb", "rows": 12}),
        "none": ConfigRecord({"rows": 12}),
    }
    for words in bad.values():

        def spoil(node, ask, reply, words=words):
            third = node == NODES[2]
            return changed(reply, dorfl=words) if ask["step"] == "enrol" and third else reply

        assert len(app(clients, methods.afl(), rounds=1, spoil=spoil).lam) == 2


def test_who_tells_nonsense_of_the_centre_is_left_out():
    def told(values):
        weight = Array(np.array([3.0]))
        return ArrayRecord({"values": Array(values), "weight": weight})

    for values in (np.zeros(3), np.full(2, 1e9), np.full(2, np.nan), np.zeros((2, 2))):

        def spoil(node, ask, reply, values=values):
            wrong = ask["step"] == "statistics" and node == NODES[1]
            return changed(reply, statistics=told(values)) if wrong else reply

        assert tuple(app(named(blobs()), methods.paper(5, 4), rounds=1, spoil=spoil).lam) == (
            "client-1", "client-3",
        )  # fmt: skip


def test_a_client_of_few_rows_does_not_tell_of_them():
    clients = {"a": (np.ones((4, 2), np.float32), np.arange(4) % 3), **named(blobs())}
    there = app(clients, methods.paper(5, 4), rounds=1)
    assert len(there.lam) == 3 and "client-1" not in there.lam
    told = [keys for node, ask, keys in there.grid.asked if ask["step"] == "train"]
    assert len(told) == 3


def test_a_client_that_lost_its_state_is_told_again():
    clients = named(blobs())

    def spoil(node, ask, reply):
        if ask["step"] == "train" and ask["number"] == 1 and ask["stream"] == 0:
            grid = gone["grid"]
            grid.contexts[node].state = RecordDict()
        return reply

    gone = {}
    module = make(model, 0)
    method = methods.paper(5, 4)
    grid = gone["grid"] = Loopback(
        list(clients.values()),
        lambda m, c, rows: client.train(m, c, rows, method, module, PLAN),
        spoil,
    )
    strategy = RobustStrategy(method, module, PLAN, fraction_evaluate=0.0, min_available_nodes=3)
    strategy.start(grid, ArrayRecord(module.state_dict()), 3)
    assert [len(line.answered) for line in strategy.history] == [3, 2, 3]
    assert "has lost the agreed statistics" in strategy.history[1].refused["client-1"]


def test_client_and_server_must_have_the_same_plan():
    module = make(model, 0)
    rows = next(iter(blobs().values()))
    grid = Loopback(
        [rows], lambda m, c, r: client.train(m, c, r, methods.afl(), module, Plan(batch_size=8))
    )
    strategy = RobustStrategy(methods.afl(), module, PLAN, min_available_nodes=1)
    with pytest.raises(ValueError, match="no client takes part"):
        strategy.start(grid, ArrayRecord(module.state_dict()), 1)
    with pytest.raises(ValueError, match="participation"):
        RobustStrategy(methods.afl(), module, PLAN, fraction_train=0.5)
    with pytest.raises(ValueError, match="not those of the model"):
        strategy.start(grid, ArrayRecord({}), 1)
    with pytest.raises(ValueError, match="radius"):
        RobustStrategy(methods.method(radius=0.1), module)


def test_rows_and_what_a_client_keeps_do_not_travel():
    """Nothing of a reply is as large as the rows, and no state is in it."""
    sent = []

    def spoil(node, ask, reply):
        sent.append((ask["step"], reply.content))
        return reply

    app(named(blobs()), methods.paper(5, 4), spoil=spoil)
    assert {key for _, content in sent for key in content} == {"dorfl", "statistics", "update"}
    for step, content in sent:
        if step == "train":
            assert set(content["dorfl"]) == {"risk", "num-examples"}
            assert content["update"]["values"].shape == (SIZE,)


def test_the_examples_in_the_module_hold():
    assert doctest.testmod(strategies) == (0, 3)


def test_metrics_that_are_no_numbers_are_left_out():
    strategy = RobustStrategy(methods.afl(), make(model, 0))
    asked = Message(RecordDict(), 1, "evaluate")

    def reply(**metrics):
        return Message(RecordDict({"metrics": Metrics(metrics)}), reply_to=asked)

    good = [reply(**{"num-examples": n, "acc": a}) for n, a in ((30, 0.9), (10, 0.5))]
    bad = [
        reply(**{"num-examples": 10, "acc": float("nan")}),
        reply(**{"num-examples": -1, "acc": 1.0}),
        reply(**{"num-examples": 10, "acc": [1.0]}),
        reply(**{"num-examples": 10, "other": 1.0}),
        reply(acc=1.0),
        Message(RecordDict(), reply_to=asked),
        Message(Error(0), reply_to=asked),
    ]
    found = strategy.aggregate_evaluate(1, [*good, *bad])
    assert dict(found) == {"acc": 0.8, "acc-min": 0.5, "acc-max": 0.9}
    assert strategy.aggregate_evaluate(1, bad[-1:]) is None
