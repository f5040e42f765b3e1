"""Decide from held-out rows which outlier share, if any, and which ridge to train with.

Candidates are ordered from plain to cautious: outlier share 0 (plain training), 0.1 and 0.25, each
with a ridge of 1/n and of 0.01/n. All of them are trained at the same time on two thirds of every
client's rows. The remaining third compares them in pairs. The loss of a row is its negative
log-likelihood: the log loss of a classifier, or the absolute error of a regression in units of
plain training's mean absolute error (Laplace's distribution). Differences are paired by row. Each
client is a stratum: it reports n, trimmed means and winsorised variances.

    The plainest candidate that no other candidate beats is selected.

A candidate beats another if two published rules agree. The held-out rows are at least twenty times
as likely under it: the split likelihood-ratio test at 5 %, which needs no large samples. And the
difference of the mean losses exceeds one standard error of its own mean loss (the
one-standard-error rule): with many rows a difference can be certain and yet too small to matter.

Held-out rows contain outliers too. Only rows within twice the cutoff distance of the most cautious
candidate are compared: rows that no candidate takes for outliers. Outliers harm the predictions of
such rows if a model trusts them; rows that are merely rare do not. A tenth of the differences is
trimmed at each end.

References
----------
Wasserman, L., Ramdas, A. and Balakrishnan, S. (2020). Universal inference. PNAS 117.
Breiman, L. et al. (1984). Classification and Regression Trees, section 3.4.
Wilcox, R. R. (2012). Introduction to Robust Estimation and Hypothesis Testing, chapter 4.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> plain, robust = rng.uniform(0.3, 0.5, size=300), rng.uniform(0.1, 0.3, size=300)
>>> candidates = (Candidate(0.0), Candidate(0.1))
>>> select(candidates, compare_losses(candidates, [plain, robust]))
1
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import NamedTuple

import numpy as np
from scipy.special import log_expit, log_softmax

from dorfl.linear.problem import Problem
from dorfl.selection.constants import (
    COMPARED,
    HELD_OUT,
    RIDGES,
    SHARES,
    SIGNIFICANCE,
    TRIMMING,
)
from dorfl.support.types import Array

SUPPORT = 5  # training rows of a class, if a client has as many
MAX_ROWS = 20_000  # rows of all clients that candidates see; more change no decision, only time
TOLERANCE = 1e-3  # relative optimality gap at which the training of a candidate ends
MAX_ROUNDS = 15  # rounds after which it ends in any case; more change no decision, only time
STRATUM = 10  # held-out rows of a client that is a stratum of its own
_DIGITS = 4  # significant digits of reported statistics
_MOST = 5.0  # largest loss of a row, that of a probability of 0.7 %: what one row can report
_FEWEST_LEFT = 2  # rows that trimming must leave for a variance


class Candidate(NamedTuple):
    """Settings that are compared with others."""

    share: float  # assumed share of outliers among the rows
    shift: float | str = "auto"  # assumed drift in robust standard deviations, or "auto"
    labels: bool = False  # whether outlying labels are down-weighted (regression only)
    ridge: float = 1.0  # l2 in multiples of 1/n


class HeldOut(NamedTuple):
    """Statistics of held-out losses that add up over clients.

    With n held-out rows, trimmed mean m and squared standard error v of a pair's differences, a
    client reports n, n m and n² v. Pairs are in the order of :func:`pairs_of`.

    Attributes
    ----------
    rows
        (pairs,) number of held-out rows; 0 if a client has too few for the pair's trimming.
    differences
        (pairs,) n times the trimmed mean of the plainer minus the more cautious candidate's loss.
    variances
        (pairs,) n² times the squared standard error of that trimmed mean.
    errors
        (pairs,) n² times the squared standard error of the trimmed mean loss of the candidate with
        the smaller one.
    losses
        (candidates,) n times the trimmed mean loss of each candidate.
    """

    rows: Array
    differences: Array
    variances: Array
    errors: Array
    losses: Array


class Decision(NamedTuple):
    """The selected outlier share and ridge, and the evidence for them.

    `rows` is 0 if the comparison was inconclusive. Losses are trimmed means over held-out rows.
    """

    share: float  # 0 means that no row is down-weighted
    labels: bool = False  # whether rows with outlying labels are down-weighted
    rows: int = 0  # held-out rows
    loss: float = 0.0  # of the selected candidate
    plain: float = 0.0  # of plain training
    ridge: float = 1.0  # l2 in multiples of 1/n


CAUTIOUS = Decision(SHARES[1])  # if a client cannot take part in the comparison


def default_candidates() -> tuple[Candidate, ...]:
    """Return the candidates of a study that leaves `outliers` open, from plain to cautious."""
    return tuple(Candidate(share, ridge=ridge) for share, ridge in product(SHARES, RIDGES))


def pairs_of(count: int) -> list[tuple[int, int]]:
    """Return the pairs (plainer, more cautious) of `count` ordered candidates."""
    return list(combinations(range(count), 2))


def row_limit(clients: int) -> int:
    """Return the number of rows of one client that candidates see."""
    return max(MAX_ROWS // clients, 20 * HELD_OUT)


def split_rows(rows: int, limit: int, labels: Array | None = None) -> tuple[Array, Array]:
    """Split the rows of a client into training and held-out rows.

    Rows are drawn at random with a fixed seed and ordered by class; every third one is held out. So
    classes are in proportion, and the sizes depend on `rows` and `limit` alone.

    >>> [len(part) for part in split_rows(3000, limit=900)]
    [600, 300]
    """
    order = _sample(rows, limit)
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    held_out = np.zeros(len(order), dtype=bool)
    held_out[HELD_OUT - 1 :: HELD_OUT] = True
    if labels is not None:
        _support_rare_classes(held_out, labels[order])
    return np.sort(order[~held_out]), np.sort(order[held_out])


@lru_cache(maxsize=64)
def _sample(rows: int, limit: int) -> Array:
    """Return the rows of a client that candidates see, in random order."""
    return np.random.default_rng(0).permutation(rows)[:limit].copy()


def trained_count(rows: int, limit: int) -> int:
    """Return the number of training rows of :func:`split_rows`."""
    used = min(rows, limit)
    return used - used // HELD_OUT


def _support_rare_classes(held_out: Array, labels: Array) -> None:
    """Exchange held-out rows of rare classes for rows of the largest class, in place.

    A class keeps at least SUPPORT training rows if it has as many: a site does not report on fewer.
    """
    codes = np.unique(labels, return_inverse=True)[1].reshape(-1)
    counts = np.bincount(codes[~held_out], minlength=int(codes.max(initial=0)) + 1)
    for rare in np.flatnonzero(counts < SUPPORT).tolist():
        largest = int(counts.argmax())
        room = max(int(counts[largest]) - SUPPORT, 0)
        wanted = np.flatnonzero(held_out & (codes == rare))[: SUPPORT - int(counts[rare])][:room]
        given = np.flatnonzero(~held_out & (codes == largest))[: len(wanted)]
        held_out[wanted], held_out[given] = False, True
        counts[largest] -= len(wanted)


def held_out_losses(problem: Problem, theta: Array, X: Array, y: Array) -> Array:
    """Return (n,) negative log-probabilities of the labels, or absolute errors; at most _MOST."""
    out = problem.predict(theta, X)
    if not problem.loss.classifies:
        return np.asarray(np.minimum(np.abs(out - y), _MOST))
    codes = np.searchsorted(problem.classes, y)
    if out.ndim == 2:
        logs = log_softmax(out, axis=1)[np.arange(len(y)), codes]
    else:
        logs = log_expit(np.where(codes == 1, out, -out))
    return np.asarray(np.minimum(-logs, _MOST))


def compare_losses(
    candidates: Sequence[Candidate], losses: Sequence[Array], least: int = 1
) -> HeldOut:
    """Return a client's statistics of the candidates' (n,) losses; zeros for fewer than `least`."""
    pairs = pairs_of(len(candidates))
    rows, differences, variances, errors = np.zeros((4, len(pairs)))
    count = len(losses[0])
    if count < max(least, 1):
        return HeldOut(rows, differences, variances, errors, np.zeros(len(candidates)))
    for k, (a, b) in enumerate(pairs):
        mean, variance, left = trimmed_mean(losses[a] - losses[b], TRIMMING)
        if left >= _FEWEST_LEFT:
            rows[k], differences[k], variances[k] = count, count * mean, count**2 * variance
            errors[k] = count**2 * trimmed_mean(losses[b if mean > 0 else a], TRIMMING)[1]
    means = np.array([trimmed_mean(one, TRIMMING)[0] for one in losses])
    return HeldOut(
        rows,
        _rounded(differences),
        _rounded(variances),
        _rounded(errors),
        _rounded(count * means),
    )


def combine(reports: Sequence[HeldOut]) -> HeldOut:
    """Return the sum of the clients' statistics, which is that of a stratified sample."""
    return HeldOut(*(np.sum(part, axis=0) for part in zip(*reports, strict=True)))


