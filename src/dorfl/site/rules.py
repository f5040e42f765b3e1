"""What a site refuses, by its policy, before the first statistic: each function returns a reason.

The study's text is compared before a row is read. Disclosure rules have the names that statistical
offices and DataSHIELD use (A. Hundepool et al., "Statistical Disclosure Control", 2012); their
numbers are in :class:`~dorfl.site.policy.Policy`. Two more need no number: columns in which fewer
than `least` rows differ are held constant (:func:`dorfl.protocol.training_rows.hold_constant`), and
a column that only numbers the rows is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dorfl import networks
from dorfl.data.preprocessing import Transform, columns
from dorfl.linear.problem import Problem
from dorfl.protocol import checks, site_keys
from dorfl.protocol.messages import MAX_ROUNDS, Agreement
from dorfl.protocol.settings import Study
from dorfl.selection import outliers
from dorfl.site.policy import Policy


def study_objection(agreement: Agreement, name: str, policy: Policy) -> str | None:
    """Return why the study asks for what site `name` does not give, or None."""
    study = agreement.study
    if not re.fullmatch(r"\w[\w.-]{0,119}", agreement.run):
        return "the run's name is not one that a folder can have"
    if agreement.site != name:
        return (
            f"the key of this site is registered for {agreement.site[:60]!r}, "
            f"but the site is called {name!r}"
        )
    try:
        checks.check(study)
    except ValueError as error:
        return f"the study cannot be run: {error}"
    for column in (study.data.label, *study.columns.use, *agreement.columns):
        if column not in policy.released:
            return (
                f"column {column[:60]!r} is not released by this site; a person there names "
                "the columns that studies may use: released = [...] in site.toml"
            )
    if not {part.name for part in agreement.transform.parts} <= set(agreement.columns):
        return "the transformation uses columns that were not agreed on"
    if agreement.row_limit not in (0, outliers.row_limit(len(study.sites))):
        return "candidates see another number of rows than the number of sites implies"
    if (reason := mode_objection(study, policy)) is not None:
        return reason
    if study.privacy.mode == "private" and _has_measured(agreement):
        return "the study is private: nothing but columns is agreed on before training"
    return _no_network(study, policy) if study.training.model != "linear" else None


def mode_objection(study: Study, policy: Policy) -> str | None:
    """Return why the site does not take part in the study's mode, or None."""
    epsilon, mode = study.privacy.epsilon, study.privacy.mode
    if policy.epsilon is not None and (epsilon is None or epsilon > policy.epsilon):
        return f"this site takes part with differential privacy of ε ≤ {policy.epsilon:g} only"
    if epsilon is not None and study.privacy.delta > policy.delta:
        return f"δ is above the {policy.delta:g} that this site allows"
    if policy.allow_open_reports or mode == "summed":
        return None
    if mode == "open":
        return (
            "this site sends no open reports; a person there may allow them, "
            'allow_open_reports = true in site.toml, or the study says reports = "summed"'
        )
    if not study.privacy.known:
        return (
            "before training the study asks for statistics without noise; name what is known of "
            "every column in privacy.known, or a person here sets allow_open_reports = true"
        )
    return None


def _has_measured(agreement: Agreement) -> bool:
    """Return whether an agreement has what private studies do not measure.

    Rows would be chosen or weighted by it, and noise is made for all rows with equal weights.
    """
    measured = (
        agreement.scales,
        agreement.center,
        agreement.scatter,
        agreement.candidate,
        agreement.decision,
        agreement.decay,
        agreement.reference,
    )
    given = any(value is not None for value in measured)
    return given or bool(agreement.cutoffs) or agreement.row_limit != 0


def sum_objection(study: Study, name: str, key: Any) -> str | None:
    """Return why a site of this name and private key does not sum with the study's sites."""
    if key is None:
        return "this site has no key to sign with, which a summed study needs"
    try:
        peers = site_keys.peers_of(study.privacy.peers)
    except ValueError as error:
        return str(error)
    if sorted(peers) != sorted(study.sites):
        return "the study does not name the keys of the sites that take part"
    if len({line.rpartition(" ")[2] for line in study.privacy.peers}) < len(peers):
        return "the study names one key for two sites"
    if site_keys.peer(name, key.public_key()) not in study.privacy.peers:
        return "the study names another key for this site than its own"
    return None


def _no_network(study: Study, policy: Policy) -> str | None:
    """Return why the site does not train the study's network, or None."""
    if not policy.networks:
        return (
            "this site trains no networks: every update, and every sum of updates, has more "
            "numbers than the rows that it is made of, which could be worked out. A person there "
            "may allow it all the same: networks = true in site.toml"
        )
    if (study.training.max_rounds or 0) > MAX_ROUNDS:
        return f"a network has more rounds than {MAX_ROUNDS}"
    if study.training.batch != 0:
        return "a network's steps are on all rows of a site: [training] batch = 0"
    try:
        networks.require()
    except ModuleNotFoundError as error:
        return f"this site cannot train networks yet: {error}"
    return None


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
