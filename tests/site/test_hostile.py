"""What a hostile coordinator or site may send beside the attacks on rows: other steps and types."""

import numpy as np
import pytest

from dorfl.data.robust import ColumnScales
from dorfl.federated.messages import Broadcast
from dorfl.protocol import coordinator, transcript
from dorfl.protocol.messages import Refusal, Reply, Request
from dorfl.protocol.transcript import Exchange, Relay, SignedReply, Transcript
from dorfl.selection import outliers
from dorfl.selection.outliers import Decision, default_candidates
from dorfl.solvers.base import Task
from dorfl.support import wire
from study_cases import among, key_of, make_sites, make_study, mixed_tables, secure_sites

KNOWN = 'known = {x = [-4, 5], ward = ["north", "south", "west"]}'
CLASSES = 'classes = ["no", "yes"]\n[columns]\nuse = ["x", "ward"]\nscaling = "standard"'
WORDS = {"erm": 'name = "erm"', "dorfl": 'name = "dorfl"\nrho = 5\ncenter = "auto"'}


def private(method="erm", rows=None):
    """A private study of one site, before its first round: the site and what is agreed on."""
    rows = rows or mixed_tables()["site-1"]
    privacy = f"epsilon = 4.0\nclip = 2.0\n{KNOWN}"
    study = make_study(
        {"s": rows}, "ill", CLASSES, WORDS[method], "max_rounds = 9", privacy=privacy
    )
    site = make_sites({"s": rows}, allow_open_reports=False)["s"]
    state = coordinator.begin(study, "run")
    while state.step != "round":
        reply = site.respond(wire.encode(coordinator.request(state, "s")))
        state = coordinator.receive(state, {"s": coordinator.read(state, "s", reply)})
    return site, coordinator.request(state, "s").agreement


def answer_of(site, request):
    return wire.decode(site.respond(wire.encode(request)), Reply).answer


def broadcast(number, theta):
    return Broadcast(number, Task(np.asarray(theta, float), np.ones(1)))


@pytest.mark.parametrize("method", WORDS)
def test_a_private_study_has_no_step_without_noise(method):
    """Distances, losses of held-out rows, and reports beyond the rounds that the noise is for."""
    site, agreement = private(method)
    size, candidates = len(agreement.transform.names) + 1, default_candidates()
    scales, limit = ColumnScales(np.ones(size - 1)), outliers.row_limit(1)
    models = np.random.default_rng(0).normal(size=(len(candidates), size))
    asked = {str(k): broadcast(1, model) for k, model in enumerate(models)}
    spent, count = site.ledger.spent(1e-5), 0
    for changed in (
        {"scales": scales},
        {"scales": scales, "center": np.zeros(size - 1)},
        {"row_limit": limit},
        {},
    ):
        other = agreement._replace(**changed)
        for request in (
            Request(other, "location"),
            Request(other, "cutoff"),
            Request(other, "cutoff", broadcast(3, models[0])),
            Request(other, "compare", candidates=candidates, models=models),
            Request(other, "select", candidates=candidates, broadcasts=asked),
            Request(other, "network", broadcast(1, models[0])),
            Request(other, "certify"),
        ):
            count += 1  # in a run of its own, since one place of a run is asked once
            named = request._replace(agreement=other._replace(run=f"run-{count}"))
            answer = answer_of(site, named)
            assert isinstance(answer, Refusal), (request.step, answer)
    assert site.ledger.spent(1e-5) == spent


def test_in_a_private_study_no_row_is_chosen_or_weighted():
    site, agreement = private()
    size, (candidate, *_) = len(agreement.transform.names) + 1, default_candidates()
    for k, changed in enumerate(
        (
            {"row_limit": outliers.row_limit(1), "candidate": candidate},
            {"candidate": candidate},
            {"reference": np.append(np.zeros(size), 1e-9)},
            {"decision": Decision(0.25), "cutoffs": ((0.25, 1e-3),)},
            {"scales": ColumnScales(np.ones(size - 1))},
            {"center": np.zeros(size - 1)},
            {"scatter": 1e-6},
            {"decay": 0.1},
        )
    ):
        other = agreement._replace(run=f"other-{k}", **changed)
        answer = answer_of(site, Request(other, "round", broadcast(1, np.zeros(size))))
        assert isinstance(answer, Refusal), changed
    fine = Request(agreement._replace(run="last"), "round", broadcast(1, np.zeros(size)))
    assert not isinstance(answer_of(site, fine), Refusal)


