"""Differentially private scales of columns, so that a study is private from end to end.

A study may state what is known of its columns (`[privacy] known`): the range of a number, the
levels of a category. Levels and classes are then those of the study, and no row is read for them. A
number is centred at the middle c of its range [a, b] and clipped to the range, and a missing value
is c. Sites report one statistic of all K such columns together:

    Σ |x − c|     replacing a row changes it by at most  (b − a)/2     in each column

In these units each sum moves by 1 at most, and all K by √K: with Gaussian noise of z √K units that
is one Gaussian mechanism of multiplier z. It gets a share of the budget (`resolution.BEFORE`),
training the rest: 1/z² of Gaussian mechanisms adds up exactly (:mod:`dorfl.federated.privacy`).
Post-processing costs nothing: the unit of a column is the mean distance of all sites' rows up to a
factor, and at least a twentieth of (b − a)/2. Squares would need some ten times the noise.

The only other statistic is how many rows have a label among the classes; it is not protected.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dorfl.data.preprocessing import Category, Column, Deviation, Numeric
from dorfl.data.preprocessing import columns as reading
from dorfl.federated.privacy import Gaussian
from dorfl.protocol.messages import Agreement, Columns, Scales
from dorfl.protocol.settings import Known, Study
from dorfl.support.types import Array

_MIN_SCALE = 0.05  # smallest scale of a column, in units of half its range
_ROUNDING = 1e-9  # of a centre that is computed from sums


def ranges(study: Study) -> dict[str, tuple[float, float]]:
    """Return the range of every numeric column.

    >>> from dorfl.protocol.settings import Data, Privacy
    >>> ranges(Study(Data("ill"), privacy=Privacy(known={"age": (0.0, 120.0), "sex": ("f", "m")})))
    {'age': (0.0, 120.0)}
    """
    known = study.privacy.known
    return {name: (float(of[0]), float(of[1])) for name, of in known.items() if not is_category(of)}


def is_category(known: Known) -> bool:
    """Return whether the levels of a column are known, and not its range."""
    return isinstance(known[0], str)


def floors(study: Study) -> dict[str, float]:
    """Return the smallest scales of columns."""
    return {name: _MIN_SCALE * (high - low) / 2.0 for name, (low, high) in ranges(study).items()}


def check(study: Study) -> None:
    """Raise ValueError if a study states too little for all statistics to have noise."""
    known, data = study.privacy.known, study.data
    for wrong, reason in (
        (study.privacy.epsilon is None, "is for differential privacy: set privacy.epsilon"),
        (not study.columns.use, "columns must not be found from rows: name them in columns.use"),
        (
            study.columns.scaling != "standard",
            'medians cannot have noise: set columns.scaling = "standard"',
        ),
        (
            not data.classes and data.label not in known,
            f"name the label's values, data.classes, or its range, privacy.known.{data.label}",
        ),
    ):
        if wrong:
            raise ValueError(f"privacy.known: {reason}")
    used = [name for name in study.columns.use if name not in study.columns.ignore]
    for name in (*used, *known):
        if name not in known:
            raise ValueError(
                f"privacy.known: nothing is known of column {name!r}; give the least and the most "
                "that it can be, [0, 120], or its levels"
            )
        if name not in (*used, data.label):
            raise ValueError(f"privacy.known: {name!r} is none of the columns in use")
        of, words = known[name], sum(isinstance(part, str) for part in known[name])
        fine = len(of) == words == len(set(of)) >= 2 if words else len(of) == 2 and of[0] < of[1]  # type: ignore[operator]
        if not fine or (name == data.label and words):
            raise ValueError(
                f"privacy.known.{name}: must be two numbers, the less one first, or two levels or "
                "more; the label's are data.classes"
            )
        if words > study.privacy.minimum_rows:
            raise ValueError(
                f"privacy.known.{name}: has {words} levels; set privacy.minimum_rows to as many"
            )


def strange(agreement: Agreement) -> str | None:
    """Return what of an agreement does not follow from the known columns, or None."""
    known = agreement.study.privacy.known
    for part in agreement.transform.parts:
        of = known.get(part.name, ())
        if isinstance(part, Category):
            fits = bool(of) and is_category(of) and set(part.levels) <= set(of)
        else:
            fits = bool(of) and not is_category(of) and not part.date and _fits(part, of)
        if not fits:
            return f"column {part.name[:60]!r} is not read as the study says"
    target = agreement.target
    if target is not None and not _fits(target, known.get(target.name, ())):
        return "the label is not read as the study says"
    if not agreement.target and set(agreement.classes) != set(agreement.study.data.classes):
        return "the classes are not those of the study"
    return None


def _fits(part: Numeric, known: Known) -> bool:
    """Return whether a number is centred at the middle of its range, and scaled by enough.

    A tiny scale or a huge imputation value would make features infinite in some rows alone, and
    that a site then refuses has no noise.
    """
    if len(known) != 2 or is_category(known):
        return False
    low, high = map(float, known)
    centered = max(abs(part.center - (low + high) / 2.0), abs(part.fill - part.center))
    least = min(_MIN_SCALE * (high - low) / 2.0, 1.0)  # 1 before scales are agreed on
    return centered <= _ROUNDING * (abs(low) + abs(high)) and part.spread >= (1 - _ROUNDING) * least


def columns(rows: Any, agreement: Agreement) -> Columns:
    """Return the columns as the study states them."""
    study, count = agreement.study, rows.num_rows
    known, found = study.privacy.known, ranges(study)

    def one(name: str) -> Column:
        if name in found:
            return Column("numeric", count, total=(count * sum(found[name]) / 2.0,))
        levels = study.data.classes if name == study.data.label else known[name]
        return Column("category", count, levels={str(level): 1 for level in levels})

    used = [name for name in agreement.columns if name not in study.columns.ignore]
    return Columns({name: one(name) for name in used}, one(study.data.label))


def scales(rows: Any, agreement: Agreement, noise: Gaussian | None) -> Scales:
    """Return sums of distances from the middles of the ranges, with noise."""
    assert noise is not None
    found, target = ranges(agreement.study), agreement.target
    away = [np.abs(_clipped(rows, name, of) - sum(of) / 2.0).sum() for name, of in found.items()]
    halves = np.array([(high - low) / 2.0 for low, high in found.values()])
    noisy = noise.before_training(agreement.site, np.array(away), halves)
    far = {
        name: Deviation(rows.num_rows, (float(part),))
        for name, part in zip(found, noisy, strict=True)
    }
    label = far.pop(agreement.study.data.label, None)
    return Scales(far, label if target else None)


def _clipped(rows: Any, name: str, within: tuple[float, float]) -> Array:
    values = reading.numbers(rows.column(name), name)
    return np.clip(np.where(np.isnan(values), sum(within) / 2.0, values), *within)
