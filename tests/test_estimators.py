"""The scikit-learn face: to the letter, and the same numbers as `dorfl.train`."""

import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import HuberRegressor, LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

import dorfl
from dorfl import RobustClassifier, RobustRegressor


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4)) * [1.0, 100.0, 1e-3, 1.0] + [0.0, 500.0, 0.0, 3.0]
    logit = X[:, 0] + (X[:, 1] - 500.0) / 100.0
    y = np.where(rng.random(400) < 1 / (1 + np.exp(-2 * logit)), "yes", "no")
    return X, y, np.where(rng.random(400) < 0.7, "north", "south")


# Rows are kept in single precision, where sums depend on the rows' order: predictions agree to 1e-5
# with rows repeated and shuffled, and the check asks for 1e-7. In double precision it holds.
SHUFFLED = "check_sample_weight_equivalence_on_dense_data"


@parametrize_with_checks(
    [RobustClassifier(), RobustRegressor()],
    expected_failed_checks=lambda _: {SHUFFLED: "sums in single precision depend on the order"},
)
def test_scikit_learn_approves(estimator, check):
    check(estimator)


@pytest.mark.parametrize("model", [RobustClassifier(tol=1e-13), RobustRegressor(tol=9e-9, l2=0.05)])
def test_weights_are_repeated_rows_in_any_order(model):
    getattr(estimator_checks, SHUFFLED)(type(model).__name__, model)


def test_without_robustness_it_is_logistic_regression(rows):
    X, y, _ = rows
    ours = RobustClassifier("erm", l2=1e-9, tol=1e-12).fit(X, y)
    theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000)
    scaled = make_pipeline(StandardScaler(), theirs).fit(X, y)
    np.testing.assert_allclose(ours.predict_proba(X), scaled.predict_proba(X), atol=1e-4)
    np.testing.assert_allclose(
        X @ ours.coef_[0] + ours.intercept_[0], ours.decision_function(X), rtol=1e-10
    )


def test_three_classes_come_as_softmax():
    X, y = load_iris(return_X_y=True)
    labels = np.array(["a", "b", "c"])[y]
    model = RobustClassifier().fit(X, labels)
    assert model.score(X, labels) > 0.95
    assert model.coef_.shape == (3, 4) and model.decision_function(X).shape == (150, 3)
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)


def test_outliers_in_any_units_do_no_harm_and_weigh_nothing(rows):
    X, y, who = rows
    bad = np.arange(400) % 10 == 3
    wrong = np.where(bad[:, None], -8 * X, X)
    model = RobustClassifier().fit(wrong, y, clients=who)
    clean = RobustClassifier().fit(X, y, clients=who)
    plain = make_pipeline(StandardScaler(), LogisticRegression()).fit(wrong, y)
    assert model.score(X, y) > clean.score(X, y) - 0.01 > plain.score(X, y)
    assert model.sample_weights_[bad].max() < 0.01
    assert model.sample_weights_[~bad].min() > 0.1


def test_sample_weights_are_in_the_order_of_the_rows(rows):
    X, y, who = rows
    order = np.random.default_rng(1).permutation(400)
    one = RobustClassifier().fit(X, y, clients=who)
    other = RobustClassifier().fit(X[order], y[order], clients=who[order])
    np.testing.assert_allclose(one.sample_weights_[order], other.sample_weights_, rtol=1e-3)
    for name in ("north", "south"):
        assert one.sample_weights_[who == name].mean() == pytest.approx(1.0)


def test_clients_have_weights_and_the_worst_served_can_have_most(rows):
    X, y, who = rows
    share = RobustClassifier().fit(X, y, clients=who).client_weights_
    assert share == pytest.approx({n: np.mean(who == n) for n in ("north", "south")})
    worst = RobustClassifier(mixture="agnostic").fit(X, y, clients=who).client_weights_
    assert sum(worst.values()) == pytest.approx(1.0) and worst != pytest.approx(share)
    assert set(RobustClassifier().fit(X, y, clients=pd.Series(who)).client_weights_) == set(share)
    assert RobustClassifier().fit(X, y).client_weights_ == {"all": 1.0}


