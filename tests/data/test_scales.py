"""Where rows lie is told by block means alone."""

import numpy as np
import pytest

from dorfl.data import robust, sketch

FILL, LEAST = 3.25, 5


def filled(values, gaps, rng):
    return rng.permutation(np.concatenate([values, np.full(gaps, FILL)]))[:, None]


@pytest.mark.parametrize("gaps", [0, 1, 2, 3, 7, 40])
@pytest.mark.parametrize("rows", [21, 188, 1000])
def test_distances_tell_no_more_of_a_column_than_the_blocks_of_its_values(rows, gaps):
    """Rows that had their blocks' means instead of their values would tell the same.

    A median that is the value of a row would show it, and so would blocks that end elsewhere, for
    values stand where some are missing.
    """
    rng = np.random.default_rng(rows + gaps)
    ages = np.round(rng.normal(50, 17, rows), 1)
    told = sketch.of(ages, LEAST)
    stand_ins = np.array([[FILL], [gaps]])
    places = [
        robust.report(filled(values, gaps, rng), least=LEAST, imputed=stand_ins)
        for values in (ages, np.repeat(told.means, told.sizes))
    ]
    np.testing.assert_allclose(places[0].away, places[1].away, rtol=1e-12)


def test_the_unit_of_few_rows_is_that_of_their_values():
    """Blocks of five hide rows, and hardly move the unit: by a tenth at 40 rows."""
    rng = np.random.default_rng(0)
    found = {least: [] for least in (1, LEAST)}
    for _ in range(50):
        rows = rng.normal(size=(40, 3))
        for least, units in found.items():
            places = [robust.report(rows, least=least)]
            units.extend(robust.column_scales(places, inlier_share=0.8).units.tolist())
    assert np.mean(found[LEAST]) == pytest.approx(np.mean(found[1]), rel=0.1)


def test_too_few_values_are_not_told():
    rows = filled(np.array([1.0, 2.0, 9.0]), 30, np.random.default_rng(0))
    place = robust.report(rows, least=LEAST, imputed=np.array([[FILL], [30]]))
    assert np.ptp(place.away) == 0.0
