"""A class is not suspect as a whole because others are more frequent at its client."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from dorfl.cli import app
from dorfl.data import robust
from dorfl.tabular import model

SIZES = {
    ("west", "small"): 44,
    ("west", "large"): 124,
    ("east", "small"): 56,
    ("east", "third"): 68,
}
PLACE = {"small": (0.0, 0.0), "large": (6.0, -5.0), "third": (5.0, 4.0)}


def birds():
    """Three kinds on two islands; two rows are wildly off."""
    rng = np.random.default_rng(0)
    parts = [
        pd.DataFrame(rng.normal(PLACE[kind], 1.0, (n, 2)), columns=["bill", "wing"]).assign(
            island=island, kind=kind
        )
        for (island, kind), n in SIZES.items()
    ]
    frame = pd.concat(parts, ignore_index=True)
    frame.loc[frame.index[:2], "bill"] = 40.0
    return frame


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    folder, frame = tmp_path_factory.mktemp("birds"), birds()
    frame.to_csv(folder / "birds.csv", index=False)
    words = ("--label", "kind", "--client", "island", "--out", folder / "model", "--budget", "0")
    given = ["train", str(folder / "birds.csv"), *map(str, words), "--outliers", "0.1"]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    given = ["outliers", str(folder / "model"), str(folder / "birds.csv"), "--json"]
    done = CliRunner().invoke(app, [*given, "--top", "400"])
    assert done.exit_code == 0, done.output
    found = pd.DataFrame(json.loads(done.stdout)["top"]).set_index("row").sort_index()
    return frame.assign(weight=found["weight"].to_numpy()), model.load(folder / "model")


def test_no_minority_class_is_suspect_as_a_whole(listed):
    found, _ = listed
    assert (found["weight"][:2] < 1e-6).all()
    sound = found.drop(index=[0, 1])
    weight = sound.groupby(["island", "kind"])["weight"].mean()
    assert weight.min() > 0.95 * weight.max()
    worst = sound.sort_values("weight").head(30)
    for (island, kind), share in (sound.groupby(["island", "kind"]).size() / len(sound)).items():
        there = ((worst["island"] == island) & (worst["kind"] == kind)).mean()
        assert there < share + 0.25, (island, kind)


def test_the_folder_has_a_centre_for_every_kind_of_every_island(listed):
    _, made = listed
    assert made.classes == ("large", "small", "third") and made.fit.centers.shape == (2, 3, 2)
    parts = {part.name: part for part in made.transform.numeric}
    for island, kind in SIZES:
        own = made.fit.centers[made.fit.clients.index(island), made.classes.index(kind)]
        for value, name, true in zip(own, ("bill", "wing"), PLACE[kind], strict=True):
            assert parts[name].center + parts[name].spread * value == pytest.approx(true, abs=0.5)


def test_a_class_with_too_few_rows_has_the_centre_of_all():
    """With one of its own a coordinator could measure its few rows from anywhere."""
    rng = np.random.default_rng(1)
    codes = [np.repeat([0, 1], [60, 50]), np.repeat([0, 1], [60, 9])]
    tables = [rng.normal(2.5 * c[:, None], 1.0, (len(c), 2)) for c in codes]
    told = [robust.report(X, c, classes=2, least=5) for X, c in zip(tables, codes, strict=True)]
    assert told[0].by.tolist() == [60, 50] and told[1].by.tolist() == [60, 0]
    found = robust.client_centers(told, own=True, shape=np.ones(2))
    np.testing.assert_array_equal(found[1, 1], told[1].mean)
    np.testing.assert_array_equal(found[0], told[0].means)
    assert robust.client_centers(told, own=False, shape=np.ones(2)).shape == (2, 2)


@pytest.mark.parametrize(("away", "ndim"), [(0.5, 2), (2.5, 3), (8.0, 2)])
def test_a_class_among_the_others_or_beyond_them_has_no_centre_of_its_own(away, ndim):
    """Where many labels are wrong, it would be the centre of the wrong ones."""
    rng, codes = np.random.default_rng(3), np.repeat([0, 1], [200, 60])
    told = robust.report(
        rng.normal(away * codes[:, None], 1.0, (260, 2)), codes, classes=2, least=5
    )
    assert robust.client_centers([told], own=True, shape=np.ones(2)).ndim == ndim


def test_wrong_rows_that_lie_together_do_not_vouch_for_themselves():
    """A far cluster with one label is half of that class."""
    rng, codes = np.random.default_rng(5), np.repeat([0, 1, 2], [200, 200, 60])
    rows = rng.normal(4.0 * codes[:, None], 1.0, (460, 3))
    rows[-30:] = 100.0
    told = robust.report(rows, codes, classes=3, least=5)
    shape = 1.0 / robust.column_scales([told], inlier_share=0.8).units ** 2
    found = robust.client_centers([told], own=True, shape=shape)[0]
    np.testing.assert_array_equal(found[2], told.mean)
    np.testing.assert_array_equal(found[:2], told.means[:2])


def test_a_third_of_wrong_rows_hardly_moves_a_class():
    rng, codes = np.random.default_rng(4), np.repeat([0, 1], 100)
    rows = rng.normal(3.0 * codes[:, None], 1.0, (200, 2))
    rows[:20] = 1e6
    _, means = robust.class_means(rows, codes, 2)
    assert np.abs(means - [[0.0], [3.0]]).max() < 0.5


def test_no_number_is_of_few_rows():
    rng = np.random.default_rng(2)
    for least in (1, 5, 11):
        codes = rng.integers(0, 4, size=60) ** 2 % 5
        counts, means = robust.class_means(rng.normal(size=(60, 2)), codes, 5, least)
        assert ((counts == 0) | (counts >= 2 * max(least, 5))).all()
        assert not means[counts == 0].any()


def test_rows_of_a_rare_class_are_near_its_own_centre():
    """As many rows as may be wrong are of a class that lies elsewhere."""
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(90, 2)), rng.normal(10.0, 1.0, (10, 2)), [[50.0, 50.0]]])
    y = np.repeat([0, 1, 0], [90, 10, 1])
    middles = np.array([[0.0, 0.0], [10.0, 10.0]])
    by_class, in_common = (
        ((X - robust.row_centers(center, y)) ** 2).sum(axis=1) < 10.0
        for center in (middles, middles[0])
    )
    assert by_class[:100].all() and not in_common[90:100].any() and in_common[:90].all()
    assert not by_class[100] and not in_common[100]
