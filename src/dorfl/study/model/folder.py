"""The model folder: `model.json`, `card.md`, `score.py`. Plain text, versioned, never pickle.

`model.json` is the model; the other two are made from it. It is written last and in one step, so a
folder holds the model before or the model after, whatever happens in between.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

import dorfl
from dorfl.data.preprocessing import Numeric, Transform
from dorfl.federation.fit import Fit
from dorfl.oracle.problem import Problem
from dorfl.study.model import card, facts
from dorfl.study.model.model import Model
from dorfl.study.model.written import read_loss, read_method, write_loss, write_method
from dorfl.support import files
from dorfl.support.plain import number, text, whole
from dorfl.support.types import Array

FORMAT, VERSION = "dorfl.model", 1
NAME = "model.json"
REPORT = "report.html"  # that `dorfl report` puts beside it
_LARGEST = 500_000_000  # bytes


class ModelError(ValueError):
    """A model folder that cannot be read or written; the message says why."""


def save(model: Model, folder: str | Path) -> Path:
    """Write the model into `folder`, which is new, empty, or holds a model already."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder}: is a file; give a folder for the model")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / NAME).exists():
        raise ModelError(f"{folder}: holds other things than a model; give another folder")
    written = json.dumps(to_json(model), indent=1, ensure_ascii=False, allow_nan=False)
    scorer = resources.files("dorfl.study.model").joinpath("score.py").read_text(encoding="utf-8")
    try:
        files.write_whole(folder / "card.md", card.write(model).encode())
        files.write_whole(folder / "score.py", scorer.encode())
        files.write_whole(folder / NAME, f"{written}\n".encode())
        (folder / REPORT).unlink(missing_ok=True)  # of the model that was here before
    except OSError as error:
        raise OSError(
            error.errno, f"cannot write the model: {error.strerror}", str(folder)
        ) from None
    return folder


def load(folder: str | Path) -> Model:
    """The model in a folder, checked field by field: the folder may come from anywhere."""
    path = Path(folder)
    path = path / NAME if path.is_dir() else path
    if not path.is_file():
        raise ModelError(f"{folder}: holds no {NAME}; is it a folder that `dorfl train` wrote?")
    if path.stat().st_size > _LARGEST:
        raise ModelError(f"{path}: is too large for a model")
    try:
        written = json.loads(path.read_bytes(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: is cut short or no JSON") from None
    try:
        return from_json(written)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as problem:
        raise ModelError(f"{path}: {problem}") from None


def to_json(model: Model) -> dict[str, Any]:
    """A model as plain JSON; numbers come back to the last bit."""
    fit, problem = model.fit, model.fit.problem
    common = bool((fit.centers == fit.centers[0]).all())
    return {
        "format": FORMAT,
        "version": VERSION,
        "dorfl": dorfl.__version__,
        "label": model.label,
        "client": model.client,
        "classes": list(model.classes),
        "target": None if model.target is None else model.target._asdict(),
        "features": list(model.transform.names),
        "intercept": problem.intercept,
        "theta": fit.theta.reshape(problem.outputs, -1).tolist(),
        "transform": model.transform.to_json(),
        "loss": write_loss(problem.loss),
        "method": write_method(problem.method),
        "clients": list(fit.clients),
        "lambda": fit.lam.tolist(),
        "risks": fit.risks.tolist(),
        "centers": (fit.centers[:1] if common else fit.centers).tolist(),
        "rho": None if np.isinf(fit.rho) else fit.rho,
        "radius": fit.radius,
        "l2": fit.l2,
        "objective": fit.objective,
        "gap": None if not np.isfinite(fit.gap) else fit.gap,
        "rounds": fit.rounds,
        "status": fit.status,
        "message": fit.message,
        "facts": model.facts.to_json(),
    }


def from_json(written: Any) -> Model:
    """The model written down; raises ValueError, KeyError or TypeError where it is damaged."""
    if not isinstance(written, dict) or written.get("format") != FORMAT:
        raise ValueError("is no model written by dorfl")
    if written.get("version") != VERSION:
        raise ValueError(
            f"is written in version {written.get('version')!r}, this dorfl reads version "
            f"{VERSION}; use dorfl {written.get('dorfl')}"
        )
    transform = Transform.from_json(written["transform"])
    loss, method = read_loss(written["loss"]), read_method(written["method"])
    classes = [text(name) for name in written["classes"]]
    if bool(classes) != loss.classifies or len(set(classes)) < len(classes):
        raise ValueError("its classes do not go with its loss")
    if loss.classifies and (len(classes) < 2 or sorted(classes) != classes):
        raise ValueError("its classes are not two or more in order")
    if len(classes) > 2 and loss.outputs(len(classes)) == 1:
        raise ValueError("its classes do not go with its loss")
    intercept = written["intercept"]
    if not isinstance(intercept, bool):
        raise TypeError("intercept is no yes or no")
    dims = len(transform.names)
    problem = Problem(method, loss, dims, np.arange(len(classes)), intercept)
    problem.check()
    clients = tuple(text(name) for name in written["clients"])
    lam = _numbers(written["lambda"], "lambda", (len(clients),))
    if len(set(clients)) < len(clients) or (lam < 0).any() or not 0.99 < lam.sum() < 1.01:
        raise ValueError("its clients and their weights do not go together")
    rows = len(written["centers"])
    centers = _numbers(written["centers"], "centers", (rows, dims))
    if rows not in (1, len(clients)):
        raise ValueError("its centers do not go with its clients")
    fit = Fit(
        theta=_numbers(written["theta"], "theta", (problem.outputs, dims + intercept)).reshape(
            problem.shape
        ),
        lam=lam,
        clients=clients,
        risks=_numbers(written["risks"], "risks", (len(clients),)),
        objective=number(written["objective"]),
        gap=np.nan if written["gap"] is None else number(written["gap"]),
        rounds=whole(written["rounds"]),
        status=text(written["status"]),
        message=text(written["message"]),
        history=[],
        sample_weights={},
        centers=np.repeat(centers, len(clients), axis=0) if rows == 1 else centers,
        problem=problem,
        rho=np.inf if written["rho"] is None else number(written["rho"]),
        radius=None if written["radius"] is None else number(written["radius"]),
        l2=number(written["l2"]),
    )
    client = None if written["client"] is None else text(written["client"])
    return Model(
        fit, transform, text(written["label"]), client, tuple(classes), _target(written["target"]),
        facts.from_json(written["facts"]),
    )  # fmt: skip


def _target(written: Any) -> Numeric | None:
    if written is None:
        return None
    center, spread = number(written["center"]), number(written["spread"])
    if not spread > 0:
        raise ValueError("its label has no spread")
    return Numeric(text(written["name"]), center, spread, number(written["fill"]))


def _numbers(values: Any, name: str, shape: tuple[int, ...]) -> Array:
    def check(value: Any, depth: int) -> None:
        if depth == len(shape):
            number(value)
            return
        if not isinstance(value, list) or len(value) != shape[depth]:
            raise ValueError(f"{name} has the wrong shape")
        for entry in value:
            check(entry, depth + 1)

    check(values, 0)
    return np.array(values, dtype=np.float64).reshape(shape)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")
