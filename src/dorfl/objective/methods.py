"""The five methods of the paper's comparison, each a choice of three parts and nothing more.

    method     transport (ρ, c)   tilt (β) and score h   mixture λ
    erm        none               none                   fixed n_i / n
    afl        none               none                   agnostic
    wafl       yes                none                   fixed n_i / n
    gdrfl      yes                none                   agnostic
    dorfl      yes                yes                    agnostic

>>> from dorfl import methods
>>> methods.dorfl(rho=20, beta=1).temperature
20.0
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dorfl.objective import costs, scores
from dorfl.objective.costs import Cost
from dorfl.objective.kinds import Score
from dorfl.objective.mixture import Mixture, resolve


@dataclass(frozen=True, eq=False)
class Method:
    """What is minimised: min_θ max_λ ρβ log Σ_i λ_i mean_i exp(f/ρβ), by its three parts.

    `rho` = ∞ means no transport, `temperature` (= ρβ) = ∞ no tilt. With a `radius`, ρ is no longer
    given but found together with θ: see :func:`method`.
    """

    name: str
    rho: float
    cost: Cost
    temperature: float
    score: Score | None
    mixture: Mixture
    radius: float | None = None

    @property
    def beta(self) -> float:
        """The price of reweighting rows, in units of transport."""
        return self.temperature / self.rho if np.isfinite(self.temperature) else np.inf

    def priced(self, rho: float) -> Method:
        """The same method with another price ρ of transport, β kept."""
        return replace(self, rho=rho, temperature=rho * self.beta)


def method(
    *,
    rho: float | None = None,
    cost: Cost | None = None,
    beta: float | None = None,
    temperature: float | None = None,
    radius: float | None = None,
    score: Score | None = scores.none,
    mixture: str | Mixture = "agnostic",
    name: str = "custom",
) -> Method:
    """Any combination of the three parts.

    `rho` is the price of transport (none: rows do not move), `beta` the price of reweighting rows
    (none: all count the same), `score` an outlier score from :mod:`dorfl.scores`, `mixture` one of
    "agnostic", "fixed" or a rule from :mod:`dorfl.mixture`. A tilt without transport is set by its
    `temperature`, which otherwise is ρβ.

    With `radius` = r the constrained problem is solved, the one the paper poses first:
    min_θ max_λ sup {E_P[L] : UW(P‖P̂_λ) ≤ r} = min over θ and ρ of ρ r + max_i F_i(θ, ρ). The price
    is then an unknown of its own, and `rho` only says where to start (1 if not given).

    >>> method(temperature=5.0, score=scores.quadratic(0.1), mixture="fixed").rho
    inf
    """
    given = {"rho": rho, "beta": beta, "temperature": temperature, "radius": radius}
    for argument, value in given.items():
        if value is not None and not value > 0:
            raise ValueError(f"{argument}={value}: must be positive (infinity: none)")
    rule = resolve(mixture)
    if score is not None and not isinstance(score, Score):
        raise ValueError(
            f"score={score!r}: give one of dorfl.scores (quadratic, threshold, custom) or None; "
            "wrap a function of your own as scores.custom(function)"
        )
    if cost is not None and not isinstance(cost, Cost):
        raise ValueError(f"cost={cost!r}: give costs.squared(…) or nothing")
    if radius is not None:
        if temperature is not None or (rho is not None and np.isinf(rho)):
            raise ValueError("radius: ρ is found, so give beta (none: no tilt) and no temperature")
        if not rule.adversarial or rule.by != "risk" or rule.cap < 1.0:
            raise ValueError('radius: the constrained problem is over all mixtures; use "agnostic"')
        rho = 1.0 if rho is None else rho
    price = np.inf if rho is None else float(rho)
    if beta is not None and temperature is not None:
        raise ValueError("give beta or temperature, not both: temperature = rho · beta")
    if beta is not None and rho is None:
        raise ValueError("beta is in units of transport and needs rho; without it give temperature")
    if beta is not None:
        temperature = price * float(beta)
    return Method(
        name,
        price,
        cost if cost is not None else costs.squared(),
        np.inf if temperature is None else float(temperature),
        score,
        rule,
        None if radius is None else float(radius),
    )


def erm() -> Method:
    """Empirical risk minimisation, what FedAvg approximates: every row counts the same."""
    return method(mixture="fixed", name="erm")


def afl() -> Method:
    """Agnostic federated learning: the worst mixture of clients (Mohri et al., 2019)."""
    return method(mixture="agnostic", name="afl")


def wafl(rho: float, *, cost: Cost | None = None) -> Method:
    """Wasserstein federated learning: rows move, clients count by size (Nguyen et al., 2022)."""
    return method(rho=rho, cost=cost, mixture="fixed", name="wafl")


def gdrfl(rho: float, *, cost: Cost | None = None) -> Method:
    """Group distributionally robust learning: rows may move, worst mixture (Konti et al., 2025)."""
    return method(rho=rho, cost=cost, mixture="agnostic", name="gdrfl")


def dorfl(
    rho: float = 20.0,
    beta: float = 1.0,
    score: Score | str | None = "auto",
    *,
    cost: Cost | None = None,
    mixture: str | Mixture = "agnostic",
) -> Method:
    """DOR-FL: rows may move and be reweighted, suspects count less, worst mixture.

    Without a score of your own, rows far from a robust centre found federatedly are suspect.
    """
    chosen = scores.quadratic(0.5) if isinstance(score, str) else score
    if isinstance(score, str) and score != "auto":
        raise ValueError(f'score={score!r}: give a score from dorfl.scores, None or "auto"')
    return method(rho=rho, beta=beta, score=chosen, cost=cost, mixture=mixture, name="dorfl")
