"""Options of training: names, defaults, descriptions and limits.

:func:`dorfl.train` takes them by name or as one record. The settings of a study
(:mod:`dorfl.protocol.settings`) and the commands take descriptions and defaults from here.
"""

# ruff: noqa: RUF009 - a function makes the fields, which have descriptions
from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from dorfl.federated.privacy import Gaussian
from dorfl.federated.report_bounds import Limits
from dorfl.linear.curvature import BUDGET, RESOLUTIONS
from dorfl.objective.base import Loss
from dorfl.solvers.base import Solver

_RENAMED = {"epsilon": "tolerance", "rounds": "max_rounds"}


def _option(default: Any, description: str) -> Any:
    return field(default=default, metadata={"description": description})


@dataclass(frozen=True, eq=False)
class Options:
    """Options of training; a value out of range raises a ValueError.

    >>> Options(l2=0.1).changed(tol=1e-3).tol
    0.001
    >>> Options(tol=0)
    Traceback (most recent call last):
    ValueError: tol=0: must be a positive number
    """

    loss: str | Loss = _option(
        "auto",
        "loss: logistic (two classes), softmax, squared, huber, or one of :mod:`dorfl.losses`; "
        "auto fits the labels",
    )
    solver: str | Solver = _option(
        "auto", "solver: auto, sqp, optimistic, paper, or one of :mod:`dorfl.solvers`"
    )
    tol: float = _option(1e-6, "stop when the optimality gap is below this share of the objective")
    max_rounds: int | None = _option(
        None, "largest number of rounds; by default as many as the solver needs"
    )
    curvature: str = _option(
        "auto", "finest curvature requested: auto, full, blocks, diagonal or none"
    )
    bytes_per_round: float = _option(
        BUDGET, "bytes that a client can send in a round; limits the curvature"
    )
    intercept: bool = _option(True, "whether the model has an intercept")
    l2: float = _option(0.0, "adds ½ l2 ‖θ‖²")
    seed: int = _option(0, "seed of random numbers")
    theta_radius: float = _option(np.inf, "keep ‖θ‖ below this radius")
    batch: int | None = _option(None, "rows that a client draws per round; by default all")
    participation: float = _option(1.0, "share of the clients that get a request in a round")
    tolerance: float = _option(
        0.0, "accuracy of the inner maximisation over rows; 0 solves it exactly"
    )
    limits: Limits | None = _option(
        None,
        "clip reports to what rows within these limits can give, and leave out clients whose "
        "reports contradict each other: see :mod:`dorfl.federated.report_bounds`",
    )
    liars: float = _option(
        0.0,
        "share of the clients that may be Byzantine; at most as many with outlying gradients are "
        "left out",
    )
    trim: float = _option(0.0, "share of the mixture that is trimmed from gradients on either side")
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
            ("theta_radius", self.theta_radius > 0, "must be positive, or infinity for no bound"),
            ("batch", batch is None or batch >= 1, "must be at least 1 row"),
            ("participation", 0 < self.participation <= 1, "must be above 0 and at most 1"),
            ("tolerance", 0 <= self.tolerance < np.inf, "must be a number of at least 0"),
            ("liars", 0 <= self.liars < 0.5, "must be from 0 (none) to below 0.5"),
            ("trim", 0 <= self.trim <= 0.5, "must be from 0 (the mean) to 0.5 (the median)"),
        ):
            if not fine:
                raise ValueError(f"{name}={getattr(self, name)}: {need}")

    def changed(self, **given: Any) -> Options:
        """Return a copy with other values.

        Parameters
        ----------
        **given
            Options by name.

        Raises
        ------
        TypeError
            If there is no option of that name; the message suggests one.
        ValueError
            If a value is out of range.

        >>> Options().changed(max_round=3)
        Traceback (most recent call last):
        TypeError: there is no option 'max_round'; did you mean 'max_rounds'?
        """
        known = [one.name for one in fields(self)]
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(_RENAMED.get(name, name), known, n=1)
                advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
                raise TypeError(f"there is no option {name!r}; {advice}")
        return replace(self, **given)

    @property
    def all_answer(self) -> bool:
        """Return whether every client is requested to report on all rows in every round."""
        return self.participation == 1.0 and self.batch is None

    @property
    def whole(self) -> bool:
        """Return whether all clients report on all rows and no gradient is trimmed."""
        return self.all_answer and self.trim == 0.0


def about(name: str) -> str:
    """Return the description of an option."""
    return str(next(one for one in fields(Options) if one.name == name).metadata["description"])


def numpydoc_of_options() -> str:
    """Return the options as entries of a numpydoc section."""
    listed = []
    for one in fields(Options):
        text = about(one.name)
        listed.append(f"    {one.name} : {one.type}, default {one.default!r}")
        listed.append(f"        {text[0].upper()}{text[1:]}.")
    return "\n".join(listed) + "\n"


Options.__doc__ = f"{Options.__doc__}\n    Attributes\n    ----------\n{numpydoc_of_options()}    "
