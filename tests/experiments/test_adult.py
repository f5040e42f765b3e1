"""The Adult study's figures are the problem's, not the solver's."""

import numpy as np

from dorfl.data.datasets import adult
from experiments.adult import grids
from experiments.tuning import fit, log_losses


def test_a_test_loss_does_not_depend_on_where_training_starts():
    data = adult("paper", seed=2)
    rows = sum(len(y) for _, y in data.clients.values())
    settings = grids(data)
    assert all(one.l2 >= 1.0 / rows for some in settings.values() for one in some)
    mildest = settings["gdrfl"][0]  # λ is nearly one group's
    start = 0.5 * np.random.default_rng(0).normal(size=len(data.feature_names) + 1)
    fits = [fit(mildest, data.clients, tol=1e-5, start=at) for at in (None, start)]
    one, other = (log_losses(fitted, data.test)[0] for fitted in fits)
    assert abs(one - other) < 1e-4
    loose = mildest._replace(l2=0.0)  # the ridge is what makes it so
    fits = [fit(loose, data.clients, tol=1e-5, start=at) for at in (None, start)]
    one, other = (log_losses(fitted, data.test)[0] for fitted in fits)
    assert abs(one - other) > 1e-4  # how far apart on a flat set is the solver's own affair
