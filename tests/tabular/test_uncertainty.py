"""Standard errors of coefficients: the textbook formula, and the spread over repeated samples."""

import numpy as np
import pandas as pd
import pytest

from dorfl.protocol.settings import Data, Study, Training, Words
from dorfl.tabular import table, uncertainty
from dorfl.tabular.uncertainty import coefficient_errors


def trained(folder, frame, label, **training):
    frame.to_csv(folder / "t.csv", index=False)
    data = Data(label, str(folder / "t.csv"), "ward")
    study = Study(data, method=Words("erm"), training=Training(**training))
    return table.run(study, certify=False)


def sample(seed, rows=600):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(rows, 2)), columns=["a", "b"])
    lean = 1.2 * frame["a"] - 0.6 * frame["b"]
    frame["cost"] = lean + (0.5 + np.abs(frame["a"])) * rng.normal(size=rows)
    frame["ill"] = np.where(lean + rng.logistic(size=rows) > 0, "yes", "no")
    frame["ward"] = rng.choice(["east", "west"], rows)
    return frame


def test_least_squares_has_the_errors_of_white(tmp_path):
    frame = sample(0)[["a", "b", "cost", "ward"]]
    model, rows = trained(tmp_path, frame, "cost", loss="squared", l2=1e-12, tol=1e-10)
    X = np.column_stack([rows.X, np.ones(len(rows.y))]).astype(float)
    residual = rows.y - X @ model.fit.theta.ravel()
    inverse = np.linalg.inv(X.T @ X)
    white = np.sqrt(np.diag(inverse @ (X.T * residual**2) @ X @ inverse))
    assert coefficient_errors(model, rows)[0] == pytest.approx(white[:2], rel=1e-4)


def test_errors_are_the_spread_over_samples_with_or_without_thinning(tmp_path, monkeypatch):
    found, errors = [], []
    for seed in range(60):
        model, rows = trained(tmp_path, sample(seed)[["a", "b", "ill", "ward"]], "ill")
        scale = [part.spread for part in model.transform.parts]  # back to the columns' own units
        found.append(model.fit.problem.split(model.fit.theta)[0][0] / scale)
        errors.append(coefficient_errors(model, rows)[0] / scale)
    spread, mean = np.std(found, axis=0, ddof=1), np.mean(errors, axis=0)
    assert mean == pytest.approx(spread, rel=0.35)  # 60 samples: ± 9 % for one standard error
    monkeypatch.setattr(uncertainty, "MAX_ROWS", 200)
    thinned = coefficient_errors(model, rows)[0] / scale
    assert thinned == pytest.approx(errors[-1], rel=0.3)


def test_several_classes_have_errors_and_large_models_none(tmp_path, monkeypatch):
    frame = sample(0)[["a", "b", "cost", "ward"]]
    frame["cost"] = pd.cut(frame["cost"], [-99, -1, 1, 99], labels=["low", "middle", "high"])
    model, rows = trained(tmp_path, frame, "cost")
    errors = coefficient_errors(model, rows)
    assert errors.shape == (3, 2) and (errors > 0).all() and (errors < 1).all()
    monkeypatch.setattr(uncertainty, "_MAX_SIZE", 5)
    assert coefficient_errors(model, rows) is None
