"""Scaling, imputation and one-hot encoding, fitted without pooling rows.

In two exchanges every client reports counts, sums, quantile sketches and levels, and all get the
same :class:`Transform`. Clients run :func:`summarise` and :func:`deviations`, the server runs
:func:`agree` and :func:`scale`; :func:`fit` runs all four in one process.

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

from collections.abc import Mapping
from typing import Any

from dorfl.data.preprocessing.agreement import (
    agree,
    agree_on,
    assemble,
    check_columns,
    scale,
    spread_of,
)
from dorfl.data.preprocessing.columns import in_order, table_of
from dorfl.data.preprocessing.summaries import (
    Column,
    Deviation,
    Plan,
    deviation_of,
    deviations,
    read_column,
    summarise,
)
from dorfl.data.preprocessing.transform import Category, Features, Numeric, Part, Transform
from dorfl.support.threads import each

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
    "in_order",
    "scale",
    "summarise",
]


def fit(tables: Mapping[str, Any], plan: Plan | None = None) -> Transform:
    """Fit a transformation to clients in this process.

    Parameters
    ----------
    tables
        Table of each client by name: anything that `pyarrow.table` takes.
    plan
        How columns are read and scaled.

    Raises
    ------
    ValueError
        If clients have different columns, or read one differently.
    """
    plan = plan or Plan()
    given = {name: table_of(table) for name, table in sorted(tables.items())}
    if not given:
        raise ValueError("preprocessing: there are no clients")
    names = check_columns({name: table.column_names for name, table in given.items()}, plan)

    def column(name: str) -> Part | str:
        """Run both exchanges for one column, which is read once."""
        read = {c: read_column(table.column(name), name, plan) for c, table in given.items()}
        part = agree_on(name, {client: summary for client, (summary, _) in read.items()}, plan)
        if isinstance(part, Numeric) and plan.scaling != "none":
            far = [deviation_of(numbers, part, plan) for _, numbers in read.values()]
            return part._replace(spread=spread_of(far, plan))
        return part

    return assemble(dict(zip(names, each(column, names), strict=True)), plan)
