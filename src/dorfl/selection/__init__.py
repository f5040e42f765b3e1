"""Choose settings from the clients' data: assumed outliers, units, and how methods compare.

- :mod:`~dorfl.selection.outliers`: compare candidates on held-out rows by a trimmed paired test.
- :mod:`~dorfl.selection.defaults`: turn an outlier share and a drift into a method.
- :mod:`~dorfl.selection.label_errors`: list rows whose label does not fit.
"""
