"""Proposition 2, the paper's certificate, and the worst distribution a model was trained against.

:func:`dorfl.certify` has assumptions that are easier to check: a share of outliers and a drift.

For a mixture λ, any price ρ and any radius r,

    sup { E_P[L] : UW(P‖P̂_λ) ≤ r }  ≤  ρ r + ρβ log E_{P̂_λ} exp(f/ρβ),

with equality at r̂ = E_p[c(z, ζ)] + β KL(p‖P̂_λ), where the worst distribution puts the weights p on
the moved rows z. The bound is about L = l − h, the loss less the outlier score.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import xlogy

from dorfl.data import validation
from dorfl.federated.fit import Fit
from dorfl.federated.training import stack, train
from dorfl.linear.base import Atoms
from dorfl.linear.group import Group
from dorfl.objective.methods import Method
from dorfl.objective.mixture import fixed, tilted_mean
from dorfl.support.lazy import optimize
from dorfl.support.types import Array


class WorstCase(NamedTuple):
    """The worst-case distribution of a model: maximisers of the rows and their weights.

    Attributes
    ----------
    rows : array of shape (n, columns)
        z, the maximiser of each row.
    labels : array of shape (n,)
        Their labels.
    weights : array of shape (n,)
        p; they sum to 1 over the clients given.
    moved : array of shape (n,)
        c(z, ζ) of each row.
    loss : array of shape (n,)
        L = l − h of each maximiser.
    clients : tuple of str
        The clients.
    bounds : array of shape (clients + 1,)
        Client i has the rows bounds[i] … bounds[i + 1].
    """

    rows: Array
    labels: Array
    weights: Array
    moved: Array
    loss: Array
    clients: tuple[str, ...]
    bounds: Array


@dataclass(frozen=True)
class Certificate:
    """Both sides of Proposition 2 for a model, at a mixture λ and for all mixtures at once.

    Attributes
    ----------
    radius : float
        r̂, the distance of the worst distribution.
    bound : float
        The certified worst-case risk at that radius.
    attained : float
        The risk of the worst distribution; equal to `bound` if every supremum is exact.
    rho, beta : float
        Prices of the method.
    exact : bool
        True if every supremum is exact.
    error : float
        Upper bound of the error of the suprema. If infinite, the figures are estimates.
    lam : array of shape (clients,)
        The mixture.
    """

    radius: float
    bound: float
    attained: float
    rho: float
    beta: float
    exact: bool
    error: float
    lam: Array
    _group: Group
    _theta: Array

    @property
    def difference(self) -> float:
        """The difference bound − attained of the two sides of Proposition 2."""
        return self.bound - self.attained

    @property
    def is_certificate(self) -> bool:
        """True if the bound is a guarantee rather than an estimate."""
        return bool(np.isfinite(self.error))

    def at(self, radius: float, *, all_mixtures: bool = False) -> float:
        """Return the certified worst-case risk at another radius, minimised over ρ.

        The bound is convex in ρ with derivative r − r̂(ρ), so the best ρ has r̂(ρ) = r.

        Parameters
        ----------
        radius : float
            r, positive.
        all_mixtures : bool
            True: for the worst mixture of clients instead of λ.

        Raises
        ------
        ValueError
            If the radius is not positive.
        """
        if not radius > 0:
            raise ValueError(f"radius={radius}: must be positive")
        lam = None if all_mixtures else self.lam

        def evaluate(rho: float) -> tuple[float, float]:
            return _evaluate(self._group.priced(rho), self._theta, lam)

        def excess(log_rho: float) -> float:
            return radius - evaluate(float(np.exp(log_rho)))[1]

        low, high = np.log(self.rho) - 1.0, np.log(self.rho) + 1.0
        floor = np.log(_smallest_rho(self._group, self._theta))
        while excess(high) < 0.0 and high < np.log(self.rho) + 60.0:
            high += 1.0
        while low > floor and excess(low) > 0.0 and low > np.log(self.rho) - 40.0:
            low -= 1.0
        low = max(low, floor)
        if excess(low) >= 0.0:
            best = low
        elif excess(high) <= 0.0:
            best = high
        else:
            best = optimize.brentq(excess, low, high, xtol=1e-10)
        rho = float(np.exp(best))
        return rho * radius + evaluate(rho)[0]

    def curve(self, radii: Any, *, all_mixtures: bool = False) -> Array:
        """Return the certified worst-case risk at each of some radii, see :meth:`at`.

        Parameters
        ----------
        radii : array-like
            Positive radii.
        all_mixtures : bool
            As in :meth:`at`.

        Returns
        -------
        array
            One risk for each radius.
        """
        return np.array([self.at(float(r), all_mixtures=all_mixtures) for r in np.ravel(radii)])

    def __str__(self) -> str:
        if not self.is_certificate:
            kind = "estimated (the supremum is approximate, with no bound on what it misses)"
        elif self.exact:
            kind = "certified (every supremum is exact)"
        else:
            kind = f"certified (suprema approximate, the most they miss is added: {self.error:.1e})"
        return (
            f"Worst-case risk over all distributions within UW distance {self.radius:.4g} of the "
            f"mixture: at most {self.bound:.6g}, {kind}.\n"
            f"The worst distribution attains {self.attained:.6g}. Bounded is L = l − h, the loss "
            f"less the outlier score; rho = {self.rho:.4g}, beta = {self.beta:.4g}."
        )


def paper(fit: Fit, clients: Any, *, lam: Any = None) -> Certificate:
    """Return the certificate of Proposition 2 for a model.

    Parameters
    ----------
    fit : Fit
        A linear model, trained with a finite ρ.
    clients : mapping or sequence of (X, y)
        Labelled rows of each client.
    lam : array-like of shape (clients,), optional
        The mixture; that of the fit by default.

    Raises
    ------
    ValueError
        If the method has no transport, or rows do not fit the model.

    >>> import dorfl
    >>> data = dorfl.datasets.synthetic(seed=0)
    >>> fit = dorfl.train(data.clients, dorfl.methods.paper())
    >>> certificate = dorfl.certificate.paper(fit, data.clients)
    >>> abs(certificate.difference) < 1e-9, certificate.is_certificate
    (True, True)
    """
    group = group_of(fit, clients)
    method = group.problem.method
    if np.isinf(method.rho):
        raise ValueError(
            f"method {method.name!r} has no transport, so there is no radius to certify; "
            "train with a shift above 0, or a finite rho"
        )
    mixture = _mixture_of(fit, group, lam)
    theta = fit.theta.ravel()
    found = combine(parts(group, theta), mixture, method)
    return Certificate(
        found.radius,
        found.bound,
        found.attained,
        method.rho,
        method.beta,
        exact=found.error == 0.0,
        error=np.inf if found.error is None else found.error,
        lam=mixture,
        _group=group,
        _theta=theta,
    )


def worst_case(fit: Fit, clients: Any, *, lam: Any = None, client: str | None = None) -> WorstCase:
    """Return the worst distribution of a model.

    Parameters
    ----------
    fit : Fit
        A linear model.
    clients : mapping or sequence of (X, y)
        Labelled rows of each client.
    lam : array-like of shape (clients,), optional
        The mixture; that of the fit by default.
    client : str, optional
        A client's name: the worst distribution of its rows alone.

    Raises
    ------
    ValueError
        If there is no such client, or rows do not fit the model.
    """
    group = group_of(fit, clients)
    if client is not None:
        if client not in group.names:
            raise ValueError(f"client={client!r}: there are {', '.join(group.names)}")
        group, lam = group.select([group.names.index(client)]), [1.0]
    mixture = _mixture_of(fit, group, lam)
    theta = fit.theta.ravel()
    atoms = group.atoms(theta)
    before = np.repeat(mixture, group.counts) / group.lots
    share = fixed().shares(atoms.value, before, group.problem.method.temperature)
    labels, loss = group.problem.decode(atoms.target), _losses(group, theta, atoms)
    return WorstCase(atoms.rows, labels, share, group.moved(atoms), loss, group.names, group.bounds)


def saddle_gap(fit: Fit, clients: Any, *, theta: Any = None, lam: Any = None) -> float:
    """Return max_i F_i(θ) − min_θ' ρβ log Σ λ_i exp(F_i(θ')/ρβ), by solving for the minimum.

    This is the gap of the agnostic problem. The gap of the minimisation is added, so that the
    result is an upper bound if that gap is one.

    Parameters
    ----------
    fit : Fit
        A linear model.
    clients : mapping or sequence of (X, y)
        Labelled rows of each client.
    theta, lam : array-like, optional
        The point; that of the fit by default.
    """
    group = group_of(fit, clients)
    method = group.problem.method
    point = np.ravel(fit.theta if theta is None else np.asarray(theta, dtype=float))
    mixture = _mixture_of(fit, group, lam)
    pooled = Method(
        "pooled", method.rho, method.cost, method.temperature, method.score, fixed(mixture)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # short of 1e-10: its gap is added
        best = train(
            clients,
            pooled,
            loss=group.problem.loss,
            intercept=group.problem.intercept,
            tol=1e-10,
            start=fit.theta,
            l2=fit.l2,
            theta_radius=fit.theta_radius,
        )
    penalty = 0.5 * fit.l2 * float(group.problem.penalised @ point**2)
    return float(group.evaluate(point).values.max() + penalty - best.objective + best.gap)


def group_of(fit: Fit, clients: Any) -> Group:
    """Return rows of clients as a group with the problem and the centres of the fit.

    A ValueError says that columns, labels or clients do not fit the model.
    """
    checked = validation.clients(clients)
    problem = fit.problem
    problem.split(fit.theta)  # raises for what is no linear model
    known = dict(zip(fit.clients, fit.centers, strict=True))
    common = bool((fit.centers == fit.centers[0]).all())
    for name, (X, _) in checked.items():
        if X.shape[1] != problem.dims:
            raise ValueError(
                f"client {name!r}: X has {X.shape[1]} columns, the model knows {problem.dims}"
            )
        if name not in known and not common:
            raise ValueError(
                f"client {name!r}: its score has no centre; the fit knows {fit.clients}"
            )
    validation.classes(checked, problem.loss, problem.classes if problem.loss.classifies else None)
    centers = np.array([known.get(name, fit.centers[0]) for name in checked])
    return stack(problem, checked, centers)


def _mixture_of(fit: Fit, group: Group, lam: Any) -> Array:
    """Return `lam`, or the mixture of the fit restricted to these clients, scaled to sum to 1."""
    if lam is None:
        known = dict(zip(fit.clients, fit.lam.tolist(), strict=True))
        strangers = [name for name in group.names if name not in known]
        if strangers:
            raise ValueError(
                f"client {strangers[0]!r} was not trained with; say how much it counts: lam=…"
            )
        lam = [known[name] for name in group.names]
        if not sum(lam) > 0:
            raise ValueError("none of these clients counts in the fit's mixture; give lam=…")
    return fixed(lam).start(group.names, group.counts)


class Part(NamedTuple):
    """A client's part of a certificate: four numbers, and no rows."""

    value: float  # F_i
    spent: float  # r̂_i, the distance of its worst distribution
    attained: float  # E_p[L] there
    error: float | None  # upper bound of the error of its suprema; None: unknown


