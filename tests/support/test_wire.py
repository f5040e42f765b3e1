"""Messages as bytes: back to the last bit, one way to write them, and nothing strange let in."""

import json
import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dorfl.federated.messages import Broadcast, Report
from dorfl.protocol.messages import Reply
from dorfl.solvers.base import Task
from dorfl.support import wire
from dorfl.support.types import Array

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=64).filter(lambda x: abs(x) < 1e308)
VECTORS = arrays.arrays(np.float64, st.integers(0, 8), elements=FLOATS)
GOOD = Report("a", 3, 20, 0.5, np.arange(4.0), None)


class Everything(NamedTuple):
    flag: bool
    count: int
    text: str
    raw: bytes
    pairs: tuple[tuple[int, float], ...]
    named: dict[str, Array]
    perhaps: float | None
    both: tuple[str, int]


@given(st.text(max_size=5), st.integers(0, 2**62), FLOATS, VECTORS, st.none() | VECTORS)
def test_a_report_comes_back_to_the_last_bit(client, number, value, vector, curvature):
    report = Report(client, number, 7, value, vector, curvature)
    back = wire.decode(wire.encode(report), Report)
    assert wire.encode(back) == wire.encode(report)
    assert back.vector.tobytes() == vector.tobytes()
    assert math.copysign(1.0, back.value) == math.copysign(1.0, value)
    assert back.value == value


def test_every_kind_of_field_comes_back():
    one = Everything(
        True, -3, "ü\n", b"\x00\xff", ((1, 0.5), (2, -0.0)), {"k": np.eye(2)}, None, ("a", 1)
    )
    back = wire.decode(wire.encode(one), Everything)
    assert wire.encode(back) == wire.encode(one)
    assert np.array_equal(back.named["k"], np.eye(2))


def test_the_same_value_gives_the_same_bytes():
    task = Task(np.arange(3.0), np.ones(2) / 2)
    assert wire.encode(Broadcast(1, task)) == wire.encode(
        Broadcast(1, task._replace(theta=np.arange(3.0)[::1].copy()))
    )
    assert json.loads(wire.encode(GOOD))["vector"]["shape"] == [4]


def damaged(**changes):
    plain = json.loads(wire.encode(GOOD))
    plain.update(changes)
    return json.dumps(plain).encode()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[]", "needs a dict"),
        (b"{}", "fields"),
        (b"[" * 100_000, "nested|JSON"),
        (b'{"client":"a","client":"b"}', "twice"),
        (damaged(value=float("nan")), "NaN"),
        (damaged(value="nan"), "finite"),
        (damaged(value=1e999), "NaN"),
        (damaged(value=10**400), "finite"),
        (damaged(value=True), "number"),
        (damaged(value="0.5"), "number"),
        (damaged(rows=1.0), "needs a int"),
        (damaged(rows=True), "needs a int"),
        (damaged(rows=10**30), "too large"),
        (damaged(client=3), "needs a str"),
        (damaged(extra=1), "fields"),
        (damaged(vector=[0.0, 1.0]), "needs a dict"),
        (damaged(vector={"shape": [4], "f8": "!!"}), "base64"),
        (damaged(vector={"shape": [5], "f8": "AAAAAAAA4D8="}), "shape"),
        (damaged(vector={"shape": [-1], "f8": ""}), "shape"),
        (damaged(vector={"shape": [2**50, 2**50], "f8": ""}), "shape"),
        (damaged(vector={"shape": [1], "f8": "AAAAAAAA8H8="}), "finite"),
        (damaged(vector={"shape": [1], "O": "AAAAAAAA8H8="}), "array"),
    ],
)
def test_what_is_not_a_report_is_refused_by_field(data, reason):
    with pytest.raises(ValueError, match=reason):
        wire.decode(data, Report)


def test_too_large_a_message_is_not_even_parsed():
    with pytest.raises(ValueError, match="more than the 10 allowed"):
        wire.decode(b"[" * 11, Report, limit=10)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)


@given(st.binary(max_size=200) | JSON.map(lambda plain: json.dumps(plain).encode()))
def test_anything_else_is_a_value_error_and_nothing_worse(data):
    for kind in (Report, Reply, Everything):
        with pytest.raises(ValueError):  # noqa: PT011 - whatever its text
            wire.decode(data, kind)


@given(st.sampled_from(Report._fields), JSON)
def test_a_report_with_one_field_changed_is_refused_or_still_a_report(name, value):
    try:
        found = wire.decode(damaged(**{name: value}), Report)
    except ValueError:
        return
    assert isinstance(found.client, str)
    assert isinstance(found.value, float) and math.isfinite(found.value)
    assert isinstance(found.vector, np.ndarray) and np.isfinite(found.vector).all()


def test_errors_never_repeat_content():
    with pytest.raises(ValueError, match="number") as caught:
        wire.decode(damaged(value="a-secret-value"), Report)
    assert "secret" not in str(caught.value)


def test_functions_and_objects_cannot_be_sent():
    with pytest.raises(TypeError, match="cannot be sent"):
        wire.encode({"f": print})


class Circle(NamedTuple):
    size: float


class Square(NamedTuple):
    size: float


class Drawing(NamedTuple):
    shapes: tuple[Circle | Square, ...]
    frame: Square
    best: Circle | Square | None = None


def test_one_of_several_records_is_read_by_its_tag():
    drawing = Drawing((Circle(1.0), Square(2.0)), Square(3.0), Square(1.0))
    assert wire.decode(wire.encode(drawing), Drawing) == drawing
    plain = json.loads(wire.encode(drawing))
    assert plain["best"] == {"type": "Square", "size": 1.0}
    assert plain["frame"] == {"size": 3.0}  # there is no choice
    for wrong in ({"size": 1.0}, {"type": "Triangle", "size": 1.0}, {"type": ["Square"]}):
        plain["best"] = wrong
        with pytest.raises(ValueError, match=r"Drawing\.best"):
            wire.decode(json.dumps(plain).encode(), Drawing)
