"""Bad input gets a ValueError that says which client or argument, and what is wrong."""

import numpy as np
import pytest

import dorfl
from dorfl import methods, scores

X = np.random.default_rng(0).normal(size=(8, 2))
Y = np.array([0, 1, 0, 1, 1, 0, 1, 0])
GOOD = (X, Y)


def spoil(value, dtype=float):
    rows = X.astype(dtype)
    rows[3, 1] = value
    return rows, Y


def infinities():
    rows = X.copy()
    rows[0, 0], rows[1, 0] = np.inf, -np.inf
    return rows, Y


CLIENTS = {
    "nan": (spoil(np.nan), "row 3, column 1"),
    "inf": (spoil(np.inf), "row 3, column 1"),
    "float32 -inf": (spoil(-np.inf, np.float32), "row 3, column 1"),
    "inf and -inf": (infinities(), "NaN or infinite"),
    "no rows": ((X[:0], Y[:0]), "no rows"),
    "no columns": ((X[:, :0], Y), "no columns"),
    "one row more": ((X, Y[:-1]), "8 rows and y has 7"),
    "fewer columns": ((X[:, :1], Y), "columns"),
    "vector": ((X[:, 0], Y), "table"),
    "ragged rows": (([[1.0, 2.0], [3.0]], [0, 1]), "X"),
    "ragged labels": ((X[:2], [[0], [0, 1]]), "y"),
    "label table": ((X, Y[:, None]), "one label per row"),
    "no pair": (X, "pair"),
    "nothing": (None, "pair"),
    "string column": (
        (np.column_stack([X[:, 0].astype(object), ["a"] * 8]), Y),
        "column 1 of X is not numeric",
    ),
    "all strings": ((np.full((8, 2), "a"), Y), "column 0 of X is not numeric"),
    "dates": ((np.full((8, 2), "2020-01-01", "M8[D]"), Y), "not numeric"),
    "complex": ((X + 1j, Y), "not numeric"),
    "nan label": ((X, np.where(Y == 1, np.nan, 0.0)), "y has NaN"),
    "nan among objects": ((X, np.array([np.nan, *Y[1:]], dtype=object)), "y"),
    "none among objects": ((X, np.array([None, *Y[1:]], dtype=object)), "y"),
}


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("named", [True, False])
def test_a_bad_client_is_named(name, named):
    bad, words = CLIENTS[name]
    clients = {"north": GOOD, "south": bad} if named else [GOOD, bad]
    with pytest.raises(ValueError, match=words) as raised:
        dorfl.train(clients, methods.wafl(1.0))
    assert ("'south'" if named else "'client-2'") in str(raised.value)


@pytest.mark.parametrize(
    ("clients", "loss", "words"),
    [
        ([], "logistic", "clients"),
        ({}, "logistic", "clients"),
        (5, "logistic", "clients"),
        ([(X, np.ones(8))], "logistic", "one class only.*client-1"),
        ([(X, np.ones(8)), (X, np.ones(8))], "softmax", "one class only"),
        ([(X, np.arange(8))], "logistic", "softmax"),
        ([(X, list("abababab"))], "squared", "client 'client-1'.*not numeric"),
        ([(X, list("abababab"))], "huber", "client 'client-1'.*not numeric"),
        ({1: GOOD, "1": GOOD}, "logistic", "1"),
    ],
)
def test_bad_sets_of_clients(clients, loss, words):
    with pytest.raises(ValueError, match=words):
        dorfl.train(clients, methods.wafl(50.0), loss=loss)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: methods.wafl(rho=0), "rho=0"),
        (lambda: methods.gdrfl(rho=-1.0), "rho=-1"),
        (lambda: methods.paper(rho=np.nan), "rho=nan"),
        (lambda: methods.paper(beta=0), "beta=0"),
        (lambda: methods.method(temperature=-1), "temperature"),
        (lambda: methods.method(rho=1, beta=1, temperature=1), "beta or temperature"),
        (lambda: methods.method(beta=1), "needs rho"),
        (lambda: methods.paper(mixture="worst"), "mixture='worst'"),
        (lambda: methods.paper(score="mine"), "score='mine'"),
        (lambda: methods.method(rho=1, score="mine"), "score"),
        (lambda: methods.paper(score=0.5), "score"),
        (lambda: methods.paper(score=lambda rows, labels: rows[:, 0] ** 2), "custom"),
        (lambda: methods.paper(cost="squared"), "cost"),
        (lambda: scores.quadratic(-1), "weight"),
        (lambda: scores.quadratic(np.nan), "weight"),
        (lambda: scores.quadratic(1, "median"), "center='median'"),
        (lambda: scores.quadratic(1, [np.nan]), "center"),
        (lambda: scores.quadratic(1, "auto", [[1.0, 2.0], [0.0, 1.0]]), "symmetric"),
        (lambda: scores.quadratic(1, "auto", [1.0, -1.0]), "negative eigenvalue"),
        (lambda: scores.quadratic(1, "auto", [[0.0, 1.0], [1.0, 0.0]]), "negative eigenvalue"),
        (lambda: scores.threshold(0, 0, 0, 1, 1), "weight"),
        (lambda: scores.threshold(1, 0, 0, 0, 1), "softness"),
        (lambda: scores.threshold(1, 0, np.inf, 1, 1), "level"),
        (lambda: scores.custom("h"), "callable"),
        (lambda: dorfl.costs.squared(0), "weight"),
        (lambda: dorfl.costs.squared([1, np.nan]), "weight"),
        (lambda: dorfl.costs.squared(label_price=0), "label_price"),
        (lambda: dorfl.losses.huber(0), "delta"),
    ],
)
def test_bad_parts_of_a_method(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("method", "loss", "words"),
    [
        (methods.paper(score=scores.quadratic(1, [0.0])), "logistic", "center.*client-1"),
        (methods.paper(score=scores.quadratic(1, {"x": [0.0] * 2})), "logistic", "'client-1'"),
        (methods.paper(score=scores.quadratic(1, "auto", np.eye(3))), "logistic", "matrix"),
        (methods.paper(score=scores.threshold(1, 2, 0, 1, 1)), "logistic", "column=2"),
        (methods.paper(score=scores.threshold(1, -1, 0, 1, 1)), "logistic", "column=-1"),
        (methods.paper(score=scores.threshold(1, 0, 0, 1, 7)), "logistic", "label=7"),
        (methods.paper(score=scores.threshold(1, 0, 0, 1, "a")), "logistic", "label='a'"),
        (methods.paper(score=scores.threshold(1, 0, 0, 1, 1)), "squared", "threshold"),
        (methods.wafl(1, cost=dorfl.costs.squared([1, 2, 3])), "logistic", "3 weights"),
        (methods.wafl(1, cost=dorfl.costs.squared(frozen=[2])), "logistic", "column 2"),
        (methods.wafl(1, cost=dorfl.costs.squared(label_price=1)), "squared", "label_price"),
        (methods.paper(score=scores.custom(lambda x, y: 1.0, convex=True)), "logistic", "shape"),
        (
            methods.paper(score=scores.custom(lambda x, y: x[:, 0] * np.nan, convex=True)),
            "logistic",
            "NaN",
        ),
        (methods.paper(mixture=dorfl.mixture.capped(0.4)), "logistic", "cap"),
        (methods.paper(mixture=dorfl.mixture.fixed([1.0])), "logistic", "1 weights for 2"),
        ("nobody", "logistic", "choose one of erm"),
        (methods.dorfl, "logistic", "method"),
        (methods.erm(), "hinge-ish", "loss='hinge-ish'.*logistic"),
        (methods.erm(), "poisson", "infinite"),
        (methods.erm(), "exponential", "infinite"),
    ],
)
def test_a_method_that_does_not_fit_the_data(method, loss, words):
    with pytest.raises(ValueError, match=words):
        dorfl.train([GOOD, GOOD], method, loss=loss)


