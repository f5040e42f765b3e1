"""A coordinator that cannot choose a question: sites answer what they compute themselves."""

import copy
from functools import cache

import numpy as np
import pytest

import dorfl
from dorfl.protocol import coordinator, transcript
from dorfl.protocol.messages import Enrolled, Refusal, Reply, Request
from dorfl.protocol.transcript import Exchange, Relay, SignedReply, Transcript
from dorfl.site import local, replica
from dorfl.site.journal import Journal
from dorfl.site.policy import Policy
from dorfl.support import wire
from study_cases import METHODS, among, key_of, make_study, secure_sites, split

STANDARD = '[columns]\nscaling = "standard"'


def federation(count=3, method="erm", run="run-1", **options):
    tables = split(count)
    study = among(make_study(tables, method=METHODS[method], extra=STANDARD))
    return coordinator.begin(study, run), secure_sites(tables, study, key_of, **options)


def ask(site, relay):
    """The answer to a relayed request, and whether the site signed it."""
    said = wire.decode(site.respond(wire.encode(relay)), SignedReply)
    return wire.decode(said.reply, Reply).answer, bool(said.signature)


def reason(site, relay):
    answer, signed = ask(site, relay)
    assert not signed or not isinstance(answer, Refusal)
    return answer.reason if isinstance(answer, Refusal) else None


def until(step, state, sites, log, rounds=1):
    """The state at a step of a round's sum."""
    while not (state.step == step and state.sum.of == "round" and len(state.history) == rounds):
        now = Exchange(state, log)
        for name in coordinator.recipients(state):
            assert now.read(name, sites[name].respond(now.payload(name)))
        state = now.close()
    return state


@cache
def middle(step="sum masked"):
    state, sites = federation()
    log = Transcript()
    return until(step, state, sites, log), sites, log


@pytest.mark.parametrize("method", ["erm", "gdrfl"])
def test_replaying_sites_end_a_study_in_two_exchanges_a_step(method):
    state, sites = federation(method=method)
    states = [state]
    end = local.run(state, sites, states.append)
    assert end.outcome.status == "converged"
    steps = [one.step for one in states]
    for at, step in enumerate(steps):
        if step == "sum masked":
            assert steps[at + 1] == "sum open" and steps[at + 2] != "sum open"
    rounds = sum(one.step == "sum open" and one.sum.of == "round" for one in states)
    assert rounds == end.outcome.rounds + (method == "gdrfl")  # one more finds the first level


def test_a_site_that_was_restarted_replays_the_transcript_and_nothing_changes():
    state, sites = federation()
    whole = local.run(state, copy.copy(sites))
    state, sites = federation(run="run-1")

    def restart(_):
        sites["site-1"].replicas = {}  # as after a restart: the secret and the journal stay

    end = local.run(state, sites, restart)
    assert np.array_equal(end.outcome.theta, whole.outcome.theta)


def test_asked_again_a_site_sends_the_same_bytes_also_after_a_restart(tmp_path):
    state, sites = federation(count=3)
    for name, site in sites.items():
        site.journal = Journal(tmp_path / name, "digest")
    log = Transcript()
    state = until("sum masked", state, sites, log)
    site, data = sites["site-0"], wire.encode(log.relay(state, "site-0", 0))
    first = site.respond(data)
    assert site.respond(data) == first
    site.replicas, site.journal = {}, Journal(tmp_path / "site-0", "digest")
    assert site.respond(data) == first
    site.journal = Journal(tmp_path / "site-0", "another")
    assert "table has changed" in reason(site, log.relay(state, "site-0", 0))


def test_two_courses_of_one_run_are_not_both_answered():
    """A step closed with a site and, for somebody else, without it: the difference would be its."""
    state, sites = federation(count=4)
    log = Transcript()
    state = until("sum masked", state, sites, log)
    now = Exchange(state, log)
    for name in state.sites:
        now.read(name, sites[name].respond(now.payload(name)))
    number, opened = state.number, now.close()
    assert reason(sites["site-0"], log.relay(opened, "site-0", number)) is None
    without = tuple(said for said in log.steps[-1] if said.site != "site-3")
    fork = Transcript(steps=[*log.steps[:-1], without])
    other = transcript.advance(state, without)
    assert other.head != opened.head
    relay = fork.relay(other, "site-0", number)
    assert reason(sites["site-0"], relay) is not None
    sites["site-0"].replicas = {}  # also after a restart
    assert "another question" in reason(sites["site-0"], fork.relay(other, "site-0", 0))
    # Nor does what others said at the one head count at the other.
    relay = fork.relay(other, "site-1", number)
    assert reason(sites["site-1"], relay) is None
    said = wire.decode(sites["site-1"].respond(wire.encode(relay)), SignedReply)
    with pytest.raises(transcript.UnfitError, match="not signed by it at this point"):
        transcript.verify(opened, said)


