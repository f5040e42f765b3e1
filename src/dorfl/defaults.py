"""Defaults that need no Greek: a method from what a person can say about the data.

`outliers` is the share of rows that may be wrong, `shift` how far (in standard deviations) a row
may drift between training and use. :func:`choose` turns these into ρ, β, ρ₂, V and ξ̄, and says why.

What it takes from the data is :mod:`dorfl.spread`: sums over clients, never a row.

- **Unit of a column.** A standard deviation that bad rows cannot move, from the `bulk`
  1 − 2 · `outliers` of the rows that lie nearest. A column that mostly has one value does not
  drift: a row without a rare amount does not drift into having one.
- **Price ρ = 8 / `shift`.** A row moves by s‖θ‖/ρ with s ≤ 1, so a model with ‖θ‖ = 8, one whose
  logits vary by 8 and that is right 93 times in 100, moves none further than `shift`. In a
  regression s is the slope of the loss, and the price is in units of it and y for that.
- **Score ρ₂ V.** Let Q be the squared distance within which the bulk of the rows lies. A row at
  squared distance R² weighs exp(−0.3 R²/Q) of what the middle one does: 74 % at the edge of the
  bulk, 30 % twice as far, 0.8 % four times as far. Halving 0.3 lets more bad rows through, doubling
  it costs clean accuracy; on real tables this is where both are small (benchmarks/defaults.py).
- **Tilt.** The temperature ρβ of 32 raises a row with a log loss of 3 by a tenth: the worst served
  count a little more. It is less where the score would otherwise, at a ratio of 2ρ₂V to the price ρ
  above 0.1, pull rows to the centre and so make the model too sure of itself.
- **Mixture.** Clients count by size. The worst mixture serves the client whose labels are noisiest;
  on real tables that helps the worst served group little where it does, and elsewhere leaves every
  group worse off (benchmarks/README.md). Ask for `mixture="agnostic"` where that client matters.
- **Centre.** Each client's own, unless most rows are with clients too small to have one.

>>> import dorfl
>>> data = dorfl.datasets.synthetic(seed=0)
>>> choice = choose(data.clients)
>>> bool(dorfl.train(data.clients, choice.method).score(*data.test["client-3"]) > 0.98)
True
>>> print(choice.words[0])
Up to 10 % of the rows may be wrong: a row as far out as the outermost of the nearest 80 % keeps \
74 % of its weight, one twice as far 30 %, one four times as far 0.8 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dorfl import costs, losses, methods, mixture, scores, spread, validation
from dorfl.losses import Loss
from dorfl.methods import Method
from dorfl.mixture import Mixture
from dorfl.spread import Spread
from dorfl.types import Array
from dorfl.validation import Clients

STEEPNESS = 0.3  # −log of the weight at the edge of the bulk
STRENGTH = 8.0  # the ‖θ‖ that moves the worst row by `shift`
TEMPERATURE = 32.0
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
    outliers: float = 0.1,
    shift: float = 0.25,
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
        outliers: the share of rows that may be wrong, from 0 (none, no row is suspect) to 0.4.
        shift: how far a row may drift, in standard deviations; 0 if not at all.
        frozen: columns that cannot drift nor be wildly off, such as one-hot categories.
        loss: what the method will be trained with.
        rho: the price of transport.
        beta: the price of reweighting rows, in units of transport.
        score_weight: ρ₂; V is such that h = ρ₂ for the outermost of the bulk of the rows.
        center: ξ̄, as :func:`dorfl.scores.quadratic` takes it.
        mixture: "fixed", "agnostic" or a rule from :mod:`dorfl.mixture`.
    """
    _check(method, outliers, shift)
    checked = validation.clients(clients)
    tables = {name: X for name, (X, _) in checked.items()}
    bulk = share_kept(outliers)
    found = spread.measure(tables, bulk)
    held = found.rigid.copy()
    held[list(_existing(frozen, len(held)))] = True
    rule = _mixture(mixture or RULES[method])
    who = _WHO[rule.adversarial]
    if method in ("erm", "afl"):
        made = methods.erm() if method == "erm" else methods.afl()
        return Choice(replace(made, mixture=rule), (who,), found)

    unit = _unit_of_loss(checked, losses.resolve(loss), bulk)
    price = float(rho) if rho is not None else np.inf
    if rho is None and shift > 0 and not held.all():
        price = STRENGTH * unit / shift
    weight = 1.0 / np.where(found.units > 0, found.units, 1.0) ** 2
    cost = costs.squared(weight.tolist(), frozen=np.flatnonzero(held).tolist())
    drift = _drift_words(shift, price, held)
    if method in ("wafl", "gdrfl"):
        made = methods.method(rho=price, cost=cost, mixture=rule, name=method)
        return Choice(made, (drift, who), found)

    telling = found.units > 0
    telling[list(frozen)] = False
    suspects = outliers > 0 and bool(telling.any())
    temperature, shape, middle = TEMPERATURE * unit, np.zeros(len(held)), _centers(center, found)
    if suspects:
        shape = np.where(telling, weight, 0.0)
        shape = shape / _edge(tables, middle, shape, bulk)
        temperature = tilt(price, float((shape / weight)[~held].max(initial=0.0)), unit)
    if beta is not None:
        if np.isinf(price):
            raise ValueError("beta is in units of transport: give rho, or a shift above 0, with it")
        temperature = price * float(beta)
    made = methods.method(rho=price, cost=cost, temperature=temperature, mixture=rule, name="dorfl")
    if not suspects:
        return Choice(made, (drift, who), found)
    suspicion = STEEPNESS * temperature if score_weight is None else float(score_weight)
    made = replace(made, score=scores.quadratic(suspicion, middle, shape))
    return Choice(made, (_outlier_words(outliers, suspicion / temperature), drift, who), found)


