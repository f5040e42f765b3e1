"""Defaults that need no Greek: a method from what a person can say about the data.

`outliers` is the share of rows that may be wrong, `shift` how far (in standard deviations) a row
may drift between training and use. :func:`choose` turns these into ρ, β, ρ₂, V and ξ̄, and says why.

What it takes from the data are sums over clients: a robust centre of each (:mod:`dorfl.centers`),
then counts of how far rows lie from it, column by column and as a whole. Counts add up, so the
choice hardly depends on how rows are divided among clients, and no row leaves its own.

- **Unit of a column.** How near the nearest rows, `bulk` = 1 − 2 · `outliers` of all, keep to the
  median, over what that is for a normal distribution: a standard deviation that bad rows cannot
  move. A column that mostly has one value (nearly always nil, or a flag) has no such unit: there
  it is the typical size of the other values, or honest rare amounts would all look wild; and it
  does not drift, as a row without such an amount does not drift into having one.
- **Price ρ = 4 / `shift`.** A row moves by s‖θ‖/ρ with s ≤ 1, so a model with ‖θ‖ = 4, one whose
  logits vary by 4 and that is right nine times in ten, moves none further than `shift`. In a
  regression s is the residual; the price has the squared unit of y for that.
- **Score ρ₂ V.** Let Q be the squared distance within which the bulk of the rows lies. A row at
  squared distance R² weighs exp(−0.3 R²/Q) of what the middle one does: 74 % at the edge of the
  bulk, 30 % twice as far, 0.8 % four times as far. Halving 0.3 lets more bad rows through, doubling
  it costs clean accuracy; on real tables this is where both are small (benchmarks/defaults.py).
- **Tilt.** The temperature ρβ of 16 raises a row with a log loss of 3 by a fifth: the worst served
  count a little more. It is less where the score would otherwise, at a ratio of 2ρ₂V to the price ρ
  above 0.1, pull rows to the centre and so make the model too sure of itself.
- **Mixture.** Clients count by size. The worst mixture serves the client whose labels are noisiest,
  at the expense of the others: over the tables it costs the worst served group up to 2.7 points,
  this at most a few tenths. Ask for `mixture="agnostic"` where that client is the one that matters.
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
from scipy.special import ndtri

from dorfl import centers, costs, losses, methods, mixture, scores, validation
from dorfl.losses import Loss
from dorfl.methods import Method
from dorfl.mixture import Mixture
from dorfl.types import Array

STEEPNESS = 0.3  # −log of the weight at the edge of the bulk
STRENGTH = 4.0  # the ‖θ‖ that moves the worst row by `shift`
TEMPERATURE = 16.0
PULL = 0.1  # the largest 2ρ₂V / ρ
FEW = 20  # rows below which a client has no centre of its own
LOOK = 20_000  # rows of a client that are looked at: enough to know a quantile within a percent

_PER_OCTAVE, _OCTAVES = 8, 96  # bins of the counts: 9 % wide, from 2⁻⁹⁶ to 2⁹⁶


@dataclass(frozen=True, eq=False)
class Choice:
    """A method, the reasons for it in plain words, and what it was derived from."""

    method: Method
    words: tuple[str, ...]
    units: (
        Array  # of every column: a standard deviation that outliers do not move; 0 for a constant
    )
    center: Array  # the clients' centres averaged: for a client that was not there


class _Surroundings:
    """Counts of sizes |x| on a logarithmic scale, column by column; those of clients add up."""

    def __init__(self, counts: Array):
        self.counts = counts  # (columns, 1 + bins), the first for exact zeros

    @classmethod
    def of(cls, sizes: Array) -> _Surroundings:
        with np.errstate(divide="ignore"):
            octave = np.log2(np.abs(sizes)) + _OCTAVES
        bins = 2 * _OCTAVES * _PER_OCTAVE
        index = np.where(sizes == 0, 0.0, 1.0 + np.clip(octave * _PER_OCTAVE, 0, bins - 1))
        columns = index.astype(np.int64).T
        return cls(np.array([np.bincount(column, minlength=bins + 1) for column in columns]))

    def __add__(self, other: _Surroundings) -> _Surroundings:
        return _Surroundings(self.counts + other.counts)

    def quantile(self, share: float, *, nonzero: bool = False) -> Array:
        """The size that `share` of the rows (of those that are not zero) stay below."""
        counts = self.counts.astype(float)
        if nonzero:
            counts[:, 0] = 0.0
        below = np.cumsum(counts, axis=1)
        wanted = share * below[:, -1:]
        at = np.argmax(below >= np.maximum(wanted, 1e-12), axis=1)
        row = np.arange(len(counts))
        inside = (wanted[:, 0] - (below - counts)[row, at]) / np.maximum(counts[row, at], 1e-12)
        size = np.exp2((at - 1 + np.clip(inside, 0.0, 1.0)) / _PER_OCTAVE - _OCTAVES)
        return np.where(at == 0, 0.0, size)


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
    chosen = losses.resolve(loss)
    checked = validation.clients(clients)
    dims = next(iter(checked.values()))[0].shape[1]
    costs.squared(frozen=frozen).weights(dims)  # raises where a column does not exist
    if method in ("erm", "afl"):
        made = methods.erm() if method == "erm" else methods.afl()
        if mixture is not None:
            made = replace(made, mixture=_mixture(mixture))
        return Choice(made, (_WHO[made.mixture.adversarial],), np.ones(dims), np.zeros(dims))

    looked = {name: (_look(X), _look(y)) for name, (X, y) in checked.items()}
    tables = {name: np.asarray(X, dtype=np.float64) for name, (X, _) in looked.items()}
    counts = np.array([len(y) for _, y in checked.values()])
    own = 2 * counts[counts >= FEW].sum() >= counts.sum()
    bulk = max(1.0 - 2.0 * outliers, 0.5)
    units, rigid = _units(list(tables.values()), bulk, own)
    rigid[list(frozen)] = True
    scale = 1.0
    if not chosen.classifies:
        target = [np.asarray(y, dtype=np.float64)[:, None] for _, y in looked.values()]
        scale = float(_units(target, bulk, own)[0][0]) or 1.0

    drifts = shift > 0 and not rigid.all()
    price = (STRENGTH * scale**2 / shift if drifts else np.inf) if rho is None else float(rho)
    weight = np.where(units > 0, 1.0 / np.where(units > 0, units, 1.0) ** 2, 1.0)
    cost = costs.squared(weight.tolist(), frozen=np.flatnonzero(rigid).tolist())
    words = [_drift_words(shift, price, rigid)]
    if method in ("wafl", "gdrfl"):
        rule = _mixture(mixture or ("fixed" if method == "wafl" else "agnostic"))
        made = methods.method(rho=price, cost=cost, mixture=rule, name=method)
        words.append(_WHO[rule.adversarial])
        return Choice(made, tuple(words), units, np.zeros(dims))

    rule = _mixture(mixture or "fixed")
    telling = units > 0
    telling[list(frozen)] = False
    summaries = [centers.summarise(X) for X in tables.values()]
    common = centers.combine(
        [s._replace(kept=round(s.kept * n / len(X))) for s, n, X in
         zip(summaries, counts, tables.values(), strict=True)]
    )  # fmt: skip
    middle: Any = center
    if center is None or center == "client":
        middle = {
            name: s.mean if own else common for name, s in zip(tables, summaries, strict=True)
        }
    elif center == "auto":
        middle = dict.fromkeys(tables, common)
    shape, temperature = np.zeros(dims), TEMPERATURE * scale**2
    suspects = outliers > 0 and telling.any()
    if suspects:
        shape = np.where(telling, weight, 0.0)
        shape = shape / _edge(tables, middle, shape, bulk, common)
        if np.isfinite(price):
            moving = (shape / weight)[~rigid]
            pull = 2.0 * STEEPNESS * float(moving.max(initial=0.0))
            temperature = min(temperature, PULL * price / pull) if pull > 0 else temperature
    if beta is not None:
        if np.isinf(price):
            raise ValueError("beta is in units of transport: give rho, or a shift above 0, with it")
        temperature = price * float(beta)
    suspicion = temperature * STEEPNESS if score_weight is None else float(score_weight)
    score = scores.quadratic(suspicion, middle, shape) if suspects else None
    if suspects:
        words.insert(0, _outlier_words(outliers, bulk, suspicion / temperature))
    made = methods.method(
        rho=price, cost=cost, temperature=temperature, score=score, mixture=rule, name="dorfl"
    )
    words.append(_WHO[rule.adversarial])
    return Choice(made, tuple(words), units, common)


def _units(tables: Sequence[Array], bulk: float, own: bool) -> tuple[Array, Array]:
    """The unit of every column, and whether it mostly has one value."""
    middles = np.array([np.median(X, axis=0) for X in tables])
    if not own:  # the middle of the middles: no client is large enough to have one of its own
        middles = np.tile(np.median(middles, axis=0), (len(tables), 1))
    around = _Surroundings.of(tables[0] - middles[0])
    for X, m in zip(tables[1:], middles[1:], strict=True):
        around = around + _Surroundings.of(X - m)
    rigid = around.quantile(0.5) == 0.0
    usual = around.quantile(bulk) / ndtri(0.5 + bulk / 2.0)
    return np.where(rigid, around.quantile(0.5, nonzero=True), usual), rigid


def _edge(
    tables: Mapping[str, Array], middle: Any, shape: Array, bulk: float, common: Array
) -> float:
    """Q: the squared distance within which the bulk of the rows lies."""
    around = None
    for name, X in tables.items():
        center = middle.get(name, common) if isinstance(middle, Mapping) else middle
        squared = ((X - np.asarray(center, dtype=float)) ** 2) @ shape
        counted = _Surroundings.of(squared[:, None])
        around = counted if around is None else around + counted
    assert around is not None
    edge = float(around.quantile(bulk)[0])
    return edge if edge > 0 else float(around.quantile(0.5, nonzero=True)[0])


def _look(values: Array) -> Array:
    """At most LOOK of the rows, the same ones every time."""
    if len(values) <= LOOK:
        return values
    rows = np.random.default_rng(0).choice(len(values), LOOK, replace=False, shuffle=False)
    return np.asarray(values[np.sort(rows)])


def _mixture(rule: str | Mixture) -> Mixture:
    """The rule; by name, one that compares losses and not how far out a client's rows lie."""
    if rule == "fixed":
        return mixture.fixed(by="loss")
    return mixture.agnostic(by="loss") if rule == "agnostic" else mixture.resolve(rule)


