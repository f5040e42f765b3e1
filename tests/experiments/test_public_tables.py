"""The public tables that benchmarks train on come as they are described."""

import numpy as np
import pytest

import dorfl
import public_tables
from experiments.data.packages import UnavailableError


def load(name):
    try:
        return public_tables.load(name)
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("name", "rows", "columns", "clients", "classes"),
    [
        ("digits", 1438, 57, 14, 10),
        ("german", 794, 52, 9, 2),
        pytest.param("storms", 15_629, 13, 48, 9, marks=pytest.mark.slow),
        pytest.param("chemistry", 24_819, 4, 131, 0, marks=pytest.mark.slow),
    ],
)
def test_a_table_has_the_shape_it_is_known_by(name, rows, columns, clients, classes):
    table = load(name)
    assert (table.rows, table.columns) == (rows, columns)
    assert (len(table.clients), table.classes) == (clients, classes)
    assert table.loss.classifies == (classes > 0)
    held = sum(len(y) for _, y in table.test.values())
    assert held == pytest.approx(0.25 * rows, rel=0.05)
    for X, _ in table.clients.values():
        assert X.dtype == np.float32
        assert np.isfinite(X).all()


def test_every_method_is_the_one_a_table_would_get():
    table = load("german")
    fit = dorfl.train(table.clients, table.method("dorfl"), loss=table.loss, l2=table.l2, tol=1e-3)
    assert np.isinf(fit.problem.method.cost.weights(table.columns)[list(table.frozen)]).all()
    right = [fit.predict(X) == y for X, y in table.test.values()]
    assert np.concatenate(right).mean() > 0.7
    assert {table.method(name).name for name in public_tables.METHODS} == set(public_tables.METHODS)
