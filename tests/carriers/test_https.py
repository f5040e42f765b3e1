"""The HTTPS carrier under attack, and what only it does: mutual TLS, certificates that change."""

import asyncio
import contextlib
import hashlib
import http.client
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from deployments import (
    DORFL,
    PATIENCE,
    SECRET,
    TABLES,
    OverHttps,
    alone,
    dorfl,
    events_of,
    same,
    until,
)

from dorfl.carriers import https, keys, runs
from dorfl.carriers.driver import Outgoing
from dorfl.carriers.folders import Federation, SiteFolder
from dorfl.carriers.https import (
    HELLO,
    REPLY,
    SESSION_HEADER,
    Certificates,
    Connection,
    DuplicateSiteError,
    Mailbox,
    RejectedError,
    ServerAwayError,
    Turn,
    clocks,
    free_port,
    public_app,
    web,
)
from dorfl.protocol import toml
from study_cases import METHODS, make_study

pytestmark = pytest.mark.xdist_group("carriers")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The public server for two sites, in a thread; `exchange` is the coordinator's turn."""
    root = tmp_path_factory.mktemp("h")
    federation = Federation.create(root / "fed", "127.0.0.1", free_port())
    for name in ("a", "b"):
        SiteFolder.create(root / name, name)
        federation.add_site((root / name / f"{name}.crt").read_bytes())
    loop, mailbox, ready, stop = asyncio.new_event_loop(), Mailbox(), threading.Event(), []

    async def serve():
        trusted = Certificates(federation)
        async with contextlib.AsyncExitStack() as stack:
            runner = await https.start_app(stack, public_app(federation, mailbox))
            port = federation.port
            await web.TCPSite(runner, "127.0.0.1", port, ssl_context=trusted.context).start()
            ready.set()
            while not stop:
                trusted.refresh()
                mailbox.sweep()
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait()

    def exchange(*requests, awaited=()):
        turn = Turn((*awaited, *(sent.id for sent in requests)), requests, 0.0)
        return asyncio.run_coroutine_threadsafe(mailbox.exchange(turn), loop).result(60)

    def connection(name="a", ca=None, server=None):
        place = f"127.0.0.1:{federation.port}"
        home = SiteFolder.open(root / name)
        return Connection(server or place, ca or federation.keys / "ca.crt", home)

    yield SimpleNamespace(
        root=root,
        federation=federation,
        mailbox=mailbox,
        exchange=exchange,
        connection=connection,
        port=federation.port,
    )
    stop.append(True)
    thread.join()
    loop.close()


def speak(made, work):
    """Run `work(connection)` on a connection of its own."""

    async def main():
        async with made as line:
            return await work(line)

    return asyncio.run(main())


def hello(made):
    return speak(made, lambda line: line.hello())


def let_in(served, name):
    with contextlib.suppress(ServerAwayError, RejectedError):
        return hello(served.connection(name)).site == name


def raw(served, name="a"):
    """Return a TLS connection as the site `name`, or without a certificate, nothing sent yet."""
    context = ssl.create_default_context(cafile=str(served.federation.keys / "ca.crt"))
    if name is not None:
        home = served.root / name
        context.load_cert_chain(home / f"{name}.crt", home / f"{name}.key")
    plain = socket.create_connection(("127.0.0.1", served.port), 30)
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def spoken(line, data):
    """Return what the server says to raw bytes before it closes, or for a while."""
    said = b""
    with line, contextlib.suppress(OSError):
        line.settimeout(30)
        line.sendall(data)
        while part := line.recv(65536):
            said += part
            if b"\r\n\r\n" in said:
                break
    return said


# ── who may connect ──────────────────────────────────────────────────────────────────────────────


def test_a_registered_site_is_known_by_its_certificate(served):
    assert hello(served.connection("a")).site == "a"
    assert hello(served.connection("b")).site == "b"


def test_a_certificate_that_is_not_registered_is_disconnected_with_a_hint(served, tmp_path):
    SiteFolder.create(served.root / "stranger", "stranger")
    with pytest.raises((ServerAwayError, RejectedError), match="not registered"):
        hello(served.connection("stranger"))


