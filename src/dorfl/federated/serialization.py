"""Serialisation of a fit as JSON without loss; input is untrusted and no code in it is run.

The folder that `dorfl train` writes has these fields and more (:mod:`dorfl.tabular.model`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dorfl.federated.fit import Fit
from dorfl.federated.simulation import Round
from dorfl.linear.problem import Problem
from dorfl.objective.serialization import read_loss, read_method, write_loss, write_method
from dorfl.support import files, wire
from dorfl.support.types import Array
from dorfl.support.wire import number, short, text, whole

FORMAT, VERSION = "dorfl.fit", 2
_MAX_BYTES = 500_000_000  # of a JSON file
_FIELDS: dict[str, Any] = {  # of a fit, which are one value each
    "objective": float,
    "gap": float,
    "gap_kind": str,
    "rounds": int,
    "status": str,
    "message": str,
    "rho": float,
    "radius": float | None,
    "scale": float | None,
    "l2": float,
}


class ModelError(ValueError):
    """A model cannot be read or written; the message has the reason."""


def save(fit: Fit, path: str | Path) -> Path:
    """Write a linear model to a file; see :meth:`~dorfl.federated.fit.Fit.save`."""
    if not isinstance(fit.problem, Problem):
        raise ModelError("save: only linear models can be saved; this one belongs to its oracle")
    labels = fit.problem.classes.tolist()
    if {type(label) for label in labels} - {bool, int, float, str}:
        raise ModelError("save: labels must be text or numbers")
    about = {
        "format": FORMAT,
        "version": VERSION,
        "labels": labels,
        "dims": fit.problem.dims,
        **to_json(fit),
        **_plain({"theta_radius": fit.theta_radius, "history": fit.history}),
    }
    written = json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False)
    files.write_whole(Path(path), f"{written}\n".encode())
    return Path(path)


def read(path: Path) -> Any:
    """Read the JSON of an untrusted file of at most 500 MB; raise a ModelError if it is damaged."""
    try:
        content = files.read_limited(path, _MAX_BYTES)
    except ValueError as problem:
        raise ModelError(f"{path}: {problem}") from None
    try:
        return json.loads(content, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: is cut short or no JSON") from None


def load(path: Path, written: Any) -> Fit:
    """Return the fit of a file from its JSON; raise a ModelError if a field is damaged."""
    try:
        if written["version"] != VERSION:
            raise ValueError(
                f"is written in version {short(written['version'])}, this dorfl reads version "
                f"{VERSION}; train again, or use dorfl 0.2.0"
            )
        labels = written["labels"]
        if len({type(label) for label in labels}) > 1:
            raise TypeError("its labels are not all of one type")
        known = np.array([text(v) if isinstance(v, str) else v for v in labels])
        if (known.ndim != 1 or known.dtype.kind not in "biufU") and len(known):
            raise TypeError("its labels are neither text nor numbers")
        fit = from_json(written, known, whole(written["dims"]))
        history = wire.read(written["history"], tuple[Round, ...], "history", finite=False)
        if any(
            line.risks.shape != fit.lam.shape or line.lam.shape != fit.lam.shape for line in history
        ):
            raise ValueError("its history does not match its clients")
        widest = wire.read(written["theta_radius"], float, "theta_radius", finite=False)
        return replace(fit, history=list(history), theta_radius=widest)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as problem:
        raise ModelError(f"{path}: {problem}") from None


def to_json(fit: Fit) -> dict[str, Any]:
    """Return the fields of a linear model as JSON types."""
    return {"theta": fit.theta.reshape(fit.problem.outputs, -1).tolist(), **without_theta(fit)}


def without_theta(fit: Fit) -> dict[str, Any]:
    """Return the fields of any model but θ."""
    problem = fit.problem
    common = bool((fit.centers == fit.centers[0]).all())
    return {
        "intercept": problem.intercept,
        "loss": write_loss(problem.loss),
        "method": write_method(problem.method),
        "clients": list(fit.clients),
        "lambda": fit.lam.tolist(),
        "risks": fit.risks.tolist(),
        "centers": (fit.centers[:1] if common else fit.centers).tolist(),
        **_plain({name: getattr(fit, name) for name in _FIELDS}),
    }


def from_json(written: Any, classes: Array, dims: int) -> Fit:
    """Read a fit; raise a ValueError, KeyError or TypeError if a field is damaged."""
    problem = read_problem(written, classes, dims)
    shape = (problem.outputs, dims + problem.intercept)
    return with_theta(written, problem, numbers(written["theta"], "theta", shape))


def read_problem(written: Any, classes: Array, dims: int) -> Problem:
    """Read the problem of a linear model, or of one that differs from it in θ alone.

    :func:`with_theta` checks it: the check allocates `dims` numbers, which θ must have too.
    """
    loss, method = read_loss(written["loss"]), read_method(written["method"])
    if bool(len(classes)) != loss.classifies or len(np.unique(classes)) < len(classes):
        raise ValueError("its classes do not fit its loss")
    if loss.classifies and (len(classes) < 2 or (np.sort(classes) != classes).any()):
        raise ValueError("its classes are not two or more in order")
    if len(classes) > 2 and loss.outputs(len(classes)) == 1:
        raise ValueError("its classes do not fit its loss")
    intercept = written["intercept"]
    if not isinstance(intercept, bool):
        raise TypeError("intercept is not a boolean")
    return Problem(method, loss, dims, classes, intercept)


def with_theta(written: Any, problem: Problem, theta: Array) -> Fit:
    """Read the other fields of a model whose problem and θ are known."""
    problem.check()
    dims = problem.dims
    clients = tuple(text(name) for name in written["clients"])
    lam = numbers(written["lambda"], "lambda", (len(clients),))
    if len(set(clients)) < len(clients) or (lam < 0).any() or not 0.99 < lam.sum() < 1.01:
        raise ValueError("its clients and their weights do not match")
    rows = len(written["centers"])
    by_class = any(isinstance(part, list) for first in written["centers"][:1] for part in first)
    each = (len(problem.classes), dims) if by_class else (dims,)
    centers = numbers(written["centers"], "centers", (rows, *each))
    if rows not in (1, len(clients)):
        raise ValueError("its centers do not match its clients")
    return Fit(
        theta=theta.reshape(problem.shape),
        lam=lam,
        clients=clients,
        risks=numbers(written["risks"], "risks", (len(clients),)),
        history=[],
        sample_weights={},
        centers=np.repeat(centers, len(clients), axis=0) if rows == 1 else centers,
        problem=problem,
        **{name: wire.read(written[name], hint, name, False) for name, hint in _FIELDS.items()},
    )


def numbers(values: Any, name: str, shape: tuple[int, ...]) -> Array:
    """Return an array of finite numbers of that shape from nested lists."""

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


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(wire.encode(values))
    return plain


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")
