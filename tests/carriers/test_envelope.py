"""Envelopes: only the coordinator's requests are answered, only a site's own replies are taken."""

import contextlib
import datetime
import random

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from hypothesis import given
from hypothesis import strategies as st

from dorfl.carriers import envelope, keys
from dorfl.carriers.envelope import CoordinatorSeal, SiteEndpoint
from dorfl.protocol import coordinator
from dorfl.protocol.messages import Refusal, Reply
from dorfl.support import wire
from study_cases import make_sites, make_study, synthetic_tables


class Echo:
    """A site that answers with what it was asked."""

    def __init__(self, name="site-1"):
        self.name, self.notes = name, []
        self.note = self.notes.append

    def respond(self, payload):
        return b"heard: " + payload


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    keys.create_authority(folder, "127.0.0.1")
    return folder, keys.new_key()


def endpoint(made, site=None, authority=None):
    return SiteEndpoint(site or Echo(), made[1], authority or made[0] / "ca.crt")


def refusal(made, asked, site, answer):
    """Return why a request was turned away; the reply is signed all the same."""
    payload = CoordinatorSeal(made[0]).reply(site.name, made[1].public_key(), asked, answer)
    reply = wire.decode(payload, Reply)
    assert isinstance(reply.answer, Refusal)
    return reply.answer.reason


@given(st.binary(max_size=200))
def test_a_payload_comes_through_both_ways(made, payload):
    seal = CoordinatorSeal(made[0])
    asked = seal.request("site-1", payload)
    answer = endpoint(made).respond(asked)
    public = made[1].public_key()
    assert seal.reply("site-1", public, asked, answer) == b"heard: " + payload
    assert max(len(asked), len(answer)) - len(payload) <= envelope.OVERHEAD


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_no_byte_of_a_reply_can_be_changed(made, place, change):
    seal = CoordinatorSeal(made[0])
    asked = seal.request("site-1", b"what")
    answer = bytearray(endpoint(made).respond(asked))
    answer[place % len(answer)] ^= change
    with pytest.raises(ValueError, match="signed"):
        seal.reply("site-1", made[1].public_key(), asked, bytes(answer))


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_no_byte_of_a_request_can_be_changed(made, place, change):
    site = Echo()
    asked = bytearray(CoordinatorSeal(made[0]).request("site-1", b"what"))
    asked[place % len(asked)] ^= change
    answer = endpoint(made, site).respond(bytes(asked))
    assert refusal(made, bytes(asked), site, answer) and site.notes


def test_a_reply_counts_for_its_request_and_its_site_alone(made):
    seal, public = CoordinatorSeal(made[0]), made[1].public_key()
    first, second = (seal.request("site-1", b"what") for _ in range(2))
    answer = endpoint(made).respond(first)
    with pytest.raises(ValueError, match="as a reply to this request"):
        seal.reply("site-1", public, second, answer)  # replayed, though the content is the same
    with pytest.raises(ValueError, match="signed"):
        seal.reply("site-2", public, first, answer)
    with pytest.raises(ValueError, match="signed"):
        seal.reply("site-1", keys.new_key().public_key(), first, answer)


@given(st.binary(max_size=60))
def test_what_is_no_envelope_is_refused_by_both(made, rubbish):
    site = Echo()
    answer = endpoint(made, site).respond(rubbish)
    assert "envelope" in refusal(made, rubbish, site, answer)
    asked = CoordinatorSeal(made[0]).request("site-1", b"what")
    with pytest.raises(ValueError, match="signed"):
        CoordinatorSeal.reply("site-1", made[1].public_key(), asked, rubbish)


def test_a_request_for_another_site_is_turned_away(made):
    site = Echo("site-2")
    asked = CoordinatorSeal(made[0]).request("site-1", b"what")
    answer = endpoint(made, site).respond(asked)
    assert "not signed for this site" in refusal(made, asked, site, answer)


def test_another_coordinator_is_turned_away(made, tmp_path):
    keys.create_authority(tmp_path, "127.0.0.1")
    site = Echo()
    asked = CoordinatorSeal(tmp_path).request("site-1", b"what")
    assert "no certificate of the authority" in refusal(
        made, asked, site, endpoint(made, site).respond(asked)
    )


