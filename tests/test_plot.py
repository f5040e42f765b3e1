"""Pictures show the fit's own numbers, on the axes one gives, and return them."""

from dataclasses import replace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

import dorfl

mpl.use("agg")


@pytest.fixture(scope="module")
def trained():
    data = dorfl.datasets.synthetic(seed=0)
    return data, dorfl.train(data.clients, dorfl.methods.paper())


@pytest.fixture
def ax():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def test_weights_are_counted(trained, ax):
    data, fit = trained
    assert dorfl.plot.weights(fit, ax, wrong=data.outliers) is ax
    rows = sum(len(p) for p in fit.sample_weights.values())
    assert sum(bar.get_height() for bar in ax.patches) == rows
    right, wrong = (sum(bar.get_height() for bar in part) for part in ax.containers)
    assert wrong == sum(map(sum, data.outliers.values())) and right == rows - wrong
    model = dorfl.RobustClassifier().fit(*data.clients["client-1"])
    ax.clear()
    assert sum(b.get_height() for b in dorfl.plot.weights(model, ax).patches) == 100
    with pytest.raises(ValueError, match="no sample weights"):
        dorfl.plot.weights(replace(fit, sample_weights={}), ax)


def test_a_path_is_the_history(trained, ax):
    _, fit = trained
    gaps = dorfl.plot.path(fit, ax).lines[0].get_ydata()
    assert gaps[-1] == pytest.approx(fit.relative_gap)
    for of in ("risks", "lam"):
        ax.clear()
        dorfl.plot.path(fit, ax, of=of)
        drawn = {line.get_label(): line.get_ydata()[-1] for line in ax.lines}
        assert drawn == dict(zip(fit.clients, getattr(fit.history[-1], of), strict=True))
    with pytest.raises(ValueError, match="choose"):
        dorfl.plot.path(fit, ax, of="loss")
    with pytest.raises(ValueError, match="no history"):
        dorfl.plot.path(replace(fit, history=[]), ax)


def test_many_clients_are_grey_but_for_a_few(ax):
    rng = np.random.default_rng(0)
    rows = {f"site {k}": (X := rng.normal(size=(20, 2)), X[:, 0] > 0) for k in range(40)}
    fit = dorfl.train(rows, dorfl.methods.afl(), l2=0.1)
    dorfl.plot.path(fit, ax, of="lam")
    assert len(ax.get_legend().get_texts()) == 7 and len(ax.lines) == 41
    ax.clear()
    assert "40 clients" in dorfl.plot.clients(fit, rows, ax).get_ylabel()


def test_a_certificate_is_its_curve(trained, ax):
    data, fit = trained
    found = dorfl.certificate.paper(fit, data.clients)
    dorfl.plot.certificate(fit, data.clients, ax, radii=[0.5 * found.radius])
    curve, dot = ax.lines
    np.testing.assert_allclose(curve.get_ydata(), found.curve(curve.get_xdata()))
    assert dot.get_ydata()[0] == pytest.approx(found.attained)
    assert np.interp(found.radius, *curve.get_data()) == pytest.approx(found.bound, abs=1e-6)


def test_clients_are_scored_worst_below(trained, ax):
    data, fit = trained
    plain = dorfl.train(data.clients, dorfl.methods.erm())
    dorfl.plot.clients(fit, data.test, ax, beside={"plain": plain})
    own, other = ax.lines
    assert (np.diff(own.get_xdata()) >= 0).all()
    names = [label.get_text() for label in ax.get_yticklabels()]
    for k, name in enumerate(names):
        assert own.get_xdata()[k] == fit.score(*data.test[name])
        assert other.get_xdata()[k] == plain.score(*data.test[name])


def test_without_axes_new_ones_are_made(trained):
    axes = dorfl.plot.path(trained[1])
    assert axes.figure is plt.gcf()
    plt.close(axes.figure)
