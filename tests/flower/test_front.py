"""The front under attack: a real TLS server on the loopback, and no SuperLink behind it."""

import asyncio
import contextlib
import http.client
import random
import re
import socket
import ssl
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import uvicorn

from dorfl.flower import door as doors
from dorfl.flower import keys
from dorfl.flower.desk import Desk, Question
from dorfl.flower.door import Door
from dorfl.flower.fleet import ANSWER, HELLO, NEXT, Away, Connection, Rejected, Taken
from dorfl.flower.front import HEADERS, front
from dorfl.flower.serving import free_port
from dorfl.flower.signing import Judge, Signer, Turned
from dorfl.study import coordinator
from dorfl.support import wire
from study_cases import make_sites, make_study, synthetic_tables

pytestmark = pytest.mark.xdist_group("flower")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The front as it is served, for two sites; `exchange` is the coordinator's turn."""
    root = tmp_path_factory.mktemp("front")
    keys.create_authority(root, "127.0.0.1")
    known = {}
    for name in ("a", "b"):
        keys.create_pair(root, name)
        known[name] = keys.read_public((root / f"{name}.pub").read_bytes(), name)
    desk, door = Desk(), Door("127.0.0.1", free_port(), 20)
    port = door.getsockname()[1]
    app = front(desk, door, lambda: known, lambda site: {"site": site, "study": None})
    config = uvicorn.Config(
        app, http="h11", h11_max_incomplete_event_size=HEADERS, loop="asyncio", ws="none",
        ssl_certfile=str(root / "server.crt"), ssl_keyfile=str(root / "server.key"),
        log_level="critical", proxy_headers=False, timeout_keep_alive=3600,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(server.serve([door]),))
    patience, doors.PATIENCE = doors.PATIENCE, 2.0
    thread.start()
    while not server.started:
        time.sleep(0.02)

    def exchange(*questions, patience=0.0, run="run"):
        awaited = {q.id for q in questions}
        turn = desk.exchange(run, list(questions), awaited, patience)
        return asyncio.run_coroutine_threadsafe(turn, loop).result(60)

    def connect(name="a"):
        return Connection(
            f"127.0.0.1:{port}", root / "ca.crt", keys.read_private(root / f"{name}.key"), name
        )

    try:
        yield SimpleNamespace(
            root=root, desk=desk, door=door, port=port, exchange=exchange, connect=connect,
            known=known, context=ssl.create_default_context(cafile=str(root / "ca.crt")),
        )  # fmt: skip
    finally:
        doors.PATIENCE = patience
        server.should_exit = True
        thread.join()
        loop.close()


def raw(served, source="127.0.0.1"):
    """A TLS connection with nothing sent yet."""
    plain = socket.create_connection(("127.0.0.1", served.port), 30, source_address=(source, 0))
    return served.context.wrap_socket(plain, server_hostname="127.0.0.1")


def post(served, path, headers, body=b""):
    line = http.client.HTTPSConnection("127.0.0.1", served.port, timeout=30, context=served.context)
    with contextlib.closing(line):
        line.request("POST", path, body, headers)
        answer = line.getresponse()
        return answer.status, answer.read()


def works(served):
    with served.connect() as line:
        return line.hello().site == "a"


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def closed(line):
    """What the server says before it closes the connection."""
    said = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while part := line.recv(65536):
            said += part
    return said


# ── questions and answers ────────────────────────────────────────────────────────────────────────


def test_a_question_is_fetched_answered_and_handed_over(served):
    served.exchange(Question("q1", "a", b"what"), run="one")
    with served.connect() as line:
        question = line.receive()
        assert question == ("q1", b"what")
        assert line.receive() == question  # it asked again, so it has lost it
        assert line.reply(question, b"that")
        assert "a" in served.desk.sites
        assert not line.reply(question, b"that again")
    (told,) = served.exchange(run="one")
    assert told[:3] == ("q1", "a", b"that") and told.seconds >= 0
    assert {"event": "asked again", "site": "a"} in served.desk.events
    until(lambda: "a" not in served.desk.sites)  # hanging up is noticed