@pytest.mark.parametrize(
    "options",
    [
        {"solver": "adam"}, {"tol": 0}, {"tol": np.nan}, {"max_rounds": 0}, {"l2": -1},
        {"l2": np.inf}, {"theta_radius": 0}, {"batch": 0}, {"participation": 0},
        {"participation": 1.5}, {"tolerance": -1}, {"start": np.zeros(7)},
        {"start": np.full(3, np.nan)},
    ],
    ids=str,
)  # fmt: skip
def test_bad_options_are_named(options):
    (name,) = options
    with pytest.raises(ValueError, match=name):
        dorfl.train([GOOD], methods.wafl(1.0), **options)


@pytest.mark.parametrize(
    ("theta", "options", "words"),
    [
        ([1.0], {}, "theta"),
        (1.0, {}, "theta"),
        ([1.0, np.nan], {}, "theta"),
        ([[1.0, 2.0]], {}, "theta"),
        ([1.0, 2.0], {"loss": "softmax"}, "theta"),
        ([1.0, 2.0], {"classes": [1, 2]}, "label.*0.*classes"),
    ],
)
def test_bad_arguments_of_risk(theta, options, words):
    with pytest.raises(ValueError, match=words):
        dorfl.risk(theta, X, Y, methods.erm(), **options)


def test_a_client_of_one_class_is_fine_beside_others():
    fit = dorfl.train([GOOD, (X[:1], Y[:1])], methods.wafl(20.0))
    assert np.isfinite(fit.theta).all()


@pytest.mark.parametrize(
    "kind", ["integers", "booleans", "lists", "fortran", "read-only", "float16"]
)
def test_tables_of_other_kinds_are_taken(kind):
    table = np.round(X).astype(float)
    given = {
        "integers": table.astype(int), "booleans": table > 0, "lists": table.tolist(),
        "fortran": np.asfortranarray(table), "read-only": np.broadcast_to(table, table.shape),
        "float16": table.astype(np.float16),
    }[kind]  # fmt: skip
    expected = dorfl.risk([1.0, 2.0], np.array(given, dtype=float), Y, methods.wafl(1.0))
    found = dorfl.risk([1.0, 2.0], given, Y, methods.wafl(1.0))
    assert found.value == expected.value


def test_large_numbers_are_finite_numbers():
    """Their sum overflows, they do not."""
    huge = np.array([[1.7e308], [1.7e308]])
    assert dorfl.risk([0.0], huge, [0, 1], methods.erm()).value == pytest.approx(np.log(2))


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (np.full(60, 3.7), r"one value only \(3.7\)"),
        (np.array([str(k) for k in range(60)]), "60 different values, more than 50 classes"),
        (np.arange(60).astype("datetime64[D]"), "dates or times"),
    ],
)
def test_labels_that_no_loss_fits_are_refused(labels, reason):
    X = np.random.default_rng(0).normal(size=(60, 2))
    with pytest.raises(ValueError, match=reason):
        dorfl.train([(X, labels)])


def test_rows_of_another_width_are_refused_in_a_sentence():
    data = dorfl.datasets.synthetic(seed=0)
    fit = dorfl.train(data.clients, dorfl.methods.erm(), l2=0.01)
    with pytest.raises(ValueError, match="X has 2 columns, the model was trained with 5"):
        fit.predict(np.zeros((3, 2)))
