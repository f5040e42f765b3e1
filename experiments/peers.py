"""Models of other libraries, trained on all rows pooled into one table.

Each is a function from clients to θ. Pooled rows are what a federation may not see.
"""

from __future__ import annotations

import importlib.util
import warnings

import numpy as np

from dorfl.data.datasets.base import Clients
from dorfl.support.types import Array
from experiments.rows import pooled

POOLED = "scikit-learn, pooled"
TRIMMED = "trimming, pooled"
DRO = "dro (Wasserstein), pooled"


def logistic_regression(clients: Clients, intercept: bool = True) -> Array:
    """Train scikit-learn's logistic regression by default; θ has the intercept last, if any."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - only peers need it

    X, y = pooled(clients)
    model = LogisticRegression(fit_intercept=intercept, max_iter=2000).fit(X, y)
    return np.append(model.coef_[0], model.intercept_) if intercept else np.asarray(model.coef_[0])


def trimmed(clients: Clients, share: float, intercept: bool = True) -> Array:
    """Train logistic regression without the `share` of rows with the largest loss, as DORO does.

    Fit, drop the worst rows, and fit again, until the same rows are dropped. The share of outliers
    is given, which our methods do not know.
    """
    X, y = pooled(clients)
    kept = np.ones(len(y), dtype=bool)
    theta = np.zeros(X.shape[1] + intercept)
    for _ in range(20):
        theta = logistic_regression({"kept": (X[kept], y[kept])}, intercept)
        loss = np.logaddexp(0.0, -y * outputs(theta, X))
        order = np.argsort(loss, kind="stable")
        following = np.zeros(len(y), dtype=bool)
        following[order[: len(y) - round(share * len(y))]] = True
        if (following == kept).all() or len(np.unique(y[following])) < 2:
            break
        kept = following
    return theta


def wasserstein(clients: Clients, intercept: bool = True) -> Array:
    """Train the Wasserstein logistic regression of `dro` by default (extra `bench`)."""
    from dro.linear_model.wasserstein_dro import WassersteinDRO  # noqa: PLC0415 - an extra

    X, y = pooled(clients)
    model = WassersteinDRO(X.shape[1], model_type="logistic", fit_intercept=intercept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its solver's own doubts
        found = model.fit(X.astype(float), y.astype(float))
    theta = np.asarray(found["theta"], dtype=float).ravel()
    return np.append(theta, float(np.ravel(found["b"])[0])) if intercept else theta


def everyone(clients: Clients, share: float, intercept: bool = True) -> dict[str, Array]:
    """Train all peers that are installed."""
    found = {
        POOLED: logistic_regression(clients, intercept),
        TRIMMED: trimmed(clients, share, intercept),
    }
    if importlib.util.find_spec("dro"):
        found[DRO] = wasserstein(clients, intercept)
    return found


def outputs(theta: Array, X: Array) -> Array:
    """Return θᵀx, with the intercept if θ is one longer than a row."""
    dims = X.shape[1]
    return np.asarray(X @ theta[:dims] + (theta[dims] if len(theta) > dims else 0.0))
