"""Scaling, imputation and one-hot encoding, fitted without pooling rows.

Every client tells counts, sums, quantile sketches and levels, in two small exchanges; all end up
with the same :class:`Transform`. Two functions are the client's (:func:`summarise`,
:func:`deviations`), two the server's (:func:`agree`, :func:`scale`); :func:`fit` runs them in one
process.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> def ward(middle):
...     return {"pressure": middle + 10 * rng.normal(size=500), "sex": ["f", "m"] * 250}
>>> transform = fit({"north": ward(120), "south": ward(130)})
>>> transform.names, transform.frozen
(('pressure', 'sex=f', 'sex=m'), (1, 2))
>>> abs(transform.numeric[0].center - 125) < 1
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dorfl.preprocessing.agreement import agree, scale
from dorfl.preprocessing.columns import table_of
from dorfl.preprocessing.summaries import (
    Column,
    Deviation,
    Plan,
    deviation,
    deviations,
    summarise,
    summarise_column,
)
from dorfl.preprocessing.transform import Category, Features, Numeric, Transform
from dorfl.threads import THREADS

__all__ = [
    "Category",
    "Column",
    "Deviation",
    "Features",
    "Numeric",
    "Plan",
    "Transform",
    "agree",
    "deviations",
    "fit",
    "scale",
    "summarise",
]

T = TypeVar("T")


def fit(tables: Mapping[str, Any], plan: Plan | None = None) -> Transform:
    """Both exchanges among clients that live here: name → table (what `pyarrow.table` takes)."""
    plan = plan or Plan()
    given = {name: table_of(table) for name, table in sorted(tables.items())}
    if not given:
        raise ValueError("preprocessing: there are no clients")
    names = [n for n in next(iter(given.values())).column_names if plan.kinds.get(n) != "ignore"]
    if all(set(names) <= set(table.column_names) for table in given.values()):
        by_column = _each(
            names, lambda n: [summarise_column(t.column(n), n, plan) for t in given.values()]
        )
        told = _by_client(given, names, by_column)
    else:  # let the server say what does not fit
        told = {client: summarise(table, plan) for client, table in given.items()}
    transform = agree(told, plan)
    if plan.scaling == "none":
        return transform
    parts = transform.numeric
    far = _each(parts, lambda p: [deviation(t.column(p.name), p, plan) for t in given.values()])
    return scale(transform, _by_client(given, [p.name for p in parts], far), plan)


def _each(items: Sequence[Any], work: Callable[[Any], T]) -> list[T]:
    """Column by column, so that a column of a file is read once for all clients."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, items))


def _by_client(
    clients: Mapping[str, Any], names: Sequence[str], by_column: Sequence[Sequence[T]]
) -> dict[str, dict[str, T]]:
    return {
        client: {name: told[i] for name, told in zip(names, by_column, strict=True)}
        for i, client in enumerate(clients)
    }
