"""Brute-force oracle for the robust risk of linear models, written from the definitions.

    c(x, z)  = 1/2 sum_k w_k (x_k - z_k)^2            w_k = inf freezes coordinate k
    f(theta) = sup_{x, y'} l(theta x + b, y') - h(x, y') - rho c(x, zeta) - rho price 1{y' != y}
    F(theta) = rho beta log mean_j exp(f_j / (rho beta))          (beta = inf: the mean of f_j)

The supremum is sought in the space of x itself: Newton ascent with the full gradient and Hessian
from many starting points, best value wins. No scalar or logit-space reduction is used, so that an
error in such a reduction shows up as a difference. Everything is float64 and slow on purpose.
Models with one output have theta (d,) and a scalar intercept b; softmax has (C, d) and (C,).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logsumexp, softmax

Array = NDArray[np.float64]


# ---- losses, as functions of the output
def loss_parts(name: str, t: ArrayLike, y: float, delta: float = 1.0) -> tuple[Array, Array, Array]:
    """Loss, first and second derivative in the output ``t``, elementwise.

    logistic log(1 + exp(-y t)), y in {-1, +1};  squared (t - y)^2 / 2;
    huber r^2 / 2 where |r| = |t - y| <= delta, else delta |r| - delta^2 / 2;
    softmax -log softmax(t)_y over the last axis of t: derivatives (..., C) and (..., C, C).
    """
    t = np.asarray(t, float)
    if name == "logistic":
        return np.logaddexp(0.0, -y * t), -y * expit(-y * t), expit(t) * expit(-t)
    if name == "squared":
        return 0.5 * (t - y) ** 2, t - y, np.ones_like(t)
    if name == "huber":
        r = np.abs(t - y)
        value = np.where(r <= delta, 0.5 * r**2, delta * r - 0.5 * delta**2)
        return value, np.clip(t - y, -delta, delta), (r <= delta).astype(float)
    if name == "softmax":
        p, eye = softmax(t, axis=-1), np.eye(t.shape[-1])
        second = p[..., :, None] * eye - p[..., :, None] * p[..., None, :]
        return logsumexp(t - t[..., [int(y)]], axis=-1), p - eye[int(y)], second
    raise ValueError(f"unknown loss {name!r}; choose logistic, squared, huber or softmax")


def loss(name: str, t: ArrayLike, y: float, delta: float = 1.0) -> Array:
    """Loss alone; see ``loss_parts``."""
    return loss_parts(name, t, y, delta)[0]


def loss_derivative(name: str, t: ArrayLike, y: float, delta: float = 1.0) -> Array:
    """Derivative of the loss in ``t``, of the shape of ``t``."""
    return loss_parts(name, t, y, delta)[1]


# ---- scores h(x, y)
@dataclass(frozen=True)
class Quadratic:
    """h(x, y) = rho2 (x - center)^T V (x - center); V a (d,) diagonal or a (d, d) PSD matrix."""

    rho2: float
    center: ArrayLike
    V: ArrayLike

    def matrix(self) -> Array:
        """V as a symmetric (d, d) matrix."""
        v = np.asarray(self.V, float)
        return np.diag(v) if v.ndim == 1 else 0.5 * (v + v.T)

    def __call__(self, x: Array, y: float) -> tuple[Array, Array, Array]:
        """Value (B,), gradient (B, d) and Hessian (B, d, d) in x of shape (B, d)."""
        v, r = self.matrix(), x - np.asarray(self.center, float)
        hessian = np.broadcast_to(2 * self.rho2 * v, (*x.shape, x.shape[1]))
        return self.rho2 * np.einsum("bi,ij,bj->b", r, v, r), 2 * self.rho2 * r @ v, hessian


@dataclass(frozen=True)
class Threshold:
    """h(x, y) = rho2 1{y == label} sigmoid((x_k - D) / s)."""

    rho2: float
    label: float
    k: int
    D: float
    s: float

    def __call__(self, x: Array, y: float) -> tuple[Array, Array, Array]:
        """Value (B,), gradient (B, d) and Hessian (B, d, d) in x of shape (B, d)."""
        scale = self.rho2 if y == self.label else 0.0
        v = (x[:, self.k] - self.D) / self.s
        up, down = expit(v), expit(-v)
        gradient, hessian = np.zeros(x.shape), np.zeros((*x.shape, x.shape[1]))
        gradient[:, self.k] = scale * up * down / self.s
        hessian[:, self.k, self.k] = scale * up * down * (down - up) / self.s**2
        return scale * up, gradient, hessian


Score = Quadratic | Threshold | None


# ---- the ascent
Objective = Callable[[Array], tuple[Array, Array, Array]]


def ascend(objective: Objective, starts: Array, steps: int = 300) -> tuple[Array, float]:
    """Return the best local maximum (n,) reached from the rows of ``starts`` (B, n), and its value.

    Newton with |H|^-1 (eigenvalues in absolute value) as metric: always an ascent direction, exact
    Newton where H is negative definite. Armijo backtracking; near the top, where values no longer
    resolve progress, a step that keeps the value to rounding and halves the gradient is accepted.
    """
    x, active = starts.copy(), np.arange(len(starts))
    for _ in range(steps):
        if not len(active):
            break
        here = x[active]
        value, grad, hess = objective(here)
        lam, q = np.linalg.eigh(hess)
        lam = np.maximum(np.abs(lam), 1e-10 * (1e-300 + np.abs(lam).max(axis=1, keepdims=True)))
        step = np.einsum("bij,bj->bi", q, np.einsum("bji,bj->bi", q, grad) / lam)
        slope, size = (grad * step).sum(1), np.linalg.norm(grad, axis=1)
        todo, new, length = np.ones(len(here), bool), here.copy(), 1.0
        for _ in range(60):
            trial = here[todo] + length * step[todo]
            v, g, _ = objective(trial)
            rise = (v >= value[todo] + 1e-4 * length * slope[todo]) & (v > value[todo])
            flat = v >= value[todo] - 1e-14 * (1 + np.abs(value[todo]))
            ok = rise | (flat & (np.linalg.norm(g, axis=1) < 0.5 * size[todo]))
            where = np.flatnonzero(todo)[ok]
            new[where], todo[where] = trial[ok], False
            length *= 0.5
            if not todo.any() or (length < 1e-3 and np.all(slope[todo] < 1e-22)):
                break
        x[active] = new
        active = active[~todo & (slope > 1e-34)]
        active = active[np.unique(x[active].round(9), axis=0, return_index=True)[1]]  # merge
    value, grad, _ = objective(x)
    ties = value >= value.max() - 1e-14 * (1 + np.abs(value.max()))
    best = int(np.argmin(np.where(ties, np.linalg.norm(grad, axis=1), np.inf)))
    return x[best], float(value[best])


def _starts(
    weights: Array, loss_name: str, y: float, zeta: Array, m: Array, inverse: Array,
    score: Score, free: Array, delta: float,
) -> Array:  # fmt: skip
    """List starting points (B, d): zeta, centres, wide rays along +-theta, the threshold's ramp.

    ``inverse`` only spreads the rays over a sensible scale: it is the inverse of the curvature.
    """
    if loss_name == "softmax":
        eye = np.eye(len(weights))
        mixed = np.random.default_rng(0).dirichlet(np.full(len(weights), 0.4), 24)
        slopes = (np.vstack([eye, mixed]) - eye[int(y)]) @ weights
        rays = np.vstack([weights, weights - weights[int(y)]])
    else:
        steepest = delta if loss_name == "huber" else 1.0
        slopes, rays = np.outer(steepest * np.linspace(-1, 1, 9), weights[0]), weights
    scales = np.logspace(-3, 3, 13 if len(rays) == 1 else 7)
    points = [core := np.vstack([zeta, m, m + slopes @ inverse])]
    for ray in rays:
        unit = ray * free / (np.linalg.norm(ray * free) + 1e-300)
        for direction in (unit, ray @ inverse):
            points += [zeta + np.outer(sign * scales, direction) for sign in (1, -1)]
    if isinstance(score, Quadratic):
        points.append(np.where(free, np.asarray(score.center, float), zeta)[None])
    if isinstance(score, Threshold) and score.label == y and free[score.k]:
        for j in range(-30, 31):
            points.append(core.copy())
            points[-1][:, score.k] = score.D + score.s * j
    return np.vstack(points)


def _supremum_for_label(
    theta: Array, intercept: Array, zeta: Array, y: float, name: str, rho: float, w: Array,
    score: Score, delta: float,
) -> tuple[float, Array]:  # fmt: skip
    """sup_x l(theta x + intercept, y) - h(x, y) - rho c(x, zeta) and a maximiser; y is fixed."""
    weights, bias = np.atleast_2d(theta), np.atleast_1d(np.asarray(intercept, float))
    free = np.isfinite(w) & (rho < np.inf)
    index = np.flatnonzero(free)

    def output(x: Array) -> Array:
        t = x @ weights.T + bias
        return t if name == "softmax" else t[:, 0]

    if not len(index):
        h = 0.0 if score is None else score(zeta[None], y)[0][0]
        return float(loss(name, output(zeta[None]), y, delta)[0] - h), zeta.copy()
    price = rho * np.where(free, w, 0.0)

    def objective(u: Array) -> tuple[Array, Array, Array]:
        x = np.repeat(zeta[None], len(u), axis=0)
        x[:, index] = u
        t, move = output(x), x - zeta
        value, first, second = loss_parts(name, t, y, delta)
        if name != "softmax":
            first, second = first[:, None], second[:, None, None]
        value = value - 0.5 * (price * move**2).sum(1)
        gradient = first @ weights - price * move
        hessian = weights.T @ second @ weights - np.diag(price)
        if score is not None:
            h, dh, ddh = score(x, y)
            value, gradient, hessian = value - h, gradient - dh, hessian - ddh
        return value, gradient[:, index], hessian[:, index][:, :, index]

    # Curvature of the penalty: for starting points, and to tell whether the supremum is finite.
    quadratic = isinstance(score, Quadratic)
    full = np.diag(price) + (2 * score.rho2 * score.matrix() if quadratic else 0.0)
    curvature = full[np.ix_(index, index)]
    if np.linalg.eigvalsh(curvature)[0] <= 0:
        raise ValueError("rho c + h does not curve in some free direction")
    if name == "squared":
        net = np.outer(weights[0, index], weights[0, index]) - curvature
        if np.linalg.eigvalsh(net)[-1] >= -1e-13 * np.abs(curvature).max():
            return np.inf, np.full(len(zeta), np.nan)
    m, inverse = zeta.copy(), np.zeros_like(full)
    inverse[np.ix_(index, index)] = np.linalg.inv(curvature)
    if quadratic:
        m = zeta - inverse @ (2 * score.rho2 * score.matrix() @ (zeta - np.asarray(score.center)))
    starts = _starts(weights, name, y, zeta, m, inverse, score, free, delta)[:, index]
    x = zeta.copy()
    x[index], value = ascend(objective, starts)
    return value, x


def supremum(
    theta: ArrayLike, intercept: ArrayLike, x_row: ArrayLike, y: float, loss: str, rho: float,
    w: ArrayLike | None = None, score: Score = None, *, price: float | None = None,
    delta: float = 1.0,
) -> tuple[float, Array, float]:  # fmt: skip
    """Maximise over x (and the label y', if ``price`` is given) of the robust inner problem.

        l(theta x + intercept, y') - h(x, y') - rho c(x, x_row) - rho price 1{y' != y}

    Returns (value, maximiser x, label); value inf and x NaN where the squared loss outgrows the
    cost. rho = inf means no transport: x = x_row, label kept. At a tie any maximiser may come.
    """
    weights, bias, zeta = (np.asarray(v, float) for v in (theta, intercept, x_row))
    cost = np.ones(len(zeta)) if w is None else np.asarray(w, float)
    labels, fee, found = [y], price or 0.0, []
    if price is not None and np.isfinite(rho):
        if loss not in ("logistic", "softmax"):
            raise ValueError("only class labels can be priced")
        everything = range(len(weights)) if loss == "softmax" else (-1, 1)
        labels += [label for label in everything if label != y]
    for label in labels:
        value, x = _supremum_for_label(weights, bias, zeta, label, loss, rho, cost, score, delta)
        found.append((value if label == y else value - rho * fee, x, label))
    return max(found, key=lambda candidate: candidate[0])


def risk(
    theta: ArrayLike, intercept: ArrayLike, X: ArrayLike, y: ArrayLike, loss: str, rho: float,
    beta: float = np.inf, w: ArrayLike | None = None, score: Score = None, *,
    price: float | None = None, delta: float = 1.0, temperature: float | None = None,
) -> tuple[float, Array, Array]:  # fmt: skip
    """F = T log mean_j exp(f_j / T), T = rho beta (``temperature`` if rho = inf; inf: the mean).

    Returns (F, grad, weights): weights = softmax(f / T); grad by Danskin at the maximisers, the
    intercept last: (d + 1,), or (C, d + 1) for softmax, so grad[..., :-1] belongs to theta.
    """
    if temperature is not None and np.isfinite(rho):
        raise ValueError("temperature is for rho = inf; otherwise it is rho * beta")
    T = rho * beta if temperature is None else temperature
    solved = [supremum(theta, intercept, x, c, loss, rho, w, score, price=price, delta=delta)
              for x, c in zip(np.asarray(X, float), np.asarray(y), strict=True)]  # fmt: skip
    f, tilted = np.array([value for value, _, _ in solved]), np.isfinite(T)
    slope, bias = np.asarray(theta, float), np.asarray(intercept, float)
    grad = np.zeros((*slope.shape[:-1], slope.shape[-1] + 1))
    if not np.all(np.isfinite(f)):
        return np.inf, np.nan * grad, np.nan * f
    weights = softmax(f / T) if tilted else np.full(len(f), 1 / len(f))
    F = T * (logsumexp(f / T) - np.log(len(f))) if tilted else f.mean()
    for p, (_, x, label) in zip(weights, solved, strict=True):
        dl = loss_derivative(loss, slope @ x + bias, label, delta)
        grad += p * np.multiply.outer(dl, np.append(x, 1.0))
    return float(F), grad, weights


def numerical_gradient(fun: Callable[[Array], float], theta: Array, step: float = 4e-3) -> Array:
    """Gradient of ``fun`` by central differences at step, step/2, step/4, then Richardson's."""
    gradient = np.zeros_like(theta := np.asarray(theta, float))
    for i in np.ndindex(theta.shape):
        table = []
        for h in (step, step / 2, step / 4):
            e = np.zeros_like(theta)
            e[i] = h
            table.append((fun(theta + e) - fun(theta - e)) / (2 * h))
        for order in (4, 16):
            table = [(order * b - a) / (order - 1) for a, b in pairwise(table)]
        gradient[i] = table[0]
    return gradient