def select(candidates: Sequence[Candidate], total: HeldOut, classifies: bool = True) -> int:
    """Return the index of the plainest candidate that no other beats, by all clients' statistics.

    Losses are log losses if `classifies`, otherwise absolute errors.
    """
    beaten = np.zeros(len(candidates), dtype=bool)
    for k, (a, b) in enumerate(pairs_of(len(candidates))):
        ratio = log_likelihood_ratio(total, k, classifies)
        matters = abs(total.differences[k]) > np.sqrt(total.errors[k])
        if matters and abs(ratio) > np.log(1.0 / SIGNIFICANCE):
            beaten[a if ratio > 0 else b] = True
        elif candidates[b]._replace(ridge=candidates[a].ridge) == candidates[a]:
            beaten[b] = True  # a smaller ridge has to beat the usual one
    left = np.flatnonzero(~beaten)
    return int(left[0]) if len(left) else 0


def log_likelihood_ratio(total: HeldOut, pair: int, classifies: bool = True) -> float:
    """Return by how much the held-out rows are likelier under the more cautious of a pair.

    It is a trimmed sum of log ratios. The unit of an absolute error is the trimmed mean of plain
    training's, which is the scale of Laplace's distribution.
    """
    rows = total.rows[pair]
    unit = 1.0 if classifies or not rows > 0 else float(total.losses[0] / rows)
    return float(total.differences[pair]) / unit if unit > 0 else 0.0


