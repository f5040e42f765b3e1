"""Constants that decide which rows are outliers and how little they weigh.

Nothing else decides: other constants of this folder limit time (`MAX_ROWS`, `MAX_ROUNDS`,
`TOLERANCE` of :mod:`~dorfl.selection.outliers`), say on how few rows a client reports (`SUPPORT`,
`STRATUM`) or bound the report of a row. Robust locations and scales have those of
:mod:`dorfl.data.robust`.

References
----------
.. [1] Wilcox, R. R. (2012). Introduction to Robust Estimation and Hypothesis Testing, 4.3.
.. [2] Wasserman, Ramdas and Balakrishnan (2020). Universal inference. PNAS 117.
"""

# The decision: which outlier share to assume, and how small a ridge.
SHARES = (0.0, 0.1, 0.25)  # candidate outlier shares; a median breaks down at one half
RIDGES = (1.0, 0.01)  # candidate ridges in 1/n; 1/n is scikit-learn's default on standard columns
HELD_OUT = 3  # one row in three is held out
TRIMMING = SHARES[1]  # share of paired differences trimmed at each end: 10 to 20 % are usual [1]_
SIGNIFICANCE = 0.05  # level α of the test: a likelihood ratio of 1/α is significant [2]_
COMPARED = 4.0  # squared distance of compared rows, in cutoffs: twice the cutoff distance

# The method for a share and a drift, measured on public tables (benchmarks/defaults.py).
STEEPNESS = 0.3  # −log of the relative weight of a row at the cutoff, which is 74 %
SHIFT = 0.25  # drift assumed if outliers are down-weighted, in robust standard deviations
REFERENCE_NORM = {True: 8.0, False: 40.0}  # ‖θ‖ that moves a row by `SHIFT`: classifier, regression
MAX_PULL = 0.1  # largest ratio of the score's curvature 2ρ₂V to the price ρ