def leaves(value, path=()):
    """The places of all numbers, texts and bytes in a request."""
    if hasattr(value, "_fields"):
        for name in value._fields:
            yield from leaves(getattr(value, name), (*path, name))
    elif isinstance(value, dict):
        for key in value:
            yield from leaves(value[key], (*path, key))
    elif isinstance(value, tuple):
        for k, part in enumerate(value):
            yield from leaves(part, (*path, k))
    elif isinstance(value, np.ndarray | float | int | str | bytes):
        yield path


def tampered(value, path, rng):
    """The request with one leaf changed."""
    if path:
        name, *rest = path
        if hasattr(value, "_fields"):
            return value._replace(**{name: tampered(getattr(value, name), rest, rng)})
        if isinstance(value, dict):
            return {**value, name: tampered(value[name], rest, rng)}
        parts = list(value)
        parts[name] = tampered(parts[name], rest, rng)
        return tuple(parts)
    if isinstance(value, np.ndarray):
        changed = np.array(value, dtype=float)
        if not changed.size:
            return np.ones(1)
        size = max(float(np.abs(changed).max()), 1e-3)
        changed.flat[rng.integers(changed.size)] += size * 10.0 ** rng.uniform(-6, 2)
        return changed
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + int(rng.choice([-1, 1, 7]))
    if isinstance(value, float):
        return value + (abs(value) or 1.0) * 10.0 ** rng.uniform(-6, 2)
    return value + (b"x" if isinstance(value, bytes) else "x")


@pytest.mark.parametrize("step", ["sum masked", "sum open"])
def test_random_tamperings_of_requests_are_refused(step):
    state, sites, log = middle(step)
    rng, refused = np.random.default_rng(0), 0
    relay = log.relay(state, "site-0", 0)
    assert reason(sites["site-0"], relay) is None
    places = [path for path in leaves(relay.request) if path != ("agreement", "transform")]
    fresh = federation()[1]["site-0"]  # has answered nothing yet
    fresh.secret, fresh.replicas = sites["site-0"].secret, {}
    for _ in range(500):
        path = places[rng.integers(len(places))]
        other = relay._replace(request=tampered(relay.request, path, rng))
        assert reason(fresh, other) is not None, path
        refused += 1
    assert refused == 500 and reason(fresh, relay) is None


def test_tampered_replies_are_refused():
    state, sites, log = middle()
    relay, site = log.relay(state, "site-0", 0), federation()[1]["site-0"]
    site.secret = sites["site-0"].secret
    last = relay.steps[-1]
    lied = last[1]._replace(reply=last[1].reply.replace(b'"run-1"', b'"run-2"'))
    resigned = transcript.sign(key_of("somebody"), state.head, "site-1", last[1].reply)
    for step in (
        (last[0], lied, last[2]),
        (last[0], resigned, last[2]),
        (last[0], last[0], last[2]),
        last[:1],
        (),
        (*last, last[0]._replace(site="site-9")),
    ):
        other = relay._replace(steps=(*relay.steps[:-1], step))
        assert reason(site, other) is not None
    for other in (
        relay._replace(steps=relay.steps[:-1]),
        relay._replace(steps=relay.steps[1:]),
        relay._replace(steps=relay.steps[::-1]),
        relay._replace(number=relay.number + 1),
        relay._replace(number=relay.number - 1, steps=relay.steps[:-1]),
        relay._replace(first=1),
    ):
        assert reason(site, other) is not None
    assert reason(site, relay) is None


def test_replies_are_split_into_messages_that_a_site_catches_up_with(monkeypatch):
    monkeypatch.setattr(transcript, "_CHUNK", 5000)
    state, sites, log = middle()
    sites["site-0"].replicas = {}
    now, asked = Exchange(state, log), 0
    while not now.read("site-0", sites["site-0"].respond(now.payload("site-0"))):
        asked += 1
    assert asked > 2 and "site-0" in now.answers


