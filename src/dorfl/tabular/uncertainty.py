"""Standard errors of a linear model's coefficients, by the sandwich estimator.

References
----------
.. [1] Huber, "The behavior of maximum likelihood estimates under nonstandard conditions", 1967.
.. [2] White, "A heteroskedasticity-consistent covariance matrix estimator", Econometrica, 1980.
"""

from __future__ import annotations

import numpy as np

from dorfl.certificates.certificate import group_of
from dorfl.support.types import Array
from dorfl.tabular.audit import row_weights
from dorfl.tabular.model import Model
from dorfl.tabular.rows import Rows

MAX_ROWS = 100_000  # rows that are used, evenly spaced: enough for two digits of an error
_MAX_SIZE = 1_000  # parameters beyond which the matrix would take more than 8 MB
_BLOCK = 8_192  # rows at once


def coefficient_errors(model: Model, rows: Rows) -> Array | None:
    """Return (outputs, features) standard errors, or None for a network or a large model.

    With q_i the weight of row i in training, g_i the gradient of its loss and H_i the Hessian, the
    covariance is H⁻¹ G H⁻¹ with H = Σ q_i H_i + ridge and G = Σ q_i² g_i g_iᵀ [1, 2]. The weights
    and λ count as known, and rows as independent.
    """
    problem, fit = model.fit.problem, model.fit
    if model.network or not problem.loss.has_hessian or problem.size > _MAX_SIZE:
        return None
    step = -(-len(rows.y) // MAX_ROWS)
    used = _every(rows, step)
    weights, group = row_weights(model, used), group_of(fit, used.clients)
    counts = np.diff(used.bounds)
    lam = dict(zip(fit.clients, fit.lam.tolist(), strict=True))
    share = np.repeat([lam[name] / n for name, n in zip(used.names, counts, strict=True)], counts)
    q = share if weights is None else share * weights
    hessian = np.diag(fit.l2 * problem.penalised)
    meat = np.zeros_like(hessian)  # G, between the two inverses of the sandwich
    for start in range(0, len(q), _BLOCK):
        part = slice(start, start + _BLOCK)
        block, y = np.asarray(group.rows[part], dtype=float), group.target[part]
        out = problem.predict(fit.theta, block)
        slope = problem.loss.slope(out, y)
        curvature = problem.loss.hessian(slope, y, problem.loss.value(out, y))
        rows_ = np.column_stack([block, np.ones(len(y))]) if problem.intercept else block
        gradients = (q[part, None] * slope)[:, :, None] * rows_[:, None, :]
        flat = gradients.reshape(len(y), -1)
        meat += flat.T @ flat
        part_hessian = np.einsum(
            "n,nab,ni,nj->aibj", q[part], curvature, rows_, rows_, optimize=True
        )
        hessian += part_hessian.reshape(hessian.shape)
    half = np.linalg.solve(hessian, meat)
    covariance = np.linalg.solve(hessian, half.T) / step  # of all rows, not of every `step`-th
    errors = np.sqrt(np.maximum(np.diag(covariance), 0.0)).reshape(problem.outputs, -1)
    return np.asarray(errors[:, : problem.dims])


def _every(rows: Rows, step: int) -> Rows:
    """Return every `step`-th row of each client."""
    if step == 1:
        return rows
    kept = np.concatenate([np.arange(part.start, part.stop, step) for part in rows.places])
    bounds = np.searchsorted(kept, rows.bounds)
    return Rows(rows.names, bounds, rows.X[kept], rows.y[kept], rows.order[kept])
