"""Differential privacy: reports about rows for a site that trusts no other party.

**What is protected.** One row of one site. Two tables are neighbours when they have as many rows
and differ in one (x, y). Everything that a site sends during training, over all rounds, is
(ε, δ)-differentially private for that relation, for every site on its own, also against the server.
Not protected: the number of rows n, and what a site reported before training (how columns are
scaled, a centre ξ̄), unless a study declares what is known of its columns and reserves a share of ε
for them (`before`; :mod:`dorfl.protocol.private_columns`). ξ̄ has to be given: one computed from
rows would not be private.

**How.** Every row's f is clipped to [lo, hi] and its gradient to length C. With w = hi − lo and
τ = ρβ, no row then has a weight above p = e^{w/τ} / (n − 1 + e^{w/τ}), which is 1/n without a tilt,
and replacing one row moves

    F = τ log mean exp(f/τ)     by at most    τ log(1 + (e^{w/τ} − 1)/n),     without a tilt w/n
    ∇F = Σ_j p_j g_j            by at most    2 C p,                          without a tilt 2C/n

Proof. Let A ≥ n − 1 be the sum of exp((f − lo)/τ) over the other rows, and a, b ∈ [1, e^{w/τ}] the
replaced row's before and after. F changes by `τ |log (A + a)/(A + b)|`, most for A = n − 1,
a = e^{w/τ} and b = 1. With q = a/(A + a), q' = b/(A + b) and ḡ the others' weighted mean, the
gradients are (1 − q) ḡ + q g and (1 − q') ḡ + q' g'; they differ by (q' − q) ḡ + q g − q' g', no
longer than `C (|q − q'| + q + q') = 2C max(q, q')`. Both bounds are attained.

Each round sends F and ∇F with Gaussian noise of √2 z times these sensitivities: together they are
one Gaussian mechanism of noise multiplier z. T rounds of it, each chosen in view of the last, are
as private as one of multiplier z/√T (the composition of Gaussian mechanisms is exact), and the
multiplier that (ε, δ) needs is dp-accounting's. Curvature is never sent.

**Noise must be secret.** With the seed, the noise can be subtracted. Without a `seed` it comes
from the operating system, anew for every study; give one only to repeat an experiment. The noise
is ordinary floating point, which leaves the low bits of a report open to an attack (Mironov, 2012).
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from dorfl.linear.base import Agreed
from dorfl.linear.problem import Problem
from dorfl.solvers.descent import Noisy
from dorfl.support import lazy
from dorfl.support.lazy import optimize
from dorfl.support.types import Array

_DISTANCE = 5.0  # ‖θ‖ of a confident model of scaled columns


class Sensitivity(NamedTuple):
    """How much replacing one row can change what a client reports."""

    value: float  # change of the value
    gradient: float  # norm of the change of the gradient


@dataclass(frozen=True)
class Gaussian:
    """The Gaussian mechanism, made by :func:`gaussian`.

    Attributes
    ----------
    epsilon, delta : float
        Budget (ε, δ) of every row.
    clip : float
        Norm that the gradient of a row is clipped to.
    low, high : float
        Interval that the loss of a row is clipped to.
    rounds : int
        Number of rounds that the budget is for.
    seed : int
        Seed of the noise.
    before : float
        Share of 1/z² that is spent before training.
    """

    epsilon: float
    delta: float
    clip: float
    low: float
    high: float
    rounds: int
    seed: int = field(repr=False)
    before: float = 0.0

    @property
    def whole(self) -> float:
        """Multiplier z of everything that is reported, as one Gaussian mechanism."""
        return _multiplier(self.epsilon, self.delta)

    @cached_property
    def multiplier(self) -> float:
        """Noise z of a round in units of its sensitivity, for all rounds to be (ε, δ)."""
        return self.whole * float(np.sqrt(self.rounds / (1.0 - self.before)))

    def before_training(self, client: str, sums: Array, units: Array) -> Array:
        """Return sums (n,) with noise, to be reported once, before training.

        Parameters
        ----------
        client
            Name of the client.
        sums
            (n,) sums over its rows.
        units
            (n,) largest change of each sum if one row is replaced.
        """
        scale = self.whole * float(np.sqrt(len(sums) / self.before))
        rng = self._stream(client, np.empty(0), 0)
        return np.asarray(sums + scale * units * rng.standard_normal(len(sums)))

    def sensitivity(self, rows: int, temperature: float) -> Sensitivity:
        """Return the sensitivity of the report of a client.

        Parameters
        ----------
        rows
            Number of its rows.
        temperature
            Temperature of the tilt; infinity for none.
        """
        width = self.high - self.low
        if np.isinf(temperature):
            return Sensitivity(width / rows, 2.0 * self.clip / rows)
        # As in the module's text, divided through by e^{w/τ}, which may be more than a float holds.
        less = float(np.expm1(-width / temperature)) * (rows - 1)
        value = width + temperature * float(np.log1p(less / rows))
        return Sensitivity(value, 2.0 * self.clip / (rows + less))

    def noise(self, rows: int, temperature: float) -> Sensitivity:
        """Return the standard deviations of the noise of value and gradient.

        Parameters
        ----------
        rows, temperature
            As in `sensitivity`.
        """
        size, scale = self.sensitivity(rows, temperature), float(np.sqrt(2.0)) * self.multiplier
        return Sensitivity(scale * size.value, scale * size.gradient)

    def solver(self, problem: Problem, counts: Array, lam: Array) -> Noisy:
        """Return a solver whose steps suit gradients of length C and their noise.

        A row of length C adds at most C²/4 to the curvature of the logistic loss. The other bound
        is D/(σ√T), with D the distance between start and minimum, and σ the error of a step.

        Parameters
        ----------
        problem
            What is trained.
        counts
            (clients,) numbers of rows.
        lam
            (clients,) mixture.
        """
        tau, root = problem.method.temperature, float(np.sqrt(self.rounds))
        noise = [self.noise(rows, tau) for rows in counts.tolist()]
        wander = float(np.linalg.norm(lam * [each.gradient for each in noise]))
        rate = min(4.0 / self.clip**2, _DISTANCE / (wander * np.sqrt(problem.size) * root))
        worst = max(each.value for each in noise)
        return Noisy(self.rounds, rate, 1.0 / (root * float(np.hypot(self.high - self.low, worst))))

    def report(self, oracle: Any, theta: Array, number: int) -> tuple[Array, Array]:
        """Return values and gradients (clients, parameters) at θ, clipped and with noise.

        The same request gets the same reply, so that repeating it reveals nothing new.

        Parameters
        ----------
        oracle
            The clients.
        theta
            (parameters,) θ.
        number
            Number of the round.

        Raises
        ------
        ValueError
            If the budget is not for this round, or rows cannot be clipped one by one.
        """
        if not 1 <= number <= self.rounds:
            raise ValueError(
                f"round {number}: the privacy budget is for rounds 1 to {self.rounds} and is spent"
            )
        if not hasattr(oracle, "clipped"):
            raise ValueError("privacy: these clients' rows are not clipped one by one")
        risks = oracle.clipped(theta, self.clip, (self.low, self.high))
        values, gradients = risks.values.copy(), risks.gradients.copy()
        tau = oracle.problem.method.temperature
        for i, (name, rows) in enumerate(zip(oracle.names, oracle.counts.tolist(), strict=True)):
            noise, rng = self.noise(rows, tau), self._stream(name, theta, number)
            values[i] += noise.value * rng.standard_normal()
            gradients[i] += noise.gradient * rng.standard_normal(theta.size)
        return values, gradients

    def _stream(self, client: str, theta: Array, number: int) -> np.random.Generator:
        """Return a random stream that differs for every θ: equal noise would cancel out."""
        key = f"{self.seed}|{client}|{number}|".encode() + theta.astype("<f8").tobytes()
        return np.random.default_rng(int.from_bytes(hashlib.sha256(key).digest()))


def gaussian(
    epsilon: float,
    delta: float,
    *,
    clip: float = 1.0,
    values: tuple[float, float] = (0.0, 2.0),
    rounds: int = 50,
    seed: int | None = None,
    before: float = 0.0,
) -> Gaussian:
    """Return the mechanism for (ε, δ)-differential privacy of every row over `rounds` rounds.

    Parameters
    ----------
    epsilon
        The privacy loss ε of a row; below 1 is strong, above 10 weak.
    delta
        The probability δ of a larger loss; well below one over the number of rows.
    clip
        The norm that the gradient of a row is clipped to. It limits outliers as well.
    values
        The interval [lo, hi] that the loss f of a row is clipped to.
    rounds
        The number of rounds; the noise of each round is computed for that many.
    seed
        The seed of the noise, to repeat an experiment. None for real data: a secret seed.
    before
        The share of the budget for statistics reported before training, if they have noise too.

    Returns
    -------
    Gaussian
        The mechanism, for the option `privacy` of :func:`dorfl.train`.

    Examples
    --------
    >>> fine = gaussian(epsilon=2.0, delta=1e-5, rounds=50)
    >>> round(fine.multiplier, 3)
    14.098
    >>> fine.sensitivity(rows=1000, temperature=np.inf)
    Sensitivity(value=0.002, gradient=0.002)
    """
    for name, given, fine in (
        ("epsilon", epsilon, 0 < epsilon < np.inf),
        ("delta", delta, 0 < delta < 1),
        ("clip", clip, 0 < clip < np.inf),
        ("values", values, len(values) == 2 and -np.inf < values[0] < values[1] < np.inf),
        ("rounds", rounds, rounds >= 1),
        ("before", before, 0 <= before < 1),
    ):
        if not fine:
            raise ValueError(f"gaussian({name}={given}): see its description for what it can be")
    low, high = values
    own = secrets.randbits(128) if seed is None else seed
    bounds = (float(clip), float(low), float(high))
    return Gaussian(float(epsilon), float(delta), *bounds, rounds, own, before)


def composed(runs: list[dict[str, float]], delta: float) -> float:
    """Compute ε of several Gaussian mechanisms: exactly, as one of multiplier (Σ z_i⁻²)^−½.

    >>> round(composed([{"multiplier": 4.0}, {"multiplier": 4.0}], 1e-5), 3)
    1.356
    """
    if not runs:
        return 0.0
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss  # noqa: PLC0415

    together = sum(run["multiplier"] ** -2.0 for run in runs) ** -0.5
    loss = GaussianPrivacyLoss(together)

    def over(epsilon: float) -> float:
        return float(loss.get_delta_for_epsilon(epsilon)) - delta

    high = 1.0
    while over(high) > 0.0:
        high *= 2.0
    return float(optimize.brentq(over, 0.0, high, rtol=1e-9)) if over(0.0) > 0.0 else 0.0


def check(problem: Agreed) -> None:
    """Raise a ValueError if reports depend on rows in ways that the sensitivity does not cover."""
    method = problem.method
    if method.score is not None and isinstance(method.score.center, str):
        raise ValueError(
            f"privacy: the score's centre {method.score.center!r} would be computed from rows; "
            "give one, as in scores.quadratic(0.5, center=[...])"
        )
    if method.mixture.by == "loss" and method.score is not None:
        raise ValueError('privacy: by="loss" sends the level of the score too; use by="risk"')
    if method.mixture.by == "regret":
        raise ValueError('privacy: by="regret" sends what rows give alone too; use by="risk"')
    if problem.constrained:
        raise ValueError("privacy: with a radius, clients also send ∂F/∂ρ; give rho")
    if problem.estimates_scale:
        raise ValueError('privacy: with scale="auto", clients also send ∂F/∂σ; give delta')


@cache
def _multiplier(epsilon: float, delta: float) -> float:
    """Return the least noise, in units of the sensitivity, of one (ε, δ) Gaussian mechanism."""
    try:
        from dp_accounting.pld import common, privacy_loss_mechanism  # noqa: PLC0415
    except ImportError:
        raise ValueError(
            "privacy: needs the package dp-accounting; install it with: "
            + lazy.install_command("sites")
        ) from None
    wanted = common.DifferentialPrivacyParameters(epsilon, delta)
    found = privacy_loss_mechanism.GaussianPrivacyLoss.from_privacy_guarantee(wanted)
    return float(found.standard_deviation)
