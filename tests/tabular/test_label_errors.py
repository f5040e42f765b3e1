"""Labels that do not fit their rows: found by models that did not see them, class by class."""

import numpy as np
import pandas as pd
import pytest

from dorfl.protocol.settings import Data, Study
from dorfl.tabular import label_errors, table


def trained(tmp_path, frame, **words):
    frame.to_csv(tmp_path / "t.csv", index=False)
    study = Study(data=Data(file=str(tmp_path / "t.csv"), label="y", client="ward"))
    return table.run(study.changed(**words))


def classes(rows=600, seed=0):
    """Three classes, of which two are told apart at once and the third hardly from the second."""
    rng = np.random.default_rng(seed)
    y = rng.choice(3, rows, p=[0.45, 0.45, 0.1])
    X = np.array([[-3.0, 0.0], [3.0, 0.0], [3.0, 1.0]])[y] + rng.normal(size=(rows, 2))
    frame = pd.DataFrame(X, columns=["a", "b"])
    return frame.assign(ward=rng.choice(["n", "s"], rows), y=np.array(["u", "v", "w"])[y])


def test_wrong_classes_are_found_and_a_hard_class_is_left_alone(tmp_path):
    frame = classes()
    right = frame["y"].copy()
    wrong = np.flatnonzero(right == "u")[:20]
    frame.loc[wrong, "y"] = "v"
    model, rows = trained(tmp_path, frame)
    listed = label_errors.describe(model, rows, label_errors.find_label_errors(model, rows))
    places = np.array([line[0] for line in listed]) - 1
    assert len(set(wrong) & set(places)) >= 8 and len(places) <= 25  # half of them are typical
    assert (right[places] != "w").mean() > 0.9
    row, ward, label, like = listed[0]
    assert (ward, label) == (frame["ward"][row - 1], frame["y"][row - 1])
    assert like.endswith(" %)") and like.split()[0] == "u"


def test_on_clean_rows_hardly_a_label_is_odd_in_any_class(tmp_path):
    frame = classes(seed=1)
    model, rows = trained(tmp_path, frame)
    found = label_errors.find_label_errors(model, rows)
    of = np.bincount(rows.y[found.places], minlength=3) / np.bincount(rows.y)
    assert of.max() < 0.06


def test_what_is_not_counted_is_neither_judged_nor_a_judge(tmp_path):
    frame = classes()
    model, rows = trained(tmp_path, frame)
    wrong = rows.y == 0
    found = label_errors.find_label_errors(model, rows, ~wrong)
    assert not wrong[found.places].any()
    assert (
        label_errors.find_label_errors(model, rows, np.arange(len(rows.y)) < 20)
        == label_errors.NONE
    )
    rare = rows.y == 2
    few = ~rare | (np.cumsum(rare) <= 3)  # of the third class three rows: two classes are left
    assert not rare[label_errors.find_label_errors(model, rows, few).places].any()


def test_wrong_numbers_are_found_with_what_rows_like_them_have(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(400, 2)), columns=["a", "b"])
    frame["ward"] = rng.choice(["n", "s"], 400)
    truth = 50 + 10 * frame["a"]
    frame["y"] = truth + rng.normal(size=400)
    frame.loc[:11, "y"] *= 3
    model, rows = trained(tmp_path, frame)
    listed = label_errors.describe(model, rows, label_errors.find_label_errors(model, rows))
    assert {line[0] - 1 for line in listed} == set(range(12))
    for row, _, label, like in listed:
        assert float(label) == pytest.approx(frame["y"][row - 1], abs=1)
        assert float(like) == pytest.approx(truth[row - 1], abs=1.5)
