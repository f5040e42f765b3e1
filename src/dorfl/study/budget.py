"""How many numbers a study asks a site to tell, by a cautious estimate, before it begins.

A small site tells few in its life (:mod:`dorfl.study.ledger`), so it keeps some for studies to come
and begins no training that would end halfway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dorfl.data import preprocessing
from dorfl.linear.curvature import RESOLUTIONS
from dorfl.linear.problem import Problem
from dorfl.study import labels, meaning
from dorfl.study.messages import Agreement
from dorfl.study.settings import Study

ROUNDS = 6  # that a curvature leaves room for, and a training has at least
TRIAL = 5  # trainings there is room for when trials begin: they are two, the study's, two to come
SPARE = 2  # … beside a certificate, or a better unit of the loss
FINISHED = 24  # numbers told at the end
_USUAL = 12  # rounds of a training
_SUMMED = 40, 60  # at least and usually, where the worst mixture is looked for by sums alone


def ahead_of(study: Study, problem: Problem | None) -> int:
    """How many numbers the rounds after the first tell at least: without room none is begun."""
    if problem is None:
        return 0
    least = _SUMMED[0] if _alone(study, problem) else ROUNDS
    return (least - 1) * (1 + problem.layout.size)


def share_of(study: Study, problem: Problem | None, rows: int) -> float:
    """The numbers that a training of the study tells of so many rows, over those in the rows.

    >>> from dorfl.objective import losses, methods
    >>> share_of(Study("s"), Problem(methods.erm(), losses.resolve("logistic"), 6, ()), 200)
    0.12333333333333334
    """
    if problem is None:
        return 0.0
    finest = problem.layout.numbers(RESOLUTIONS[-1])
    many = _SUMMED[1] if _alone(study, problem) else _USUAL
    return (finest + many * (1 + problem.layout.size) + FINISHED) / max(rows * problem.dims, 1)


def foresee(agreement: Agreement, rows: Any, names: Sequence[str]) -> float | None:
    """The same of a study that is asked for, by a site's own columns; None if they do not tell.

    Other sites may have more levels and classes.
    """
    study = agreement.study
    try:
        told = preprocessing.summarise(rows.select(names), meaning.plan_of(study))
        label = labels.summarise(rows.column(study.data.label), study)
        task = meaning.task_of(study)
        task = labels.task_from([label]) if task == "auto" else task
        classes = tuple(study.data.classes or label.levels) if task != "regression" else ()
        transform = preprocessing.agree({agreement.site: told}, meaning.plan_of(study))
        problem = meaning.problem_of(agreement._replace(transform=transform, classes=classes))
    except Exception:  # whatever is asked for: a person has to see the study all the same
        return None
    needs = share_of(study, problem, rows.num_rows)
    return 1.5 * needs if meaning.selects(study) else needs  # candidates are trained beside it


def _alone(study: Study, problem: Problem) -> bool:
    return study.privacy.secure_sum and problem.method.mixture.adversarial
