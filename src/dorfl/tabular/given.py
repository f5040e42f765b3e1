"""What users of the estimators say of their rows: whose they are, and how much they count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from dorfl.data import validation
from dorfl.objective.mixture import Mixture
from dorfl.support.types import Array


def dense(X: Any) -> Any:
    """`X`, unless it is sparse: columns are moved to their middles, which leaves no zeros."""
    if not sparse.issparse(X):
        return X
    size = 12e-9 * X.shape[0] * X.shape[1]
    raise TypeError(
        "X is sparse, and estimators move columns to their middles: if it was one-hot encoded, "
        "give the data frame it was made of (words are encoded here); else X.toarray(), for which "
        f"training takes about {size:.1f} GB, or train on it as it is, dorfl.train([(X, y)], …)"
    )


def weights(given: Any, count: int) -> Array | None:
    """Sample weights, checked; none where all rows count alike."""
    if given is None:
        return None
    weights = validation.check_weights(given, count, "fit")
    if not weights.any():
        raise ValueError("sample_weight: all weights are zero")
    return weights


def two_valued(X: Array) -> Array:
    """Which columns have two values, or one."""
    return np.asarray(((X.min(axis=0) == X) | (X.max(axis=0) == X)).all(axis=0))


def frozen(asked: Sequence[int | str] | Array, names: list[str]) -> list[int]:
    """Columns that cannot drift, by place or name."""
    for column in asked:
        if isinstance(column, str) and column not in names:
            raise ValueError(
                f"frozen: there is no column {column!r}; "
                + (f"the columns are {', '.join(names)}" if names else "X has no column names")
            )
    return [names.index(c) if isinstance(c, str) else int(c) for c in asked]


def number(asked: Any) -> float | str:
    """A number, or "auto", as a study takes it: NumPy's numbers are none that it can hold."""
    return asked if isinstance(asked, str) else float(asked)


def model(asked: Any) -> str:
    """The kind of model as a study says it: a module, or what makes one, is a network."""
    return asked if isinstance(asked, str) else "mlp"


def mixture(rule: str | Mixture | None) -> dict[str, Any]:
    """How clients count, as a study says it."""
    if not isinstance(rule, Mixture):
        return {"method_mixture": rule}
    if rule.weights is not None:
        raise ValueError(
            "mixture: weights of your own are for dorfl.train; here clients count by size"
        )
    kind = "agnostic" if rule.adversarial else "fixed"
    return {"method_mixture": kind, "method_cap": rule.cap, "method_by": rule.by}


def owners(clients: Any, count: int) -> tuple[list[str], list[Array]]:
    """The clients' names, and the places of their rows."""
    if clients is None:
        return ["all"], [np.arange(count)]
    given = np.asarray(clients)
    if given.shape != (count,):
        raise ValueError(
            f"clients: X has {count} rows, so give {count} names, not shape {given.shape}"
        )
    import pandas as pd  # noqa: PLC0415 - half a second that a site can do without

    owner, found = pd.factorize(given)
    if owner.min() < 0:
        raise ValueError(
            f"clients: row {int(owner.argmin())} belongs to nobody; name its client or drop it"
        )
    places = {str(name): np.flatnonzero(owner == k) for k, name in enumerate(found)}
    names = sorted(places)
    return names, [places[name] for name in names]
