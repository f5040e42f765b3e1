"""What a model guarantees, in words a person can check: :func:`certify`.

The bound and what a client tells for it are in :mod:`dorfl.guarantees.bound`; the paper's own form,
at a radius of the unbalanced distance, is :func:`dorfl.certificate.paper`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dorfl.data import spread, validation
from dorfl.federation.fit import Fit
from dorfl.guarantees import bound as bounding
from dorfl.guarantees.bound import Question, Told, Units
from dorfl.guarantees.certificate import group_of
from dorfl.objective.kinds import Loss
from dorfl.objective.mixture import fixed
from dorfl.support.text import scored
from dorfl.support.types import Array

DRIFT = 0.1  # standard deviations
DRIFTS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # standard deviations, for a curve
_BULK = 0.8  # of the rows say what a standard deviation is, wrong ones being among the others


class Bounds(NamedTuple):
    """The most the mean loss and the error can be: an error rate, or a mean absolute error."""

    loss: float
    error: float
    accuracy: float | None = None  # the least it can be: 1 − error, where there are classes


@dataclass(frozen=True, eq=False)
class Certified:
    """Bounds at a share of wrong rows and a drift; other drifts and shares by :meth:`at`.

    The mixture's are `loss`, `error` and `accuracy`; `clients` has each client's, `every` those of
    all mixtures of clients at once, `anywhere` the mixture's for populations however far out.
    """

    outliers: float
    drift: float
    names: tuple[str, ...]
    rows: tuple[int, ...]
    lam: Array
    told: tuple[Told, ...]
    asked: Question
    loss_of: Loss
    unit: float = 1.0  # of the error, in the label's own

    @property
    def loss(self) -> float:
        """The most the mean loss can be, for the mixture."""
        return self.at().loss

    @property
    def error(self) -> float:
        """The most the error rate, or the mean absolute error, can be, for the mixture."""
        return self.at().error

    @property
    def accuracy(self) -> float | None:
        """The least the accuracy can be, for the mixture; nothing for a regression."""
        return self.at().accuracy

    @property
    def clients(self) -> dict[str, Bounds]:
        """Each client's own bounds."""
        return {name: self.at(who=name) for name in self.names}

    @property
    def every(self) -> Bounds:
        """The bounds that hold for every mixture of the clients."""
        return self.at(who=None)

    @property
    def anywhere(self) -> Bounds:
        """The mixture's bounds with nothing assumed of how far out the good rows lie."""
        return self.at(anywhere=True)

    def at(
        self,
        outliers: float | None = None,
        drift: float | None = None,
        *,
        who: str | Array | None = "",
        anywhere: bool = False,
    ) -> Bounds:
        """The bounds at another share (one of `asked.shares`) or drift.

        `who` is a client's name, a mixture λ, nothing for every mixture at once; by default the
        mixture of the certificate.
        """
        share = self.outliers if outliers is None else float(outliers)
        if share not in self.asked.shares:
            known = ", ".join(f"{one:g}" for one in self.asked.shares)
            raise ValueError(f"outliers={share}: was not asked for; there are {known}")
        told, lam = self.told, self.lam if isinstance(who, str) else who
        if isinstance(who, str) and who:
            told, lam = (told[self.names.index(who)],), np.ones(1)
        loss, error = (
            bounding.bound(
                told, lam, self.asked, share, self.drift if drift is None else float(drift),
                of=of, anywhere=anywhere,
            )
            for of in ("loss", "error")
        )  # fmt: skip
        if not self.loss_of.classifies:
            return Bounds(loss, error * self.unit)
        error = min(error, 1.0)
        return Bounds(loss, error, 1.0 - error)

    def confident(self, confidence: float = 0.95) -> float | None:
        """The least the accuracy can be for the population behind the good rows, so surely.

        For rows that were not trained with, and a population however far out, if the good ones of
        each client are drawn independently: f lies between 0 and 1, so that by Hoeffding its mean
        over the good rows is off by more than √(log(m/δ)/2 · Σ λ_i²/n_i) at any of m prices with
        probability δ at most, n_i being the good rows. Nothing for a regression: no loss of it is
        bounded.
        """
        if not 0 < confidence < 1:
            raise ValueError(f"confidence={confidence}: must be between 0 and 1")
        if not self.loss_of.classifies:
            return None
        good = np.floor((1.0 - self.outliers) * np.array(self.rows, dtype=float))
        prices = sum(weight == 0.0 for _, weight in self.asked.points)
        spread = float(np.sum(self.lam[self.lam > 0] ** 2 / good[self.lam > 0]))
        off = (0.5 * np.log(prices / (1.0 - confidence)) * spread) ** 0.5
        return max(1.0 - self.anywhere.error - float(off), 0.0)

    def over_drift(self, drifts: Sequence[float] = DRIFTS) -> list[tuple[float, Bounds]]:
        """The bounds over drifts, at the share of the certificate."""
        return [(drift, self.at(drift=drift)) for drift in drifts]

    def over_outliers(self) -> list[tuple[float, Bounds]]:
        """The bounds over the shares that were asked for, at the drift of the certificate."""
        return [(share, self.at(share)) for share in self.asked.shares]

    @property
    def words(self) -> str:
        """The guarantee in one sentence."""
        return f"{self.condition} {self.claim(self.at())}."

    @property
    def condition(self) -> str:
        """Under which words the bounds hold."""
        away = "are like {}"
        if self.drift > 0:
            away = f"differ from {{}} by at most {self.drift:.3g} standard deviations"
        if not self.outliers > 0:
            return f"If no row is wrong and rows to come {away.format('these')},"
        share = 100 * self.outliers
        return (
            f"If at most {share:.3g} % of each client's rows are wrong, and rows to come "
            f"{away.format('the good ones')} and lie no further out than the nearest "
            f"{100 - share:.3g} %,"
        )

    def claim(self, found: Bounds) -> str:
        """What bounds say, as the end of a sentence."""
        if found.accuracy is not None:
            return f"accuracy is at least {floored(found.accuracy)}"
        if not np.isfinite(found.error):
            return "no bound is known for the mean absolute error"
        return f"the mean absolute error is at most {ceiled(found.error)}"

    @property
    def assumption(self) -> str:
        """What is taken for granted, and what would hold without."""
        plain = "The good rows are those of this sample: see docs/certificate.md."
        if not self.outliers > 0:
            return plain
        near = [told.near[self.asked.shares.index(self.outliers)] for told in self.told]
        return (
            f"{self._counted}Assumed: wrong rows are the far ones, so that the root mean square "
            "distance of rows to come from their client's centre is at most "
            f"{float(self.lam @ near) ** 0.5:.3g} "
            f"standard deviations, as of the nearest {100 - 100 * self.outliers:.3g} % of these "
            f"rows, plus the drift. However far out they lie, {self.claim(self.anywhere)}. {plain}"
        )

    @property
    def _counted(self) -> str:
        """Where more is promised than all of these rows show, wrong ones among them: what they do.

        Nothing moves and every row is good at no drift and a share of 0: the bound is their mean.
        """
        if 0.0 not in self.asked.shares:
            return ""
        here, found = self.at(0.0, 0.0), self.at()
        if found.error >= here.error or not np.isfinite(here.error):
            return ""
        classes = here.accuracy is not None
        what = "accuracy" if classes else "the mean absolute error"
        seen = here.accuracy if classes else here.error
        return (
            f"On all of these rows {what} is {scored(seen or 0.0, classes)}: those that lie "
            "furthest out are taken for wrong, and of their like nothing is promised. "
        )

    def __str__(self) -> str:
        return f"{self.words} {self.assumption}"


