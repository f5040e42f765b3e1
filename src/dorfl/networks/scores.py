"""Outlier scores of rows for networks, and the statistics that clients agree on for them.

A score is a function h(x, y) of tensors. Scores of NumPy arrays (:mod:`dorfl.scores`) can be used,
too. :func:`distance` is for inputs with many correlated columns, such as pictures: how far a row is
from the median of its class in the leading components.

A score whose centre or scales come from rows is found in stages before the first round. In each
stage clients report statistics of their rows, and the server combines them (:class:`Search`).

>>> x = torch.randn(500, 6, generator=torch.Generator().manual_seed(0))
>>> x[:25] *= -8
>>> rows = gather([(x, torch.zeros(500))], torch.float32, classify=True)
>>> h = distance(20.0).find(rows)(*rows.known(0))
>>> bool(h[:25].min() > 20 * h[25:].median())
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from dorfl.data import robust
from dorfl.networks.aggregation import weighted_median
from dorfl.networks.data import ClientRows, gather  # noqa: F401 - for the example above
from dorfl.networks.device import array, tensor
from dorfl.networks.supremum import RowScore
from dorfl.objective.base import Score
from dorfl.objective.methods import Method
from dorfl.support.types import Array

LEAST = 5  # fewest rows of a statistic that a client reports
CONSISTENT = 1.4826  # median absolute deviation → standard deviation of normal values
Agreed: TypeAlias = dict[str, Array]  # combined statistics, by stage


class LocalStatistics(NamedTuple):
    """Statistics of a client for a stage."""

    values: Array  # The statistics
    weight: Array  # Rows behind each of them; 0 for fewer than ``LEAST``


class Search(Protocol):
    """Statistics that clients agree on, in stages."""

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages, in order."""
        ...

    def report(self, stage: str, rows: ClientRows, agreed: Agreed) -> LocalStatistics:
        """Return the statistics of a client's rows, given those of earlier stages."""
        ...

    def combine(self, stage: str, reports: Sequence[LocalStatistics]) -> Array:
        """Return one array from all clients' statistics, in the clients' order."""
        ...


class Center:
    """Find ξ̄ of a quadratic score, common to all clients: :mod:`dorfl.data.robust`.

    >>> rows = gather([(np.ones((8, 2)), np.zeros(8))], torch.float32, classify=True)
    >>> find(Center(), rows)["center"].tolist()
    [1.0, 1.0]
    """

    stages = ("center",)

    def report(self, stage: str, rows: ClientRows, agreed: Agreed) -> LocalStatistics:
        """Return the mean of the rows within the cutoff."""
        del stage, agreed
        kept, mean = robust.local_center(array(rows.known(0)[0].flatten(1)), LEAST)
        return LocalStatistics(mean, np.array([kept], dtype=float))

    def combine(self, stage: str, reports: Sequence[LocalStatistics]) -> Array:
        """Return the mean of the clients' means."""
        del stage
        return robust.average_centers(
            [robust.LocalCenter(float(one.weight[0]), one.values) for one in reports]
        )


def search(method: Method, score: Any = None) -> Search | None:
    """Return how the statistics of a score are found; None if it needs none.

    `score` takes the place of the method's.
    """
    if score is not None:
        return score if hasattr(score, "stages") else None
    own = None if method.score is None else method.score.center
    return Center() if isinstance(own, str) and own != "client" else None


def find(seeking: Search, rows: ClientRows) -> Agreed:
    """Return the statistics of all stages, with the clients of this process."""
    agreed: Agreed = {}
    for stage in seeking.stages:
        clients = (rows.select([i]) for i in range(len(rows.names)))
        agreed[stage] = seeking.combine(stage, [seeking.report(stage, c, agreed) for c in clients])
    return agreed


@dataclass(frozen=True, eq=False)
class Distance:
    """h(x, y) = weight · min(max(d²/median − slack, 0), cap); see :func:`distance`."""

    weight: float
    components: int
    slack: float
    cap: float
    features: Callable[[Tensor], Tensor] | None

    stages = ("median", "axes", "scale", "typical")

    def report(self, stage: str, rows: ClientRows, agreed: Agreed) -> LocalStatistics:
        """Return medians by class, or for the axes a sum over rows of bounded terms."""
        own, y = rows.known(0)
        kinds = max(1, len(rows.classes))
        kind = y if len(rows.classes) else torch.zeros_like(y, dtype=torch.long)
        x = self._features(own)
        if stage == "median":
            return _medians(x, kind, kinds)
        median, *others = (tensor(agreed[k], x) for k in self.stages if k in agreed)
        offset = x - median[kind]
        if stage == "axes":
            unit = nn.functional.normalize(offset)
            return LocalStatistics(array(unit.T @ unit), np.array([len(x)], dtype=float))
        near, off = _parts(offset, others[0])
        if stage == "scale":
            return _medians(near.abs(), kind, kinds)
        inside = ((near / others[1][kind]) ** 2).mean(1)
        return _medians(torch.stack([inside, off], 1), kind, kinds)

    def combine(self, stage: str, reports: Sequence[LocalStatistics]) -> Array:
        """Return the median of the clients' medians, or the leading components.

        The components are of rows scaled to length 1, so that none counts more than another (the
        spatial-sign covariance of Locantore et al., 1999).
        """
        if stage == "axes":
            total = np.asarray(sum(one.values for one in reports))
            if self.components >= len(total):
                return np.eye(len(total), dtype=total.dtype)
            axes = torch.linalg.eigh(torch.as_tensor(total)).eigenvectors
            return array(axes[:, -self.components :])
        medians = _by_class(reports)
        if stage != "median":
            medians = medians.clamp(min=1e-6) * (CONSISTENT if stage == "scale" else 1.0)
        return array(medians)

    def find(self, rows: ClientRows) -> RowScore:
        """Return the score, with the statistics of the clients of this process."""
        return self.at(find(self, rows), len(rows.classes) > 0)

    def at(self, agreed: Agreed, classify: bool) -> RowScore:
        """Return the score for combined statistics."""
        full = len(set(agreed["axes"].shape)) == 1  # the components span all inputs

        def score(x: Tensor, y: Tensor) -> Tensor:
            kind = y if classify else torch.zeros_like(y, dtype=torch.long)
            found = self._features(x)
            center, axes, scale, typical = (tensor(agreed[k], found) for k in self.stages)
            near, off = _parts(found - center[kind], axes)
            inside = ((near / scale[kind]) ** 2).mean(1) / typical[kind, 0]
            ratio = inside if full else torch.maximum(inside, off / typical[kind, 1])
            return self.weight * (ratio - self.slack).clamp(0.0, self.cap)

        return score

    def _features(self, x: Tensor) -> Tensor:
        return (x if self.features is None else self.features(x)).flatten(1)


