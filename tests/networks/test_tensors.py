"""Files of numbers: what is written is read, and what is no such file is refused."""

import json
import struct

import numpy as np
import pytest

from dorfl.networks.tensors import pack, unpack


def test_arrays_come_back_bit_for_bit():
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.normal(size=(3, 4)).astype(np.float32),
        "b": rng.normal(size=()),
        "c": np.arange(5),
        "empty": np.zeros((0, 3)),
    }
    found, words = unpack(pack(arrays, {"of": "a test"}))
    assert words == {"of": "a test"}
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


def described(**entry):
    text = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **entry}})
    return struct.pack("<Q", len(text)) + text.encode() + b"\0" * 4


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 4) + b"[[[[",
        struct.pack("<Q", 2) + b"[]",
        described(dtype="O"),
        described(shape=[-1]),
        described(shape=[2]),
        described(shape=[1.0]),
        described(shape=[2**47]),
        described(data_offsets=[0, 400]),
        described(data_offsets=[4, 8]),
        described(more=1),
        described() + b"rest",
        pack({"a": np.zeros(3)})[:-1],
    ],
)
def test_what_is_no_such_file_is_refused(data):
    with pytest.raises(ValueError, match="safetensors"):
        unpack(data)
