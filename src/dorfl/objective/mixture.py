"""The mixture λ: how much each client counts.

    fixed      λ given (n_i / n unless told): the pooled risk ρβ log Σ_i λ_i exp(F_i/ρβ)
    agnostic   the worst mixture: max over the simplex, which is max_i F_i
    capped     the worst mixture in which nobody has more than `cap`: max Σ λ_i F_i, 0 ≤ λ_i ≤ cap

A cap bounds what one client can do to the model. It acts on Σ λ_i F_i and not on the pooled risk,
because inside a log-sum-exp one huge report would win whatever its weight.

Every λ given out here is a mixture to the last bit, not up to rounding: see :func:`snap`.

>>> from dorfl import mixture
>>> mixture.project_simplex([0.5, 2.0])
array([0., 1.])
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dorfl.support.types import Array

BY = ("risk", "loss", "regret")  # what makes a client badly served: see `capped`
_WHOLE = 2**53  # 1 in units of 2⁻⁵³, the finest grid of which every point of [0, 1] is a float


@dataclass(frozen=True, eq=False)
class Mixture:
    """A rule for λ; see :func:`fixed`, :func:`agnostic` and :func:`capped`."""

    kind: str
    weights: dict[str, float] | Array | None = None
    cap: float = 1.0
    by: str = "risk"

    @property
    def adversarial(self) -> bool:
        """Whether λ is chosen against the model rather than given."""
        return self.kind != "fixed"

    def start(self, names: Sequence[str], counts: Array) -> Array:
        """λ before the first round: the given weights, n_i / n, or the uniform mixture."""
        if self.adversarial:
            return self.snap(np.ones(len(names)))
        if self.weights is None:
            return self.snap(counts)
        if isinstance(self.weights, dict):
            missing = [name for name in names if name not in self.weights]
            if missing:
                raise ValueError(f"fixed(weights=…): no weight for client {missing[0]!r}")
            weights = np.array([self.weights[name] for name in names])
        else:
            weights = self.weights
        if weights.shape != (len(names),):
            raise ValueError(f"fixed(weights=…): {weights.size} weights for {len(names)} clients")
        return self.snap(weights)

    def snap(self, lam: Array) -> Array:
        """The nearly right `lam` as a mixture the rule allows, to the last bit: :func:`snap`."""
        return snap(lam, self.cap)

    def project(self, point: Array) -> Array:
        """The mixture allowed by the rule that is nearest to `point`."""
        return project_capped(point, self.cap) if self.cap < 1.0 else project_simplex(point)

    def worst(self, risks: Array) -> Array:
        """The allowed mixture that maximises Σ λ_i F_i."""
        lam = np.empty(len(risks))
        lam[np.argsort(-risks, kind="stable")] = self._portions(len(risks))
        return self.snap(lam)

    def height(self, risks: Array) -> float:
        """max Σ λ_i F_i over the allowed mixtures."""
        if self.cap == 1.0:
            return float(risks.max())
        return float(np.sort(risks)[::-1] @ self._portions(len(risks)))

    def _portions(self, count: int) -> Array:
        """What the largest risk gets in the worst mixture, the next, and so on, up to rounding."""
        return np.asarray(np.clip(1.0 - self.cap * np.arange(count), 0.0, self.cap))

    def objective(self, risks: Array, lam: Array, temperature: float) -> float:
        """What training minimises, from the clients' risks (λ matters only where it is fixed)."""
        if self.adversarial:
            return self.height(risks)
        return tilted_mean(risks, temperature, lam)

    def shares(self, risks: Array, lam: Array, temperature: float) -> Array:
        """∂objective/∂F_i for a fixed λ: its posterior weights, λ_i exp(F_i/ρβ) normalised."""
        if np.isinf(temperature):
            return lam
        top = risks[lam > 0].max()
        posterior = lam * np.exp(np.minimum(risks - top, 0.0) / temperature)
        return np.asarray(posterior / posterior.sum())


def tilted_mean(values: Array, tau: float, weights: Array | None = None) -> float:
    """τ log Σ w exp(v/τ), the plain mean for τ = ∞; exact also where τ makes it nearly that.

    >>> tilted_mean(np.array([0.0, 1.0]), 1e12)
    0.500000000000125
    """
    if weights is not None:  # what does not count must not set the scale either
        values, weights = values[weights > 0], weights[weights > 0]
    if np.isinf(tau):
        return float(np.average(values, weights=weights))
    top = float(values.max())
    return top + tau * float(np.log1p(np.average(np.expm1((values - top) / tau), weights=weights)))


def fixed(
    weights: Mapping[str, float] | Sequence[float] | Array | None = None, by: str = "risk"
) -> Mixture:
    """A given λ: by client name, in the clients' order, or n_i / n when none is given.

    Under a tilt a client's share is λ_i exp(F_i/ρβ), normalised: `by` says what F_i is made of, as
    for :func:`capped`. by="loss" keeps λ from drifting to the clients that the score spares.
    """
    _check_by(by)
    if weights is None:
        return Mixture("fixed", by=by)
    values = np.array(
        list(weights.values() if isinstance(weights, Mapping) else weights), dtype=float
    )
    if not (np.isfinite(values).all() and (values >= 0).all() and values.sum() > 0):
        raise ValueError("fixed(weights=…): must be numbers ≥ 0 that do not all vanish")
    named = (
        {str(k): float(v) for k, v in weights.items()} if isinstance(weights, Mapping) else values
    )
    return Mixture("fixed", named, by=by)


def agnostic(by: str = "risk") -> Mixture:
    """The worst mixture of clients. `by` says what makes one badly served: see :func:`capped`."""
    return capped(1.0, by)


