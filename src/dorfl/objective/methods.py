"""Methods: objectives made of transport, tilt and outlier score, and mixture.

    method     transport (ρ, c)   tilt (β) and score h   mixture λ
    erm        none               none                   fixed n_i / n
    afl        none               none                   agnostic
    wafl       yes                none                   fixed n_i / n
    gdrfl      yes                none                   agnostic
    paper      yes                yes                    agnostic
    dorfl      parameters that are not given are chosen from the clients' data

:func:`paper` is DOR-FL as its paper states it. :func:`dorfl` is the same family with parameters in
units of the data; it is resolved to a :class:`Method` before training.

>>> from dorfl import methods
>>> methods.paper(rho=20, beta=1).temperature
20.0
>>> methods.dorfl(outliers=0.1)
dorfl(outliers=0.1)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from dorfl.objective import costs, scores
from dorfl.objective.base import Score
from dorfl.objective.costs import Cost
from dorfl.objective.mixture import Mixture, resolve

AUTO = "auto"
_MAX_OUTLIERS = 0.4  # largest share of outliers; robust location estimators break down at 0.5


@dataclass(frozen=True, eq=False)
class Method:
    """Objective min_θ max_λ ρβ log Σ_i λ_i mean_i exp(f/ρβ); see :func:`method`.

    Attributes
    ----------
    name : str
        Name in reports.
    rho : float
        Price of transport ρ; infinity for none.
    cost : Cost
        Transport cost.
    temperature : float
        ρβ of the tilt; infinity for none.
    score : Score, optional
        Outlier score.
    mixture : Mixture
        Rule for λ.
    radius : float, optional
        Radius of the ambiguity set; ρ is then estimated together with θ.
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
        """Return β, the price of reweighting rows in units of transport."""
        return self.temperature / self.rho if np.isfinite(self.temperature) else np.inf

    def priced(self, rho: float) -> Method:
        """Return the method with another price of transport and the same β.

        Parameters
        ----------
        rho
            Price ρ of transport.
        """
        return replace(self, rho=rho, temperature=rho * self.beta)

    def scaled(self, unit: float) -> Method:
        """Return the method for a loss in another unit: same model, same λ.

        Parameters
        ----------
        unit
            How many times as large the loss is; ρ, temperature and score are multiplied by it.

        >>> paper(rho=20, beta=1, score=None).scaled(0.5).temperature
        10.0
        """
        score = None if self.score is None else self.score.scaled(unit)
        return replace(self, rho=unit * self.rho, temperature=unit * self.temperature, score=score)


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
    """Return a method with any combination of the parts.

    With `radius` = r the paper's constrained problem is solved:
    min_θ max_λ sup {E_P[L] : UW(P‖P̂_λ) ≤ r} = min over θ and ρ of ρ r + max_i F_i(θ, ρ).

    Parameters
    ----------
    rho
        Price of transport; None for no transport. With `radius`, where ρ starts (1 if None).
    cost
        Transport cost from :mod:`dorfl.costs`; by default squared Euclidean distance.
    beta
        Price of reweighting rows, in units of transport; None for no tilt.
    temperature
        Temperature of a tilt without transport; with transport it is ρβ.
    radius
        Radius r of the ambiguity set.
    score
        Outlier score from :mod:`dorfl.scores`, or None.
    mixture
        "agnostic", "fixed" or a rule from :mod:`dorfl.mixture`.
    name
        Name in reports.

    Returns
    -------
    Method
        The method, for :func:`dorfl.train`.

    Raises
    ------
    ValueError
        If a number is not positive, or parts contradict each other.

    >>> method(temperature=5.0, score=scores.quadratic(0.1), mixture="fixed").rho
    inf
    """
    given = {"rho": rho, "beta": beta, "temperature": temperature, "radius": radius}
    for argument, value in given.items():
        if value is not None and not value > 0:
            raise ValueError(f"{argument}={value}: must be positive, or infinity for none")
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
            raise ValueError(
                "radius: ρ is estimated; give beta (None for no tilt), not temperature"
            )
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
    """Return empirical risk minimisation, which FedAvg approximates."""
    return method(mixture="fixed", name="erm")


def afl() -> Method:
    """Return agnostic federated learning: the worst mixture of clients (Mohri et al., 2019)."""
    return method(mixture="agnostic", name="afl")


def wafl(rho: float, *, cost: Cost | None = None) -> Method:
    """Return Wasserstein federated learning (Nguyen et al., 2022): rows move, fixed mixture.

    Parameters
    ----------
    rho
        Price of transport, per squared unit of the columns.
    cost
        Transport cost from :mod:`dorfl.costs`.
    """
    return method(rho=rho, cost=cost, mixture="fixed", name="wafl")


def gdrfl(rho: float, *, cost: Cost | None = None) -> Method:
    """Return group distributionally robust learning (Konti et al., 2025): worst mixture.

    Parameters
    ----------
    rho
        Price of transport, per squared unit of the columns.
    cost
        Transport cost from :mod:`dorfl.costs`.
    """
    return method(rho=rho, cost=cost, mixture="agnostic", name="gdrfl")


