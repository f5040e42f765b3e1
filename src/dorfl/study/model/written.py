"""Methods and losses as plain JSON, and back with every field checked.

A file or a message may come from anywhere: what comes back is built by the same functions that a
user's own words go through, and they refuse what makes no sense. JSON has no infinity; null is it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dorfl.objective import costs, losses, mixture, scores
from dorfl.objective.losses import Loss
from dorfl.objective.methods import Method
from dorfl.objective.mixture import Mixture
from dorfl.objective.scores import Quadratic, Score, Threshold


def write_method(method: Method) -> dict[str, Any]:
    """A method as plain JSON.

    >>> from dorfl import methods
    >>> write_method(methods.erm())["rho"] is None
    True
    """
    cost = method.cost
    weight = [_up(w) for w in cost.weight] if isinstance(cost.weight, tuple) else cost.weight
    return {
        "name": method.name,
        "rho": _up(method.rho),
        "temperature": _up(method.temperature),
        "radius": method.radius,
        "cost": {
            "weight": weight,
            "frozen": list(cost.frozen),
            "label_price": _up(cost.label_price),
        },
        "score": _write_score(method.score),
        "mixture": _write_mixture(method.mixture),
    }


def read_method(written: Any) -> Method:
    """The method written down.

    >>> from dorfl import methods
    >>> read_method(write_method(methods.dorfl(rho=20, beta=0.1))).temperature
    2.0
    """
    try:
        cost = written["cost"]
        weight = cost["weight"]
        price = costs.squared(
            [_down(w) for w in weight] if isinstance(weight, list) else number(weight),
            frozen=[whole(k) for k in cost["frozen"]],
            label_price=_down(cost["label_price"]),
        )
        rho, temperature = _down(written["rho"]), _down(written["temperature"])
        radius = None if written["radius"] is None else number(written["radius"])
        if not (rho > 0 and temperature > 0 and (radius is None or radius > 0)):
            raise ValueError("rho, temperature and radius must be positive")
        return Method(
            text(written["name"]),
            rho,
            price,
            temperature,
            _read_score(written["score"]),
            _read_mixture(written["mixture"]),
            radius,
        )
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"the method is damaged ({problem})") from None


def write_loss(loss: Loss) -> dict[str, Any]:
    """A loss as plain JSON."""
    return {"name": loss.name, "delta": loss.delta}


def read_loss(written: Any) -> Loss:
    """The loss written down."""
    try:
        name = text(written["name"])
        return losses.huber(number(written["delta"])) if name == "huber" else losses.resolve(name)
    except (KeyError, TypeError) as problem:
        raise ValueError(f"the loss is damaged ({problem})") from None


def number(value: Any) -> float:
    """A finite number, and nothing that merely looks like one."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError(f"{_short(value)} is no number")
    return float(value)


def whole(value: Any) -> int:
    """A whole number."""
    if type(value) is not int or abs(value) >= 2**53:
        raise TypeError(f"{_short(value)} is no whole number")
    return value


def text(value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise TypeError(f"{_short(value)} is no text")
    return value


def _short(value: Any) -> str:
    return repr(value)[:40]


def _up(value: float) -> float | None:
    return None if math.isinf(value) else value


def _down(value: Any) -> float:
    return math.inf if value is None else number(value)


def _write_score(score: Score) -> dict[str, Any] | None:
    if score is None:
        return None
    if isinstance(score, Quadratic):
        center: Any = score.center
        if isinstance(center, dict):
            center = {name: vector.tolist() for name, vector in center.items()}
        elif not isinstance(center, str):
            center = center.tolist()
        matrix = None if score.matrix is None else score.matrix.tolist()
        return {"kind": "quadratic", "weight": score.weight, "center": center, "matrix": matrix}
    if isinstance(score, Threshold):
        label = score.label.item() if isinstance(score.label, np.generic) else score.label
        return {
            "kind": "threshold",
            "weight": score.weight,
            "column": score.column,
            "level": score.level,
            "softness": score.softness,
            "label": label,
        }
    raise ValueError("a score that is a function of your own cannot be written down")


def _read_score(written: Any) -> Score:
    if written is None:
        return None
    if written["kind"] == "quadratic":
        center, matrix = written["center"], written["matrix"]
        return scores.quadratic(number(written["weight"]), center, matrix)
    if written["kind"] == "threshold":
        return scores.threshold(
            number(written["weight"]),
            whole(written["column"]),
            number(written["level"]),
            number(written["softness"]),
            written["label"],
        )
    raise ValueError(f"the score {_short(written['kind'])} is unknown")


def _write_mixture(rule: Mixture) -> dict[str, Any]:
    weights = rule.weights.tolist() if isinstance(rule.weights, np.ndarray) else rule.weights
    return {"kind": rule.kind, "weights": weights, "cap": rule.cap, "by": rule.by}


def _read_mixture(written: Any) -> Mixture:
    if written["kind"] == "fixed":
        return mixture.fixed(written["weights"], by=text(written["by"]))
    return mixture.capped(number(written["cap"]), text(written["by"]))