def capped(cap: float, by: str = "risk") -> Mixture:
    """The worst mixture in which no client has more than `cap`.

    by="risk" compares the clients' F_i, as the paper does. A score is part of F_i, so a client far
    from the score's centre then looks *better* served than it is. by="loss" measures every client
    on its own rows weighed by the score, which takes the score's level out of the comparison.
    by="regret" compares F_i − F_i*, with F_i* what the client's own model would give it on rows it
    has not seen (:mod:`dorfl.federated.regret`): how much a client gives up by sharing a model.
    """
    if not 0.0 < cap <= 1.0:
        raise ValueError(f"capped(cap={cap}): must be above 0 and at most 1")
    _check_by(by)
    return Mixture("agnostic" if cap == 1.0 else "capped", cap=float(cap), by=by)


def _check_by(by: str) -> None:
    if by not in BY:
        raise ValueError(f"by={by!r}: choose one of {', '.join(BY)}")


def resolve(rule: str | Mixture) -> Mixture:
    """The rule itself, or the one of that name."""
    if isinstance(rule, Mixture):
        return rule
    if rule == "fixed":
        return fixed()
    if rule == "agnostic":
        return agnostic()
    raise ValueError(
        f'mixture={rule!r} is unknown; choose "fixed", "agnostic" or mixture.capped(…)'
    )


def snap(lam: Any, cap: float = 1.0) -> Array:
    """The mixture next to `lam` that is one to the last bit: 0 ≤ λ ≤ cap, and Σ λ exactly 1.

    `lam` is divided by its sum and rounded to multiples of 2⁻⁵³. What that leaves over is shared
    by those who have something and room for more; zeros stay zero if they can. Every partial sum
    of such numbers is a float, so they add up to exactly 1 in any order and by any way of summing.

    A cap that leaves hardly more than the uniform mixture may have no such numbers below it. Then
    λ = cap for all if that adds up to 1, as 1/3 does for three clients; else λ is uniform in units
    of the cap's last digit. `math.fsum` still gives 1, and other sums what their rounding makes of
    it. Where even N·cap falls short of 1, as for the float next to 1/49, some get a unit more.

    >>> lam = snap([0.7, 0.2, 0.1 + 1e-9, 0.0])
    >>> float(lam.sum()), float(sum(lam[::-1]))
    (1.0, 1.0)
    >>> snap([0.6, 0.4, 0.0], cap=0.5)
    array([0.5, 0.5, 0. ])
    """
    given = np.maximum(np.asarray(lam, dtype=float), 0.0)
    total, count = float(given.sum()), len(given)
    if not 0.0 < total < math.inf:
        raise ValueError("λ: must be finite numbers, one of them positive")
    if cap * count < 1.0 - 1e-12:
        raise ValueError(
            f"capped(cap={cap:g}) leaves no mixture of {count} clients; "
            f"the cap must be at least {1.0 / count:.4g}"
        )
    most = math.floor(cap * _WHOLE)
    if most * count < _WHOLE:
        return _uniform(count, cap)
    units = np.minimum(np.rint(given / total * _WHOLE).astype(np.int64), most)
    while left := _WHOLE - int(units.sum()):
        room = units < most if left > 0 else units > 0
        takers = np.flatnonzero(room & (units > 0))
        if not len(takers):
            takers = np.flatnonzero(room)
        each, odd = divmod(abs(left), len(takers))
        portion = each + (np.arange(len(takers)) < odd)
        units[takers] = np.clip(units[takers] + np.sign(left) * portion, 0, most)
    return np.asarray(units / _WHOLE)


def _uniform(count: int, cap: float) -> Array:
    """The one mixture left by a cap of about 1/N; see :func:`snap`."""
    if math.fsum([cap] * count) == 1.0:
        return np.full(count, cap)
    digit = math.ulp(cap)
    each, odd = divmod(round(1.0 / digit), count)
    return np.asarray((each + (np.arange(count) < odd)) * digit)


def project_simplex(point: Any) -> Array:
    """The point of the simplex {λ ≥ 0, Σ λ = 1} nearest to `point`."""
    v = np.asarray(point, dtype=float)
    v = v - v.max()  # the answer is the same, and the others keep their digits
    excess = np.cumsum(np.sort(v)[::-1]) - 1.0
    # Whoever stays above zero loses the same; any other set of the largest would lose less.
    return snap(v - (excess / np.arange(1, v.size + 1)).max())


def project_capped(point: Any, cap: float) -> Array:
    """The point of {0 ≤ λ ≤ cap, Σ λ = 1} nearest to `point`: clip(point − ν) for one ν.

    >>> project_capped([0.9, 0.3, 0.0], 0.5)
    array([0.5, 0.4, 0.1])
    """
    v = np.asarray(point, dtype=float)
    # Enough entries to make up a mixture lie at or above `pivot`, so whatever is `cap` above it
    # gets all it may: cutting it down there changes nothing, and no digit of the others is lost.
    pivot = np.sort(v)[::-1][int(np.ceil(1.0 / cap - 1e-12)) - 1]
    v = np.minimum(v - pivot, cap)
    breaks = np.sort(np.concatenate([v, v - cap]))

    def total(shift: float) -> float:
        return float(np.clip(v - shift, 0.0, cap).sum())

    low, high = 0, len(breaks) - 1  # total() falls from N·cap ≥ 1 at the first to 0 at the last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if total(breaks[middle]) >= 1.0 else (low, middle)
    at_low, at_high = total(breaks[low]), total(breaks[high])
    share = (at_low - 1.0) / (at_low - at_high) if at_low > at_high else 0.0
    shift = breaks[low] + share * (breaks[high] - breaks[low])
    return snap(np.clip(v - shift, 0.0, cap), cap)