def test_a_site_is_let_in_as_soon_as_it_is_registered_and_turned_away_once_removed(served):
    SiteFolder.create(served.root / "late", "late")
    made = served.root / "late" / "late.crt"
    with pytest.raises((ServerAwayError, RejectedError)):
        hello(served.connection("late"))
    served.federation.add_site(made.read_bytes())
    until(lambda: let_in(served, "late"))
    keys.renew_site(served.root / "late", "late")  # another certificate of the same key
    served.federation.add_site(made.read_bytes())
    until(lambda: let_in(served, "late"))
    served.federation.remove_site("late")
    with pytest.raises(RejectedError, match="certificate is not registered"):
        hello(served.connection("late"))


def test_the_certificate_of_one_site_with_the_key_of_another_is_no_identity(served, tmp_path):
    shutil.copytree(served.root / "a", tmp_path / "x")
    (tmp_path / "x" / "a.crt").write_bytes((served.root / "b" / "b.crt").read_bytes())
    with pytest.raises(ssl.SSLError):
        Connection(
            "127.0.0.1:9", served.federation.keys / "ca.crt", SiteFolder.open(tmp_path / "x")
        )


def test_without_a_certificate_nothing_is_answered(served):
    assert b"HTTP/1.1 2" not in spoken(raw(served, None), _post(HELLO))


def test_an_authority_cannot_be_registered_as_a_site(served):
    text = (served.federation.keys / "ca.crt").read_bytes()
    with pytest.raises(ValueError, match="must not be one"):
        served.federation.add_site(text)


def test_a_wrong_authority_is_refused_by_its_name(served, tmp_path):
    keys.create_authority(tmp_path, "127.0.0.1")
    with pytest.raises(RejectedError, match="not signed by the authority in --ca"):
        hello(served.connection(ca=tmp_path / "ca.crt"))


def server_context(folder):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    return context


def test_a_certificate_for_another_host_is_refused(served):
    context = server_context(served.federation.keys)
    with (
        tls_server(context, host="127.0.0.2") as port,
        pytest.raises(RejectedError, match="for another host"),
    ):
        hello(served.connection(server=f"127.0.0.2:{port}"))


def test_an_expired_certificate_or_a_wrong_clock_is_named(served, tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "LEAF_YEARS", -1e-4)  # ended half an hour ago
    shutil.copytree(served.federation.keys, tmp_path / "keys")
    keys.renew(tmp_path / "keys", "127.0.0.1")
    context = server_context(tmp_path / "keys")
    with tls_server(context) as port, pytest.raises(RejectedError, match="expired, or a clock"):
        hello(served.connection(server=f"127.0.0.1:{port}"))


@contextlib.contextmanager
def tls_server(context=None, said=b"HTTP/1.1 400 Bad Request\r\n\r\n", host="127.0.0.1"):
    """Listen on the loopback; answer one connection with the bytes `said`."""
    with socket.create_server((host, 0)) as listener:

        def answer():
            with contextlib.suppress(OSError):
                line, _ = listener.accept()
                with line:
                    if context is not None:
                        line = context.wrap_socket(line, server_side=True)
                    line.recv(4096)
                    line.sendall(said)
                    line.close()

        thread = threading.Thread(target=answer)
        thread.start()
        yield listener.getsockname()[1]
        listener.close()
        thread.join(10)


def test_plaintext_is_refused(served):
    with pytest.raises(RejectedError, match="plaintext is refused"):
        served.connection(server=f"http://127.0.0.1:{served.port}")
    with socket.create_connection(("127.0.0.1", served.port), 20) as line:
        assert b"HTTP/1.1 2" not in spoken(line, _post(HELLO))
    with tls_server() as port, pytest.raises(RejectedError, match="does not use TLS"):
        hello(served.connection(server=f"127.0.0.1:{port}"))


def test_what_is_no_dorfl_server_is_named(served):
    context = server_context(served.federation.keys)
    said = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
    with (
        tls_server(context, said) as port,
        pytest.raises(RejectedError, match="is not a dorfl server"),
    ):
        hello(served.connection(server=f"127.0.0.1:{port}"))