@pytest.mark.filterwarnings("ignore")  # as at a site, where they are no errors
def test_in_a_private_study_no_row_is_shown_by_an_overflow():
    """The same kind of answer, whatever is in a row: an error or a NaN has no noise."""
    honest, extreme = mixed_tables()["site-1"], mixed_tables()["site-1"]
    extreme["x"] = [1e300, None, *extreme["x"][2:]]
    agreements, kinds = {}, {}
    for which, rows in (("honest", honest), ("extreme", extreme)):
        site, agreement = private(rows=rows)
        agreements[which] = agreement
        x, ward = agreement.transform.parts
        own = len(agreement.transform.names)
        kinds[which] = []
        for k, (part, theta) in enumerate(
            (
                (x, np.zeros(own + 1)),
                (x, np.full(own + 1, 1e9)),
                (x, np.r_[1e306, -1e306, np.zeros(own - 1)]),
                (x, np.r_[1e308, -1e308, np.zeros(own - 1)]),
                (x._replace(spread=1e-39), np.zeros(own + 1)),
                (x._replace(spread=1e-300), np.ones(own + 1)),
                (x._replace(fill=1e300), np.ones(own + 1)),
                (x._replace(fill=1e300, spread=1e-300), np.ones(own + 1)),
                (x._replace(center=1e300), np.ones(own + 1)),
            )
        ):
            transform = type(agreement.transform)((part, ward), {})
            changed = agreement._replace(run=f"run-{k}", transform=transform)
            reply = site.respond(wire.encode(Request(changed, "round", broadcast(1, theta))))
            answer = wire.decode(reply, Reply).answer  # refuses NaN
            assert k > 1 or not isinstance(answer, Refusal), (which, k)
            kinds[which].append(getattr(answer, "reason", type(answer)))
    assert kinds["honest"] == kinds["extreme"]


# ── whatever a site sends ───────────────────────────────────────────────────────────────────────


def course(summed, label):
    """Every step of an honest study of three sites: its state, replies by site, earlier steps."""
    tables = mixed_tables(sizes=(90, 140, 120))
    study = make_study(tables, label, "", 'name = "dorfl"')
    study = among(study) if summed else study
    sites = secure_sites(tables, study, key_of) if summed else make_sites(tables)
    state, log, steps = coordinator.begin(study, "run"), Transcript(), []
    while state.step != "done":
        now, replies = Exchange(state, log), {}
        for name in coordinator.recipients(state):
            replies[name] = sites[name].respond(now.payload(name))
            assert now.read(name, replies[name])
        steps.append((state, replies, tuple(log.steps)))
        state = now.close()
    return steps, sites


def places(value, path=()):
    """The places of everything in an answer, containers too."""
    yield path
    if hasattr(value, "_fields"):
        for name in value._fields:
            yield from places(getattr(value, name), (*path, name))
    elif isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, tuple):
        for k, part in enumerate(value):
            yield from places(part, (*path, k))


def one_of(rng, *choices):
    return choices[rng.integers(len(choices))]


def odd(value, rng):
    """Another value in the place of one: of another size, shape or type, or not finite."""
    if isinstance(value, np.ndarray):
        whole = value.astype(np.int64) if np.abs(value).max(initial=0.0) < 2**62 else value
        return one_of(
            rng,
            *(np.zeros(0), np.zeros_like(value), -value, value[..., None], value.ravel()[:1]),
            *(np.full(value.shape, 1e300), np.full(value.shape, np.nan), np.full(10**5, 0.5)),
            *(value.astype(np.float32), whole, value * 1.5),
        )
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return one_of(rng, 0, -1, 1, value + 1, 2**40, 2**62, -(2**62), 0.5, "1")
    if isinstance(value, float):
        return one_of(rng, 0.0, -1.0, 1e300, -1e300, 1e-300, np.nan, np.inf, 1.5 * value, "x")
    if isinstance(value, str):
        return one_of(rng, "", "numeric", "category", "empty", "site-2", "x" * 1000, "\0", 3)
    if isinstance(value, bytes):
        return one_of(rng, b"", bytes(32), b"\xff" * 32, bytes(31))
    if hasattr(value, "_fields"):
        return one_of(rng, None, (), {}, Refusal("no", 3))
    if isinstance(value, tuple):
        return one_of(rng, (), value * 2, value[::-1], value[:1], value * 2000)
    if isinstance(value, dict):
        some = next(iter(value.values()), 1)
        many = {str(k): some for k in range(2000)}
        return one_of(rng, {}, {**value, "new": some}, {"": some, **value}, {**many, **value})
    return one_of(rng, 0, 1.0, "x", np.zeros(3))


