"""Scores have one definition, with standard errors that are right."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dorfl.tabular import evaluation
from dorfl.tabular.comparison import Comparison
from dorfl.tabular.model.facts import Estimate, Facts, HeldOutScores, from_json, worst_client


def test_the_stratified_error_is_the_spread_of_means_over_fresh_samples():
    """Three clients of different accuracy and size, drawn 4,000 times."""
    rng, accuracy = np.random.default_rng(0), np.array([0.95, 0.3, 0.8])
    owner = np.repeat(np.arange(3), [30, 60, 120])
    draws = (rng.random((4000, len(owner))) < accuracy[owner]).astype(float)
    found = [evaluation.estimate(values, owner) for values in draws]
    spread = np.std([one.mean for one in found])
    assert np.sqrt(np.mean([one.error**2 for one in found])) == pytest.approx(spread, rel=0.03)
    pooled = np.mean([values.std(ddof=1) / np.sqrt(len(owner)) for values in draws])
    assert pooled > 1.03 * spread  # without strata the error is too large


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=60))
def test_the_overall_score_is_the_mean_over_rows_whatever_the_clients(pairs):
    pairs.sort()
    owner, values = (np.array(part) for part in zip(*pairs, strict=True))
    values = values.astype(float)
    names = [f"client {k}" for k in range(5)]
    found = evaluation.summarise(values, owner, names)
    assert found.overall.mean == pytest.approx(values.mean())
    assert sum(one.rows for one in found.clients.values()) == len(values)
    for k, name in enumerate(names):
        own = values[owner == k]
        assert (name in found.clients) == bool(len(own))
        if len(own) > 1:
            share = own.mean()
            binomial = np.sqrt(share * (1 - share) / (len(own) - 1))
            assert found.clients[name].error == pytest.approx(binomial, abs=1e-12)
    used = np.arange(len(values)) % 2 == 0
    part = evaluation.summarise(values, owner, names, used)
    assert part.overall.mean == pytest.approx(values[used].mean())


def test_one_row_of_each_client_has_no_error():
    assert evaluation.estimate(np.array([1.0, 0.0]), np.array([0, 1])) == Estimate(0.5, None, 2)


def test_a_client_with_few_rows_is_never_the_worst():
    scores = {"few": Estimate(0.1, 0.1, 19), "a": Estimate(0.8, 0.1, 20)}
    assert worst_client(scores, classifies=True) == "a"
    assert worst_client({"few": scores["few"]}, classifies=True) is None
    errors = {"a": Estimate(2.0, 0.1, 50), "b": Estimate(3.0, 0.1, 50)}
    assert worst_client(errors, classifies=False) == "b"


# ── comparison ──────────────────────────────────────────────────────────────────────────────────


def comparison(scores, classifies=True):
    scores = np.asarray(scores, dtype=float)
    rows = scores.shape[1]
    owner, inlier = np.repeat([0, 1], [rows // 2, rows - rows // 2]), np.ones(rows, dtype=bool)
    names = tuple("abcde"[: len(scores)])
    return Comparison(names, ("one", "two"), owner, scores, inlier, classifies, 5)


def test_no_method_is_best_if_all_tie_and_one_is_named_if_not():
    rng = np.random.default_rng(0)
    first = (rng.random(400) < 0.8).astype(float)
    second = first.copy()
    second[:3] = 1 - second[:3]  # three rows differ: a tie
    tie = comparison([first, second])
    assert tie.best is None and tie.tied == ("a", "b")
    assert tie.verdict.startswith("none: all methods")
    third = first.copy()
    third[first == 1] *= rng.random(int(first.sum())) < 0.8
    found = comparison([first, second, third])
    top = "a" if first.mean() >= second.mean() else "b"
    assert found.best == top and set(found.tied) == {"a", "b"}
    assert found.verdict.startswith(f"{top} over inliers;")


def test_errors_are_paired_so_that_small_consistent_differences_show():
    rng = np.random.default_rng(1)
    errors = rng.exponential(10.0, 300)
    found = comparison([errors, errors + 0.2 + 0.1 * rng.normal(size=300)], classifies=False)
    d = found.difference(1, 0)
    assert found.best == "a" and d.mean == pytest.approx(0.2, abs=0.02)
    assert d.error < 0.01 < found.score(0).overall.error


def test_outliers_count_over_all_rows_only():
    scores = np.ones((2, 100))
    scores[:, :10] = 0.0
    found = comparison(scores)._replace(inlier=np.arange(100) >= 10)
    assert found.score(0).overall.mean == 1.0
    assert found.score(0, inliers=False).overall.mean == pytest.approx(0.9)


def test_held_out_scores_come_back_from_a_folder():
    scores = HeldOutScores("erm", Estimate(0.8, 0.1, 30), {"a": Estimate(0.7, 0.2, 9)})
    facts = Facts(held_out=(scores,))
    assert from_json(facts.to_json()) == facts