def test_clocks_that_differ_are_told_by_how_much():
    assert clocks(30.0) is None
    assert "3600 s ahead of" in clocks(3600.0) and "75 s behind" in clocks(-75.0)


# ── requests and replies ─────────────────────────────────────────────────────────────────────────


def test_a_request_is_fetched_answered_and_handed_over(served):
    served.exchange(Outgoing("q1", "a", b"what"))

    async def work(line):
        found = await line.receive()
        assert found == ("q1", b"what")
        assert await line.receive() == found  # it asked again, so it has lost it
        assert await line.reply("q1", b"that")
        assert "a" in served.mailbox.present
        assert not await line.reply("q1", b"that again")

    speak(served.connection(), work)
    found = served.exchange(awaited=["q1"])
    assert found.replies == {"q1": b"that"}
    assert {"event": "late reply", "site": "a"} in found.events
    until(lambda: "a" not in served.mailbox.present)  # hanging up is noticed


def test_a_site_cannot_answer_for_another_nor_what_it_was_not_asked(served):
    served.exchange(Outgoing("q2", "b", b"for b"))

    async def forge(line):
        assert not await line.reply("q2", b"forged")  # though it knows the request's id
        assert not await line.reply("q9", b"unasked")

    async def work(line):
        assert await line.receive() == ("q2", b"for b")
        await asyncio.to_thread(speak, served.connection("a"), forge)
        assert await line.reply("q2", b"true")

    speak(served.connection("b"), work)
    found = served.exchange(awaited=["q2"])
    assert found.replies == {"q2": b"true"} and not found.events


def test_requests_that_are_no_longer_awaited_are_dropped(served):
    served.exchange(Outgoing("old", "a", b"old"))
    served.exchange(Outgoing("new", "a", b"new"))

    async def work(line):
        assert (await line.receive())[0] == "new"
        assert not await line.reply("old", b"")
        assert await line.reply("new", b"")

    speak(served.connection(), work)
    assert served.exchange(awaited=["other"]).replies == {}


def test_of_two_processes_with_one_key_the_second_is_turned_away(served):
    served.exchange(Outgoing("q3", "a", b"x"))

    async def steal(line):
        with pytest.raises(DuplicateSiteError, match="another process answers for site 'a'"):
            await line.receive()
        with pytest.raises(DuplicateSiteError):
            await line.reply("q3", b"stolen")

    async def work(line):
        await line.receive()
        await asyncio.to_thread(speak, served.connection(), steal)
        assert await line.reply("q3", b"mine")

    speak(served.connection(), work)
    noted = served.exchange(Outgoing("q4", "a", b"y")).events
    assert noted == ({"event": "two processes under one key", "site": "a"},)  # once
    until(lambda: "a" not in served.mailbox.present)
    assert speak(served.connection(), lambda line: line.receive()) == ("q4", b"y")


def test_no_reply_is_longer_than_the_request_allows_nor_two_at_once(served):
    served.exchange(Outgoing("q5", "a", b"", 1000))
    with raw(served) as line:
        line.sendall(_post(REPLY + "q5", "content-length: 1000"))  # and no byte of it
        until(served.mailbox.uploads["a"].locked)
        assert b" 413 " in spoken(raw(served), _post(REPLY + "q5", "content-length: 1001"))
        assert b" 429 " in spoken(raw(served), _post(REPLY + "q5", "content-length: 1"))
    (event,) = served.exchange(awaited=["q5"]).events
    assert event["event"] == "reply refused" and "1001 bytes, more than the 1000" in event["reason"]


def test_a_poll_waits_on_while_requests_are_for_other_sites():
    async def turns():
        mailbox = Mailbox()
        polling = asyncio.create_task(mailbox.next("a"))
        await mailbox.exchange(Turn(("b1",), (Outgoing("b1", "b", b""),), 0.0))
        await mailbox.exchange(Turn(("a1",), (Outgoing("a1", "a", b""),), 0.0))
        assert (await polling).id == "a1"

    asyncio.run(turns())