class Bound(NamedTuple):
    """Both sides of Proposition 2 at a mixture; see :class:`Certificate`."""

    radius: float
    bound: float
    attained: float
    error: float | None


def parts(group: Group, theta: Array) -> list[Part]:
    """Compute each client's part of the certificate at θ."""
    atoms = group.atoms(theta)
    weighted = atoms.weights * _losses(group, theta, atoms)
    attained = np.add.reduceat(weighted, group.bounds[:-1])
    error = float(atoms.error) if np.isfinite(atoms.error) else None
    each = zip(group.average(atoms.value), group.spent(atoms), attained, strict=True)
    return [Part(float(value), float(spent), float(cost), error) for value, spent, cost in each]


def _losses(group: Group, theta: Array, atoms: Atoms) -> Array:
    """Return L = l − h of every row at its maximiser."""
    outputs = group.problem.predict(theta, atoms.rows)
    return group.problem.loss.value(outputs, atoms.target) - group.scored(atoms.rows, atoms.target)


def combine(each: Sequence[Part], lam: Array, method: Method) -> Bound:
    """Combine the parts of clients into the certificate of a mixture, without their rows.

    With the clients' posterior shares w ∝ λ_i exp(F_i/ρβ), the worst distribution is Σ w_i p_i. Its
    distance is the mean of the clients' distances plus β KL(w‖λ). The method needs a finite ρ.
    """
    if np.isinf(method.rho):
        raise ValueError(f"method {method.name!r} has no transport: there is nothing to certify")
    values, spent = np.array([(part.value, part.spent) for part in each]).T
    level, radius, share = _mixed(values, spent, lam, method)
    errors = [part.error for part in each]
    error = None if None in errors else max(e for e in errors if e is not None)
    attained = float(share @ np.array([part.attained for part in each]))
    return Bound(radius, method.rho * radius + level + (error or 0.0), attained, error)


