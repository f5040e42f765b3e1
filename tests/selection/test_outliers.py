"""The comparison of candidates: trimmed statistics, their sums over clients, and the rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import log_loss

import dorfl
from dorfl.selection import outliers
from dorfl.selection.outliers import Candidate, combine, compare_losses, select, trimmed_mean


def test_trimmed_mean_and_winsorised_variance_are_scipys():
    values = np.random.default_rng(0).normal(size=43)
    for trimming in (0.0, 0.1, 0.2, 0.45):
        mean, variance, left = trimmed_mean(values, trimming)
        cut = int(trimming * len(values))
        assert mean == pytest.approx(stats.trim_mean(values, trimming))
        assert left == len(values) - 2 * cut
        winsorised = np.asarray(stats.mstats.winsorize(values, limits=(trimming, trimming)))
        squares = (len(values) - 1) * winsorised.var(ddof=1)
        assert variance == pytest.approx(squares / (left * (left - 1)))


def test_without_trimming_the_ratio_is_that_of_the_likelihoods(monkeypatch):
    monkeypatch.setattr(outliers, "TRIMMING", 0.0)
    p, q = np.random.default_rng(1).uniform(0.2, 0.9, (2, 50))
    total = compare_losses((Candidate(0.0), Candidate(0.1)), [-np.log(p), -np.log(q)])
    expected = np.log(np.prod(q / p))
    assert outliers.log_likelihood_ratio(total, 0) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("classes", [2, 4])
def test_held_out_losses_are_those_of_scikit_learn(classes):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), np.arange(60) % classes
    fit = dorfl.train([(X, y)], dorfl.methods.erm(), loss="softmax" if classes > 2 else "logistic")
    found = outliers.held_out_losses(fit.problem, fit.theta.ravel(), X, y)
    assert found.mean() == pytest.approx(log_loss(y, fit.predict_proba(X)), rel=1e-6)


def test_the_level_of_the_test_is_kept_if_plain_training_is_right():
    """Labels drawn from the plain candidate are seldom twenty times as likely under another."""
    rng, candidates, won = np.random.default_rng(2), (Candidate(0.0), Candidate(0.1)), 0
    for _ in range(1000):
        parts = []
        for size in (20, 35, 60):
            logits = rng.normal(size=size)
            y = rng.random(size) < 1 / (1 + np.exp(-logits))
            both = np.array([logits, logits + rng.normal(0.0, 0.5, size)])
            parts.append(compare_losses(candidates, np.logaddexp(0.0, np.where(y, -both, both))))
        won += select(candidates, combine(parts))
    assert won <= 50


def test_the_unit_of_a_regression_does_not_matter():
    rng, candidates = np.random.default_rng(5), (Candidate(0.0), Candidate(0.1))
    plain = rng.exponential(size=200)
    for factor in (1e-3, 1.0, 1e3):
        for other, expected in ((0.6 * plain, 1), (0.99 * plain, 0), (1.5 * plain, 0)):
            total = compare_losses(candidates, [factor * plain, factor * other])
            assert select(candidates, total, classifies=False) == expected


@given(st.integers(0, 2**32), st.floats(0.0, 0.09), st.integers(60, 200))
def test_a_few_extreme_rows_do_not_decide(seed, share, rows):
    """A model that predicts most rows better wins, however badly it predicts the others."""
    rng = np.random.default_rng(seed)
    plain, robust = rng.uniform(0.4, 0.6, rows), rng.uniform(0.1, 0.3, rows)
    robust[: int(share * rows)] = 2.0
    candidates = tuple(map(Candidate, outliers.SHARES))
    total = compare_losses(candidates, [plain, plain + 0.01, robust])
    assert select(candidates, total) == 2


def test_a_difference_below_one_standard_error_does_not_decide():
    """With many rows a tiny difference is certain, and yet too small to matter."""
    rng = np.random.default_rng(4)
    plain = rng.uniform(0.0, 2.0, 3000)
    candidates = (Candidate(0.0), Candidate(0.1))
    total = compare_losses(candidates, [plain, plain - 1e-3 - 1e-4 * rng.random(3000)])
    assert outliers.log_likelihood_ratio(total, 0) > 3.0 and select(candidates, total) == 0


@given(st.integers(0, 200), st.integers(1, 9), st.floats(0.1, 3.0))
def test_compared_rows_leave_out_none_or_several(rows, least, cutoff):
    away = np.random.default_rng(rows).exponential(size=rows) * 3.0
    kept = outliers.compared_rows(away, cutoff, least)
    left_out = int((~kept).sum())
    assert left_out == 0 or left_out >= min(least, rows)
    assert away[kept].max(initial=0.0) <= 4.0 * cutoff


def test_the_plainest_of_those_that_none_beats_is_selected():
    rng = np.random.default_rng(3)
    base = rng.uniform(0.2, 0.4, 300)
    candidates = tuple(map(Candidate, outliers.SHARES))
    noise = rng.normal(0, 0.01, (3, 300))
    assert select(candidates, compare_losses(candidates, base + noise)) == 0
    better = [base + 0.1, base, base + noise[2]]
    assert select(candidates, compare_losses(candidates, better)) == 1


def test_a_smaller_ridge_is_selected_only_if_it_beats_the_usual_one():
    """A share that beats plain training is not passed over for plain training with less ridge."""
    base = np.random.default_rng(6).uniform(0.2, 0.4, 20)
    candidates = (Candidate(0.0), Candidate(0.0, ridge=0.01), Candidate(0.1))
    plain, less, robust = base + 0.3, base + 0.17, base + 0.05
    assert select(candidates, compare_losses(candidates, [plain, less, robust])) == 2
    assert select(candidates, compare_losses(candidates, [plain, base, base])) == 1


@given(st.integers(0, 400), st.integers(30, 300), st.integers(1, 5))
def test_sizes_of_the_split_depend_on_counts_alone(rows, limit, classes):
    labels = np.random.default_rng(rows).integers(0, classes, rows)
    trained, held = outliers.split_rows(rows, limit, labels)
    other = outliers.split_rows(rows, limit)
    assert [len(trained), len(held)] == [len(part) for part in other]
    assert len(held) == min(rows, limit) // 3 and not set(trained) & set(held)
    assert len(trained) == outliers.trained_count(rows, limit)


def test_rare_classes_keep_training_rows():
    labels = np.repeat([0, 1, 2], (80, 6, 3))
    trained, held = outliers.split_rows(len(labels), 900, labels)
    assert np.bincount(labels[trained]).tolist()[1:] == [5, 3]
    assert len(held) == len(labels) // 3


def test_nothing_is_reported_on_few_rows_and_no_report_has_many_digits():
    candidates = (Candidate(0.0), Candidate(0.1))
    none = compare_losses(candidates, [np.ones(4), np.zeros(4)], least=5)
    assert not any(part.any() for part in none)
    some = compare_losses(candidates, np.random.default_rng(0).random((2, 50)), least=5)
    for value in (*some.differences, *some.variances, *some.losses):
        assert value == float(f"{value:.4g}")


def test_without_held_out_rows_all_rows_are_trusted_and_the_words_say_so():
    candidates = tuple(map(Candidate, outliers.SHARES))
    nothing = compare_losses(candidates, np.zeros((3, 0)))
    decision = outliers.decide(candidates, combine([nothing]))
    assert decision.share == 0.0 and decision.rows == 0
    assert "too few rows" in outliers.describe(decision)