def test_the_servers_key_signs_no_request(made, tmp_path):
    """Neither the HTTPS server nor a SuperLink, which have that key, can ask a site."""
    for name in ("coordinator.key", "coordinator.crt"):
        other = name.replace("coordinator", "server")
        (tmp_path / name).write_bytes((made[0] / other).read_bytes())
    site = Echo()
    asked = CoordinatorSeal(tmp_path).request("site-1", b"what")
    assert "not signed by a coordinator" in refusal(
        made, asked, site, endpoint(made, site).respond(asked)
    )


@pytest.mark.parametrize("days", [-400, 400])
def test_a_coordinators_certificate_that_is_not_valid_now_is_turned_away(made, tmp_path, days):
    root = x509.load_pem_x509_certificate((made[0] / "ca.crt").read_bytes())
    key = keys.new_key()
    middle = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    old = (
        x509.CertificateBuilder()
        .subject_name(keys._name(keys.COORDINATOR))
        .issuer_name(root.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(middle - datetime.timedelta(days=1))
        .not_valid_after(middle + datetime.timedelta(days=1))
        .sign(keys.read_private(made[0] / "ca.key"), hashes.SHA256())
    )
    pem = envelope.serialization.Encoding.PEM
    (tmp_path / "coordinator.crt").write_bytes(old.public_bytes(pem))
    (tmp_path / "coordinator.key").write_bytes(keys._private_bytes(key))
    site = Echo()
    asked = CoordinatorSeal(tmp_path).request("site-1", b"what")
    reason = refusal(made, asked, site, endpoint(made, site).respond(asked))
    assert "has expired" in reason and "clock" in reason


def test_a_message_that_is_too_long_is_refused_before_anything_is_verified(made, monkeypatch):
    monkeypatch.setattr(envelope, "LIMIT", 100)
    with pytest.raises(ValueError, match="more than the 100 allowed"):
        CoordinatorSeal.reply("site-1", made[1].public_key(), b"", b"dorfl1" + bytes(200))


def mangled(rng, data):
    """Return bytes with a few of them changed, left out, doubled or cut off."""
    data = bytearray(data)
    odd = [b"\r\n", b"\0", b"-1", b"1e999", b"NaN", b"[[", b'"', b"{}"]
    for _ in range(rng.randint(1, 4)):
        k = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[k : k + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[k : k + rng.randint(1, 20)]
            case 2:
                data[k:k] = data[k : k + rng.randint(1, 50)]
            case 3:
                data[k:k] = rng.choice(odd)
            case _:
                del data[k:]
    return bytes(data)


@pytest.mark.slow
def test_mangled_payloads_of_a_site_change_nothing():
    """67,000, of every step: a hostile site may sign whatever it likes."""
    rng, tables = random.Random(1), synthetic_tables()
    sites = make_sites(tables)
    state = coordinator.begin(make_study(tables, training="max_rounds = 2"), "run")
    tried = read = 0
    while state.step != "done":
        asked = {s: wire.encode(coordinator.request(state, s)) for s in state.sites}
        replies = {s: sites[s].respond(asked[s]) for s in state.sites}
        before = wire.encode(state.study), state.step
        for _ in range(8_400):
            site = rng.choice(state.sites)
            tried += 1
            with contextlib.suppress(ValueError):
                coordinator.read(state, site, mangled(rng, replies[site]))
                read += 1
        assert (wire.encode(state.study), state.step) == before
        answers = {s: coordinator.read(state, s, replies[s]) for s in state.sites}
        state = coordinator.receive(state, answers)
    assert tried >= 67_000
    assert read < tried / 2  # a digit of a number may be another: report bounds deal with that
    assert state.outcome is not None and np.isfinite(state.outcome.theta).all()


def test_mangled_envelopes_are_turned_away(made):
    seal, site, rng = CoordinatorSeal(made[0]), Echo(), random.Random(0)
    asked = seal.request("site-1", b"what")
    answer = endpoint(made).respond(asked)
    for _ in range(1_000):
        request, reply = mangled(rng, asked), mangled(rng, answer)
        if request != asked:
            refusal(made, request, site, endpoint(made, site).respond(request))
        if reply != answer:
            with pytest.raises(ValueError, match="signed"):
                seal.reply("site-1", made[1].public_key(), asked, reply)