def test_a_summed_study_is_not_answered_in_the_open():
    state, sites, _ = middle()
    request = coordinator.request(state, "site-0")
    for asked in (request, request._replace(step="round", summing=None)):
        data = sites["site-0"].respond(wire.encode(asked))
        assert "summed one" in wire.decode(data, Reply).answer.reason


def test_sites_sum_with_whom_a_person_approved():
    state, sites = federation()
    site = sites["site-0"]
    first = Transcript().relay(state, "site-0", 0)
    site.ledger.agreed = set()
    answer, _ = ask(site, first)
    assert "waits for approval" in answer.reason  # although a pattern approves of any name
    fake = among(state.study, lambda name: key_of(name if name == "site-0" else f"fake {name}"))
    assert "waits for approval" in ask(site, Transcript().relay(begun(fake), "site-0", 0))[0].reason
    same = among(state.study, lambda name: key_of("one for all"))
    assert "one key for two" in reason(site, Transcript().relay(begun(same), "site-0", 0))
    wrong = among(state.study, lambda name: key_of(f"fake {name}"))
    assert "another key for this site" in reason(
        site, Transcript().relay(begun(wrong), "site-0", 0)
    )
    site.key = None
    assert "no key to sign with" in reason(site, first)


def begun(study):
    return coordinator.begin(study, "run-2")


def test_all_parties_need_the_same_version(monkeypatch):
    state, sites = federation()
    own = sites["site-1"].local

    def other(step, request):
        told = own(step, request)
        return told._replace(version="0.0.1") if isinstance(told, Enrolled) else told

    sites["site-1"].local = other
    words = rf"'site-1' runs dorfl 0\.0\.1 and another party {dorfl.__version__}"
    with pytest.raises(ValueError, match=words):
        local.run(state, sites)


# ── processors that round differently ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", ["erm", "gdrfl", "dorfl"])
def test_a_coordinator_that_rounds_differently_is_followed(method, monkeypatch):
    """Every relayed θ is off by 1e-12 of its largest entry, as between kinds of processors."""
    state, sites = federation(method=method)
    whole = local.run(state, sites)
    state, sites = federation(method=method)
    log, offs = Transcript(), []

    def elsewhere(asked):
        sent = asked.broadcast
        if sent is None:
            return asked
        theta = sent.task.theta
        rough = theta + 1e-12 * np.abs(theta).max() * np.random.default_rng(sent.round).normal(
            size=theta.size
        )
        offs.append(np.abs(rough - theta).max())
        return asked._replace(broadcast=sent._replace(task=sent.task._replace(theta=rough)))

    while state.step != "done":
        step = Exchange(state, log)
        own = coordinator.request(state, state.sites[0])
        relayed = elsewhere(own)
        state = replica.adopt(state, own, relayed)  # the coordinator's own numbers
        step.state = state
        for name in coordinator.recipients(state):
            while not step.read(name, sites[name].respond(step.payload(name))):
                pass
        state = step.close()
    assert max(offs) > 0.0
    assert state.outcome.status == "converged"
    assert state.outcome.objective == pytest.approx(whole.outcome.objective, rel=1e-6)


def test_requests_that_differ_by_more_than_rounding_are_not_the_same():
    state, _, _ = middle()
    own = wire.decode(wire.encode(coordinator.request(state, "site-0")), Request)
    theta = own.broadcast.task.theta
    for size, near in ((1e-12, True), (1e-9, True), (1e-6, False)):
        moved = theta + size * np.abs(theta).max() * np.sign(theta)
        task = own.broadcast.task._replace(theta=moved)
        other = own._replace(broadcast=own.broadcast._replace(task=task))
        assert (replica.distance(own, other) <= replica.TOLERANCE) == near


def test_no_policy_is_needed_to_take_part_in_sums():
    assert not Policy().allow_open_reports
    state, sites = federation(policy=Policy())
    assert all(not site.policy.allow_open_reports for site in sites.values())
    assert local.run(state, sites).outcome.status == "converged"
    assert isinstance(Transcript().relay(state, "site-0", 0), Relay)