def test_the_certificate_holds_and_rows_are_not_pickled(rows):
    X, y, who = rows
    model = RobustClassifier(shift=0.25).fit(X, y, clients=who)
    own = model.certificate()
    assert own.is_certificate and abs(own.difference) < 1e-8
    packed = pickle.dumps(model)
    again = pickle.loads(packed)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    with pytest.raises(ValueError, match="give X and y"):
        again.certificate()
    assert again.certificate(X, y, who).bound == pytest.approx(own.bound)
    found = model.certify(outliers=0.1, drift=0.1)
    assert 0.5 < found.accuracy < 1.0
    same = again.certify(X, y, who, confidence=None)
    assert same.accuracy == pytest.approx(found.accuracy, abs=1e-6)
    assert found.words.startswith("In sample") and found.accuracy <= model.score(X, y)
    sure = again.certify(X, y, who)
    assert sure.words.startswith("With 95 % confidence") and sure.accuracy < found.accuracy
    for value in (X[7, 0], X[7, 1], X[7, 2]):
        assert np.float64(value).tobytes() not in packed
    with pytest.raises(ValueError, match="label 'maybe'"):
        again.certificate(X, np.full(400, "maybe"))


def test_clones_are_unfitted_twins(rows):
    X, y, _ = rows
    model = RobustClassifier(outliers=0.2, frozen=[3]).fit(X, y)
    twin = clone(model)
    assert twin.get_params() == model.get_params() and not hasattr(twin, "coef_")


def test_frames_pipelines_and_searches(rows):
    X, y, who = rows
    frame = pd.DataFrame(X, columns=["age", "weight", "dose", "score"])
    model = RobustClassifier(frozen=["score"]).fit(frame, y)
    assert list(model.feature_names_in_) == list(frame)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"age": "years"}))
    with pytest.raises(ValueError, match="no column 'height'"):
        RobustClassifier(frozen=["height"]).fit(frame, y)
    assert cross_val_score(RobustClassifier(), frame, y, cv=3).mean() > 0.8
    with sklearn.config_context(enable_metadata_routing=True):
        routed = RobustClassifier().set_fit_request(clients=True)
        pipe = make_pipeline(StandardScaler(), routed)
        search = GridSearchCV(pipe, {"robustclassifier__shift": [0.1, 0.5]}, cv=3)
        search.fit(frame, y, clients=who)
        fitted = search.best_estimator_[-1]
    assert set(fitted.client_weights_) == {"north", "south"}


def test_frames_may_hold_words_and_gaps(rows):
    X, y, who = rows
    frame = pd.DataFrame(X[:, :2], columns=["age", "weight"])
    frame["ward"] = np.where(np.arange(400) % 3, "north", "south")
    frame.loc[::7, "age"] = np.nan
    model = RobustClassifier(frozen=["weight"]).fit(frame, y, clients=who)
    assert list(model.feature_names_in_) == ["age", "weight", "ward"] and model.n_features_in_ == 3
    assert list(model.features_) == [
        "age", "age=(missing)", "weight", "ward=north", "ward=south",
    ]  # fmt: skip
    assert model.coef_.shape == (1, 5) and model.score(frame, y) > 0.7
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    same = again.certify(frame, y, who, confidence=None)
    assert same.accuracy == pytest.approx(model.certify().accuracy)
    whole = frame.dropna().drop(columns="ward").assign(ward="east")  # a level never seen
    assert model.predict(whole).shape == (len(whole),)
    weighed = RobustClassifier().fit(frame, y, sample_weight=np.arange(400) % 2)
    assert (weighed.sample_weights_[::2] == 0).all()
    assert cross_val_score(RobustClassifier(), frame, y, cv=3).mean() > 0.7
    with pytest.raises(ValueError, match="fitted to a data frame"):
        model.predict(X[:, :3])
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"age": "years"}))
    with pytest.raises(ValueError, match="no column 'height'"):
        RobustClassifier(frozen=["height"]).fit(frame, y)
    odd = frame.assign(mixed=[1, "a"] * 200)
    with pytest.raises(ValueError, match="values of one type"):
        RobustClassifier().fit(odd, y)
    prices = RobustRegressor().fit(frame.drop(columns="weight"), frame["weight"])
    assert (
        prices.coef_.shape == (4,)
        and np.isfinite(prices.predict(frame.drop(columns="weight"))).all()
    )