def test_a_site_cannot_answer_for_another_nor_what_it_was_not_asked(served):
    served.exchange(Question("q2", "b", b"for b"), run="two")
    with served.connect("b") as b, served.connect("a") as a:
        question = b.receive()
        assert not a.reply(question, b"forged")  # though it knows the question's name
        assert not a.reply(question._replace(id="q9"), b"unasked")
        assert b.reply(question, b"true")
    (told,) = served.exchange(run="two")
    assert told[:3] == ("q2", "b", b"true")


def test_questions_of_a_run_that_is_over_are_answered_by_nobody(served):
    served.exchange(Question("old", "a", b"old"), run="three")
    served.exchange(Question("new", "a", b"new"), run="four")
    with served.connect() as line:
        question = line.receive()
        assert question.id == "new"
        assert not line.reply(question._replace(id="old"), b"")
        assert line.reply(question, b"")


def test_of_two_processes_with_one_key_the_second_is_turned_away(served):
    served.exchange(Question("q3", "a", b"x"), run="five")
    with served.connect() as first, served.connect() as second:
        question = first.receive()
        with pytest.raises(Taken, match="another process answers for site 'a'"):
            second.receive()
        with pytest.raises(Taken):
            second.reply(question, b"stolen")
        assert first.reply(question, b"mine")
        assert {"event": "two processes under one key", "site": "a"} in served.desk.events
        first.__exit__()
        until(lambda: "a" not in served.desk.sites)
        served.exchange(Question("q4", "a", b"y"), run="five")
        assert second.receive().id == "q4"  # the first is gone: now it may


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


def test_an_endless_header_line_is_cut_off(served):
    with raw(served) as line:
        line.sendall(b"POST / HTTP/1.1\r\nx: ")
        sent = 0
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while sent < 2**26:  # the system takes in some megabytes by itself
                line.sendall(b"y" * 4096)
                sent += 4096
        assert b" 200" not in closed(line)
        assert sent < 2**26
    assert works(served)


@pytest.mark.parametrize("stage", ["no TLS", "nothing", "half a head", "unsigned, half a body"])
def test_half_sent_requests_are_closed_and_lock_nobody_out(served, stage):
    head = b"POST /v1/dorfl/next HTTP/1.1\r\nhost: x\r\n"
    sent = {"nothing": b"", "half a head": head}.get(stage, head + b"content-length: 9\r\n\r\nx")
    with contextlib.ExitStack() as stack:
        lines = []
        for _ in range(20):  # as many as one address may have
            if stage == "no TLS":
                where = ("127.0.0.1", served.port)
                line = socket.create_connection(where, 30, source_address=("127.0.0.2", 0))
            else:
                line = raw(served, "127.0.0.2")
                line.sendall(sent)
            lines.append(stack.enter_context(line))
        with pytest.raises((ssl.SSLError, ConnectionError)):  # one more: closed before TLS
            raw(served, "127.0.0.2")
        assert works(served)  # from another address
        for line in lines:
            assert b" 200" not in closed(line)  # in time, all of them
    until(lambda: served.door._count["127.0.0.2"] == 0)


def test_a_body_is_read_only_of_who_is_asked_and_only_so_long(served):
    served.exchange(Question("q5", "a", b"x"), run="six")
    with served.connect() as line:
        question, signer = line.receive(), line.signer
        path = ANSWER + question.id

        def answer(headers, body):
            # The signature is of the process that fetched the question.
            return post(served, path, {**signer.headers("POST", path, body), **headers}, body)

        status, said = answer({"content-length": str(wire.LIMIT + 1)}, b"")
        assert status == 413 and b"longer than" in said
        assert answer({"content-length": "-1"}, b"")[0] in (400, 411)
        signed = signer.headers("POST", path, b"said")
        assert post(served, path, signed, b"sent")[0] == 401  # another body than signed
        assert post(served, path, {**signed, "transfer-encoding": "chunked"}, b"said")[0] in (
            400, 401, 411,
        )  # fmt: skip
        assert answer({}, b"x")[0] == 204
    (told,) = served.exchange(run="six")
    assert told.content == b"x"