def decide(candidates: Sequence[Candidate], total: HeldOut, classifies: bool = True) -> Decision:
    """Return the decision of :func:`select` with its evidence."""
    winner = candidates[select(candidates, total, classifies)]
    rows = float(total.rows.max(initial=0.0))
    if not rows > 0:
        return Decision(candidates[0].share, candidates[0].labels)
    loss = float(total.losses[candidates.index(winner)] / rows)
    plain = float(total.losses[0] / rows)
    return Decision(winner.share, winner.labels, round(rows), loss, plain, winner.ridge)


def trimmed_mean(values: Array, trimming: float) -> tuple[float, float, int]:
    """Return the trimmed mean, its squared standard error and the number of rows left.

    The standard error is that of Yuen's test, from the winsorised variance. With fewer than two
    rows left it is infinite.

    >>> mean, variance, left = trimmed_mean(np.array([0.0, 1.0, 2.0, 3.0, 1e9]), 0.2)
    >>> mean, left
    (2.0, 3)
    """
    ordered = np.sort(values)
    count, cut = len(ordered), int(trimming * len(ordered))
    left = count - 2 * cut
    mean = float(ordered[cut : count - cut].mean())
    if left < _FEWEST_LEFT:
        return mean, np.inf, left
    winsorised = np.clip(ordered, ordered[cut], ordered[count - cut - 1])
    squares = (count - 1) * float(winsorised.var(ddof=1))
    return mean, squares / (left * (left - 1)), left


def compared_rows(distances: Array, cutoff: float, least: int = 1) -> Array:
    """Return which held-out rows are compared: those within twice the cutoff distance.

    If fewer than `least` rows are beyond, the `least` furthest are left out, so that statistics
    with and without single rows never differ by fewer.

    Distances and `cutoff` are squared.

    >>> compared_rows(np.array([1.0, 9.0, 2.0, 3.0, 0.5]), cutoff=1.0, least=2).tolist()
    [True, False, True, False, True]
    """
    kept = np.asarray(distances <= COMPARED * cutoff)
    beyond = int((~kept).sum())
    if 0 < beyond < least:
        kept[np.argsort(-distances, kind="stable")[:least]] = False
    return kept


def _rounded(values: Array) -> Array:
    """Round to a few significant digits, so that reports show no single row's digits."""
    return np.array([float(f"{value:.{_DIGITS}g}") for value in values])


def describe(decision: Decision) -> str:
    """Return the decision and its reason in one sentence."""
    if not decision.rows and decision.share > 0:
        return (
            f"Up to {100 * decision.share:.3g} % of the rows are assumed to be outliers: not all "
            "clients took part in a comparison on held-out rows."
        )
    if not decision.rows:
        return "All rows are trusted: too few rows could be held out to compare candidates."
    compared = (
        f"held-out loss {decision.loss:.3g} instead of {decision.plain:.3g}, "
        f"on {decision.rows:,} rows"
    )
    if decision.ridge < 1.0:
        compared += f", with a ridge of {decision.ridge:g}/n"
    if decision.share > 0:
        return f"Up to {100 * decision.share:.3g} % of the rows are taken for outliers: {compared}."
    if decision.labels:
        return f"No row is down-weighted for where it lies, but outlying labels are: {compared}."
    if decision.ridge < 1.0:
        return f"All rows are trusted: {compared}."
    return (
        f"All rows are trusted: no assumed outlier share lowers the held-out loss "
        f"({decision.plain:.3g} on {decision.rows:,} rows) significantly."
    )