def test_columns_with_two_values_are_frozen_unless_told(rows):
    X, y, _ = rows
    flagged = np.column_stack([X, np.arange(400) % 2])
    found = RobustClassifier(shift=0.25).fit(flagged, y)
    assert "2 of 6 columns" in " ".join(found.choice_)  # a column for each value, as of a table
    assert found.coef_.shape == (1, 5)
    second = dorfl.scores.quadratic(0.5, np.zeros(5), [0.0, 1.0, 0.0, 0.0, 0.0])
    placed = RobustClassifier(outlier_score=second).fit(flagged, y)  # it names columns by place
    assert "1 of 5 columns" in " ".join(placed.choice_)
    assert "column" not in RobustClassifier(frozen=[]).fit(X, y).choice_[1]


def test_a_regression_is_not_thrown_off_by_rows_or_values():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(500, 3)) * [1.0, 1e3, 1e-2] + [5.0, 0.0, 0.0]
    truth = 1e4 + X @ [2e3, 3.0, 1e5]
    y = truth + 200 * rng.normal(size=500)
    bad_rows, bad_values = X.copy(), y.copy()
    bad_rows[:50] *= -8
    bad_values[50:100] *= -8
    theirs = HuberRegressor(max_iter=1000).fit(bad_rows / X.std(axis=0), y)
    assert theirs.score(X / X.std(axis=0), truth) < 0.9
    for loss in ("huber", "squared"):
        assert RobustRegressor(loss=loss).fit(bad_rows, y).score(X, truth) > 0.99
    assert RobustRegressor().fit(bad_rows, bad_values).score(X, truth) > 0.98
    assert RobustRegressor(loss="squared").fit(X, bad_values).score(X, truth) < 0.9


def test_a_plain_regression_is_least_squares():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 3)) * [1.0, 50.0, 0.1]
    y = 7.0 + X @ [1.0, 0.1, 30.0] + rng.normal(size=200)
    model = RobustRegressor("erm", loss="squared", l2=0.0, tol=1e-12).fit(X, y)
    exact = np.linalg.lstsq(np.column_stack([X, np.ones(200)]), y)[0]
    np.testing.assert_allclose([*model.coef_, model.intercept_], exact, rtol=1e-4)
    assert abs(RobustRegressor(shift=0.25).fit(X, y).certificate().difference) < 1e-6
    with pytest.raises(ValueError, match="a shift above 0"):
        RobustRegressor().fit(X, y).certificate()
    found, wide = (RobustRegressor().fit(X, k * y).certify() for k in (1.0, 100.0))
    assert found.error > 0 and wide.error == pytest.approx(100.0 * found.error, rel=1e-3)


@pytest.mark.parametrize("method", ["erm", "dorfl"])
def test_whole_weights_are_repeated_rows_and_zero_is_no_row(rows, method):
    X, y, who = rows
    w = np.random.default_rng(5).integers(0, 4, size=400)
    for make, target in ((RobustClassifier, y), (RobustRegressor, X[:, 0] + 0.01 * X[:, 1])):
        one = make(method, tol=1e-7).fit(X, target, clients=who, sample_weight=w)
        again = [np.repeat(part, w, axis=0) for part in (X, target, who)]
        other = make(method, tol=1e-7).fit(*again[:2], clients=again[2])
        np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-6)
        assert one.client_weights_ == pytest.approx(other.client_weights_)
        np.testing.assert_allclose(np.repeat(one.sample_weights_, w), other.sample_weights_, 1e-4)
        assert (one.sample_weights_[w == 0] == 0).all()
        assert np.average(one.sample_weights_, weights=w) == pytest.approx(1.0)


