"""The first figure is made of distances: what lies on an outline is exactly that far away."""

import numpy as np
import pytest
from scipy.optimize import minimize

from browser import CHROMIUM, browser
from dorfl.certificates.distance import unbalanced_wasserstein, wasserstein
from dorfl.report.content import Page
from dorfl.report.page import write
from experiments import ambiguity
from experiments.pages import ambiguity as told

PLACES = np.vstack([ambiguity.KINDS, ambiguity.WRONG])


def population(mean):
    """How the rows of a population with this mean spread over the three kinds."""
    sides = np.vstack([ambiguity.KINDS.T, np.ones(3)])
    return np.clip(np.linalg.solve(sides, [*mean, 1.0]), 0.0, None)


def distance(mean, weights, beta):
    """From the nearest mixture of `weights`, by a search over λ in two unknowns."""

    def far(free):
        lam = np.exp([*free, 0.0])[: len(weights)]
        q = lam @ weights / lam.sum()
        return unbalanced_wasserstein((ambiguity.KINDS, population(mean)), (PLACES, q), beta).value

    if len(weights) == 1:
        return far([])
    starts = ([0.0, 0.0], [3.0, 0.0], [0.0, 3.0], [-3.0, -3.0])
    return min(minimize(far, s, method="Nelder-Mead", options={"xatol": 1e-3}).fun for s in starts)


def inside(outline):
    """Corners of the outline that are not on the triangle's own edge."""
    return [p for p in outline[::10] if population(p).min() > 0.02]


@pytest.mark.parametrize(("beta", "radius"), [(0.5, 0.07), (2.0, 0.15), (0.2, 0.03)])
def test_a_ball_is_as_wide_as_its_radius(beta, radius):
    for row in [*ambiguity.clients(), ambiguity.clients().mean(axis=0)]:
        outline = ambiguity.outline(row[None], beta, radius)
        if outline is None:  # its wrong rows alone are further away
            nearest = unbalanced_wasserstein((ambiguity.KINDS, row[:3]), (PLACES, row), beta).value
            assert nearest > radius
            continue
        for mean in inside(outline):
            assert distance(mean, row[None], beta) == pytest.approx(radius, rel=0.02)


@pytest.mark.slow
def test_the_union_goes_as_far_as_the_radius_from_the_nearest_mixture():
    outline = ambiguity.outline(ambiguity.clients(), ambiguity.BETA, ambiguity.RADIUS)
    points = inside(outline)
    assert len(points) >= 3
    for mean in points:
        far = distance(mean, ambiguity.clients(), ambiguity.BETA)
        assert far == pytest.approx(ambiguity.RADIUS, rel=0.03)


def test_w_must_reach_the_wrong_row_and_uw_need_not():
    found, q = ambiguity.drawn(), ambiguity.clients()
    good = (ambiguity.KINDS, ambiguity.GOOD[2])
    assert found["far"]["UW"] < ambiguity.RADIUS < found["far"]["W"]
    assert found["far"]["W"] == pytest.approx(wasserstein(good, (PLACES, q[2])).value)
    assert ambiguity.outline(q[2:], np.inf, ambiguity.RADIUS) is None
    plain = ambiguity.outline(q[2:], np.inf, 1.05 * found["far"]["W"])
    assert plain is not None


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: `apt-get install chromium`")
@pytest.mark.slow
def test_the_sliders_compute_the_same(tmp_path):
    section = told.section(ambiguity.drawn())
    path = write(Page("P", "", sections=[section]), tmp_path / "page.html")
    data = "document.querySelector('.plot').data"
    with browser() as tab:
        tab.resize(1280, 900)
        tab.open(path)
        tab.wait_for("document.documentElement.dataset.drawn === '1'")
        before = tab.evaluate(f"{data}[0].x")
        for beta, radius in ((2.0, 0.2), (0.5, 0.07)):
            tab.evaluate(
                "document.querySelectorAll('.sliders input').forEach((slider, k) => {"
                f"slider.value = Math.log([{beta}, {radius}][k]);"
                "slider.dispatchEvent(new Event('input')); })"
            )
            q = ambiguity.clients()
            for trace, price in ((0, beta), (1, np.inf)):
                mine = ambiguity.outline(q, price, radius)
                x, y = (np.array(tab.evaluate(f"{data}[{trace}].{k}"))[:-1] for k in "xy")
                # the sliders move in steps of a hundredth of the logarithm
                np.testing.assert_allclose(np.column_stack([x, y]), mine, atol=0.02)
            assert tab.evaluate(f"{data}[0].x") != before or radius == 0.07
        said = tab.heard("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        assert not said
