"""Defaults that need no Greek: a method from what a person can say about the data.

`outliers` is the share of rows that may be wrong, `shift` how far (in standard deviations) a row
may drift between training and use. :func:`choose` turns these into ρ, β, ρ₂, V and ξ̄, and says why.
Whether rows that lie far out are wrong is decided from the data (:mod:`dorfl.study.suspects`),
unless `outliers` says so; where they are trusted the method is plain training, to the last digit:
no score, no tilt, for without a score a tilt makes wrong rows and wrong labels count more, and no
price on drift unless `shift` asks for one.

What it takes from the data is :mod:`dorfl.data.spread`: sums over clients, never a row.

- **Unit of a column.** A standard deviation that bad rows cannot move, from the nearest 80 % of
  the rows, or 1 − 2 · `outliers` if that is less. A column that mostly has one value does not
  drift: a row without a rare amount does not drift into having one.
- **`shift` = 0.25** where far-out rows are set aside: on rows held back that method as a whole has
  done better than plain training. Where they are trusted, 0: nothing in the rows tells of drift to
  come, and guarding against it costs a client or class whose labels are noisy up to three points
  (benchmarks/README.md). "wafl" and "gdrfl" are about drift: 0.25.
- **Price ρ = 8 / `shift`.** A row moves by s‖θ‖/ρ with s ≤ 1, so a model with ‖θ‖ = 8, one whose
  logits vary by 8 and that is right 93 times in 100, moves none further than `shift`. In a
  regression s is the slope of the loss, and the price is in units of it and y for that, and five
  times as high: columns that nearly say the same have large coefficients of opposite sign, and a
  lower price takes so much of them that the mean absolute error may grow by 7 %.
- **Score ρ₂ V.** Let Q be the squared distance within which the bulk of the rows lies. A row at
  squared distance R² weighs exp(−0.3 R²/Q) of what the middle one does: 74 % at the edge of the
  bulk, 30 % twice as far, 0.8 % four times as far. Halving 0.3 lets more bad rows through, doubling
  it costs clean accuracy; on real tables this is where both are small (benchmarks/defaults.py).
- **Tilt.** With a score only. A temperature ρβ of 32 raises a row with a log loss of 3 by a tenth:
  the worst served count a little more. It is less where the score would otherwise, at a ratio of
  2ρ₂V to the price ρ above 0.1, pull rows to the centre and so make the model too sure of itself.
- **Mixture.** Clients count by size. The worst mixture serves the client whose labels are noisiest;
  on real tables that helps the worst served group little where it does, and elsewhere leaves every
  group worse off (benchmarks/README.md). Ask for `mixture="agnostic"` where that client matters.
- **Centre.** Each client's own, unless most rows are with clients too small to have one; where
  classes lie apart, each class's, or one that is rare at a client would be suspect as a whole.

>>> import dorfl
>>> data = dorfl.datasets.synthetic(seed=0)
>>> choice = choose(data.clients)
>>> bool(dorfl.train(data.clients, choice.method).score(*data.test["client-3"]) > 0.98)
True
>>> print(choose(data.clients, outliers=0.1).words[0])
Up to 10 % of the rows may be wrong: a row at the edge of the bulk (the nearest 80 %, or more up \
to a gap) keeps 74 % of its weight, one twice as far 30 %, one four times as far 0.8 %.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dorfl.data import spread, validation
from dorfl.data.centers import at
from dorfl.data.spread import Spread
from dorfl.data.validation import Clients
from dorfl.federation import training
from dorfl.federation.fit import Fit
from dorfl.objective import costs, losses, methods, mixture, scores
from dorfl.objective.kinds import Loss
from dorfl.objective.methods import Method
from dorfl.objective.mixture import Mixture
from dorfl.study import suspects
from dorfl.study.edges import edges_of
from dorfl.study.suspects import Judged, Verdict
from dorfl.support.types import Array

STEEPNESS = 0.3  # −log of the weight at the edge of the bulk
STRENGTH = 8.0  # the ‖θ‖ that moves the worst row by `shift`
STRAINED = 5.0  # times as large for a number
TEMPERATURE = 32.0
SHIFT = 0.25  # where the data say nothing against it
PULL = 0.1  # the largest 2ρ₂V / ρ


@dataclass(frozen=True, eq=False)
class Choice:
    """A method, the reasons for it in plain words, and what it was derived from."""

    method: Method
    words: tuple[str, ...]
    spread: Spread


def choose(
    clients: Any,
    *,
    method: str = "dorfl",
    outliers: float | str = "auto",
    shift: float | str = "auto",
    frozen: Sequence[int] = (),
    loss: str | Loss = "logistic",
    rho: float | None = None,
    beta: float | None = None,
    score_weight: float | None = None,
    center: str | Sequence[float] | Mapping[str, Sequence[float]] | None = None,
    mixture: str | Mixture | None = None,
) -> Choice:
    """A method for these clients; whatever is given by hand is taken as it is.

    Args:
        clients: a list of (X, y), or a mapping of client name to (X, y); columns in any unit.
        method: "dorfl", or "erm", "afl", "wafl", "gdrfl" to compare with.
        outliers: the share of rows that may be wrong, from 0 (none, no row is suspect) to 0.4;
            "auto": decided from the data, by two short trainings.
        shift: how far a row may drift, in standard deviations; 0 if not at all; "auto": 0 where
            all rows are trusted, 0.25 elsewhere.
        frozen: columns that cannot drift nor be wildly off, such as one-hot categories.
        loss: what the method will be trained with.
        rho: the price of transport.
        beta: the price of reweighting rows, in units of transport.
        score_weight: ρ₂; V is such that h = ρ₂ for the outermost of the bulk of the rows.
        center: ξ̄, as :func:`dorfl.scores.quadratic` takes it.
        mixture: "fixed", "agnostic" or a rule from :mod:`dorfl.mixture`.
    """
    if method not in RULES:
        raise ValueError(f"method={method!r} is unknown; choose one of {', '.join(RULES)}")
    check_share(outliers)
    check_shift(shift)
    checked = validation.clients(clients)
    chosen = losses.resolve(loss)
    tables = {name: X for name, (X, _) in checked.items()}
    known = validation.classes(checked, chosen)
    labels = {n: np.searchsorted(known, y) if len(known) else y for n, (_, y) in checked.items()}
    dims = next(iter(tables.values())).shape[1]
    costs.squared(frozen=frozen).weights(dims)  # raises where a column does not exist
    places, own = spread.gather(list(tables.values()), list(labels.values()), len(known))
    share = suspects.ASSUMED if isinstance(outliers, str) else outliers
    found = spread.measure(places, suspects.measured(share))
    given: dict[str, Any] = {
        "method": method, "outliers": share, "shift": shift, "frozen": frozen, "loss": chosen,
        "rho": rho, "beta": beta, "score_weight": score_weight, "mixture": mixture,
    }  # fmt: skip
    if method != "dorfl" or not share > 0 or not (telling := shape_of(found, frozen)).any():
        return method_for(found, **given)
    centers: Any = center
    if center is None or isinstance(center, str):
        own = own and center != "auto"
        centers = dict(zip(tables, spread.centers_of(places, own, telling), strict=True))
    told = [
        spread.distances(X, at(center_of(centers, name), labels[name]), telling)
        for name, X in tables.items()
    ]
    edges = edges_of(told, share)
    given |= {"center": centers, "edge": edges[0]}
    if not isinstance(outliers, str):
        return method_for(found, **given)

    def choice(verdict: Verdict, edge: float) -> Choice:
        words = given | {"outliers": verdict.share, "edge": edge}
        return method_for(found, **words, verdict=verdict)

    tried = _tried(checked, classes=len(known) > 0)
    if len(validation.classes(tried, chosen)) < len(known):
        return choice(Verdict(share), edges[0])

    def fitted(verdict: Verdict, edge: float) -> Fit:
        return _fit(tried, choice(verdict, edge).method, chosen)

    def judged(fits: list[Fit], edge: float) -> list[Judged]:
        most, models = suspects.most_of(len(checked)), [fit.theta for fit in fits]
        return [
            suspects.judge(
                fits[0].problem, models, X, y, center_of(centers, name), telling / edge, most
            )
            for name, (X, y) in checked.items()
        ]

    fits = [fitted(Verdict(part), edges[0]) for part in (0.0, share)]
    verdict = suspects.verdict(judged(fits, edges[0]))
    if verdict.rows and len(edges) > 1:
        third = fitted(Verdict(suspects.HALF), edges[1])
        verdict = suspects.verdict(judged([fits[verdict.share > 0], third], edges[1]), verdict)
    return choice(verdict, edges[verdict.assumed == suspects.HALF])


def _tried(clients: Clients, *, classes: bool) -> Clients:
    """The rows that models are fitted to in a trial."""
    most = suspects.most_of(len(clients))
    places = {
        name: suspects.parts(len(y), most, y if classes else None)[0]
        for name, (_, y) in clients.items()
    }
    return {name: (X[places[name]], y[places[name]]) for name, (X, y) in clients.items()}


def _fit(clients: Clients, method: Method, loss: Loss) -> Fit:
    l2 = 1.0 / sum(len(y) for _, y in clients.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a trial has come to after so many rounds will do
        return training.train(
            clients, method, loss=loss, l2=l2, tol=suspects.TOL, max_rounds=suspects.ROUNDS
        )


def method_for(
    found: Spread,
    *,
    method: str,
    outliers: float,
    shift: float | str,
    frozen: Sequence[int],
    loss: Loss,
    rho: float | None = None,
    beta: float | None = None,
    score_weight: float | None = None,
    center: Any = "client",
    mixture: str | Mixture | None = None,
    edge: float | None = None,
    verdict: Verdict | None = None,
) -> Choice:
    """The method for rows that spread so; `edge` is how far the bulk of them lies from ξ̄.

    It takes no rows: a server that was told the spread chooses as :func:`choose` does. `outliers`
    comes from a `verdict` where one was asked for.
    """
    rule = _mixture(mixture or RULES[method])
    who = _WHO[rule.adversarial]
    if method in ("erm", "afl"):
        made = methods.erm() if method == "erm" else methods.afl()
        return Choice(replace(made, mixture=rule), (who,), found)

    held = np.zeros(len(found.units), dtype=bool)
    held[[*frozen, *found.rigid]] = True
    unit = 1.0
    if not loss.classifies:  # what a loss is measured in: how far y scatters, how steep it is there
        unit = found.target * min(found.target, loss.steep)
    price = float(rho) if rho is not None else np.inf
    shape = shape_of(found, frozen) / (edge or 1.0)
    suspected = method == "dorfl" and outliers > 0 and bool(shape.any())
    asked, needed = shift, suspected or method != "dorfl" or beta is not None
    if isinstance(shift, str):
        shift = SHIFT if needed else 0.0
    if rho is None and shift > 0 and not held.all():
        price = STRENGTH * unit / shift * (1.0 if loss.classifies else STRAINED)
    weight = 1.0 / np.where(found.units > 0, found.units, 1.0) ** 2
    cost = costs.squared(weight.tolist(), frozen=np.flatnonzero(held).tolist())
    drift = _drift_words(asked, shift, price, held)
    if method in ("wafl", "gdrfl"):
        made = methods.method(rho=price, cost=cost, mixture=rule, name=method)
        return Choice(made, (drift, who), found)

    temperature = np.inf  # without a score a tilt makes wrong rows and wrong labels count more
    if suspected:
        temperature = tilt(price, float((shape / weight)[~held].max(initial=0.0)), unit)
    if beta is not None:
        if np.isinf(price):
            raise ValueError("beta is in units of transport: give rho, or a shift above 0, with it")
        temperature = price * float(beta)
    made = methods.method(rho=price, cost=cost, temperature=temperature, mixture=rule, name="dorfl")
    about = () if verdict is None else suspects.label_words(verdict)
    if not suspected:
        told = [suspects.words(verdict)] if verdict is not None and verdict.rows else []
        return Choice(made, (*told, *about, drift, who), found)
    suspicion = STEEPNESS * temperature if score_weight is None else float(score_weight)
    made = replace(made, score=scores.quadratic(suspicion, center, shape))
    why = _outlier_words(outliers, suspicion / temperature, verdict)
    return Choice(made, (why, *about, drift, who), found)


def shape_of(found: Spread, frozen: Sequence[int]) -> Array:
    """V but for its size: what a column that varies and may be wildly off adds to a distance."""
    shape = np.zeros(len(found.units))
    np.divide(1.0, found.units**2, where=found.units > 0, out=shape)
    shape[list(frozen)] = 0.0
    return shape


def tilt(price: float, steepest: float, unit: float = 1.0) -> float:
    """The temperature ρβ at a price ρ; `steepest` is the largest of V in units of the cost."""
    pull = 2.0 * STEEPNESS * steepest
    return min(TEMPERATURE * unit, PULL * price / pull) if pull > 0 else TEMPERATURE * unit


def center_of(given: Any, name: str) -> Array:
    """ξ̄ of a client: one for all, or its own."""
    return np.asarray(given[name] if isinstance(given, Mapping) else given, dtype=float)


def _mixture(rule: str | Mixture) -> Mixture:
    """The rule; by name, one that compares losses and not how far out a client's rows lie."""
    if rule == "fixed":
        return mixture.fixed(by="loss")
    return mixture.agnostic(by="loss") if rule == "agnostic" else mixture.resolve(rule)


