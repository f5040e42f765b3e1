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

from dorfl.data.preprocessing.columns import in_order
from dorfl.data.preprocessing.summaries import (
    Column,
    ColumnPlan,
    Deviation,
    agree,
    deviations,
    fit,
    scale,
    summarise,
)
from dorfl.data.preprocessing.transform import Category, Features, Numeric, Transform

__all__ = [
    "Category",
    "Column",
    "ColumnPlan",
    "Deviation",
    "Features",
    "Numeric",
    "Transform",
    "agree",
    "deviations",
    "fit",
    "in_order",
    "scale",
    "summarise",
]
