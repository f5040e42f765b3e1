"""Serialisation of methods and losses as JSON.

Input is untrusted: objects are built by the public functions, which check their arguments. JSON has
no infinity, which is written as null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from dorfl.objective import costs, losses, mixture, scores
from dorfl.objective.base import Kind, Loss
from dorfl.objective.methods import Method
from dorfl.objective.mixture import Mixture
from dorfl.support.wire import number, short, text, whole

K = TypeVar("K", bound=Kind)


def write_method(method: Method) -> dict[str, Any]:
    """Return a method as JSON types.

    >>> from dorfl import methods
    >>> write_method(methods.erm())["rho"] is None
    True
    """
    cost, score = method.cost, method.score
    weight = [_to_json(w) for w in cost.weight] if isinstance(cost.weight, tuple) else cost.weight
    return {
        "name": method.name,
        "rho": _to_json(method.rho),
        "temperature": _to_json(method.temperature),
        "radius": method.radius,
        "cost": {
            "weight": weight,
            "frozen": list(cost.frozen),
            "label_price": _to_json(cost.label_price),
        },
        "score": None if score is None else _write_kind(score, scores.KINDS, "kind"),
        "mixture": _write_mixture(method.mixture),
    }


def read_method(written: Any) -> Method:
    """Read a method from JSON types; raise a ValueError if a field is damaged.

    >>> from dorfl import methods
    >>> read_method(write_method(methods.paper(rho=20, beta=0.1))).temperature
    2.0
    """
    try:
        cost = written["cost"]
        weight = cost["weight"]
        price = costs.squared(
            [_from_json(w) for w in weight] if isinstance(weight, list) else number(weight),
            frozen=[whole(k) for k in cost["frozen"]],
            label_price=_from_json(cost["label_price"]),
        )
        score = written["score"]
        rho, temperature = _from_json(written["rho"]), _from_json(written["temperature"])
        radius = None if written["radius"] is None else number(written["radius"])
        if not (rho > 0 and temperature > 0 and (radius is None or radius > 0)):
            raise ValueError("rho, temperature and radius must be positive")
        return Method(
            text(written["name"]),
            rho,
            price,
            temperature,
            None if score is None else _read_kind(score, scores.KINDS, "kind"),
            _read_mixture(written["mixture"]),
            radius,
        )
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"the method is damaged ({problem})") from None


def write_loss(loss: Loss) -> dict[str, Any]:
    """Return a loss as JSON types.

    >>> write_loss(losses.huber(0.5))
    {'name': 'huber', 'delta': 0.5}
    """
    return _write_kind(loss, losses.KINDS, "name")


def read_loss(written: Any) -> Loss:
    """Read a loss from JSON types; raise a ValueError if a field is damaged."""
    try:
        return _read_kind(written, losses.KINDS, "name")
    except (KeyError, TypeError) as problem:
        raise ValueError(f"the loss is damaged ({problem})") from None


def _write_kind(kind: Kind, known: Mapping[str, type[Kind]], tag: str) -> dict[str, Any]:
    """Return a loss or a score, with its name as `tag`."""
    if known.get(kind.name) is not type(kind):
        what = type(kind).__name__
        raise ValueError(f"a loss or score of your own ({what}) cannot be saved; add it to KINDS")
    return {tag: kind.name, **kind.to_json()}


def _read_kind(written: Any, known: Mapping[str, type[K]], tag: str) -> K:
    name = text(written[tag])
    if name not in known:
        raise ValueError(f"{short(name)} is unknown; there are {', '.join(known)}")
    made: K = known[name].from_json(written)
    return made


def _to_json(value: float) -> float | None:
    return None if math.isinf(value) else value


def _from_json(value: Any) -> float:
    return math.inf if value is None else number(value)


def _write_mixture(rule: Mixture) -> dict[str, Any]:
    weights = rule.weights.tolist() if isinstance(rule.weights, np.ndarray) else rule.weights
    return {"kind": rule.kind, "weights": weights, "cap": rule.cap, "by": rule.by}


def _read_mixture(written: Any) -> Mixture:
    if written["kind"] == "fixed":
        return mixture.fixed(written["weights"], by=text(written["by"]))
    return mixture.capped(number(written["cap"]), text(written["by"]))
