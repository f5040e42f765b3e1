from numba import njit

from dorfl.support import compiling


def test_a_person_is_told_once_that_kernels_are_compiled(caplog):
    compiling.tell(__name__)
    twice = njit(lambda x: 2 * x)
    assert not caplog.records
    assert twice(2) == 4 and twice(2.0) == 4.0  # compiled for integers, then for numbers
    assert [record.name for record in caplog.records] == ["dorfl"]
    assert "once on this machine" in caplog.text


def test_what_others_compile_is_not_told(caplog):
    compiling.tell("another.module")
    assert njit(lambda x: x + 1)(1) == 2
    assert not caplog.records
