"""Mixtures λ: the weights of clients.

    fixed      given λ, n_i / n by default: the pooled risk ρβ log Σ_i λ_i exp(F_i/ρβ)
    agnostic   the worst mixture: max over the simplex, which is max_i F_i
    capped     the worst mixture with λ_i ≤ cap: max Σ λ_i F_i

A cap bounds the influence of one client. It applies to Σ λ_i F_i and not to the pooled risk: one
huge report would dominate a log-sum-exp whatever its weight.

Every λ returned here sums to exactly 1: see :func:`snap`.

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

BY = ("risk", "loss", "regret")  # how clients are compared: see `capped`
_WHOLE = 2**53  # 1 in units of 2⁻⁵³, the finest grid of which every point of [0, 1] is a float


@dataclass(frozen=True, eq=False)
class Mixture:
    """Rule for λ; see :func:`fixed`, :func:`agnostic` and :func:`capped`.

    Attributes
    ----------
    kind : str
        "fixed", "agnostic" or "capped".
    weights : dict or Array, optional
        Given λ, by client name or in order; n_i / n if None.
    cap : float
        Largest λ_i.
    by : str
        How clients are compared: see :func:`capped`.
    """

    kind: str
    weights: dict[str, float] | Array | None = None
    cap: float = 1.0
    by: str = "risk"

    @property
    def adversarial(self) -> bool:
        """Return whether λ is the worst mixture rather than given."""
        return self.kind != "fixed"

    def start(self, names: Sequence[str], counts: Array) -> Array:
        """Return λ before the first round: the given weights, n_i / n, or the uniform mixture.

        Parameters
        ----------
        names
            The clients.
        counts
            (clients,) numbers of rows.

        Raises
        ------
        ValueError
            If weights are missing.
        """
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
        """Return the nearest mixture under the cap that sums to exactly 1: :func:`snap`.

        Parameters
        ----------
        lam
            (clients,) numbers.
        """
        return snap(lam, self.cap)

    def project(self, point: Array) -> Array:
        """Return the projection of a point onto the mixtures that the rule allows.

        Parameters
        ----------
        point
            (clients,) numbers.
        """
        return project_capped(point, self.cap) if self.cap < 1.0 else project_simplex(point)

    def worst(self, risks: Array) -> Array:
        """Return the allowed mixture that maximises Σ λ_i F_i.

        Parameters
        ----------
        risks
            (clients,) F_i.
        """
        lam = np.empty(len(risks))
        lam[np.argsort(-risks, kind="stable")] = self._portions(len(risks))
        return self.snap(lam)

    def height(self, risks: Array) -> float:
        """Return max Σ λ_i F_i over the allowed mixtures.

        Parameters
        ----------
        risks
            (clients,) F_i.
        """
        if self.cap == 1.0:
            return float(risks.max())
        return float(np.sort(risks)[::-1] @ self._portions(len(risks)))

    def _portions(self, count: int) -> Array:
        """Return the weights of the worst mixture by descending risk, up to rounding."""
        return np.asarray(np.clip(1.0 - self.cap * np.arange(count), 0.0, self.cap))

    def objective(self, risks: Array, lam: Array, temperature: float) -> float:
        """Return the objective of training.

        Parameters
        ----------
        risks
            (clients,) F_i.
        lam
            (clients,) λ, which matters only if it is fixed.
        temperature
            ρβ of the tilt; infinity for none.
        """
        if self.adversarial:
            return self.height(risks)
        return tilted_mean(risks, temperature, lam)

    def shares(self, risks: Array, lam: Array, temperature: float) -> Array:
        """Return ∂objective/∂F_i for a fixed λ: λ_i exp(F_i/ρβ), normalised.

        Parameters
        ----------
        risks, lam, temperature
            As in `objective`.
        """
        if np.isinf(temperature):
            return lam
        top = risks[lam > 0].max()
        posterior = lam * np.exp(np.minimum(risks - top, 0.0) / temperature)
        return np.asarray(posterior / posterior.sum())


def tilted_mean(values: Array, tau: float, weights: Array | None = None) -> float:
    """Compute τ log Σ w exp(v/τ), the mean for τ = ∞; accurate also for large τ.

    Weights are normalised here; they are equal if None.

    >>> tilted_mean(np.array([0.0, 1.0]), 1e12)
    0.500000000000125
    """
    if weights is not None:  # values without weight must not set the scale
        values, weights = values[weights > 0], weights[weights > 0]
    if np.isinf(tau):
        return float(np.average(values, weights=weights))
    top = float(values.max())
    return top + tau * float(np.log1p(np.average(np.expm1((values - top) / tau), weights=weights)))


def fixed(
    weights: Mapping[str, float] | Sequence[float] | Array | None = None, by: str = "risk"
) -> Mixture:
    """Return a rule with a given λ.

    Under a tilt the share of a client is λ_i exp(F_i/ρβ), normalised.

    Parameters
    ----------
    weights
        λ by client name or in the order of the clients; n_i / n if None.
    by
        How F_i is computed for these shares, as in :func:`capped`. "loss" keeps λ from moving to
        clients whose rows the score treats as outliers.

    Returns
    -------
    Mixture
        The rule.

    Raises
    ------
    ValueError
        If a weight is negative, or all are 0.
    """
    _check_by(by)
    if weights is None:
        return Mixture("fixed", by=by)
    values = np.array(
        list(weights.values() if isinstance(weights, Mapping) else weights), dtype=float
    )
    if not (np.isfinite(values).all() and (values >= 0).all() and values.sum() > 0):
        raise ValueError("fixed(weights=…): must be numbers ≥ 0, at least one of them positive")
    named = (
        {str(k): float(v) for k, v in weights.items()} if isinstance(weights, Mapping) else values
    )
    return Mixture("fixed", named, by=by)


def agnostic(by: str = "risk") -> Mixture:
    """Return the rule of the worst mixture of clients.

    Parameters
    ----------
    by
        How clients are compared, as in :func:`capped`.

    Returns
    -------
    Mixture
        The rule.
    """
    return capped(1.0, by)


def capped(cap: float, by: str = "risk") -> Mixture:
    """Return the rule of the worst mixture in which no client has more than `cap`.

    Parameters
    ----------
    cap
        Largest λ_i, above 0 and at most 1.
    by
        How clients are compared. "risk": by F_i, as in the paper; the score is part of F_i, so a
        client far from the score's centre has a risk that is too low. "loss": by the loss on the
        client's own rows, weighted by the score. "regret": by F_i − F_i*, where F_i* is the risk of
        the client's own model on held-out rows (:func:`dorfl.federated.training.own_best`).

    Returns
    -------
    Mixture
        The rule.

    Raises
    ------
    ValueError
        If `cap` or `by` is out of range.
    """
    if not 0.0 < cap <= 1.0:
        raise ValueError(f"capped(cap={cap}): must be above 0 and at most 1")
    _check_by(by)
    return Mixture("agnostic" if cap == 1.0 else "capped", cap=float(cap), by=by)


def _check_by(by: str) -> None:
    if by not in BY:
        raise ValueError(f"by={by!r}: choose one of {', '.join(BY)}")


def resolve(rule: str | Mixture) -> Mixture:
    """Return a rule by its name, "fixed" or "agnostic"; a rule is returned as it is."""
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
    """Return the mixture nearest to `lam` with 0 ≤ λ ≤ cap that sums to exactly 1.

    `lam` is divided by its sum and rounded to multiples of 2⁻⁵³. The remainder is shared by clients
    with positive λ below the cap; zeros stay zero if possible. Every partial sum of such numbers is
    a float, so their sum is exactly 1 in any order.

    There may be no such numbers below a cap near 1/N. Then λ = cap for all clients if that sums to
    1, as 1/3 does for three clients; else λ is uniform in units of the cap's last digit, and
    `math.fsum` gives 1. If even N·cap is below 1, as for the float next to 1/49, some clients get
    a unit more.

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
    """Return the only mixture under a cap of about 1/N; see :func:`snap`."""
    if math.fsum([cap] * count) == 1.0:
        return np.full(count, cap)
    digit = math.ulp(cap)
    each, odd = divmod(round(1.0 / digit), count)
    return np.asarray((each + (np.arange(count) < odd)) * digit)


def project_simplex(point: Any) -> Array:
    """Project onto the simplex {λ ≥ 0, Σ λ = 1}."""
    v = np.asarray(point, dtype=float)
    v = v - v.max()  # same projection, without loss of digits
    excess = np.cumsum(np.sort(v)[::-1]) - 1.0
    # All positive entries are lowered by the same amount, the largest over all leading sets.
    return snap(v - (excess / np.arange(1, v.size + 1)).max())


def project_capped(point: Any, cap: float) -> Array:
    """Project onto {0 ≤ λ ≤ cap, Σ λ = 1}: clip(point − ν) for one ν.

    >>> project_capped([0.9, 0.3, 0.0], 0.5)
    array([0.5, 0.4, 0.1])
    """
    v = np.asarray(point, dtype=float)
    # Enough entries for a mixture are at or above `pivot`, so entries more than `cap` above it end
    # at the cap: clipping them here changes nothing and loses no digits of the others.
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