def paper(
    rho: float = 20.0,
    beta: float = 1.0,
    score: Score | str | None = "auto",
    *,
    cost: Cost | None = None,
    mixture: str | Mixture = "agnostic",
) -> Method:
    """Return DOR-FL in the paper's own form, with parameters in the units of the columns.

    The defaults suit the paper's synthetic study: columns of unit scale and one common centre. They
    assume that

    - columns are standardised: ρ and the score's weight are in squared units of the columns, so
      that raw units can make every row an outlier;
    - clients share one centre: the score is part of F_i, so that the worst mixture prefers clients
      near the centre, and clients far from it lose their weight.

    For other data use :func:`dorfl`, which measures units and centres first.

    Parameters
    ----------
    rho
        Price of transport, per squared unit of the columns.
    beta
        Price of reweighting rows, in units of transport. The temperature of the tilt is ρβ.
    score
        Outlier score from :mod:`dorfl.scores`, or None. "auto" is ``quadratic(0.5)`` around one
        robust centre of all clients.
    cost
        Transport cost from :mod:`dorfl.costs`. By default squared Euclidean distance.
    mixture
        Rule for λ from :mod:`dorfl.mixture`. "agnostic" is the worst mixture by F_i.

    Returns
    -------
    Method
        The method, named "dorfl".
    """
    if isinstance(score, str) and score != "auto":
        raise ValueError(f'score={score!r}: give a score from dorfl.scores, None or "auto"')
    chosen = scores.quadratic(0.5) if isinstance(score, str) else score
    return method(rho=rho, beta=beta, score=chosen, cost=cost, mixture=mixture, name="dorfl")


@dataclass(frozen=True, eq=False)
class AutoMethod:
    """A method with open parameters, which are chosen from the clients' data before training.

    See :func:`dorfl` for the meaning of the fields.

    Attributes
    ----------
    name : str
        Name in reports.
    outliers, shift : float or "auto"
        Share of outliers and drift.
    rho, beta : float or "auto"
        Prices of transport and of reweighting rows.
    score : Score, "auto" or None
        Outlier score.
    cost : Cost, optional
        Transport cost.
    mixture : str or Mixture
        Rule for λ.
    """

    name: str = "dorfl"
    outliers: float | str = AUTO
    shift: float | str = AUTO
    rho: float | str = AUTO
    beta: float | str = AUTO
    score: Score | str | None = AUTO
    cost: Cost | None = None
    mixture: str | Mixture = "fixed"

    def __repr__(self) -> str:
        """List the fields that differ from their defaults."""
        given = [
            f"{part.name}={getattr(self, part.name)!r}"
            for part in fields(self)
            if part.name != "name" and getattr(self, part.name) is not part.default
        ]
        return f"{self.name}({', '.join(given)})"


def dorfl(
    rho: float | str = AUTO,
    beta: float | str = AUTO,
    score: Score | str | None = AUTO,
    *,
    outliers: float | str = AUTO,
    shift: float | str = AUTO,
    cost: Cost | None = None,
    mixture: str | Mixture = "fixed",
) -> AutoMethod:
    """Return DOR-FL with parameters that :func:`dorfl.train` chooses from the clients' data.

    This is what ``dorfl train data.csv`` and the estimators use. Robust locations and scales of the
    columns give ρ and the score their units, centres are per client (and class), and held-out rows
    decide whether outliers are down-weighted at all: see :mod:`dorfl.selection`. If they are not,
    the method is plain training. A number given here replaces the choice of that part.

    Parameters
    ----------
    rho
        Price of transport, per squared robust standard deviation of a column. "auto" derives it
        from `shift`.
    beta
        Price of reweighting rows, in units of transport.
    score
        Outlier score from :mod:`dorfl.scores` on standardised columns, or None for no score. "auto"
        is a quadratic score around robust centres.
    outliers
        Share of rows that may be outliers, from 0 to 0.4. "auto" compares 0, 0.1 and 0.25 on
        held-out rows.
    shift
        Distance in robust standard deviations by which a row may drift between training and use.
        "auto" is 0 if no row is down-weighted, otherwise 0.25.
    cost
        Transport cost on standardised columns. By default squared distance, with categorical
        columns frozen.
    mixture
        "fixed" (clients count by size), "agnostic" (worst mixture, by loss) or a rule from
        :mod:`dorfl.mixture`.

    Returns
    -------
    AutoMethod
        The open method. ``dorfl.defaults.choose(clients, method)`` resolves it.
    """
    for name, value in {"rho": rho, "beta": beta}.items():
        if value != AUTO and (isinstance(value, str) or not value > 0):
            raise ValueError(f'{name}={value}: must be positive, or "auto"')
    if score is not None and score != AUTO and not isinstance(score, Score):
        raise ValueError(f'score={score!r}: give a score from dorfl.scores, None or "auto"')
    check_outliers(outliers)
    check_shift(shift)
    return AutoMethod("dorfl", outliers, shift, rho, beta, score, cost, mixture)


NAMED: dict[str, Callable[[], Method | AutoMethod]] = {
    "erm": erm,
    "fedavg": erm,
    "afl": afl,
    "dorfl": dorfl,
    "paper": paper,
}


def named(name: str) -> Method | AutoMethod:
    """Return the method of a name such as "afl", with its defaults."""
    if name in ("wafl", "gdrfl"):
        raise ValueError(f"method={name!r}: needs a price of transport: methods.{name}(rho=…)")
    if name not in NAMED:
        raise ValueError(f"method={name!r}: choose one of {', '.join(NAMED)}, or dorfl.methods")
    return NAMED[name]()


def check_outliers(outliers: float | str) -> None:
    """Raise ValueError unless `outliers` is "auto" or a share from 0 to 0.4."""
    if outliers != AUTO and (isinstance(outliers, str) or not 0 <= outliers <= _MAX_OUTLIERS):
        raise ValueError(
            f"outliers={outliers}: must be a share from 0 to {_MAX_OUTLIERS}, or auto. Robust "
            "estimators break down near one half."
        )


def check_shift(shift: float | str) -> None:
    """Raise ValueError unless `shift` is "auto" or a finite number of at least 0."""
    if shift != AUTO and (isinstance(shift, str) or not 0 <= shift < np.inf):
        raise ValueError(f"shift={shift}: must be a number of standard deviations ≥ 0, or auto")