def _mixed(values: Array, spent: Array, lam: Array, method: Method) -> tuple[float, float, Array]:
    """Return ρβ log Σ λ_i exp(F_i/ρβ), r̂ of the worst distribution, and the clients' shares."""
    share = fixed(lam).shares(values, lam, method.temperature)
    radius = float(share @ spent)
    if np.isfinite(method.beta):
        ratio = np.divide(share, lam, where=lam > 0, out=np.ones_like(share))
        radius += method.beta * float(np.sum(xlogy(share, ratio)))
    return tilted_mean(values, method.temperature, lam), radius, share


def _evaluate(group: Group, theta: Array, lam: Array | None) -> tuple[float, float]:
    """Return ρβ log E exp(f/ρβ) at a mixture, or its largest over mixtures, and r̂ there."""
    atoms = group.atoms(theta)
    values, spent = group.average(atoms.value), group.spent(atoms)
    added = atoms.error if np.isfinite(atoms.error) else 0.0  # if unbounded, this is an estimate
    if lam is None:
        worst = int(np.argmax(values))
        return float(values[worst] + added), float(spent[worst])
    level, radius, _ = _mixed(values, spent, lam, group.problem.method)
    return level + added, radius


def _smallest_rho(group: Group, theta: Array) -> float:
    """Return a price slightly above the least one with a finite supremum."""
    if np.isinf(group.problem.loss.finite_below):
        return float(np.finfo(float).tiny)
    high = group.problem.method.rho
    low = high
    while low > 1e-12 and group.problem.priced(low).is_finite(theta):
        low /= 2.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (
            (low, middle) if group.problem.priced(middle).is_finite(theta) else (middle, high)
        )
    return high * (1.0 + 1e-9)
