"""Disclosure rules, checked from the study's text and the table before a study begins.

The rules have the names that statistical offices and DataSHIELD use (A. Hundepool et al.,
"Statistical Disclosure Control", 2012); their numbers are in :class:`~dorfl.site.policy.Policy`.
Two more need no number: columns in which fewer than `least` rows differ from all others are held
constant (:func:`dorfl.protocol.training_rows.hold_constant`), and a column that only numbers the
rows is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dorfl.data.preprocessing import Transform, columns
from dorfl.linear.problem import Problem
from dorfl.protocol.settings import Study
from dorfl.site.policy import Policy


def rows_objection(study: Study, policy: Policy, rows: int) -> str | None:
    """Return why the site has too few rows for the study, or None."""
    if study.privacy.least < policy.least:
        return (
            f"threshold rule: the study reports on groups of {study.privacy.least} rows, this site "
            f"on {policy.least} at least"
        )
    if rows < max(study.privacy.minimum_rows, policy.minimum_rows):
        return "minimum rows: has fewer rows than the study's minimum, or than the site's own"
    return None


def identifier_objection(study: Study, names: Sequence[str], rows: pa.Table) -> str | None:
    """Return which column that the study names only numbers the rows, or None."""
    asked = {*study.columns.use, *study.columns.numeric} - {*study.columns.ignore}
    for name in asked.intersection(names):
        if _numbers_rows(name, rows):
            return f"identifiers: column {name[:60]!r} only numbers the rows of this site"
    return None


def transform_objection(transform: Transform, rows: pa.Table) -> str | None:
    """Return which column that the model uses only numbers the rows, or None."""
    for part in transform.numeric:
        if not part.date and _numbers_rows(part.name, rows):
            return f"identifiers: column {part.name[:60]!r} only numbers the rows of this site"
    return None


def _numbers_rows(name: str, rows: pa.Table) -> bool:
    column = rows.column(name)
    if columns.kind_of(column) != "numeric":
        return False
    values = columns.numbers(column, name)
    return not np.isnan(values).any() and columns.is_identifier(values, name)


def parameters_objection(problem: Problem, policy: Policy, rows: int, whose: str) -> str | None:
    """Return why the model has too many columns for so many rows, or None.

    Counted are the columns of the design matrix with the intercept, as nfilter.glm does: the
    parameters of one class.
    """
    size = problem.dims + problem.intercept
    if size <= policy.parameters_per_row * rows:
        return None
    return (
        f"saturation rule: the model has {size} columns, more than "
        f"{policy.parameters_per_row:g} for each of {whose} {rows} rows (parameters_per_row in "
        "site.toml); use fewer columns"
    )