def test_one_answer_at_a_time_and_no_more_than_there_is_room_for():
    desk = Desk()

    async def turns():
        questions = [Question(s + "1", s, b"", most=2**30) for s in "ab"]
        await desk.exchange("run", questions, set(), 0.0)
        await asyncio.gather(desk.next("a"), desk.next("b"))

    asyncio.run(turns())
    desk.expects("a", "a1", 300 * 2**20)
    with pytest.raises(Turned, match="on its way already"):
        desk.expects("a", "a1", 1)
    with pytest.raises(Turned, match="too much is on its way"):
        desk.expects("b", "b1", 300 * 2**20)
    desk.stopped("a")
    desk.expects("b", "b1", 300 * 2**20)


def test_no_answer_is_longer_than_the_question_has_answers():
    desk = Desk()

    async def turns():
        await desk.exchange("run", [Question("a1", "a", b"", most=1000)], set(), 0.0)
        await desk.next("a")

    asyncio.run(turns())
    with pytest.raises(Turned, match="longer than 1000 bytes") as turned:
        desk.expects("a", "a1", 1001)
    assert turned.value.status == 413
    assert desk.seen() == [{"event": "answer too long", "site": "a", "bytes": 1001}]
    desk.expects("a", "a1", 1000)


class Clock:
    def __init__(self):
        self.now = 1e9

    def __call__(self):
        return self.now


@pytest.fixture
def judged(served):
    clock = Clock()
    signer = Signer(keys.read_private(served.root / "a.key"), "a", clock=clock)
    return Judge(lambda: served.known, clock), signer, clock


def who(judge, headers, path=NEXT):
    return judge.who("POST", path, headers)


def test_a_site_is_slowed_down_and_comes_back(judged):
    judge, signer, clock = judged
    for _ in range(200):
        who(judge, signer.headers("POST", NEXT))
    with pytest.raises(Turned, match="requests a second") as turned:
        who(judge, signer.headers("POST", NEXT))
    assert turned.value.status == 429
    clock.now += 1.0
    assert who(judge, signer.headers("POST", NEXT)).site == "a"


def test_a_signature_is_good_once_and_for_a_minute(judged):
    judge, signer, clock = judged
    clock.now += 100
    headers = signer.headers("POST", NEXT)
    who(judge, headers)
    for later in (0, 30, 59):
        clock.now += later
        with pytest.raises(Turned, match=r"used before|clock is"):
            who(judge, headers)
    clock.now += 1000
    who(judge, signer.headers("POST", NEXT))
    assert len(judge._used) == 1  # what no longer matters is forgotten


def test_a_server_that_has_just_begun_takes_nothing_from_before(served, judged):
    _, signer, clock = judged
    early = signer.headers("POST", NEXT)
    clock.now += 10
    judge = Judge(lambda: served.known, clock)  # it does not know what was used
    with pytest.raises(Turned, match="before the server began"):
        who(judge, early)


def spoken(served, data, kept=1):
    """The statuses that raw bytes are answered with, and whether the connection is closed then.

    After so many that are fine it is kept, and nothing more is waited for.
    """
    said, shut = b"", False
    with raw(served) as line, contextlib.suppress(OSError):
        line.settimeout(30)
        line.sendall(data)
        while part := line.recv(65536):
            said += part
            if said.endswith(b"}") and said.count(b"HTTP/1.1 200") == kept:
                return re.findall(rb"HTTP/1.1 (\d+)", said), False
        shut = True
    return re.findall(rb"HTTP/1.1 (\d+)", said), shut


def hello_of(signer, line=f"POST {HELLO} HTTP/1.1", signed=HELLO, extra="content-length: 0"):
    fields = "".join(f"{k}: {v}\r\n" for k, v in signer.headers("POST", signed).items())
    return f"{line}\r\nhost: x\r\n{fields}{extra}\r\n\r\n".encode()


