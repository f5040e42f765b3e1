"""Labels: the task, and labels as numbers: classes in order, or values in robust units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dorfl.data import preprocessing
from dorfl.data.preprocessing import (
    Column,
    ColumnPlan,
    Deviation,
    Numeric,
    Transform,
    columns,
    summaries,
)
from dorfl.data.validation import are_classes
from dorfl.objective.base import Loss
from dorfl.protocol import private_columns, resolution
from dorfl.protocol.resolution import task_of
from dorfl.protocol.settings import Study
from dorfl.protocol.state import State
from dorfl.support.types import Array

FARTHEST = 30.0  # units of a label from its centre, at which it is clipped


def plan_of(study: Study) -> ColumnPlan:
    """Return how the label is summarised: classes, numbers, or by its values if left open."""
    kinds = {"classification": "category", "regression": "numeric"}
    task = task_of(study)
    named = {study.data.label: kinds[task]} if task != "auto" else {}
    return ColumnPlan(_scaling(study), named, least=study.privacy.least)


def unit_plan(study: Study) -> ColumnPlan:
    """Return how the unit of a numeric label is found."""
    kinds, floors = {study.data.label: "numeric"}, private_columns.floors(study)
    return ColumnPlan(_scaling(study), kinds, least=study.privacy.least, floors=floors)


def uses_median(study: Study, name: str) -> bool:
    """Return whether a column is centred at its median; the label is ""."""
    plan = resolution.plan_of(study) if name else unit_plan(study)
    return plan.scaling != "standard"


def _scaling(study: Study) -> str:
    return "standard" if study.privacy.known else "robust"  # noise is added to sums


def summarise(column: Any, study: Study) -> Column:
    """Summarise a label; if the task is open, few whole numbers count as levels too."""
    name, plan = study.data.label, plan_of(study)
    if plan.kinds or columns.kind_of(column) != "numeric":
        return summaries.summarise_column(column, name, plan)
    as_number, as_class = (replace(plan, kinds={name: kind}) for kind in ("numeric", "category"))
    found = summaries.summarise_column(column, name, as_number)
    if not are_classes(columns.present(columns.numbers(column, name))):
        return found
    return found._replace(levels=summaries.summarise_column(column, name, as_class).levels)


def task_from(columns_: Sequence[Column]) -> str:
    """Return the task for the labels of all clients: classification or regression."""
    if any(column.kind == "category" for column in columns_):
        return "classification"
    used = [column for column in columns_ if column.kind != "empty"]
    found = {float(level) for column in used for level in column.levels}
    few = bool(used) and all(column.levels for column in used)
    return "classification" if few and are_classes(np.array(sorted(found))) else "regression"


def task_in(column: Any, study: Study) -> str:
    """Return the task for a whole column of labels, unless the study states it."""
    if task_of(study) != "auto":
        return task_of(study)
    name = study.data.label
    classes = columns.kind_of(column) == "category" or are_classes(
        columns.present(columns.numbers(column, name))
    )
    return "classification" if classes else "regression"


def encode(
    column: Any, name: str, classes: tuple[str, ...], target: Numeric | None
) -> tuple[Array, Array]:
    """Return labels as numbers, and which rows have one; UnknownClassError for other classes."""
    if target is not None:
        values = columns.numbers(column, name)
        return (values - target.center) / target.spread, ~np.isnan(values)
    found = columns.levels(column, name)
    strange = [level for level in found.names if level not in classes]
    if strange:
        listed = ", ".join(map(repr, classes))
        raise UnknownClassError(f"column {name!r} has the value {strange[0]!r}, none of {listed}")
    place = np.array([classes.index(level) for level in found.names] + [-1], dtype=np.int64)
    codes = place[found.codes]
    return codes, codes >= 0


def for_training(y: Array, loss: Loss) -> Array:
    """Return labels as trained on: clipped if the loss has a bounded slope; the tilt has none."""
    return (
        np.clip(y, -FARTHEST, FARTHEST)
        if not loss.classifies and np.isfinite(loss.max_slope)
        else y
    )


def known(column: Any, study: Study) -> Array:
    """Return which rows have a label."""
    name, task = study.data.label, task_of(study)
    if task == "classification" or (task == "auto" and columns.kind_of(column) == "category"):
        found = columns.levels(column, name)
        if study.privacy.known:  # that there is another class must not show
            fits = [level in study.data.classes for level in found.names]
            return np.array([*fits, False])[found.codes]
        return np.asarray(found.codes >= 0)
    return ~np.isnan(columns.numbers(column, name))


def usable(column: Any, study: Study, least: int) -> Array:
    """Return which rows of a site take part: those with a label, and a class of `least` rows.

    Statistics by class would show the rows of a rare one. With noise this is not needed.
    """
    found = known(column, study)
    if least <= 1 or task_in(column, study) != "classification":
        return found
    codes = columns.levels(column, study.data.label).codes
    often = np.bincount(codes + 1)[codes + 1] >= least
    return np.asarray(found & often)


class UnknownClassError(ValueError):
    """A label is none of the classes; the text names it and must not be sent."""


def settle_label(state: State, summaries: dict[str, Column]) -> State:
    """Settle the task, and the classes or the centre of a numeric label."""
    study, label = state.study, state.study.data.label
    task = task_of(study)
    if task == "auto":
        task = task_from(list(summaries.values()))
    if task == "classification":
        held = {level for column in summaries.values() for level in column.levels}
        classes = tuple(columns.in_order(study.data.classes or held))
        if not (study.data.classes or state.here) and len(classes) > 2:
            check_support(label, summaries)
        if len(classes) < 2:
            raise ValueError(f"label {label!r}: the sites hold rows of one class only")
        return state.agree(classes=classes)
    scaled = preprocessing.agree({s: {label: c} for s, c in summaries.items()}, unit_plan(study))
    if not scaled.numeric:
        raise ValueError(f"label {label!r}: {scaled.ignored.get(label, 'has too few values')}")
    return state.agree(target=scaled.numeric[0]._replace(flagged=False, missing=0.0))


def scale_label(state: State, deviations: dict[str, Deviation]) -> State:
    """Settle the scale of a numeric label from the deviations of its values."""
    name, target = state.study.data.label, state.agreed.target
    far = {site: {name: deviation} for site, deviation in deviations.items()}
    parts = () if target is None else (target,)
    scaled = preprocessing.scale(Transform(parts, {}), far, unit_plan(state.study))
    return state.agree(target=scaled.numeric[0])


def check_support(label: str, summaries: dict[str, Column]) -> None:
    """Raise ValueError for classes of one site alone, which could invent any number of them."""
    for site, column in summaries.items():
        others = [set(other.levels) for name, other in summaries.items() if name != site]
        if others and (alone := set(column.levels).difference(*others)):
            raise ValueError(
                f"label {label!r}: {len(alone)} class(es) are at site {site!r} alone; name the "
                "classes that there are: [data] classes = [...]"
            )