def down(accuracy: float) -> float:
    """A lower bound to a tenth of a percent, never rounded up."""
    return float(np.floor(accuracy * 1000.0 + 1e-9) / 1000.0)


def up(bound: float) -> float:
    """An upper bound to four digits, never rounded down."""
    digit = 10.0 ** (np.floor(np.log10(max(bound, 1e-300))) - 3.0)
    return float(np.ceil(bound / digit - 1e-9) * digit)


def floored(accuracy: float) -> str:
    """A lower bound in percent, never rounded up.

    >>> floored(0.91999)
    '91.9 %'
    """
    return scored(down(accuracy), classifies=True)


def ceiled(error: float) -> str:
    """An upper bound in four digits, never rounded down.

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
    lam: Any = None,
    frozen: Sequence[int] | None = None,
) -> Certified:
    """How bad a model can be if so many rows are wrong and the others drift so far.

    Any linear model, whatever it was trained with. At most the share `outliers` of every client's
    rows are wrong; the population to come differs from the good rows by `drift` at most: the root
    mean square of how far rows move, in standard deviations of these rows' columns, which wrong
    rows do not sway. Columns that are `frozen` (by default, those of the fit's cost) do not move,
    nor do columns that nearly always have one value; neither do labels, unless the fit's cost has a
    price for it. `lam` is the mixture, by default every client by its rows.

    >>> import dorfl
    >>> data = dorfl.datasets.synthetic(seed=0)
    >>> fit = dorfl.train(data.clients, dorfl.methods.dorfl(rho=20, beta=1))
    >>> found = dorfl.certify(fit, data.clients, outliers=0.1, drift=0.1)
    >>> found.accuracy > 0.75, found.clients["client-3"].accuracy > found.every.accuracy
    (True, True)
    """
    if not 0 <= outliers <= 0.4:
        raise ValueError(f"outliers={outliers}: must be a share from 0 to 0.4")
    if not 0 <= drift < np.inf:
        raise ValueError(f"drift={drift}: a number of standard deviations, 0 or more")
    checked = validation.clients(clients)
    problem = fit.problem
    if frozen is None:
        frozen = np.flatnonzero(np.isinf(problem.method.cost.weights(problem.dims))).tolist()
    tables = [X for X, _ in checked.values()]
    places, own = spread.gather(tables, [None] * len(tables))
    centers = spread.centers_of(places, own)
    units = bounding.units_of(spread.measure(places, _BULK), frozen)
    known = replace(fit, clients=tuple(checked), centers=centers)
    group = group_of(known, checked)
    scatter = 1.0
    if not problem.loss.classifies:
        told = [
            spread.residuals(problem.predict(fit.theta, X), np.asarray(y, dtype=float))
            for X, y in checked.values()
        ]
        scatter = spread.scatter(told) or 1.0
    thin = bounding.thinness(len(group.target), problem.outputs)
    asked = ask(problem.loss, units, outliers, scatter, thin)
    found = bounding.tell(group, fit.theta, units, asked)
    mixture = fixed(group.counts if lam is None else lam).start(group.names, group.counts)
    return Certified(
        float(outliers), float(drift), group.names, tuple(group.counts.tolist()), mixture,
        tuple(found), asked, problem.loss,
    )  # fmt: skip


def ask(loss: Loss, units: Units, outliers: float, scatter: float, thin: int) -> Question:
    """What to ask clients of a model with such a loss, whose residuals scatter so far."""
    if loss.classifies:
        return bounding.question(units, outliers, thin=thin)
    size = float(loss.value(np.array([scatter]), np.zeros(1))[0])
    return bounding.question(units, outliers, thin=thin, loss=size, error=scatter)
