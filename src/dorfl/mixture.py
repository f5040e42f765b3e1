"""The mixture λ: how much each client counts.

    fixed      λ given (n_i / n unless told): the pooled risk ρβ log Σ_i λ_i exp(F_i/ρβ)
    agnostic   the worst mixture: max over the simplex, which is max_i F_i
    capped     the worst mixture in which nobody has more than `cap`: max Σ λ_i F_i, 0 ≤ λ_i ≤ cap

A cap bounds what one client can do to the model. It acts on Σ λ_i F_i and not on the pooled risk,
because inside a log-sum-exp one huge report would win whatever its weight.

>>> from dorfl import mixture
>>> mixture.project_simplex([0.5, 2.0])
array([0., 1.])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dorfl.types import Array


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
            if self.cap * len(names) < 1.0 - 1e-12:
                raise ValueError(
                    f"capped(cap={self.cap:g}) leaves no mixture of {len(names)} clients; "
                    f"the cap must be at least {1.0 / len(names):.4g}"
                )
            return np.full(len(names), 1.0 / len(names))
        if self.weights is None:
            return np.asarray(counts / counts.sum())
        if isinstance(self.weights, dict):
            missing = [name for name in names if name not in self.weights]
            if missing:
                raise ValueError(f"fixed(weights=…): no weight for client {missing[0]!r}")
            weights = np.array([self.weights[name] for name in names])
        else:
            weights = self.weights
        if weights.shape != (len(names),):
            raise ValueError(f"fixed(weights=…): {weights.size} weights for {len(names)} clients")
        return np.asarray(weights / weights.sum())

    def project(self, point: Array) -> Array:
        """The mixture allowed by the rule that is nearest to `point`."""
        return project_capped(point, self.cap) if self.cap < 1.0 else project_simplex(point)

    def worst(self, risks: Array) -> Array:
        """The allowed mixture that maximises Σ λ_i F_i."""
        lam = np.zeros(len(risks))
        left = 1.0
        for i in np.argsort(-risks, kind="stable"):
            lam[i] = min(self.cap, left)
            left -= lam[i]
            if left <= 0.0:
                break
        return lam

    def height(self, risks: Array) -> float:
        """max Σ λ_i F_i over the allowed mixtures."""
        return float(risks.max() if self.cap == 1.0 else self.worst(risks) @ risks)

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
    """
    if not 0.0 < cap <= 1.0:
        raise ValueError(f"capped(cap={cap}): must be above 0 and at most 1")
    _check_by(by)
    return Mixture("agnostic" if cap == 1.0 else "capped", cap=float(cap), by=by)


def _check_by(by: str) -> None:
    if by not in ("risk", "loss"):
        raise ValueError(f'by={by!r}: choose "risk" or "loss"')


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


def project_simplex(point: Any) -> Array:
    """The point of the simplex {λ ≥ 0, Σ λ = 1} nearest to `point`."""
    v = np.asarray(point, dtype=float)
    v = v - v.max()  # the answer is the same, and huge entries do not drown the rest
    excess = np.cumsum(np.sort(v)[::-1]) - 1.0
    # Whoever stays above zero loses the same; any other set of the largest would lose less.
    return np.asarray(np.maximum(v - (excess / np.arange(1, v.size + 1)).max(), 0.0))


def project_capped(point: Any, cap: float) -> Array:
    """The point of {0 ≤ λ ≤ cap, Σ λ = 1} nearest to `point`: clip(point − ν) for one ν.

    >>> project_capped([0.9, 0.3, 0.0], 0.5)
    array([0.5, 0.4, 0.1])
    """
    v = np.asarray(point, dtype=float)
    # Enough entries to make up a mixture lie at or above `pivot`, so whatever is `cap` above it
    # gets all it may: cutting it down there changes nothing, and rounding drowns nobody.
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
    lam = np.clip(v - (breaks[low] + share * (breaks[high] - breaks[low])), 0.0, cap)
    free = (lam > 0.0) & (lam < cap)
    if free.any():
        lam[free] += (1.0 - lam.sum()) / free.sum()  # what rounding left over
    return np.asarray(lam)
