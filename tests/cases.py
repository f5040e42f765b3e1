"""Random problems, each in two forms: as dorfl takes it and as the brute-force oracle takes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import dorfl
import reference
from dorfl.federated.training import prepare
from dorfl.linear.group import Group
from dorfl.objective.methods import Method


def slowly(examples: int) -> settings:
    """So many examples where the profile in force looks at a hundred, and no clock on them."""
    quiet, most = [HealthCheck.too_slow], settings.default.max_examples
    return settings(
        max_examples=max(examples * most // 100, 1), deadline=None, suppress_health_check=quiet
    )


def few(values: Iterable[Any], fast: int = 1) -> list[Any]:
    """Parameters of a test, so many of them in `make test-fast` and all in `make test`."""
    return [
        v if i < fast else pytest.param(v, marks=pytest.mark.slow) for i, v in enumerate(values)
    ]


SCORES = {
    "logistic": ("none", "quadratic", "diagonal", "full", "threshold", "custom"),
    "softmax": ("none", "quadratic", "full", "threshold", "custom"),
    "squared": ("none", "diagonal", "full", "custom"),
    "huber": ("none", "diagonal", "full", "custom"),
}
PAIRS = [(loss, score) for loss, scores in SCORES.items() for score in scores]
ASCENT = [("softmax", "threshold"), *((loss, "custom") for loss in SCORES)]
DELTA = 0.7  # of the Huber loss


@dataclass(frozen=True)
class LogCosh:
    """A smooth convex score for `custom`: weight · Σ_k log cosh(x_k − center_k), either label."""

    weight: float
    center: Any

    def h(self, x: Any, _labels: Any = None) -> Any:
        z = x - self.center
        return self.weight * (np.logaddexp(z, -z) - np.log(2.0)).sum(axis=1)

    def slope(self, x: Any, _labels: Any = None) -> Any:
        return self.weight * np.tanh(x - self.center)

    def __call__(self, x: Any, y: float) -> Any:
        bend = self.weight * (1.0 - np.tanh(x - self.center) ** 2)
        return self.h(x), self.slope(x), bend[:, :, None] * np.eye(x.shape[1])


@dataclass(frozen=True, eq=False)
class Case:
    """One client, one θ, one method."""

    loss: str
    theta: Any  # (d,), or (classes, d) for softmax
    intercept: Any
    X: Any
    y: Any
    rho: float
    beta: float
    weights: Any  # of the cost; inf freezes
    price: float
    score: Any
    brute_score: Any
    concave: bool

    @property
    def method(self) -> Method:
        cost = dorfl.costs.squared(self.weights, label_price=self.price)
        return dorfl.methods.method(rho=self.rho, beta=self.beta, cost=cost, score=self.score)

    @property
    def chosen_loss(self) -> Any:
        return dorfl.losses.huber(DELTA) if self.loss == "huber" else self.loss

    @property
    def classes(self) -> Any:
        return {"logistic": [-1, 1], "softmax": np.arange(len(self.theta))}.get(self.loss)

    @property
    def parameters(self) -> Any:
        return np.concatenate([self.theta, np.asarray(self.intercept)[..., None]], axis=-1)

    def risk(self, parameters: Any = None) -> dorfl.Risk:
        at = self.parameters if parameters is None else parameters
        return dorfl.risk(
            at, self.X, self.y, self.method, loss=self.chosen_loss, classes=self.classes
        )

    def group(self) -> Group:
        return prepare(
            {"client": (self.X, self.y)}, self.method, self.chosen_loss, classes=self.classes
        )

    def brute(self) -> tuple[float, Any, Any]:
        return reference.risk(
            self.theta, self.intercept, self.X, self.y, self.loss, self.rho, self.beta,
            self.weights, self.brute_score, price=self._price, delta=DELTA,
        )  # fmt: skip

    def brute_f(self) -> Any:
        """The supremum of every row."""
        return np.array([
            reference.supremum(
                self.theta, self.intercept, x, y, self.loss, self.rho, self.weights,
                self.brute_score, price=self._price, delta=DELTA,
            )[0]
            for x, y in zip(self.X, self.y, strict=True)
        ])  # fmt: skip

    def attained(self, rows: Any, labels: Any) -> Any:
        """L − ρc at given rows and labels, from the definitions."""
        t = rows @ np.atleast_2d(self.theta).T + self.intercept
        t = t if self.loss == "softmax" else t[:, 0]
        out = [reference.loss(self.loss, a, b, DELTA) for a, b in zip(t, labels, strict=True)]
        moved = rows - self.X
        weights = np.where(moved == 0, 0.0, self.weights)  # ∞ · 0 is 0 here
        total = np.array(out) - 0.5 * self.rho * (weights * moved**2).sum(axis=1)
        if self.brute_score is not None:
            h = [self.brute_score(x[None], y)[0][0] for x, y in zip(rows, labels, strict=True)]
            total -= np.array(h)
        return total - np.where(labels == self.y, 0.0, self.rho * min(self.price, 1e300))

    @property
    def _price(self) -> float | None:
        return self.price if np.isfinite(self.price) else None


def centred_top(spread: Any) -> float:
    """The largest eigenvalue of the class-centred S, or S itself for one output."""
    if len(spread) == 1:
        return float(spread[0, 0])
    middle = np.eye(len(spread)) - 1.0 / len(spread)
    return float(np.linalg.eigvalsh(middle @ spread @ middle)[-1])


def make(
    seed: int, loss: str, score: str, *, spread: float, rows: int = 4, dims: int = 3,
    classes: int = 3, frozen: bool = False, priced: bool = False, tilted: bool = True,
) -> Case:  # fmt: skip
    """A random problem whose S (softmax: centred eigenvalue) without the score is `spread`."""
    rng = np.random.default_rng(seed)
    rho = 10.0 ** rng.uniform(-1, 1)
    weights = rng.uniform(0.5, 2.0, dims)
    X = rng.normal(size=(rows, dims)) * rng.choice([0.5, 2.0])
    if loss in ("logistic", "softmax"):
        y = rng.choice([-1, 1], rows) if loss == "logistic" else rng.integers(classes, size=rows)
    else:
        y = rng.normal(size=rows) * 2.0
    theta = rng.normal(size=(classes, dims) if loss == "softmax" else dims)
    bias = rng.normal(size=classes) if loss == "softmax" else rng.normal()
    table = np.atleast_2d(theta)
    theta = theta * np.sqrt(spread / centred_top((table / (rho * weights)) @ table.T))
    if frozen:
        weights[rng.integers(dims)] = np.inf
    center, weight = rng.normal(size=dims), rho * 10.0 ** rng.uniform(-1.5, 0.5)
    factor = rng.normal(size=(dims, dims))
    shapes = {
        "quadratic": None, "diagonal": rng.uniform(0.0, 2.0, dims), "full": factor @ factor.T,
    }  # fmt: skip
    ours, theirs = None, None
    if score in shapes:
        ours = dorfl.scores.quadratic(weight, center, shapes[score])
        V = np.ones(dims) if shapes[score] is None else shapes[score]
        theirs = reference.Quadratic(weight, center, V)
    elif score == "threshold":
        column, level = int(rng.integers(dims)), float(rng.normal())
        label, softness = int(rng.choice(y)), 10.0 ** rng.uniform(-1.5, 0.3)
        weight = 10.0 ** rng.uniform(-1.5, 1)
        if loss == "softmax":  # by ascent: keep it as concave as the warning asks for
            softness = 1.0
            weight = rng.uniform(0.1, 1.0) * rho * min(weights[column], 2.0)
        ours = dorfl.scores.threshold(weight, column, level, softness, label)
        theirs = reference.Threshold(weight, label, column, level, softness)
    elif score == "custom":
        theirs = LogCosh(weight, center)
        ours = dorfl.scores.custom(theirs.h, theirs.slope, convex=True)
    return Case(
        loss, theta, bias, X, y, rho,
        beta=10.0 ** rng.uniform(-1, 1) if tilted else np.inf,
        weights=weights,
        price=float(rng.uniform(0.05, 1.0)) / rho if priced else np.inf,
        score=ours, brute_score=theirs,
        concave=spread < {"logistic": 4.0, "softmax": 2.0}.get(loss, 1.0),
    )  # fmt: skip


def cases(loss: str, score: str, **options: Any) -> st.SearchStrategy[Case]:
    """Problems of one loss and score; S crosses 4 (logistic) and 1 (Huber) where it may.

    Ascent claims nothing where concavity fails and the softmax climbs are claimed exact only where
    the supremum is unique: there S stays below the bound.
    """
    low, high = {"logistic": (-1.0, 1.2), "softmax": (-1.0, 0.25)}.get(loss, (-1.0, 0.5))
    if loss == "squared":
        high = -0.1
    if (loss, score) in ASCENT:
        high = {"logistic": 0.5, "softmax": -0.1}.get(loss, -0.1)
    classifies = loss in ("logistic", "softmax")
    return st.builds(
        make,
        seed=st.integers(0, 2**32 - 1),
        loss=st.just(loss),
        score=st.just(score),
        spread=st.floats(low, high).map(lambda e: 10.0**e),
        classes=st.integers(2, 4),
        frozen=st.booleans(),
        priced=st.booleans() if classifies else st.just(False),
        **options,
    )