def _post(path, *headers, body=b""):
    lines = [f"POST {path} HTTP/1.1", "host: x", f"{SESSION_HEADER}: odd", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


ODD = {
    "chunked": (_post(REPLY + "q", "transfer-encoding: chunked", body=b"0\r\n\r\n"), b"411"),
    "too long": (_post(REPLY + "q", f"content-length: {2**40}"), b"410"),
    "a length with a sign": (_post(REPLY + "q", "content-length: -1"), b"400"),
    "two lengths": (_post(HELLO, "content-length: 0", "content-length: 5"), b"400"),
    "an endless head": (_post(HELLO, "x: " + "y" * 2**16), b"400"),
    "another method": (_post(HELLO).replace(b"POST", b"GET", 1), b"405"),
    "another path": (_post("/v1/control/start-run", "content-length: 0"), b"404"),
    "dots": (_post("/v1/../exchange", "content-length: 0"), b"404"),
    "the coordinator's": (_post("/exchange", "content-length: 0"), b"404"),
    "no HTTP": (b"\x00\x01\x02\r\n\r\n", b"400"),
}


@pytest.mark.parametrize("words", ODD)
def test_odd_requests_of_a_registered_site_are_refused_and_change_nothing(served, words):
    data, status = ODD[words]
    for _ in range(2):
        said = spoken(raw(served), data)
        # A server that closes with unread input resets the connection, perhaps before its reply.
        reset = words == "an endless head" and not said
        assert reset or (said.startswith(b"HTTP/1.") and status in said.split(b"\r\n")[0])
    until(lambda: "a" not in served.mailbox.present)
    assert hello(served.connection()).site == "a"


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
        b'HTTP/1.1 403 No\r\ncontent-length: 33\r\n\r\n{"error": "a\\nround 9\\u001b[2J"}    ',
        b"HTTP/1.1 302 No\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 " + b"9" * 70_000,
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 999,
    ],
)
def test_a_site_survives_whatever_answers(served, said):
    context = server_context(served.federation.keys)
    with (
        tls_server(context, said) as port,
        pytest.raises((ServerAwayError, RejectedError)) as raised,
    ):
        hello(served.connection(server=f"127.0.0.1:{port}"))
    assert str(raised.value).isprintable()


# ── as it is deployed ────────────────────────────────────────────────────────────────────────────

LONGER = 'solver = "optimistic"\ntol = 1e-12\nmax_rounds = 6'
FEW = "max_rounds = 3"


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    with OverHttps(tmp_path_factory.mktemp("d")) as found:
        yield found


@pytest.mark.slow
def test_from_run_to_model_folder_as_people_type_it(deployed, tmp_path):
    text = (
        f'name = "trial"\n[data]\nlabel = "y"\n[method]\n{METHODS["dorfl"]}\n'
        '[privacy]\nreports = "open"\n'
    )
    (tmp_path / "study.toml").write_text(text)
    done = dorfl("run", deployed.federation.path, tmp_path / "study.toml")
    assert done.returncode == 0, done.stderr
    assert "3 of 3 answered" in done.stdout and "converged" in done.stdout
    folder = deployed.federation.runs()[-1]
    assert same(deployed.outcome(folder), alone(make_study(TABLES)))
    record = deployed.record(folder)
    assert record["status"] == "converged" and record["certificate"]["radius"] > 0
    for name, home in deployed.homes.items():
        audit = (home / "results" / folder.name / "audit.csv").read_text().splitlines()
        assert audit[1].startswith("1,")  # the canary's row has the least weight
        assert len(audit) == len(TABLES[name]["y"]) + 1
    told = json.loads(dorfl("status", deployed.federation.path, "--json").stdout)
    assert told["server"] and told["run"]["state"] == "finished"
    assert set(told["sites"].values()) == {"online"}
    home = deployed.homes["site-1"]
    words = ["--data", home / "records.csv", "--server", deployed.server, "--ca", deployed.ca]
    checked = dorfl("site", "check", home, *words)
    assert "knows this site as 'site-1'" in checked.stdout and "100 rows" in checked.stdout