ABSOLUTE = f"https://elsewhere{HELLO}"
ODD = {
    "chunked": ({"extra": "transfer-encoding: chunked"}, b"0\r\n\r\n", [b"411"]),
    "chunked and a length": (
        {"extra": "transfer-encoding: chunked\r\ncontent-length: 0"},
        b"0\r\n\r\n",
        [b"411"],
    ),
    "two lengths": ({"extra": "content-length: 0\r\ncontent-length: 5"}, b"12345", [b"400"]),
    "a length with a sign": ({"extra": "content-length: +0"}, b"", [b"400"]),
    "a body without a length": ({"extra": "x: y"}, b"body", [b"200", b"400"]),
    "small letters": ({"line": f"post {HELLO} HTTP/1.1"}, b"", [b"403"]),
    "another method": ({"line": f"BREW {HELLO} HTTP/1.1"}, b"", [b"403"]),
    "in per cent": ({"line": "POST /v1/dorfl/hell%6f HTTP/1.1"}, b"", [b"401"]),
    "a query": ({"line": f"POST {HELLO}?a=b HTTP/1.1"}, b"", [b"401"]),
    "dots": ({"line": "POST /v1/../v1/dorfl/hello HTTP/1.1"}, b"", [b"403"]),
    "absolute": ({"line": f"POST {ABSOLUTE} HTTP/1.1"}, b"", [b"403"]),
    "absolute and signed": (
        {"line": f"POST {ABSOLUTE} HTTP/1.1", "signed": ABSOLUTE},
        b"",
        [b"403"],
    ),
    "a star": ({"line": "OPTIONS * HTTP/1.1"}, b"", [b"403"]),
    "a tunnel": ({"line": "CONNECT elsewhere:443 HTTP/1.1"}, b"", [b"403"]),
    "HTTP/0.9": ({"line": "GET /"}, b"", [b"400"]),
    "HTTP/2": ({"line": "PRI * HTTP/2.0"}, b"", [b"403"]),
    "a folded line": ({"extra": "x: y\r\n z\r\ncontent-length: 0"}, b"", [b"200"]),
    "continue": ({"extra": "expect: 100-continue\r\ncontent-length: 0"}, b"", [b"100", b"200"]),
}


@pytest.mark.parametrize("words", ODD)
def test_odd_requests_are_answered_as_their_kind_and_closed(served, words):
    options, body, expected = ODD[words]
    signer = Signer(keys.read_private(served.root / "a.key"), "a")
    found, shut = spoken(served, hello_of(signer, **options) + body)
    assert found[: len(expected)] == expected[: len(found)] and found
    assert shut or b"200" in found
    assert works(served)


def test_unsigned_requests_that_announce_a_body_are_not_told_to_go_on(served):
    head = b"POST /v1/dorfl/next HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
    assert spoken(served, head + b"content-length: 99999\r\n\r\n") == ([b"401"], True)
    assert spoken(served, b"GET /x HTTP/1.1\r\nhost: [\r\n\r\n") == ([b"403"], True)


def test_requests_one_after_the_other_without_waiting_are_each_judged(served):
    signer = Signer(keys.read_private(served.root / "a.key"), "a")
    once = hello_of(signer)
    told = once + hello_of(signer, signed=NEXT) + hello_of(signer)
    found, shut = spoken(served, told, kept=3)
    assert found == [b"200", b"401"] and shut  # after one that is turned away nothing is read
    assert spoken(served, once) == ([b"401"], True)  # used before


def test_many_unsigned_requests_keep_nobody_out(served):
    """From as many connections as an address has, as fast as they come, while sites go on."""
    stop = threading.Event()

    def flood():
        while not stop.is_set():
            with contextlib.suppress(OSError), raw(served, "127.0.0.4") as line:
                line.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 50)
                closed(line)

    threads = [threading.Thread(target=flood) for _ in range(10)]
    for thread in threads:
        thread.start()
    try:
        assert all(works(served) for _ in range(10))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    until(lambda: served.door._count["127.0.0.4"] == 0)


@pytest.mark.parametrize("when", ["nan", "inf", "-inf", "1e400"])
def test_a_time_that_is_none_serves_for_nothing(judged, when):
    judge, signer, _ = judged

    class Odd(float):
        def __format__(self, _):
            return when

    headers = Signer(signer.key, "a", clock=lambda: Odd(0.0)).headers("POST", NEXT)
    assert headers["x-dorfl-time"] == when
    with pytest.raises(Turned):
        who(judge, headers)
    assert not judge._used


# ── a hundred thousand things that are not as they should be ─────────────────────────────────────


def mangled(rng, data):
    """Bytes with a few of them changed, left out, doubled or cut off."""
    data = bytearray(data)
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
                data[k:k] = rng.choice(
                    [b"\r\n", b"\0", b"-1", b"1e999", b"NaN", b"[[", b'"', b"{}"]
                )
            case _:
                del data[k:]
    return bytes(data)