def distance(
    weight: float,
    components: int = 30,
    slack: float = 2.5,
    cap: float = 30.0,
    features: Callable[[Tensor], Tensor] | None = None,
) -> Distance:
    """Return a score: the squared distance from the class's median, relative to its median row.

    The distance is along the leading components or off them, whichever is larger (ROBPCA, Hubert et
    al., 2005): a row can be extreme, or unlike all rows of its class.

    Parameters
    ----------
    weight
        Cost of one unit, in units of the loss. With a tilt of temperature τ a row has weight
        exp(−h/τ), so give about τ.
    components
        Number of leading components.
    slack
        Units up to which a row costs nothing.
    cap
        Largest number of units above `slack`.
    features
        Function that maps rows to the features that are measured.
    """
    if not (weight >= 0 and components >= 1 and slack >= 0 and cap > 0):
        raise ValueError("distance: weight and slack must be ≥ 0, components and cap positive")
    return Distance(float(weight), int(components), float(slack), float(cap), features)


def row_score(score: Any, rows: ClientRows, agreed: Agreed | None = None) -> RowScore | None:
    """Return any score as a function of tensors; None for a quadratic one, part of the geometry."""
    if score is None:
        return None
    if isinstance(score, Distance):
        return score.find(rows) if agreed is None else score.at(agreed, len(rows.classes) > 0)
    if isinstance(score, Score):
        score.check(rows.dims, rows.classes)
        return None if score.hessian(rows.dims) is not None else _bridge(score, rows)
    if callable(score):
        return score
    raise ValueError(f"score={score!r}: give one of dorfl.scores, or a function of (rows, labels)")


def _bridge(score: Score, rows: ClientRows) -> RowScore:
    """Return a score of NumPy arrays, with its gradient, as one of tensors."""
    if score.center is not None:
        raise ValueError("score: one with a centre must be a quadratic; else give a function")
    center, classes = np.zeros(rows.dims), rows.classes

    def arrays(x: Tensor, y: Tensor) -> tuple[Array, Array, Array]:
        labels = classes[array(y)] if len(classes) else array(y)
        return array(x.flatten(1).double()), center, labels

    class Bridge(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return tensor(score.at(*arrays(x, y)), x)

        @staticmethod
        def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, None]:
            x, y = ctx.saved_tensors
            slope = tensor(score.gradient(*arrays(x, y)), x)
            return grad[0].view(-1, *[1] * (x.ndim - 1)) * slope.view_as(x), None

    return Bridge.apply


def _parts(offset: Tensor, axes: Tensor) -> tuple[Tensor, Tensor]:
    """Return offsets (n, d) along the components (n, k), and the squared length off them (n,)."""
    near = offset @ axes
    return near, (offset**2).sum(1) - (near**2).sum(1)


def _medians(x: Tensor, kind: Tensor, kinds: int) -> LocalStatistics:
    """Return a client's medians of every class in every column, and of all its rows."""
    values, weight = x.new_zeros(kinds + 1, x.shape[1]), np.zeros(kinds + 1)
    for k in range(kinds + 1):
        own = x[kind == k] if k < kinds else x
        if len(own) >= LEAST:
            values[k], weight[k] = own.median(0).values, len(own)
    return LocalStatistics(array(values), weight)


def _by_class(reports: Sequence[LocalStatistics]) -> Tensor:
    """Return the median of medians of every class in every column.

    A class that no client reports has the median of all rows.
    """
    values = torch.as_tensor(np.stack([one.values for one in reports]))
    weight = torch.as_tensor(np.stack([one.weight for one in reports]).astype(np.float32))
    reported = weight > 0
    if not bool(reported[:, -1].any()):
        raise ValueError(f"distance: no client has {LEAST} rows, the fewest of a statistic")
    rows = [k if bool(reported[:, k].any()) else -1 for k in range(weight.shape[1] - 1)]
    parts = ((values[reported[:, k], k], weight[reported[:, k], k]) for k in rows)
    return torch.stack([weighted_median(*part) for part in parts])
