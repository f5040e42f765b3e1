"""Resolve an open method for given clients: see :func:`choose`.

>>> import dorfl
>>> data = dorfl.datasets.synthetic(seed=0)
>>> print(dorfl.defaults.choose(data.clients, outliers=0.1).words[0])
Up to 10 % of the rows may be outliers: a row at the cutoff (the nearest 80 % of the rows) keeps \
74 % of its weight, one twice as far 30 %, one four times as far 0.8 %.
"""

from dorfl.selection.defaults import Choice
from dorfl.tabular.arrays import choose

__all__ = ["Choice", "choose"]