@pytest.mark.slow
def test_a_copy_of_a_sites_folder_is_refused_and_noted(deployed, tmp_path):
    """The lock is in the folder, so a copy has its own; the server sees that there are two."""
    home = tmp_path / "copy"
    shutil.copytree(deployed.homes["site-1"], home)
    words = ["--server", deployed.server, "--ca", deployed.ca, "--data", home / "records.csv"]
    copy = dorfl("site", "start", home, *words)
    assert copy.returncode == 2 and "another process answers for site 'site-1'" in copy.stderr
    again = dorfl("site", "start", deployed.homes["site-1"], *words)
    assert again.returncode == 2 and "the site is running already" in again.stderr
    folder = deployed.run(make_study(TABLES, training=FEW))
    assert "two processes under one key" in events_of(folder)


@pytest.mark.slow
def test_a_certificate_is_renewed_while_the_server_runs(deployed):
    def serial():
        host, port = deployed.server.split(":")
        context = ssl.create_default_context(cafile=str(deployed.ca))
        context.load_cert_chain(*(deployed.homes["site-1"] / f"site-1.{e}" for e in ("crt", "key")))
        with (
            socket.create_connection((host, int(port)), 20) as plain,
            context.wrap_socket(plain, server_hostname=host) as line,
        ):
            return hashlib.sha256(line.getpeercert(binary_form=True)).hexdigest()

    before = serial()

    def renew():
        assert "is now valid until" in dorfl("server", "renew", deployed.federation.path).stdout

    study = make_study(TABLES, training=LONGER)
    folder = deployed.run(study, {1: renew})
    assert same(deployed.outcome(folder), alone(study))
    until(lambda: serial() != before)


@pytest.mark.slow
def test_another_table_in_the_middle_of_a_run_is_refused_and_named(deployed):
    home = deployed.homes["site-2"]
    kept = (home / "records.csv").read_bytes()

    def swap():
        deployed.stop_site("site-2")
        lines = kept.splitlines()
        (home / "records.csv").write_bytes(b"\n".join([lines[0], *lines[:0:-1], b""]))
        deployed.start_site("site-2")

    study = make_study(TABLES, training=LONGER, absent="stand_in = 0")
    try:
        with pytest.raises(
            ValueError, match="'site-2' does not take part: this site's table has changed"
        ):
            deployed.run(study, {1: swap})
    finally:
        deployed.stop_site("site-2")
        (home / "records.csv").write_bytes(kept)
        deployed.start_site("site-2")
    folder = runs.unfinished(deployed.federation)
    deployed.resume(folder)
    assert same(deployed.outcome(folder), alone(study))  # with the old table, to the same bits


@pytest.mark.slow
def test_a_slow_sites_late_answers_are_noted_and_it_is_back_afterwards(deployed):
    absent = 'answer_within = 1\nstand_in = 1\nthen = "go on"'
    study = make_study(TABLES, training=LONGER, absent=absent)
    pause, back = deployed.pause_site, deployed.go_on_site
    try:
        folder = deployed.run(study, {2: lambda: pause("site-3"), 4: lambda: back("site-3")})
    finally:
        deployed.go_on_site("site-3")
    missed = deployed.record(folder)["extrapolated"]
    assert set(missed) == {"site-3"} and {3, 4} <= set(missed["site-3"])
    assert "site-3" in deployed.state(folder).history[-1].answered
    assert "late reply" in events_of(folder)


@pytest.mark.slow
def test_ctrl_c_is_safe_and_a_run_is_resumed_by_its_name(deployed, tmp_path):
    study = make_study(TABLES, training=LONGER)
    deployed.pause_site("site-3")  # so that the run cannot end meanwhile
    try:
        with contextlib.ExitStack() as stack:
            folder = _interrupted(deployed, study, stack)
    finally:
        deployed.go_on_site("site-3")
    deployed.run(make_study(TABLES, training=FEW))  # another one in between
    deployed.resume(runs.unfinished(deployed.federation, folder.name))
    assert same(deployed.outcome(folder), alone(study))


def _interrupted(deployed, study, stack):
    file = deployed.root / "stopped.toml"
    file.write_text(toml.to_toml(study))
    before = set(deployed.federation.runs())
    words = [*DORFL, "run", str(deployed.federation.path), str(file)]
    child = stack.enter_context(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
    until(lambda: set(deployed.federation.runs()) - before)
    (folder,) = set(deployed.federation.runs()) - before
    until((folder / "log.jsonl").exists)
    second = dorfl("run", deployed.federation.path, file)  # refused, and leaves no run behind
    assert second.returncode == 2 and "a run is going on already" in second.stderr
    assert set(deployed.federation.runs()) - before == {folder}
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=PATIENCE)
    assert child.returncode == 130
    assert re.search(r"nothing is lost: dorfl resume \S+ " + folder.name, said)
    return folder


