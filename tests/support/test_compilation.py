from numba import njit

from dorfl.support import compilation


def test_compilation_is_announced_once(caplog):
    compilation.announce(__name__)
    twice = njit(lambda x: 2 * x)
    assert not caplog.records
    assert twice(2) == 4 and twice(2.0) == 4.0  # compiled for integers, then for numbers
    assert [record.name for record in caplog.records] == ["dorfl"]
    assert "once per machine" in caplog.text


def test_compilation_in_other_modules_is_not_announced(caplog):
    compilation.announce("another.module")
    assert njit(lambda x: x + 1)(1) == 2
    assert not caplog.records