def changed(value, path, rng):
    """The answer with one place changed."""
    if not path:
        return odd(value, rng)
    name, *rest = path
    if hasattr(value, "_fields"):
        return value._replace(**{name: changed(getattr(value, name), rest, rng)})
    if isinstance(value, dict):
        return {**value, name: changed(value[name], rest, rng)}
    parts = list(value)
    parts[name] = changed(parts[name], rest, rng)
    return tuple(parts)


@pytest.mark.parametrize("label", ["ill", "cost"])
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_whatever_a_site_sends_is_used_refused_or_ends_the_study(summed, label):
    """Also answers of other steps. With sums, other sites stay up and refuse what does not fit."""
    steps, sites = course(summed, label)
    rng, seen = np.random.default_rng(0), {"used": 0, "refused": 0, "ended": 0}

    def opened(data):
        return wire.decode(wire.decode(data, SignedReply).reply if summed else data, Reply)

    answers = [opened(data).answer for _, replies, _ in steps for data in replies.values()]
    for trial in range(150):
        state, replies, log = steps[trial % len(steps)]
        liar = one_of(rng, *replies)
        reply = opened(replies[liar])
        own = list(places(reply.answer))
        answer = changed(reply.answer, own[rng.integers(len(own))], rng)
        answer = one_of(rng, *answers) if trial % 7 == 0 else answer
        other = one_of(rng, {}, {}, {}, {}, {"run": "run-2"}, {"step": "round"}, {"site": "s"})
        data = wire.encode(reply._replace(answer=answer, **other))
        if summed:
            data = wire.encode(transcript.sign(key_of(liar), state.head, liar, data))
        now = Exchange(state, Transcript(steps=list(log)))
        try:
            now.read(liar, data)
        except ValueError:
            seen["refused"] += 1
        for name in replies.keys() - {liar}:
            now.read(name, replies[name])
        try:
            after = now.close()
            seen["used"] += 1
        except ValueError:
            seen["ended"] += 1
            after = None
        if summed and trial % 15 == 0 and len(replies) == 3:
            said = {**{n: wire.decode(r, SignedReply) for n, r in replies.items()}}
            said[liar] = wire.decode(data, SignedReply)
            honest = next(name for name in replies if name != liar)
            asked = coordinator.request(after or state, honest)
            relay = Relay(state.number + 1, 0, (*log, tuple(said.values())), asked)
            sites[honest].replicas.clear()
            back = wire.decode(sites[honest].respond(wire.encode(relay)), SignedReply)
            assert back.site == honest
    assert min(seen.values()) > 2, seen


def test_replies_of_strangers_change_nothing():
    steps, _ = course(summed=False, label="ill")
    for state, replies, _ in steps:
        now = Exchange(state, Transcript())
        for name, data in replies.items():
            now.read(name, data)
        whole = now.close()
        answers = {**now.answers, "site-9": now.answers["site-1"]}
        after = coordinator.receive(state, answers, {"site-8": "not this"})
        assert after.step == whole.step
        if after.step != "done":
            asked = [wire.encode(coordinator.request(one, "site-1")) for one in (after, whole)]
            assert asked[0] == asked[1]


# ── whatever a coordinator asks ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("label", ["ill", "cost"])
@pytest.mark.filterwarnings("ignore")
def test_whatever_is_asked_the_site_stays_up(label):
    steps, sites = course(summed=False, label=label)
    rng, refused = np.random.default_rng(0), 0
    requests = [coordinator.request(state, "site-1") for state, _, _ in steps]
    names = ["", "sum masked", "sum open", "levels", "medians", "done", *{r.step for r in requests}]
    for trial in range(150):
        request = requests[trial % len(requests)]
        own = list(places(request))[1:]
        other = changed(request, own[rng.integers(len(own))], rng)
        if trial % 3 == 0:
            other = request._replace(step=one_of(rng, *names))
        reply = wire.decode(sites["site-1"].respond(wire.encode(other)), Reply)
        assert reply.site in ("site-1", "")
        refused += isinstance(reply.answer, Refusal)
    assert 25 < refused < 150


def test_candidates_are_asked_about_once_each():
    steps, sites = course(summed=False, label="ill")
    state = next(state for state, _, _ in steps if state.step == "select")
    request = coordinator.request(state, "site-1")
    sent = request.broadcasts["0"]
    for other in (
        request._replace(broadcasts={"0": sent, "00": sent}),
        request._replace(broadcasts={"٣": sent}),
        request._replace(broadcasts={"-1": sent}),
        request._replace(candidates=request.candidates * 2),
    ):
        answer = answer_of(sites["site-1"], other)
        assert isinstance(answer, Refusal) and "none that the study implies" in answer.reason
    assert not isinstance(answer_of(sites["site-1"], request), Refusal)
