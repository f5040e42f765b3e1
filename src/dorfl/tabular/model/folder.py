"""Read and write the model folder: plain text, versioned, never pickle.

- `model.json` is the model. It is written once, last and in one step, so a folder holds the old
  model or the new one, whatever interrupts the writing.
- `evaluation.json` holds what is computed after the model is saved: certificates and scores on
  held-out rows. It names the SHA-256 of its `model.json`, and is ignored beside another one.
- `card.md` and `score.py` are made from these.
- `model.safetensors` holds the numbers of a neural network; `model.json` has its SHA-256.
"""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

import dorfl
from dorfl.data.preprocessing import Numeric, Transform, columns
from dorfl.federated import serialization
from dorfl.federated.fit import Fit
from dorfl.federated.serialization import ModelError
from dorfl.networks import tensors
from dorfl.networks.layered import Layered
from dorfl.support import files, wire
from dorfl.support.types import Array
from dorfl.support.wire import whole
from dorfl.tabular.model import facts, views
from dorfl.tabular.model.model import Model

FORMAT, VERSION = "dorfl.model", 2
NAME, NUMBERS, EVALUATION = "model.json", "model.safetensors", "evaluation.json"
_LATER = ("promise", "held_out", "errors", "frame", "table")  # facts in `evaluation.json`
_WIDEST = 100_000  # hidden units of a layer
_HEAD = {"label": str, "client": str | None, "classes": tuple[str, ...], "target": Numeric | None}
REPORT = "report.html"  # that `dorfl report` puts beside it


def save(model: Model, folder: str | Path) -> Path:
    """Write the model into a folder that is new, empty, or holds a model, which is replaced."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder}: is a file; give a folder for the model")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / NAME).exists():
        raise ModelError(f"{folder}: holds other things than a model; give another folder")
    about, numbers = to_json(model), _numbers(model)
    if numbers is not None:
        about["network"]["sha256"] = hashlib.sha256(numbers).hexdigest()
    written = json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False)
    scorer = resources.files("dorfl.tabular.model").joinpath("score.py").read_text(encoding="utf-8")
    try:
        files.write_whole(folder / "card.md", views.card(model).encode())
        files.write_whole(folder / "score.py", scorer.encode())
        if numbers is not None:
            files.write_whole(folder / NUMBERS, numbers)
        files.write_whole(folder / NAME, f"{written}\n".encode())
        if numbers is None:
            (folder / NUMBERS).unlink(missing_ok=True)
        for old in (REPORT, EVALUATION):  # of the model that was here before
            (folder / old).unlink(missing_ok=True)
    except OSError as error:
        raise OSError(
            error.errno, f"cannot write the model: {error.strerror}", str(folder)
        ) from None
    return folder


def save_evaluation(model: Model, folder: str | Path) -> None:
    """Write scores and certificates beside the model that :func:`save` wrote."""
    folder, known = Path(folder), model.facts.to_json()
    about = {
        "model": hashlib.sha256((folder / NAME).read_bytes()).hexdigest(),
        "facts": {name: known[name] for name in _LATER},
    }
    written = json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False)
    files.write_whole(folder / "card.md", views.card(model).encode())
    files.write_whole(folder / EVALUATION, f"{written}\n".encode())


def load(folder: str | Path) -> Model:
    """Read the model of `dorfl train`, or of a federation's run; raise ModelError if it is damaged.

    Every field is checked, since the folder may come from anywhere.
    """
    path = Path(folder)
    if path.is_dir():
        path = path / NAME if (path / NAME).exists() else path / "model" / NAME
    if path.suffix != ".json" or not path.is_file():  # a table, say, if arguments are swapped
        raise ModelError(f"{folder}: holds no {NAME}; is it a folder that `dorfl train` wrote?")
    written = serialization.read(path)
    try:
        if isinstance(written, dict) and isinstance(written.get("facts"), dict):
            written["facts"] |= _evaluation(path)
        return from_json(written, path.parent)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as problem:
        raise ModelError(f"{path}: {problem}") from None


def _evaluation(path: Path) -> dict[str, Any]:
    """Return the facts in `evaluation.json`; none if it is missing or belongs to another model."""
    beside = path.with_name(EVALUATION)
    if not beside.is_file():
        return {}
    found = serialization.read(beside)
    if not isinstance(found, dict) or not isinstance(found.get("facts"), dict):
        raise ValueError(f"{EVALUATION} is damaged")
    if found.get("model") != hashlib.sha256(path.read_bytes()).hexdigest():
        return {}
    return {name: value for name, value in found["facts"].items() if name in _LATER}


def to_json(model: Model) -> dict[str, Any]:
    """Return a model as JSON types without loss; the θ of a network is not among them."""
    write = serialization.without_theta if model.network else serialization.to_json
    fit = write(model.fit)
    return {
        "format": FORMAT,
        "version": VERSION,
        "dorfl": dorfl.__version__,
        "label": model.label,
        "client": model.client,
        "classes": list(model.classes),
        "target": None if model.target is None else model.target._asdict(),
        "features": list(model.transform.names),
        "transform": model.transform.to_json(),
        **fit,
        **_network(model),
        "facts": model.facts.to_json(),
    }


def from_json(written: Any, folder: Path) -> Model:
    """Return the model of a folder; raise ValueError, KeyError or TypeError if it is damaged."""
    if not isinstance(written, dict) or written.get("format") != FORMAT:
        raise ValueError("is no model written by dorfl")
    if written.get("version") != VERSION:
        raise ValueError(
            f"is written in version {written.get('version')!r}, this dorfl reads version "
            f"{VERSION}; train again, or use dorfl {written.get('dorfl')}"
        )
    transform = Transform.from_json(written["transform"])
    head = {name: wire.read(written[name], hint, name, True) for name, hint in _HEAD.items()}
    target = head["target"]
    if list(head["classes"]) != columns.in_order(set(head["classes"])):
        raise ValueError("its classes are not two or more in order")
    if target is not None and not target.spread > 0:
        raise ValueError("its label has no spread")
    classes, dims = np.arange(len(head["classes"])), len(transform.names)
    if "network" in written:
        fit = _read_network(written, classes, dims, folder)
    else:
        fit = serialization.from_json(written, classes, dims)
    return Model(fit=fit, transform=transform, facts=facts.from_json(written["facts"]), **head)


def _network(model: Model) -> dict[str, Any]:
    problem = model.fit.problem
    if not isinstance(problem, Layered):
        return {}
    return {"network": {"hidden": list(problem.hidden), "numbers": NUMBERS}}


def _numbers(model: Model) -> bytes | None:
    problem = model.fit.problem
    if not isinstance(problem, Layered):
        return None
    arrays = problem.arrays(model.fit.theta.astype(np.float32))  # as it was trained
    return tensors.pack(arrays, {"format": FORMAT})


def _read_network(written: Any, classes: Array, dims: int, folder: Path) -> Fit:
    like = serialization.read_problem(written, classes, dims)
    hidden = tuple(whole(width) for width in written["network"]["hidden"])
    if not hidden or not all(0 < width <= _WIDEST for width in hidden):
        raise ValueError("its network has no such layers")
    problem = Layered(like.method, like.loss, dims, classes, hidden=hidden)
    try:
        data = files.read_limited(folder / NUMBERS, tensors.MAX_BYTES)
    except OSError as error:
        raise ValueError(f"its numbers, {NUMBERS}, are missing: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != written["network"]["sha256"]:
        raise ValueError(f"{NUMBERS} is not the file that it was saved with")
    return serialization.with_theta(written, problem, problem.gathered(tensors.unpack(data)[0]))
