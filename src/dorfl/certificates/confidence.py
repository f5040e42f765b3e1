"""Upper confidence bounds for the mean of independent bounded values, valid in finite samples.

Both bounds hold for values that are independent and need not be identically distributed: what they
bound is the average of their means. So rows of several clients can be pooled.

References
----------
.. [1] C. J. Clopper, E. S. Pearson. The use of confidence or fiducial limits illustrated in the
   case of the binomial. Biometrika 26, 1934.
.. [2] W. Hoeffding. On the distribution of the number of successes in independent trials. Annals
   of Mathematical Statistics 27, 1956.
.. [3] I. Waudby-Smith, A. Ramdas. Estimating means of bounded random variables by betting.
   Journal of the Royal Statistical Society B 86, 2024.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betaincinv

from dorfl.support.lazy import optimize
from dorfl.support.types import Array

_LARGEST_STAKE = 0.75  # of the capital that one value can lose: the truncation c = 3/4 in [3]
_LEVELS = 2**14  # values are rounded up to multiples of 1/16384, so that many rows take little time
_ROUNDING = 1e-9  # added to a root, so that it is not below the true one


def binomial_upper(successes: int, trials: int, alpha: float) -> float:
    """Return the one-sided Clopper–Pearson bound [1]_ for the mean of success probabilities.

    It is below the mean with probability `alpha` at most. If the probabilities differ, the number
    of successes is at most k with a probability no larger than for equal ones, as long as
    k ≤ n p − 1 [2]_. So the bound is at least (k + 1) / n.

    >>> round(binomial_upper(0, 100, 0.05), 4), binomial_upper(3, 3, 0.05)
    (0.0295, 1.0)
    """
    if successes >= trials:
        return 1.0
    exact = float(betaincinv(successes + 1.0, float(trials - successes), 1.0 - alpha))
    return min(max(exact, (successes + 1.0) / trials), 1.0)


def stake(variance: float, trials: int, alpha: float) -> float:
    """Return the bet √(2 log(1/α) / (n σ²)) of [3]_ for values of about this variance.

    Any bet gives a valid bound as long as it does not depend on the values that it is used for.
    """
    return math.sqrt(2.0 * math.log(1.0 / alpha) / (max(trials, 1) * variance))


def mean_upper(values: Array, alpha: float, bet: float) -> float:
    """Return an upper confidence bound for the mean of values in [0, 1], by betting [3]_.

    For a candidate m and a bet b the capital Π (1 + b (m − x_j)) has mean at most 1 if the average
    of the means is at least m: the factors are independent, and the geometric mean of
    1 + b (m − μ_j) is at most the arithmetic one. By Markov's inequality it exceeds 1/α with
    probability at most α. The bound is the least m at which it does, 1 without values. It adapts
    to the variance. The bet must not depend on the values: see :func:`stake`.

    The bound grows with every value, and if a value is removed that is no larger than the others.

    >>> values = np.repeat([0.0, 1.0], [80, 20])
    >>> round(mean_upper(values, 0.05, stake(0.16, 100, 0.05)), 3)
    0.311
    """
    if not len(values):
        return 1.0
    counts = np.bincount(np.ceil(values * _LEVELS).astype(np.int64))
    places = np.flatnonzero(counts)
    rounded, counts = places / _LEVELS, counts[places]

    def capital(m: float) -> float:
        staked = min(bet, _LARGEST_STAKE / (1.0 - m))
        return float(counts @ np.log1p(staked * (m - rounded))) + math.log(alpha)

    low = float(counts @ rounded) / len(values)
    if low >= 1.0 or capital(1.0 - _ROUNDING) <= 0.0:
        return 1.0
    return min(float(optimize.brentq(capital, low, 1.0 - _ROUNDING, xtol=_ROUNDING)) + 1e-8, 1.0)
