"""Choose settings from the clients' data: assumed outliers, units, and how methods compare.

- :mod:`~dorfl.selection.outliers`: compare candidates by their likelihood of held-out rows.
- :mod:`~dorfl.selection.defaults`: turn an outlier share and a drift into a method.
- :mod:`~dorfl.selection.constants`: the constants that decide.
"""