def _check(method: str, outliers: float, shift: float) -> None:
    if method not in _METHODS:
        raise ValueError(f"method={method!r} is unknown; choose one of {', '.join(_METHODS)}")
    if not 0 <= outliers <= 0.4:
        raise ValueError(
            f"outliers={outliers}: the share of wrong rows, from 0 to 0.4; with more than that "
            "nothing tells the wrong rows from the right ones"
        )
    if not 0 <= shift < np.inf:
        raise ValueError(f"shift={shift}: a number of standard deviations, 0 or more")


_METHODS = ("dorfl", "erm", "afl", "wafl", "gdrfl")
_WHO = {
    False: "Every client counts by its number of rows.",
    True: "The worst served client counts most: the model is the best for the worst mixture.",
}


def _outlier_words(outliers: float, bulk: float, steepness: float) -> str:
    share = [100.0 * np.exp(-steepness * ratio**2) for ratio in (1, 2, 4)]
    return (
        f"Up to {100 * outliers:.3g} % of the rows may be wrong: a row as far out as the outermost "
        f"of the nearest {100 * bulk:.3g} % keeps {share[0]:.0f} % of its weight, one twice as far "
        f"{share[1]:.0f} %, one four times as far {share[2]:.1f} %."
    )


def _drift_words(shift: float, price: float, rigid: Array) -> str:
    if np.isinf(price):
        return "Rows do not drift."
    held = f"; {rigid.sum()} of {len(rigid)} columns cannot drift" if rigid.any() else ""
    return (
        f"Rows may drift by up to about {shift:.3g} standard deviations (price {price:.3g}){held}."
    )