def test_mangled_signatures_are_turned_away(judged):
    """30,000; the judge remembers none of them."""
    judge, signer, _ = judged
    rng = random.Random(0)
    good = signer.headers("POST", NEXT)
    names = [name for name in good if name != "x-dorfl-key"]
    for trial in range(30_000):
        # Most do not come as far as the signature, whose check is slow.
        name = rng.choice(names) if trial % 30 == 0 else "x-dorfl-key"
        text = mangled(rng, good[name].encode()).decode("latin-1")
        if text == good[name]:
            continue
        with pytest.raises(Turned):
            who(judge, {**good, name: text})
    assert not judge._used
    assert who(judge, good).site == "a"


@pytest.mark.slow
def test_mangled_replies_change_nothing():
    """67,000, of every step; one that is read after all is one that a site could have sent."""
    rng = random.Random(1)
    tables = synthetic_tables()
    sites = make_sites(tables)
    state = coordinator.begin(make_study(tables, training="rounds = 2"), "run")
    tried = read = 0
    while state.step != "done":
        asked = {s: wire.encode(coordinator.request(state, s)) for s in state.roster}
        replies = {s: sites[s].respond(asked[s]) for s in state.roster}
        before = wire.encode(state.study), state.step
        for _ in range(8_400):
            site = rng.choice(state.roster)
            tried += 1
            with contextlib.suppress(ValueError):
                coordinator.read(state, site, mangled(rng, replies[site]))
                read += 1
        assert (wire.encode(state.study), state.step) == before
        answers = {s: coordinator.read(state, s, replies[s]) for s in state.roster}
        state = coordinator.receive(state, answers)
    assert tried >= 67_000
    assert read < tried / 2  # a digit of a number may be another: that is the defences' business
    assert state.outcome is not None and np.isfinite(state.outcome.theta).all()


@pytest.mark.slow
def test_mangled_requests_over_the_network_move_nothing(served):
    """3,000 over TLS: nothing is taken in, nothing stays open, and the server answers others."""
    served.exchange(Question("fuzz", "b", b"x"), run="fuzz")
    rng = random.Random(2)
    signer = Signer(keys.read_private(served.root / "b.key"), "b")
    path = ANSWER + "fuzz"
    for trial in range(3_000):
        fields = {"host": "x", "content-length": "2", **signer.headers("POST", path, b"no")}
        head = "".join(f"{k}: {v}\r\n" for k, v in fields.items())
        whole = f"POST {path} HTTP/1.1\r\n{head}\r\nno".encode()
        with raw(served) as line, contextlib.suppress(OSError):
            line.sendall(mangled(rng, whole))
            line.settimeout(5 if trial % 100 == 0 else 0.01)
            line.recv(4096)
    assert works(served)
    assert served.exchange(run="fuzz") == []  # it was never given out, so it cannot be answered
    until(lambda: len(served.door._held) == 0)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\0" * 99,
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n{",
        b'HTTP/1.1 200 OK\r\ncontent-length: 36\r\n\r\n{"site": 3, "study": 4, "time": "x"}',
        b"HTTP/1.1 401 No\r\ncontent-length: 9\r\n\r\n[1, 2, 3]",
        b"HTTP/1.1 401 No\r\ncontent-length: 4\r\n\r\nnope",
        b'HTTP/1.1 403 No\r\ncontent-length: 33\r\n\r\n{"error": "a\\nround 9\\u001b[2J"}    ',
        b"HTTP/1.1 " + b"9" * 70_000,
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 999,
    ],
)
def test_a_site_survives_whatever_answers(served, tmp_path, said):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(served.root / "server.crt", served.root / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            with contextlib.suppress(OSError):
                plain, _ = listener.accept()
                with context.wrap_socket(plain, server_side=True) as line:
                    line.recv(65536)
                    line.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        where = f"127.0.0.1:{listener.getsockname()[1]}"
        key = keys.read_private(served.root / "a.key")
        with Connection(where, served.root / "ca.crt", key, "a") as line:
            with pytest.raises((Away, Rejected)) as raised:
                line.hello()
            assert str(raised.value).isprintable()
        thread.join()
