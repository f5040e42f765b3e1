"""The options of a training: their names, defaults, meaning and limits, in this one place.

:func:`dorfl.train` takes them by name or as one record; a study's settings
(:mod:`dorfl.study.settings`) and the commands' options take words and defaults from here.
"""

# ruff: noqa: RUF009 - an option is a field with words, made by a function
from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from dorfl.federated.defence import Limits
from dorfl.federated.privacy import Gaussian
from dorfl.linear.curvature import BUDGET, RESOLUTIONS
from dorfl.objective.base import Loss
from dorfl.solvers.base import Solver

_RENAMED = {"epsilon": "tolerance", "rounds": "max_rounds"}


def _option(default: Any, words: str) -> Any:
    return field(default=default, metadata={"words": words})


@dataclass(frozen=True, eq=False)
class Options:
    """How a model is trained; a value that cannot be is refused here.

    >>> Options(l2=0.1).changed(tol=1e-3).tol
    0.001
    >>> Options(tol=0)
    Traceback (most recent call last):
    ValueError: tol=0: must be a positive number
    """

    loss: str | Loss = _option(
        "logistic",
        "what is made small: logistic (two classes), softmax, squared, huber, or one of "
        ":mod:`dorfl.losses`",
    )
    solver: str | Solver = _option(
        "auto", "how it is solved: auto, sqp, optimistic, paper, or one of :mod:`dorfl.solvers`"
    )
    tol: float = _option(1e-6, "stop at a gap of this share of the objective")
    max_rounds: int | None = _option(None, "at most so many exchanges of messages")
    curvature: str = _option("auto", "the finest asked for: auto, full, blocks, diagonal or none")
    bytes_per_round: float = _option(BUDGET, "… that a site can send in so many bytes")
    intercept: bool = _option(True, "whether the model has one")
    l2: float = _option(0.0, "adds ½ l2 ‖θ‖²")
    seed: int = _option(0, "where random streams begin")
    theta_radius: float = _option(np.inf, "keep θ in the ball of this radius")
    batch: int | None = _option(None, "rows a client draws per round; by default all of them")
    participation: float = _option(1.0, "the share of clients asked in a round")
    tolerance: float = _option(
        0.0, "how far from its worst place a row may be left; 0: solved exactly"
    )
    limits: Limits | None = _option(
        None,
        "clip reports to what rows within these can give, and leave out clients that contradict "
        "themselves: see :mod:`dorfl.federated.defence`",
    )
    liars: float = _option(
        0.0,
        "the share of clients that may lie; as many that pull apart from the others are set aside",
    )
    trim: float = _option(0.0, "the share of the mixture whose gradients may be lies")
    privacy: Gaussian | None = _option(
        None, "differential privacy for every row: see :func:`dorfl.privacy.gaussian`"
    )

    def __post_init__(self) -> None:
        kinds, rounds, batch = ("auto", *RESOLUTIONS), self.max_rounds, self.batch
        for name, fine, need in (
            ("tol", 0 < self.tol < np.inf, "must be a positive number"),
            ("max_rounds", rounds is None or rounds >= 1, "must be at least 1"),
            ("curvature", self.curvature in kinds, f"choose one of {', '.join(kinds)}"),
            ("bytes_per_round", self.bytes_per_round >= 0, "must be at least 0"),
            ("l2", 0 <= self.l2 < np.inf, "must be a number of at least 0"),
            ("theta_radius", self.theta_radius > 0, "must be positive (infinity: no bound)"),
            ("batch", batch is None or batch >= 1, "must be at least 1 row"),
            ("participation", 0 < self.participation <= 1, "must be above 0 and at most 1"),
            ("tolerance", 0 <= self.tolerance < np.inf, "must be a number of at least 0"),
            ("liars", 0 <= self.liars < 0.5, "must be from 0 (none) to below 0.5"),
            ("trim", 0 <= self.trim <= 0.5, "must be from 0 (the mean) to 0.5 (the median)"),
        ):
            if not fine:
                raise ValueError(f"{name}={getattr(self, name)}: {need}")

    def changed(self, **given: Any) -> Options:
        """The options with others in the place of those named; an unknown name is an error.

        >>> Options().changed(max_round=3)
        Traceback (most recent call last):
        TypeError: there is no option 'max_round'; did you mean 'max_rounds'?
        """
        known = [one.name for one in fields(self)]
        for name in given:
            if name not in known:
                near = _RENAMED.get(name) or difflib.get_close_matches(name, known, n=1)
                meant = repr(near if isinstance(near, str) else near[0]) if near else ""
                advice = f"did you mean {meant}?" if near else f"there are {', '.join(known)}"
                raise TypeError(f"there is no option {name!r}; {advice}")
        return replace(self, **given)

    @property
    def all_answer(self) -> bool:
        """Whether everybody is asked every round, about all rows."""
        return self.participation == 1.0 and self.batch is None

    @property
    def whole(self) -> bool:
        """Whether gradients also count as they are."""
        return self.all_answer and self.trim == 0.0


def about(name: str) -> str:
    """What an option means, in words."""
    return str(next(one for one in fields(Options) if one.name == name).metadata["words"])


_LISTED = "\n".join(f"        {one.name}: {about(one.name)}." for one in fields(Options))
Options.__doc__ = f"{Options.__doc__}\n    Attributes:\n{_LISTED}\n    "