def check_share(outliers: float | str) -> None:
    """Raise for what is no share of rows that may be wrong."""
    if outliers != suspects.AUTO and (isinstance(outliers, str) or not 0 <= outliers <= 0.4):
        raise ValueError(
            f"outliers={outliers}: must be a share from 0 to 0.4, or auto; at most 0.4, for who is "
            "right if most rows are wrong?"
        )


def check_shift(shift: float | str) -> None:
    """Raise for what is no drift."""
    if shift != suspects.AUTO and (isinstance(shift, str) or not 0 <= shift < np.inf):
        raise ValueError(f"shift={shift}: a number of standard deviations, 0 or more, or auto")


RULES = {"dorfl": "fixed", "erm": "fixed", "afl": "agnostic", "wafl": "fixed", "gdrfl": "agnostic"}
_WHO = {
    False: "Every client counts by its number of rows.",
    True: "The worst served client counts most: the model is the best for the worst mixture.",
}


def _outlier_words(outliers: float, steepness: float, verdict: Verdict | None) -> str:
    share = [100.0 * np.exp(-steepness * ratio**2) for ratio in (1, 2, 4)]
    bulk = 100.0 * suspects.share_kept(outliers if verdict is None else verdict.assumed)
    why = f"Up to {100 * outliers:.3g} % of the rows may be wrong"
    return (
        f"{why if verdict is None else suspects.words(verdict)}: a row at the edge of the bulk "
        f"(the nearest {bulk:.3g} %, or more up to a gap) keeps {share[0]:.0f} % of its weight, "
        f"one twice as far {share[1]:.0f} %, one four times as far {share[2]:.1f} %."
    )


def _drift_words(asked: float | str, shift: float, price: float, held: Array) -> str:
    if np.isinf(price):
        if asked != suspects.AUTO:
            return "Rows do not drift."
        return "Rows are taken not to drift; a shift of 0.25 would guard against it, at a price."
    still = f"; {held.sum()} of {len(held)} columns cannot drift" if held.any() else ""
    if not shift > 0:  # the price was given by hand
        return f"Rows may drift at a price of {price:.3g} a squared standard deviation{still}."
    return (
        f"Rows may drift by up to about {shift:.3g} standard deviations (price {price:.3g}){still}."
    )
