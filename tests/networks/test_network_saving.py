"""A network in a folder: the same after loading, and scored with NumPy alone."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from dorfl import methods
from dorfl.networks import load, mlp, save, tensors, train


@pytest.fixture
def fit():
    rng = np.random.default_rng(0)
    labels = np.array(["blue", "green", "red"])
    clients = [(rng.normal(size=(30, 4)), np.tile(labels, 10)) for _ in range(2)]
    return train(clients, methods.afl(), lambda: mlp(4, (6, 5), 3), rounds=2)


def test_a_network_comes_back(fit, tmp_path):
    folder = save(fit, tmp_path / "model")
    rows = torch.randn(7, 4)
    assert torch.equal(load(folder)(rows), fit.model(rows))
    assert torch.equal(load(folder, lambda: mlp(4, (6, 5), 3))(rows), fit.model(rows))
    assert not list(folder.glob("*.p*[!y]"))
    assert json.loads((folder / "model.json").read_text())["lam"] == fit.lam.tolist()


def test_numpy_alone_scores_it(fit, tmp_path):
    folder = save(fit, tmp_path / "model")
    rows = np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    script = (
        "import sys, numpy as np; sys.modules['torch'] = sys.modules['dorfl'] = None\n"
        "from score import predict\n"
        f"print(' '.join(predict(np.load({str(tmp_path / 'rows.npy')!r}))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == fit.predict(rows).tolist()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "no network"),
        ({"version": 9}, "another version"),
        ({"layers": []}, "give the `model`"),
        ({"layers": ["0", "relu", "7"]}, "no layer"),
        ({"layers": 5}, "`layers` is not a list"),
        ({"layers": [["0"]]}, "no layer"),
    ],
)
def test_folders_that_are_wrong_are_refused(fit, tmp_path, change, words):
    folder = save(fit, tmp_path / "model")
    about = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(about | change))
    with pytest.raises(ValueError, match=words):
        load(folder)


@pytest.mark.parametrize("shape", [(2**28, 0), (2**44, 0), (0, 2**44)])
def test_layers_without_numbers_are_refused(fit, tmp_path, shape):
    """Their biases could be larger than the file."""
    folder = save(fit, tmp_path / "model")
    about = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(about | {"layers": ["0"]}))
    arrays = {"0.weight": np.zeros(shape, np.float32)}
    (folder / "model.safetensors").write_bytes(tensors.pack(arrays))
    with pytest.raises(ValueError, match="no layer '0'"):
        load(folder)


def test_pipes_are_not_read(fit, tmp_path):
    folder = save(fit, tmp_path / "model")
    for name in ("model.safetensors", "model.json"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(ValueError, match=name):
            load(folder)


def test_numbers_of_another_model_are_refused(fit, tmp_path):
    folder = save(fit, tmp_path / "model")
    with pytest.raises(ValueError, match="no numbers for"):
        load(folder, mlp(4, (9,), 3))