@pytest.mark.slow
def test_a_site_can_leave_a_run_and_is_not_waited_for(deployed):
    name = "leaver"
    deployed.add_site(name, TABLES["site-2"])
    pair = {"site-1": TABLES["site-1"], name: TABLES["site-2"]}
    endpoint = deployed.endpoint(name)

    def slowly(request):
        time.sleep(0.5 if b'"step":"round"' in request else 0.0)
        return endpoint.respond(request)

    study = make_study(pair, training="max_rounds = 4", absent="answer_within = 1\nstand_in = 0")

    def leave():
        deployed.federation.remove_site(name)
        deployed.away.add(name)

    try:
        with deployed.hosting(name, slowly, stop=False):
            folder = deployed.run(study, {1: leave})
    finally:
        deployed.away.discard(name)
        deployed.homes.pop(name)
    assert deployed.record(folder)["extrapolated"] == {name: [2, 3, 4]}


@pytest.mark.slow
def test_what_a_registered_site_pushes_takes_up_little_memory(deployed):
    """Unasked, or longer than any answer can be, nothing of it is read."""
    server = deployed.federation.noted("server")["pid"]
    before, big = most_memory(server), bytes(60 * 2**20)
    home = deployed.homes["site-1"]
    context = ssl.create_default_context(cafile=str(deployed.ca))
    context.load_cert_chain(home / "site-1.crt", home / "site-1.key")

    def push():
        line = http.client.HTTPSConnection(deployed.server, timeout=30, context=context)
        with contextlib.closing(line), contextlib.suppress(OSError, http.client.HTTPException):
            line.request("POST", REPLY + "0" * 32, big)
            assert line.getresponse().status in (409, 410, 413)

    threads = [threading.Thread(target=push) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most_memory(server) - before < 2**25


def most_memory(pid):
    """Return the peak of a process's memory, in bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", text)[1])


@pytest.mark.slow
def test_connections_without_a_certificate_take_up_little_memory(deployed):
    """Each takes 0.25 MB until its handshake ends: their number is what the server limits."""
    server = deployed.federation.noted("server")["pid"]
    limits = Path(f"/proc/{server}/limits").read_text()
    assert int(re.search(r"Max open files +(\d+)", limits)[1]) <= https.MAX_FILES
    before = most_memory(server)
    with contextlib.ExitStack() as idle:
        for _ in range(100):
            idle.enter_context(socket.create_connection(("127.0.0.1", deployed.federation.port)))
        folder = deployed.run(make_study(TABLES, training=FEW))
    assert deployed.record(folder)["extrapolated"] == {}
    assert most_memory(server) - before < 100 * 2**19


@pytest.mark.slow
def test_a_second_server_is_refused(deployed):
    second = dorfl("server", "start", deployed.federation.path, "--address", "127.0.0.1")
    assert second.returncode == 2


@pytest.mark.slow
def test_only_the_owner_can_open_the_coordinators_socket(deployed):
    assert oct(deployed.federation.socket.stat().st_mode & 0o777) == "0o600"


@pytest.mark.slow
def test_no_row_and_no_path_of_a_site_is_anywhere_on_the_server(deployed):
    """Last, when all of the above has been logged and stored."""
    deployed.run(make_study(TABLES, training=FEW))
    seen = 0
    for file in deployed.federation.path.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not re.search(rb"3133[789]\.06", content), file
            assert SECRET.encode() not in content, file
            assert b"records.csv" not in content, file
            seen += 1
    assert seen > 15
    secret = [*deployed.federation.keys.glob("*.key"), *deployed.root.glob(f"{SECRET}*/*/*.key")]
    assert len(secret) >= 6  # the authority's, the server's, the coordinator's, three sites'
    assert {oct(file.stat().st_mode & 0o777) for file in secret} == {"0o600"}
