"""Certificates of linear models: accuracy or error if some rows are outliers and others drift.

:func:`certify` gives one of two forms. :class:`Confident` bounds the accuracy for **rows to come**
with a stated confidence, from rows that the model was not trained on. :class:`InSample` bounds loss
and accuracy on the rows at hand, and states nothing about others. Both are monotone in the share of
outliers and in the drift. `docs/certificate.md` has the proofs; the paper's own certificate, at a
radius of the unbalanced distance, is :func:`dorfl.certificate.paper`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dorfl.certificates import bound as bounding
from dorfl.certificates.bound import SHARES, CertificateReport, CertificateRequest, Units
from dorfl.certificates.certificate import group_of
from dorfl.certificates.confidence import binomial_upper, mean_upper, stake
from dorfl.data import robust, validation
from dorfl.federated.fit import Fit
from dorfl.linear.problem import Problem
from dorfl.linear.scale import proposal2
from dorfl.objective.losses import ConcomitantHuber
from dorfl.objective.mixture import fixed
from dorfl.support.text import scored
from dorfl.support.types import Array

DRIFT = 0.1  # standard deviations
DRIFTS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # standard deviations, for a curve
CONFIDENCE = 0.95
_MOST = 0.4  # share of outliers: robust location and scale break down near one half
_BULK = 0.8  # share of rows, nearest first, whose spread defines a standard deviation
_MEASURING = 5  # one row in so many defines the units if no reference rows are given
_FREE = 1e-12  # price of moving a row if no row can be moved across a boundary
# Drifts for each of which a price is fixed beforehand: those of curves, and a grid in steps of 1.25
_GRID: tuple[float, ...] = tuple(sorted({*DRIFTS[1:], *(0.01 * 1.25 ** np.arange(32)).tolist()}))


class Bounds(NamedTuple):
    """Upper bounds of the mean loss and of the error, and the lower bound of the accuracy.

    Attributes
    ----------
    loss : float or None
        Mean loss at most. None in a certificate with confidence: the loss is not bounded.
    error : float
        Error rate at most; mean absolute error at most for a regression.
    accuracy : float or None
        1 − error; None for a regression.
    """

    loss: float | None
    error: float
    accuracy: float | None = None


class Frame(NamedTuple):
    """What a certificate takes from reference rows, before it sees the rows that it is about."""

    names: tuple[str, ...]  # the clients with a centre
    variance: Array  # (columns,) squared unit of drift; 0 for a column that does not move
    distance: Array  # (columns,) weight of a squared offset in the squared distance from the centre
    centers: Array  # (clients, columns) robust location of each client
    # (clients,) largest distance from the centre that is in range. Infinity is written as -1
    reach: Array
    # (drifts,) classification: the price of moving a row, for every drift of the grid
    prices: Array
    # (drifts,) or (1,) variance of the values that are averaged, for the size of the bets
    variances: Array
    cap: float = 1.0  # regression: absolute errors above it count as this much

    @property
    def units(self) -> Units:
        """The units of drift and distance."""
        with np.errstate(divide="ignore"):
            return Units(1.0 / self.variance, self.distance)

    def in_range(self, name: str, rows: Array) -> Array:
        """Return which rows are in range; a new client has the mean centre and largest range."""
        known = name in self.names
        center = self.centers[self.names.index(name)] if known else self.centers.mean(axis=0)
        reach = np.where(self.reach < 0, np.inf, self.reach)
        most = reach[self.names.index(name)] if known else reach.max()
        return np.asarray(bounding.distances(rows, center, self.units) <= most)


class Held(NamedTuple):
    """Held-out rows of a client: how many, and the sorted error terms of those in range.

    Costs of misclassification come in ascending order, absolute errors in descending order: the
    worst rows first.
    """

    rows: int
    terms: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class Certified(ABC):
    """Bounds at a share of outliers and a drift; :meth:`at` gives other shares and drifts.

    Attributes
    ----------
    outliers : float
        Share of every client's rows that may be outliers.
    drift : float
        Root mean square of how far rows move, in standard deviations.
    names : tuple of str
        The clients.
    classifies : bool
        Whether the model predicts classes.
    unit : float
        Unit of the error of a regression, in that of the label.
    """

    outliers: float
    drift: float
    names: tuple[str, ...]
    classifies: bool = True
    unit: float = 1.0

    def at(
        self,
        outliers: float | None = None,
        drift: float | None = None,
        *,
        clients: str | Array | None = "",
    ) -> Bounds:
        """Return the bounds at another share of outliers or another drift.

        Parameters
        ----------
        outliers, drift : float, optional
            By default those of the certificate.
        clients : str, array or None
            A client's name, a mixture λ, or None for every mixture at once. By default all
            clients, by their rows.

        Returns
        -------
        Bounds

        Raises
        ------
        ValueError
            If the share or the drift is out of range, or, in the in-sample form, if clients did not
            report on this share.
        """
        share = self.outliers if outliers is None else float(outliers)
        away = self.drift if drift is None else float(drift)
        check(share, away)
        loss, error = self._upper_bounds(share, away, clients)
        if not self.classifies:
            return Bounds(loss, error * self.unit)
        return Bounds(loss, min(error, 1.0), 1.0 - min(error, 1.0))

    @abstractmethod
    def _upper_bounds(
        self, share: float, drift: float, clients: str | Array | None
    ) -> tuple[float | None, float]:
        """Return upper bounds of loss and error, see :meth:`at`."""

    @property
    def loss(self) -> float | None:
        """Upper bound of the mean loss over all clients; None if not bounded."""
        return self.at().loss

    @property
    def error(self) -> float:
        """Upper bound of the error rate, or of the mean absolute error, over all clients."""
        return self.at().error

    @property
    def accuracy(self) -> float | None:
        """Lower bound of the accuracy over all clients; None for a regression."""
        return self.at().accuracy

    @property
    def clients(self) -> dict[str, Bounds]:
        """Bounds of each client, each by itself."""
        return {name: self.at(clients=name) for name in self.names}

    @property
    def every(self) -> Bounds:
        """Bounds that hold for every mixture of the clients at once."""
        return self.at(clients=None)

    @property
    def shares(self) -> tuple[float, ...]:
        """Shares of outliers on a curve."""
        return tuple(sorted({*SHARES, self.outliers}))

    def over_drift(self, drifts: Sequence[float] = DRIFTS) -> list[tuple[float, Bounds]]:
        """Return each drift with its bounds, at the share of outliers of the certificate.

        Parameters
        ----------
        drifts : sequence of float
            Drifts in standard deviations.
        """
        return [(drift, self.at(drift=drift)) for drift in drifts]

    def over_outliers(self) -> list[tuple[float, Bounds]]:
        """Return the bounds over shares of outliers, at the drift of the certificate."""
        return [(share, self.at(share)) for share in self.shares]

    @property
    @abstractmethod
    def words(self) -> str:
        """The statement in one sentence."""

    @property
    @abstractmethod
    def assumption(self) -> str:
        """What is assumed, and what the statement does not cover."""

    def __str__(self) -> str:
        return f"{self.words} {self.assumption}"

    @property
    def _outliers(self) -> str:
        if not self.outliers > 0:
            return "no row is an outlier"
        return f"at most {100 * self.outliers:.3g} % of each client's rows are outliers"


@dataclass(frozen=True, eq=False, kw_only=True)
class Confident(Certified):
    """Bounds for rows to come that hold with a confidence, from rows not trained on.

    Attributes
    ----------
    confidence : float
        Probability, over the draw of the held-out rows, that a bound holds. Each bound by itself.
    held : tuple of Held
        The held-out rows of every client.
    frame : Frame
        What was fixed before these rows were looked at.
    pull : float
        Regression: length of the weights in standard deviations.
    lam : array or None
        A mixture other than by the clients' rows.
    about : str
        Which model the statement is about.
    """

    confidence: float
    held: tuple[Held, ...]
    frame: Frame
    pull: float = 0.0
    lam: Array | None = None
    about: str = "the model"

    def _upper_bounds(
        self, share: float, drift: float, clients: str | Array | None
    ) -> tuple[float | None, float]:
        """Return no bound of the loss, and the confidence bound of the error."""
        alpha = 1.0 - self.confidence
        lam = self.lam if isinstance(clients, str) and not clients else clients
        if isinstance(clients, str) and clients:
            return None, self._upper(self.held[self.names.index(clients)], share, drift, alpha)
        if isinstance(clients, str) and lam is None:
            return None, self._upper(self._pooled, share, drift, alpha)
        weights = np.ones(len(self.held)) if lam is None else np.asarray(lam, dtype=float)
        used = [k for k, weight in enumerate(weights.tolist()) if weight > 0]
        each = [self._upper(self.held[k], share, drift, alpha / len(used)) for k in used]
        return None, max(each) if lam is None else float(weights[used] @ each)

    @cached_property
    def _pooled(self) -> Held:
        terms = np.sort(np.concatenate([own.terms for own in self.held]))
        rows = sum(own.rows for own in self.held)
        return Held(rows, terms if self.classifies else terms[::-1])

    def _upper(self, held: Held, share: float, drift: float, alpha: float) -> float:
        """Return the upper confidence bound of the error of some rows after a drift.

        The inliers may be any rows in range, all but the share of outliers at most; the bound grows
        if fewer are left, so that those with the largest errors are the worst case.
        """
        least = min(len(held.terms), held.rows - int(share * held.rows + 1e-9))
        terms, trials = held.terms[:least], held.rows
        if not self.classifies:
            cap = self.frame.cap
            bet = stake(float(self.frame.variances[0]), trials, alpha)
            mean = mean_upper(np.minimum(terms / cap, 1.0), alpha, bet) if least else np.inf
            return cap * mean + drift * self.pull
        if not least:
            return 1.0
        found = binomial_upper(int((terms <= 0.0).sum()), least, alpha)
        if not drift > 0:
            return found
        # The price of a drift is fixed for each of a grid; a larger drift has no smaller bound.
        prices: list[float] = self.frame.prices.tolist()
        variances: list[float] = self.frame.variances.tolist()
        for at, price, variance in zip(_GRID, prices, variances, strict=True):
            values = np.zeros(least)
            near = int(np.searchsorted(terms, 1.0 / price))
            values[:near] = 1.0 - price * terms[:near]
            mean = mean_upper(values, alpha, stake(variance, trials, alpha))
            found = max(found, 0.5 * price * min(at, drift) ** 2 + mean)
            if at >= drift or found >= 1.0:
                break
        else:
            return 1.0  # beyond the grid
        return min(found, 1.0)

    @property
    def words(self) -> str:
        """The statement in one sentence."""
        away = "are like the inliers"
        if self.drift > 0:
            away = f"differ from the inliers by at most {self.drift:.3g} standard deviations"
        return (
            f"With {100 * self.confidence:.4g} % confidence: if {self._outliers} and rows to come "
            f"{away}, {self.about} has {self._claim(self.at())}."
        )

    def _claim(self, found: Bounds) -> str:
        if found.accuracy is not None:
            return f"an accuracy of at least {floored(found.accuracy)}"
        if not np.isfinite(found.error):
            return "no known bound of the mean absolute error"
        cap = scored(self.frame.cap * self.unit, classifies=False)
        return (
            f"a mean absolute error of at most {ceiled(found.error)} (errors above {cap} count as "
            f"{cap})"
        )

    @property
    def assumption(self) -> str:
        """What is assumed, and what the statement does not cover."""
        total, inside = self._pooled.rows, len(self._pooled.terms)
        text = (
            f"It is computed from {total:,} rows that this model was not trained on. Assumed: "
            "their inliers are independent draws from the population."
        )
        if inside < total:
            text += (
                f" {total - inside:,} of them ({100 * (1 - inside / total):.2g} %) lie unusually "
                "far from their client's centre (beyond Tukey's outer fence). They count as "
                "outliers, and nothing is stated about rows like them."
            )
        return text


@dataclass(frozen=True, eq=False, kw_only=True)
class InSample(Certified):
    """Bounds on the rows at hand; no statement about rows to come.

    Attributes
    ----------
    lam : array of shape (clients,)
        The mixture, by default every client by its rows.
    reports : tuple
        The clients' reports.
    request : CertificateRequest
        The prices and shares that the reports are for.
    """

    lam: Array
    reports: tuple[CertificateReport, ...]
    request: CertificateRequest

    def _upper_bounds(
        self, share: float, drift: float, clients: str | Array | None
    ) -> tuple[float | None, float]:
        """Return the least bounds of loss and error over the prices that clients reported on."""
        if share not in self.request.shares:
            known = ", ".join(f"{one:g}" for one in self.request.shares)
            raise ValueError(f"outliers={share}: not evaluated; known are {known}")
        reports, lam = self.reports, self.lam if isinstance(clients, str) else clients
        if isinstance(clients, str) and clients:
            reports, lam = (reports[self.names.index(clients)],), np.ones(1)
        loss, error = (
            bounding.bound(reports, lam, self.request, share, drift, of=of)
            for of in ("loss", "error")
        )
        return loss, error

    @property
    def shares(self) -> tuple[float, ...]:
        """Shares of outliers that were evaluated."""
        return self.request.shares

    @property
    def words(self) -> str:
        """The statement in one sentence."""
        moved = ""
        if self.drift > 0:
            moved = f" and the inliers move by at most {self.drift:.3g} standard deviations"
        found = self.at()
        if found.accuracy is not None:
            claim = f"the accuracy on them is at least {floored(found.accuracy)}"
        elif np.isfinite(found.error):
            claim = f"the mean absolute error on them is at most {ceiled(found.error)}"
        else:
            claim = "no bound is known for the mean absolute error"
        return f"In sample: if {self._outliers}{moved}, {claim}."

    @property
    def assumption(self) -> str:
        """What is assumed, and what the statement does not cover."""
        return (
            "This bound is about these rows alone. It is not a statement about rows to come: "
            "certify the model on rows that it was not trained on. Rows unusually far from their "
            "client's centre (beyond Tukey's outer fence) count as outliers, and nothing is stated "
            "about rows like them."
        )


def down(accuracy: float) -> float:
    """Round a lower bound down to a tenth of a percent."""
    return float(np.floor(accuracy * 1000.0 + 1e-9) / 1000.0)


def up(bound: float) -> float:
    """Round an upper bound up to four digits."""
    digit = 10.0 ** (np.floor(np.log10(max(bound, 1e-300))) - 3.0)
    return float(np.ceil(bound / digit - 1e-9) * digit)


def floored(accuracy: float) -> str:
    """Format a lower bound of an accuracy in percent, rounded down.

    >>> floored(0.91999)
    '91.9 %'
    """
    return scored(down(accuracy), classifies=True)


def ceiled(error: float) -> str:
    """Format an upper bound of an error in four digits, rounded up.

    >>> ceiled(3.86201), ceiled(0.25), ceiled(10550.2)
    ('3.863', '0.25', '10,560')
    """
    return scored(up(error), classifies=False)


def certify(
    fit: Fit,
    clients: Any,
    outliers: float = 0.1,
    drift: float = DRIFT,
    *,
    confidence: float | None = CONFIDENCE,
    reference: Any = None,
    lam: Any = None,
    frozen: Sequence[int] | None = None,
) -> Certified:
    """Bound how bad a linear model can be if some rows are outliers and the others drift.

    Parameters
    ----------
    fit : Fit
        Any linear model, however it was trained.
    clients : mapping or sequence of (X, y)
        Labelled rows of each client. With a `confidence` they must **not** be rows that the model
        was trained on, and the inliers among them must be independent draws.
    outliers : float, default 0.1
        At most this share of every client's rows are outliers, from 0 to 0.4.
    drift : float, default 0.1
        Rows to come differ from the inliers by at most this much: the root mean square of how far
        rows move, in robust standard deviations of the columns.
    confidence : float or None, default 0.95
        Probability that the bound holds for rows to come. None: the in-sample form, a bound of
        loss and accuracy on `clients` alone, which may then be training rows.
    reference : mapping or sequence of (X, y), optional
        Rows that define location, scale and range, for example the training rows. By default
        every fifth of the rows in `clients`, which are then not used otherwise. Ignored in the
        in-sample form.
    lam : array-like of shape (clients,), optional
        The mixture of clients. By default every client by its rows.
    frozen : sequence of int, optional
        Columns that do not move. By default those that the fit's cost freezes. Columns that
        nearly always have one value do not move either. Labels move only if the fit's cost has a
        price for it.

    Returns
    -------
    Confident or InSample
        Bounds, and the statement in words; `at` gives other shares and drifts.

    Examples
    --------
    >>> import dorfl
    >>> data = dorfl.datasets.synthetic(seed=0)
    >>> fit = dorfl.train(data.clients, dorfl.methods.paper(rho=20, beta=1))
    >>> found = dorfl.certify(fit, data.test, outliers=0.0, reference=data.clients)
    >>> found.accuracy > 0.7, found.at(0.1, 0.2).accuracy < found.accuracy
    (True, True)
    """
    check(outliers, drift, confidence)
    checked, problem = validation.clients(clients), fit.problem
    if frozen is None:
        frozen = np.flatnonzero(np.isinf(problem.method.cost.weights(problem.dims))).tolist()
    if confidence is None:
        return _in_sample(fit, checked, outliers, drift, lam, frozen)
    common = replace(fit, clients=("",), centers=np.zeros((1, problem.dims)))
    group_of(common, checked)  # raises for columns or labels that do not fit the model
    if reference is None:
        known, checked = _divided(checked)
    else:
        known = validation.clients(reference)
    frame = measure(problem, fit.theta, known, frozen)
    return confident(problem, fit.theta, checked, frame, outliers, drift, confidence, lam=lam)


def check(outliers: float, drift: float, confidence: float | None = None) -> None:
    """Raise a ValueError for a share, a drift or a confidence out of range."""
    if confidence is not None and not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: must be between 0 and 1")
    if not 0 <= outliers <= _MOST:
        raise ValueError(f"outliers={outliers}: must be a share from 0 to {_MOST}")
    if not 0 <= drift < np.inf:
        raise ValueError(f"drift={drift}: must be a number of standard deviations, 0 or more")


def confident(
    problem: Problem,
    theta: Array,
    clients: Mapping[str, tuple[Array, Array]],
    frame: Frame,
    outliers: float,
    drift: float,
    confidence: float = CONFIDENCE,
    *,
    lam: Any = None,
    about: str = "the model",
) -> Confident:
    """Return the certificate with confidence of θ from rows it was not trained on.

    Parameters are those of :func:`certify`, with the `frame` measured on other rows and `about`
    naming the model in the statement.
    """
    held, pull = [], 0.0
    for name, (X, y) in clients.items():
        target = problem.encode(np.asarray(y))
        found = bounding.error_terms(problem, theta, X, target, frame.units)
        terms = np.sort(found.costs[frame.in_range(name, X)])
        held.append(Held(len(X), terms if found.pull is None else terms[::-1]))
        pull = 0.0 if found.pull is None else found.pull**0.5
    counts = np.array([own.rows for own in held], dtype=float)
    names = tuple(clients)
    return Confident(
        outliers=float(outliers),
        drift=float(drift),
        names=names,
        classifies=problem.loss.classifies,
        confidence=confidence,
        held=tuple(held),
        frame=frame,
        pull=pull,
        lam=None if lam is None else fixed(lam).start(names, counts),
        about=about,
    )


def measure(
    problem: Problem,
    theta: Array,
    clients: Mapping[str, tuple[Array, Array]],
    frozen: Sequence[int],
) -> Frame:
    """Return the frame of a certificate from reference rows, at most 5,000 of each client.

    Columns in `frozen` do not move.
    """
    units, centers = _units_and_centers(clients, frozen)
    looked = [(robust.subsample(X), robust.subsample(np.asarray(y))) for X, y in clients.values()]
    away = [
        bounding.distances(X, center, units) for (X, _), center in zip(looked, centers, strict=True)
    ]
    # A few rows say little about quartiles: a small client has the range of all.
    common = bounding.fence(np.concatenate(away))
    reach = np.array(
        [bounding.fence(far) if len(far) >= robust.MIN_ROWS else common for far in away]
    )
    found = [
        bounding.error_terms(problem, theta, X[far <= most], problem.encode(y[far <= most]), units)
        for (X, y), far, most in zip(looked, away, reach.tolist(), strict=True)
    ]
    terms = np.sort(np.concatenate([part.costs for part in found]))
    prices, variances, cap = _plan(terms, problem.loss.classifies)
    return Frame(
        names=tuple(clients),
        variance=np.where(np.isfinite(units.moves), 1.0 / units.moves, 0.0),
        distance=units.distance,
        centers=centers,
        reach=np.where(np.isfinite(reach), reach, -1.0),
        prices=prices,
        variances=variances,
        cap=cap,
    )


def _units_and_centers(
    clients: Mapping[str, tuple[Array, Array]], frozen: Sequence[int]
) -> tuple[Units, Array]:
    """Return the units of drift, and the robust centre of every client."""
    places, own = robust.report_all([X for X, _ in clients.values()])
    units = bounding.units_of(robust.column_scales(places, _BULK), frozen)
    return units, robust.client_centers(places, own)


def _plan(terms: Array, classifies: bool) -> tuple[Array, Array, float]:
    """Return prices and variances for every drift of the grid, and the cap of absolute errors.

    The price of a drift is 1/c with c the cost up to which the worst drift of the reference rows
    moves them across the boundary: the minimiser of the bound on these rows.
    """
    rows = max(len(terms), 1)

    def regular(values: Array) -> float:  # as in the empirical bets of Waudby-Smith and Ramdas
        return float((0.25 + np.square(values - values.mean()).sum()) / (rows + 1.0))

    if not classifies:
        cap = bounding.fence(terms) if len(terms) else np.inf
        cap = cap if np.isfinite(cap) else float(terms.max(initial=0.0))
        cap = cap if cap > 0 else 1.0
        values = np.minimum(terms / cap, 1.0)
        return np.zeros(0), np.array([regular(values) if len(terms) else 0.25]), cap
    finite = terms[np.isfinite(terms)]
    spent = np.cumsum(finite) / rows
    prices, variances = [], []
    for drift in _GRID:
        place = int(np.searchsorted(spent, 0.5 * drift**2))
        cost = float(finite[min(place, len(finite) - 1)]) if len(finite) else 0.0
        price = 1.0 / cost if cost > 0 else _FREE
        values = np.maximum(1.0 - price * terms, 0.0)
        prices.append(price)
        variances.append(regular(values) if len(terms) else 0.25)
    return np.array(prices), np.array(variances), 1.0


def _divided(clients: Mapping[str, tuple[Array, Array]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return one row in five of every client, drawn at random, as reference, and the others."""
    first, rest = {}, {}
    for name, (X, y) in clients.items():
        order = np.random.default_rng(0).permutation(len(X))
        some, others = np.sort(order[::_MEASURING]), np.sort(np.delete(order, np.s_[::_MEASURING]))
        first[name] = X[some], np.asarray(y)[some]
        rest[name] = X[others], np.asarray(y)[others]
    return first, rest


def _in_sample(
    fit: Fit, checked: Any, outliers: float, drift: float, lam: Any, frozen: Sequence[int]
) -> InSample:
    problem = fit.problem
    units, centers = _units_and_centers(checked, frozen)
    known = replace(fit, clients=tuple(checked), centers=centers)
    group = group_of(known, checked)
    scatter = 1.0
    if not problem.loss.classifies:
        residuals = group.target - problem.predict(fit.theta, group.rows)
        scatter = fit.scale or proposal2(residuals, ConcomitantHuber()) or 1.0
    stride = bounding.grid_stride(len(group.target), problem.outputs)
    request = bounding.make_request(outliers, stride=stride, loss=problem.loss, scatter=scatter)
    return InSample(
        outliers=float(outliers),
        drift=float(drift),
        names=group.names,
        classifies=problem.loss.classifies,
        lam=fixed(group.counts if lam is None else lam).start(group.names, group.counts),
        reports=tuple(bounding.report(group, fit.theta, units, request)),
        request=request,
    )
