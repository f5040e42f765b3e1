"""The paper's first figure from numbers: which populations are near the clients' mixtures.

Rows are of three kinds, at the corners of a triangle, so a population is a point of it: its mean.
Client 3 has distant outliers too. All P with UW(P‖P̂_λ) ≤ r for some λ are a convex set; how
far it goes in a direction u is the paper's own duality (Proposition 2) with u·ζ in place of a loss:

    sup u·E_P[ζ] = min over ρ ≥ 0 of ρ r + max_i ρβ log E_i exp(f_ρ/ρβ)
    f_ρ(ζ)       = max over the kinds a of u·a − ρ c(a, ζ)

β = ∞ is the plain Wasserstein distance. The page computes the same as its sliders are moved.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from dorfl.certificates.distance import unbalanced_wasserstein, wasserstein
from dorfl.objective.mixture import tilted_mean
from dorfl.support.types import Array

KINDS = np.array([[-1.0, -0.6], [1.0, -0.6], [0.0, 1.1]])  # where the three kinds of rows are
WRONG = np.array([3.0, 2.4])
GOOD = np.array([[0.72, 0.16, 0.12], [0.16, 0.72, 0.12], [0.14, 0.14, 0.72]])
SHARE = 0.1  # of client 3's rows are wrong
BETA, RADIUS = 0.5, 0.07
DIRECTIONS = 120
_PRICES = 1e-4, 1e4


def clients() -> Array:
    """Return (3, 4) shares of each client's rows at the three kinds and the wrong place."""
    wrong = np.array([0.0, 0.0, SHARE])[:, None]
    return np.hstack([GOOD * (1.0 - wrong), wrong])


def outline(weights: Array, beta: float, radius: float) -> Array | None:
    """Return corners (directions, 2) around all populations within `radius` of a mixture.

    `weights` (clients, 4) has one row for the ball around one client. None if no population is
    that near.
    """
    angles = np.linspace(0.0, 2.0 * np.pi, DIRECTIONS, endpoint=False)
    directions = np.column_stack([np.cos(angles), np.sin(angles)])
    reach = [_reach(u, weights, beta, radius) for u in directions]
    if -np.inf in reach:
        return None
    ahead, far = np.roll(directions, -1, axis=0), np.roll(reach, -1)
    sides = np.stack([directions, ahead], axis=1)  # where two neighbouring tangents meet
    return np.asarray(np.linalg.solve(sides, np.stack([reach, far], axis=1)[:, :, None])[:, :, 0])


def _reach(direction: Array, weights: Array, beta: float, radius: float) -> float:
    gain, cost = KINDS @ direction, costs()

    def bound(price: float) -> float:
        f = (gain[:, None] - price * cost).max(axis=0)
        return price * radius + max(tilted_mean(f, price * beta, row) for row in weights)

    nearest = max(tilted_mean(-cost.min(axis=0), beta, row) for row in weights)
    if radius + nearest < 0.0:  # nobody is that near
        return -np.inf
    low, high = np.log(_PRICES)
    found = minimize_scalar(lambda log: bound(float(np.exp(log))), bounds=(low, high),
                            method="bounded", options={"xatol": 1e-7})  # fmt: skip
    return float(found.fun)


def costs() -> Array:
    """Return ½‖a − ζ‖² from the three kinds to the four places."""
    places = np.vstack([KINDS, WRONG])
    return np.asarray(0.5 * ((KINDS[:, None] - places[None]) ** 2).sum(axis=2))


def drawn() -> dict[str, Any]:
    """Return the outlines that the page shows first, and the distance of client 3's inliers."""
    q = clients()
    found = {"all": outline(q, BETA, RADIUS), "plain": outline(q, np.inf, RADIUS)}
    places, good = np.vstack([KINDS, WRONG]), (KINDS, GOOD[2])
    return {
        "outlines": {k: [] if v is None else v.tolist() for k, v in found.items()},
        "far": {
            "UW": unbalanced_wasserstein(good, (places, q[2]), BETA).value,
            "W": wasserstein(good, (places, q[2])).value,
        },
    }
