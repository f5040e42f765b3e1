"""A site's Unix socket: who may open it, and what too long, slow or many requests do to it."""

import os
import socket
import stat
import threading
import time

import pytest
from deployments import in_thread, until

from dorfl.carriers import flower
from dorfl.carriers.flower import attend_socket


@pytest.fixture
def served(tmp_path):
    """Answer on a socket with the request turned round; return its path and the log."""
    place, notes = tmp_path / "site.sock", []
    with in_thread(lambda: attend_socket(place, lambda request: request[::-1], notes.append)):
        until(lambda: notes)
        yield place, notes
    assert not place.exists()  # it is removed at the end


def connected(place):
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(30)
    try:
        line.connect(str(place))
    except OSError:
        line.close()
        raise
    return line


def ask(place, content):
    with connected(place) as line:
        line.sendall(content)
        line.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: line.recv(1 << 16), b""))


def test_a_request_of_any_length_is_answered(served):
    for length in (0, 1, 1 << 20):
        content = os.urandom(length)
        assert ask(served[0], content) == content[::-1]


def test_owner_and_group_alone_can_open_it_from_the_moment_it_exists(served):
    found = served[0].stat()
    assert stat.S_ISSOCK(found.st_mode) and oct(found.st_mode & 0o777) == "0o660"


def test_a_socket_that_a_killed_process_left_is_replaced(tmp_path):
    place = tmp_path / "site.sock"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(place))
    with in_thread(lambda: attend_socket(place, bytes.upper)):
        until(lambda: _answers(place))


def _answers(place):
    try:
        return ask(place, b"a") == b"A"
    except ConnectionRefusedError:
        return False


def test_a_request_that_is_too_long_is_closed_and_noted_and_the_next_is_answered(
    served, monkeypatch
):
    monkeypatch.setattr(flower.envelope, "LIMIT", 1000)
    with connected(served[0]) as line:
        try:
            line.sendall(bytes(1 << 20))
            assert line.recv(1) == b""
        except OSError:  # closed while it was being sent
            pass
    until(lambda: any("more than 1000 bytes" in note for note in served[1]))
    assert ask(served[0], b"ab") == b"ba"


def test_requests_that_never_end_are_closed_and_few_are_read_at_once(served, monkeypatch):
    monkeypatch.setattr(flower, "READ_SECONDS", 0.5)
    began = time.monotonic()
    slow = [connected(served[0]) for _ in range(2 * flower.MAX_REQUESTS)]
    for line in slow:
        line.sendall(b"never ended")
    answered = []
    asking = threading.Thread(target=lambda: answered.append(ask(served[0], b"ab")))
    asking.start()
    for line in slow:
        with line:
            assert line.recv(1) == b""
    asking.join()
    assert answered == [b"ba"] and time.monotonic() - began >= 0.9  # they took turns
    assert sum("TimeoutError" in note for note in served[1]) == len(slow)


def test_a_path_that_is_too_long_for_a_socket_is_named(tmp_path):
    place = tmp_path / ("x" * 90) / "site.sock"
    with pytest.raises(ValueError, match="is too long for a socket; use a shorter path"):
        flower.short_path(place)