def test_other_weights_are_those_of_scikit_learn(rows):
    X, y, who = rows
    scaled = StandardScaler().fit_transform(X)
    w = np.random.default_rng(6).exponential(size=400) + 0.01
    for own, theirs in (
        ({}, LogisticRegression(tol=1e-10)),
        ({"class_weight": "balanced"}, LogisticRegression(tol=1e-10, class_weight="balanced")),
        ({"class_weight": {"yes": 5.0}}, LogisticRegression(tol=1e-10, class_weight={"yes": 5.0})),
    ):
        ours = RobustClassifier("erm", tol=1e-10, l2=1e-6, **own).fit(scaled, y, sample_weight=w)
        theirs.set_params(C=np.inf).fit(scaled, y, sample_weight=w)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=2e-3)
    share = RobustClassifier().fit(X, y, clients=who, sample_weight=w).client_weights_
    assert share == pytest.approx({n: w[who == n].sum() / w.sum() for n in share})
    with pytest.raises(ValueError, match="one weight each"):
        RobustClassifier().fit(X, y, sample_weight=w[1:])
    with pytest.raises(ValueError, match="all weights are zero"):
        RobustClassifier().fit(X, y, sample_weight=np.zeros(400))


def test_a_score_of_ones_own_says_what_is_suspect(rows):
    X, y, who = rows
    high = dorfl.scores.custom(lambda rows, labels: 900.0 * (rows[:, 0] > 1.0))
    model = RobustClassifier(outlier_score=high, frozen=[0, 1, 2, 3]).fit(X, y, clients=who)
    far = X[:, 0] > np.median(X[:, 0]) + 1.4826 * 1.2 * np.median(abs(X[:, 0] - np.median(X[:, 0])))
    assert model.sample_weights_[far].max() < 0.01 < model.sample_weights_[~far].mean()
    assert clone(model).outlier_score.function is high.function
    near = RobustClassifier(outlier_score=dorfl.scores.quadratic(0.5)).fit(X, y, clients=who)
    assert near.certificate().is_certificate


def test_errors_say_what_to_do(rows):
    X, y, who = rows
    for call in (
        lambda table: RobustClassifier().fit(table, y),
        RobustClassifier().fit(X, y).predict,
    ):
        with pytest.raises(TypeError, match=r"toarray.*0\.0 GB.*dorfl\.train"):
            call(csr_array(X))
    with pytest.raises(ValueError, match="one class"):
        RobustClassifier().fit(X, np.full(400, "yes"))
    with pytest.raises(ValueError, match="give 400 names"):
        RobustClassifier().fit(X, y, clients=who[:-1])
    with pytest.raises(ValueError, match="row 5 has no client"):
        RobustClassifier().fit(X, y, clients=np.where(np.arange(400) == 5, None, who))
    with pytest.raises(ValueError, match=r"outliers=0\.9"):
        RobustClassifier(outliers=0.9).fit(X, y)
    with pytest.raises(ValueError, match='"huber" or "squared"'):
        RobustRegressor(loss="absolute").fit(X, X[:, 0])
    with pytest.warns(ConvergenceWarning, match="max_rounds"):
        RobustClassifier(outliers=0.1, max_rounds=2).fit(X, y)


def test_importing_dorfl_does_not_import_scikit_learn():
    code = (
        "import sys, dorfl; assert 'RobustClassifier' in dir(dorfl); "
        "assert not any(m.split('.')[0] in ('sklearn', 'pandas') for m in sys.modules); "
        "dorfl.RobustClassifier; assert 'sklearn' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = dorfl.Nonsense
