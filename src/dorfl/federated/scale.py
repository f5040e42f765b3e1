"""The scale σ of residuals as an unknown of training: where it starts, how a fit reports it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dorfl.linear import scale as scaling
from dorfl.linear.group import Group
from dorfl.linear.problem import Problem
from dorfl.objective.losses import ConcomitantHuber
from dorfl.solvers.base import Info
from dorfl.support.types import Array

LEAST = 1e-4  # of the scale of labels: residuals that vary less are rounding


class Settled(NamedTuple):
    """Result of a training in θ and σ, expressed as one in θ with the scale fixed."""

    problem: Problem  # of Huber's loss with δ = εσ; price, score and temperature times σ
    scale: float  # σ
    info: Info  # the last round's, with θ alone; objective, gap and risks are those of `problem`


def settle(problem: Problem, info: Info) -> Settled:
    """Split (θ, σ) and fix the scale.

    At the σ that was found, θ and λ also solve the problem with that scale fixed and a ridge of
    `l2` · σ. Its risks are σ times those that clients reported, less a constant.
    """
    scale = float(info.theta[-1])
    level = scaling.level(problem, scale)
    info = info._replace(
        theta=info.theta[:-1],
        objective=scale * (info.objective - level),
        gap=scale * info.gap,
        risks=scale * (info.risks - level),
    )
    return Settled(scaling.fixed(problem, scale), scale, info)


def prepared(
    group: Group, theta: Array | None = None, scale: float | None = None
) -> tuple[Group, Array]:
    """Return the clients with a lower bound of the scale set, and where (θ, σ) start.

    By default that is the constant model of the labels' median, and the scale of its residuals.
    """
    problem, target = group.problem, group.target
    loss = problem.loss
    assert isinstance(loss, ConcomitantHuber)
    median = np.quantile(target, 0.5, weights=group.mass, method="inverted_cdf")
    unit = _scale(target - median, loss, group.mass) or abs(float(median)) or 1.0
    if theta is None:
        theta = problem.start.copy()
        theta[problem.dims :] = median  # the intercept, if there is one
    if scale is None:
        residuals = target - problem.predict(theta, group.rows)
        scale = _scale(residuals, loss, group.mass) or unit
    if not loss.least:
        changed = replace(problem, loss=replace(loss, least=LEAST * unit))
        group = replace(group, problem=changed)
    return group, np.append(theta, scale)


def _scale(residuals: Array, loss: ConcomitantHuber, mass: Array | None) -> float:
    """Return the scale of residuals: Proposal 2, or if that is 0 the root mean square."""
    found = scaling.proposal2(residuals, loss, mass)
    return found or float(np.sqrt(np.average(residuals**2, weights=mass)))