def tilt(price: float, steepest: float, unit: float = 1.0) -> float:
    """The temperature ρβ at a price ρ; `steepest` is the largest of V in units of the cost."""
    pull = 2.0 * STEEPNESS * steepest
    return min(TEMPERATURE * unit, PULL * price / pull) if pull > 0 else TEMPERATURE * unit


def share_kept(outliers: float) -> float:
    """The share of the rows, nearest first, that says what is usual: no outlier is among them."""
    return float(np.clip(1.0 - 2.0 * outliers, 0.5, 0.95))


def _unit_of_loss(checked: Clients, loss: Loss, bulk: float) -> float:
    """What a loss is measured in: how far y scatters times how steep the loss is there, or 1."""
    if loss.classifies:
        return 1.0
    targets = {name: np.asarray(y, dtype=np.float64)[:, None] for name, (_, y) in checked.items()}
    scatter = float(spread.measure(targets, bulk).units[0]) or 1.0
    return scatter * min(scatter, loss.delta if loss.name == "huber" else np.inf)


def _centers(given: Any, found: Spread) -> Any:
    """ξ̄ as asked for; found here, as training would look for it among all rows."""
    if given is None or (isinstance(given, str) and given == "client"):
        return found.centers
    return found.center if isinstance(given, str) and given == "auto" else given


def _edge(tables: Mapping[str, Array], middle: Any, shape: Array, bulk: float) -> float:
    """Q: the squared distance within which the bulk of the rows lies."""
    counts = []
    for name, X in tables.items():
        center = middle[name] if isinstance(middle, Mapping) else middle
        offset = spread.look(X) - np.asarray(center, dtype=float)
        counts.append(spread.count((offset**2 @ shape)[:, None]))
    away = spread.add(counts)
    return float(spread.quantile(away, bulk)[0] or spread.quantile(away, 0.5, nonzero=True)[0])


def _existing(frozen: Sequence[int], dims: int) -> Sequence[int]:
    costs.squared(frozen=frozen).weights(dims)  # raises where a column does not exist
    return frozen


def _mixture(rule: str | Mixture) -> Mixture:
    """The rule; by name, one that compares losses and not how far out a client's rows lie."""
    if rule == "fixed":
        return mixture.fixed(by="loss")
    return mixture.agnostic(by="loss") if rule == "agnostic" else mixture.resolve(rule)


def _check(method: str, outliers: float, shift: float) -> None:
    if method not in RULES:
        raise ValueError(f"method={method!r} is unknown; choose one of {', '.join(RULES)}")
    if not 0 <= outliers <= 0.4:
        raise ValueError(
            f"outliers={outliers}: the share of wrong rows, from 0 to 0.4; with more than that "
            "nothing tells the wrong rows from the right ones"
        )
    if not 0 <= shift < np.inf:
        raise ValueError(f"shift={shift}: a number of standard deviations, 0 or more")


RULES = {"dorfl": "fixed", "erm": "fixed", "afl": "agnostic", "wafl": "fixed", "gdrfl": "agnostic"}
_WHO = {
    False: "Every client counts by its number of rows.",
    True: "The worst served client counts most: the model is the best for the worst mixture.",
}


def _outlier_words(outliers: float, steepness: float) -> str:
    share = [100.0 * np.exp(-steepness * ratio**2) for ratio in (1, 2, 4)]
    bulk = 100.0 * share_kept(outliers)
    return (
        f"Up to {100 * outliers:.3g} % of the rows may be wrong: a row as far out as the outermost "
        f"of the nearest {bulk:.3g} % keeps {share[0]:.0f} % of its weight, one twice as far "
        f"{share[1]:.0f} %, one four times as far {share[2]:.1f} %."
    )


def _drift_words(shift: float, price: float, held: Array) -> str:
    if np.isinf(price):
        return "Rows do not drift."
    still = f"; {held.sum()} of {len(held)} columns cannot drift" if held.any() else ""
    return (
        f"Rows may drift by up to about {shift:.3g} standard deviations (price {price:.3g}){still}."
    )
