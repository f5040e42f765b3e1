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
from dorfl.support import files
from dorfl.support.types import Array
from dorfl.support.wire import number, short, text, whole

FORMAT, VERSION = "dorfl.fit", 1
_MAX_BYTES = 500_000_000  # of a file


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
        "theta_radius": _finite(fit.theta_radius),
        "history": [_write_round(line) for line in fit.history],
    }
    written = json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False)
    files.write_whole(Path(path), f"{written}\n".encode())
    return Path(path)


def read(path: Path) -> Any:
    """Read the JSON of an untrusted file; raise a ModelError if it is damaged or too large."""
    if path.stat().st_size > _MAX_BYTES:
        raise ModelError(f"{path}: is too large for a model")
    try:
        return json.loads(path.read_bytes(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: is cut short or no JSON") from None


def load(path: Path, written: Any) -> Fit:
    """Return the fit of a file from its JSON; raise a ModelError if a field is damaged."""
    try:
        if written["version"] != VERSION:
            raise ValueError(f"is written in version {short(written['version'])}, not {VERSION}")
        labels = written["labels"]
        if len({type(label) for label in labels}) > 1:
            raise TypeError("its labels are not all of one type")
        known = np.array([text(v) if isinstance(v, str) else v for v in labels])
        if (known.ndim != 1 or known.dtype.kind not in "biufU") and len(known):
            raise TypeError("its labels are neither text nor numbers")
        fit = from_json(written, known, whole(written["dims"]))
        widest, count = written["theta_radius"], len(fit.clients)
        return replace(
            fit,
            history=[_read_round(line, count) for line in written["history"]],
            theta_radius=np.inf if widest is None else number(widest),
        )
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
        "rho": _finite(fit.rho),
        "radius": fit.radius,
        "scale": fit.scale,
        "l2": fit.l2,
        "objective": fit.objective,
        "gap": _finite(fit.gap),
        "gap_kind": fit.gap_kind,
        "rounds": fit.rounds,
        "status": fit.status,
        "message": fit.message,
    }


def from_json(written: Any, classes: Array, dims: int) -> Fit:
    """Read a fit; raise a ValueError, KeyError or TypeError if a field is damaged."""
    problem = read_problem(written, classes, dims)
    shape = (problem.outputs, dims + problem.intercept)
    return with_theta(written, problem, numbers(written["theta"], "theta", shape))


def read_problem(written: Any, classes: Array, dims: int) -> Problem:
    """Read the problem of a linear model, or of one that differs from it in θ alone."""
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
    problem = Problem(method, loss, dims, classes, intercept)
    problem.check()
    return problem


def with_theta(written: Any, problem: Problem, theta: Array) -> Fit:
    """Read the other fields of a model whose problem and θ are known."""
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
        objective=number(written["objective"]),
        gap=np.nan if written["gap"] is None else number(written["gap"]),
        gap_kind=text(written.get("gap_kind", "estimate")),
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
        scale=None if written.get("scale") is None else number(written["scale"]),
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


def _write_round(line: Round) -> dict[str, Any]:
    arrays = {"risks": line.risks.tolist(), "lam": line.lam.tolist()}
    return {**line._asdict(), **arrays, "gap": _finite(line.gap)}


def _read_round(written: Any, clients: int) -> Round:
    def reasons(given: Any) -> dict[str, str]:
        return {text(name): text(why) for name, why in given.items()}

    return Round(
        whole(written["round"]),
        number(written["objective"]),
        np.inf if written["gap"] is None else number(written["gap"]),
        numbers(written["risks"], "risks", (clients,)),
        numbers(written["lam"], "lam", (clients,)),
        tuple(text(name) for name in written["answered"]),
        reasons(written["refused"]),
        reasons(written["clipped"]),
        whole(written["bytes_up"]),
        whole(written["bytes_down"]),
    )


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")
