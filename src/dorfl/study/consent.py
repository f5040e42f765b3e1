"""What a site agrees to before it looks at its rows: its policy against a study's words."""

from __future__ import annotations

import re
from typing import NamedTuple

from dorfl import networks
from dorfl.selection import outliers
from dorfl.study import checks
from dorfl.study.limits import Limits
from dorfl.study.messages import Agreement
from dorfl.study.settings import Study

MOST_ROUNDS = 10_000


class Refused(Exception):  # noqa: N818 - a decision, not an error
    """What is asked cannot be answered; the text holds no value and may be sent."""


class Policy(NamedTuple):
    """What a site is called, what of its table studies may use, and the least they keep to."""

    name: str
    released: tuple[str, ...]
    least: int
    epsilon: float | None
    limits: Limits


def objection(agreement: Agreement, policy: Policy) -> str | None:
    """Why the study asks for what the site does not give, or nothing."""
    study = agreement.study
    if not re.fullmatch(r"\w[\w.-]{0,119}", agreement.run):
        return "the run's name is not one that a folder can have"
    if agreement.site != policy.name:
        return (
            f"the key of this site is registered for {agreement.site[:60]!r}, "
            f"but the site is called {policy.name!r}"
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
    if agreement.transform is not None:
        used = {part.name for part in agreement.transform.parts}
        if not used <= set(agreement.columns):
            return "the transformation uses columns that were not agreed on"
    if agreement.row_limit not in (0, outliers.row_limit(len(study.sites))):
        return "candidates see another number of rows than the number of sites implies"
    shown = study.privacy.epsilon
    if policy.epsilon is not None and (shown is None or shown > policy.epsilon):
        return f"this site takes part with differential privacy of ε ≤ {policy.epsilon:g} only"
    if shown is not None and study.privacy.delta > policy.limits.delta:
        return f"δ is above the {policy.limits.delta:g} that this site allows"
    if study.training.model != "linear" and (reason := _no_network(study, policy)):
        return reason
    if study.privacy.least < policy.least:
        return (
            f"the study would tell of groups of {study.privacy.least} rows; "
            f"this site tells of {policy.least} at least"
        )
    return None


def _no_network(study: Study, policy: Policy) -> str | None:
    """Why the site does not train the study's network, or nothing."""
    if not policy.limits.networks:
        return (
            "this site trains no networks: every update has more numbers than the rows that it is "
            "made of, and the coordinator could work them out. A person there may allow it all the "
            "same: [limits] networks = true in site.toml"
        )
    if (study.training.max_rounds or 0) > MOST_ROUNDS:
        return f"a network has more rounds than {MOST_ROUNDS}"
    if study.training.batch != 0:
        return "a network's steps are on all rows of a site: [training] batch = 0"
    try:
        networks.require()
    except ModuleNotFoundError as error:
        return f"this site cannot train networks yet: {error}"
    return None
