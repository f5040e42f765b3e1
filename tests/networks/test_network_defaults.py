"""Neural networks with nothing but defaults: method, plan, and warnings."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import nn

import dorfl
from dorfl import methods, mixture
from dorfl.networks import adam, distance, mlp, resolution, sgd
from dorfl.networks.plan import RENAMED, Plan
from dorfl.networks.training import prepare


def digits(*, by_class, outliers=0.0, scale=1.0):
    """Digits 0 to 3 with constant pixels, among four clients, and clean test rows."""
    X, y = load_digits(n_class=4, return_X_y=True)
    X = X.astype(np.float32) * scale / 16.0
    rng = np.random.default_rng(0)
    order = rng.permutation(len(y))
    test, train = order[:220], order[220:]
    X_train, y_train = X[train].copy(), y[train]
    wrong = rng.random(len(train)) < outliers
    X_train[wrong] *= -8.0
    owner = y_train if by_class else rng.integers(0, 4, len(train))
    clients = {f"c{k}": (X_train[owner == k], y_train[owner == k]) for k in range(4)}
    outlying = {f"c{k}": wrong[owner == k] for k in range(4)}
    return clients, (X[test], y[test]), outlying


def network():
    return mlp(64, (16,), 4)


def worst_class(fit, X, y):
    right = fit.predict(X) == y
    return min(right[y == k].mean() for k in np.unique(y))


@pytest.mark.parametrize("by_class", [False, True], ids=["random", "one class each"])
def test_on_clean_rows_the_default_is_fedavg_and_the_agnostic_one_is_afl(by_class):
    clients, test, _ = digits(by_class=by_class)
    for open_method, plain in (
        (None, methods.erm()),
        (methods.dorfl(mixture="agnostic"), methods.afl()),
    ):
        fit = dorfl.train(clients, open_method, model=network)
        same = dorfl.train(clients, plain, model=network)
        assert np.array_equal(fit.theta, same.theta)
        assert fit.method.score is None
        assert fit.notes
        assert worst_class(fit, *test) > 0.9


@pytest.mark.parametrize("by_class", [False, True], ids=["random", "one class each"])
def test_outliers_lose_their_weight(by_class):
    clients, test, outlying = digits(by_class=by_class, outliers=0.1)
    fit = dorfl.train(clients, model=network)
    for name, wrong in outlying.items():
        weights = fit.sample_weights[name]
        assert weights[wrong].max() < 0.05 * np.median(weights[~wrong])
    assert worst_class(fit, *test) > 0.9
    assert np.isinf(fit.method.rho)


def test_the_decision_does_not_depend_on_the_unit_of_the_inputs():
    for outliers in (0.0, 0.1):
        found = []
        for scale in (1.0, 1_000.0):
            clients, _, _ = digits(by_class=True, outliers=outliers, scale=scale)
            local = prepare(clients, None, network, Plan())
            score = local.method.score
            shape = None if score is None else score.weight * score.shape(64) * scale**2
            found.append((shape, local.method.temperature, local.method.rho))
        if outliers:
            np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-3)
        assert found[0][1:] == found[1][1:]
        assert (found[0][0] is None) == (found[1][0] is None) == (outliers == 0.0)


class Words(nn.Module):
    """A sum of embeddings of token ids, and of two real inputs if there are any."""

    def __init__(self, real=0):
        super().__init__()
        self.table, self.line = nn.Embedding(30, 4), nn.Linear(4 + real, 2)
        self.real = real

    def forward(self, x):
        ids, rest = x[:, self.real :].long(), x[:, : self.real]
        return self.line(torch.cat([rest, self.table(ids).mean(1)], 1))


def sentences(real=0):
    rng = np.random.default_rng(0)
    clients = {}
    for name in ("a", "b"):
        y = rng.integers(0, 2, 150)
        ids = rng.integers(0, 15, (150, 6)) + 15 * y[:, None]
        rest = rng.normal(size=(150, real)) + y[:, None]
        clients[name] = (np.concatenate([rest, ids], 1), y)
    return clients


def test_token_ids_get_no_score_and_the_fit_says_so():
    fit = dorfl.train(sentences(), model=Words, rounds=60)
    assert fit.method.score is None
    assert "token ids" in fit.notes[0]
    assert np.isinf(fit.method.temperature)
    assert fit.method.mixture.by == "loss"


def test_the_score_leaves_out_token_ids_beside_real_inputs():
    clients = sentences(real=2)
    for X, _ in clients.values():
        X[:15, :2] *= -30.0
    method = methods.dorfl(outliers=0.1)
    fit = dorfl.train(clients, method, model=lambda: Words(2), rounds=60)
    shape = fit.method.score.shape(8)
    assert (shape[:2] > 0).all()
    assert not shape[2:].any()
    assert np.isinf(fit.method.cost.weights(8)[2:]).all()


def test_a_layer_that_starts_at_zero_does_not_hide_the_inputs():
    clients, _, _ = digits(by_class=False, outliers=0.1)
    made = network()
    nn.init.zeros_(made[-1].weight)
    assert prepare(clients, None, made, Plan()).method.score is not None


def test_only_some_of_many_inputs_enter_the_score(monkeypatch):
    monkeypatch.setattr(resolution, "MAX_INPUTS", 20)
    clients, _, outlying = digits(by_class=True, outliers=0.1)
    fit = dorfl.train(clients, model=network)
    assert np.count_nonzero(fit.method.score.shape(64)) <= 20
    assert fit.notes[-1] == "The score measures 20 of 64 inputs."
    for name, wrong in outlying.items():
        assert fit.sample_weights[name][wrong].max() < 0.2 * np.median(fit.sample_weights[name])


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    most=st.integers(1, 80),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_sample_has_every_class_of_every_client(sizes, most, seed):
    rng = np.random.default_rng(seed)
    clients = {
        f"client-{i}": (np.arange(size, dtype=float)[:, None], rng.integers(0, 3, size))
        for i, size in enumerate(sizes)
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolution, "MAX_ROWS", most)
        found = resolution.sample(clients, 3).clients
    strata = sum(len(np.unique(y)) for _, y in clients.values())
    assert sum(len(y) for _, y in found.values()) <= most + strata * (resolution.MIN_ROWS + 1)
    for name, (_, y) in clients.items():
        places = found[name][0][:, 0].astype(int)
        assert (np.diff(places) > 0).all()
        assert np.array_equal(found[name][1], y[places])
        assert set(y) == set(found[name][1])


def test_classes_without_rows_and_two_outputs_are_no_obstacle():
    clients, _, _ = digits(by_class=True, outliers=0.1)
    fit = dorfl.train(
        clients, methods.dorfl(outliers=0.1), model=lambda: mlp(64, (16,), 6), classes=range(6),
        rounds=100,
    )  # fmt: skip
    assert fit.method.score.center["c0"].shape in ((6, 64), (64,))
    two = {n: (X, y % 2) for n, (X, y) in digits(by_class=False)[0].items()}
    assert dorfl.train(two, model=lambda: mlp(64, (16,), 2), rounds=100).objective < 0.5
    one = {n: (X, (y % 2).astype(str)) for n, (X, y) in digits(by_class=False)[0].items()}
    fit = dorfl.train(one, model=lambda: mlp(64, (16,), 1), loss="logistic", rounds=100)
    assert fit.objective < 0.5


def test_a_regression_sets_outliers_aside():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5)).astype(np.float32)
    y = X[:, 0] + X[:, 1] + 0.1 * rng.normal(size=400)
    X[:40] *= -8.0
    clients = [(X[k::2], y[k::2]) for k in range(2)]
    fit = dorfl.train(clients, model=lambda: mlp(5, (16,), 1), loss="huber")
    assert fit.method.score is not None
    weights = fit.sample_weights["client-1"]
    assert weights[:20].mean() < 0.1 * weights[20:].mean()
    assert np.abs(fit.predict(X[40:]) - y[40:]).mean() < 0.4


def test_a_score_of_ones_own_and_given_parts_take_their_place():
    clients, _, outlying = digits(by_class=False, outliers=0.1)
    fit = dorfl.train(clients, methods.dorfl(), model=network, score=distance(32.0))
    assert fit.method.temperature == resolution.TEMPERATURE
    weights = fit.sample_weights["c0"]
    assert weights[outlying["c0"]].max() < 0.2 * np.median(weights)
    capped = methods.dorfl(outliers=0.0, mixture=mixture.capped(0.5, by="loss"))
    assert dorfl.train(clients, capped, model=network, rounds=60).lam.max() <= 0.5
    moved = prepare(clients, methods.dorfl(rho=20.0, outliers=0.1), network, Plan()).method
    assert np.isfinite(moved.rho)


@pytest.mark.filterwarnings("ignore:the network is wrong")
def test_a_network_that_learnt_nothing_warns():
    clients, _, _ = digits(by_class=True)
    with pytest.warns(dorfl.FitWarning, match="no better than a constant prediction") as caught:
        dorfl.train(clients, model=network, rounds=1, server_optimizer=adam(1e-8))
    assert caught[0].filename == __file__
    X = np.random.default_rng(0).normal(size=(90, 2))
    with pytest.warns(dorfl.FitWarning, match="no better than a constant"):
        dorfl.train([(X, X[:, 0] + 50.0)], model=lambda: mlp(2, (4,), 1), loss="squared", rounds=1)


class Constant(torch.nn.Module):
    """The same outputs for every row."""

    def __init__(self, *shape):
        super().__init__()
        self.values = torch.nn.Parameter(torch.zeros(shape))

    def forward(self, x):
        return self.values.expand(len(x), *self.values.shape) + 0.0 * x.sum()


X_THREE = np.random.default_rng(0).normal(size=(90, 3)).astype(np.float32)


@pytest.mark.filterwarnings("ignore:the network is wrong")
@pytest.mark.parametrize(
    ("shape", "y", "loss", "classes"),
    [
        ((3,), (X_THREE > 0).astype(float), "logistic", None),
        ((3, 2), (X_THREE > 0).astype(int), "softmax", None),
        ((3,), X_THREE, "squared", None),
        ((4,), X_THREE[:, 0], lambda out, y: ((out.sum(1) - y) ** 2), None),
        ((1,), X_THREE[:, 0] > 0, lambda out, y: torch.relu(1 - (2 * y - 1) * out[:, 0]), [0, 1]),
    ],
    ids=["several labels", "a label for every token", "several values", "own", "own, two classes"],
)  # fmt: skip
def test_a_constant_model_warns_whatever_its_outputs_and_a_trained_one_does_not(
    shape, y, loss, classes
):
    given = {"loss": loss, "classes": classes, "rounds": 200}
    with pytest.warns(dorfl.FitWarning, match="no better than a constant|same outputs"):
        dorfl.train([(X_THREE, y)], "erm", model=Constant(*shape), **given)
    learns = torch.nn.Sequential(mlp(3, (8,), int(np.prod(shape))), torch.nn.Unflatten(1, shape))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = dorfl.train([(X_THREE, y)], "erm", model=learns, **given)
    if len(fit.classes):
        assert fit.score(X_THREE, y) > 0.9


def test_a_class_that_is_never_right_warns_and_is_named():
    clients, _, _ = digits(by_class=True)
    clients["c3"] = tuple(part[:6] for part in clients["c3"])
    with (
        pytest.warns(dorfl.FitWarning, match=r"wrong on every inlier of 1 class\(es\), such as 3"),
        pytest.warns(dorfl.FitWarning, match=r"wrong on every inlier of 1 client\(s\), such as c3"),
    ):
        dorfl.train(clients, methods.erm(), model=network, rounds=15)


def test_a_trained_network_does_not_warn():
    clients, _, _ = digits(by_class=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dorfl.train(clients, model=network)


def test_the_papers_method_on_clients_far_from_the_centre_warns():
    clients, _, _ = digits(by_class=True, scale=16.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dorfl.train(clients, methods.paper(), model=network, inner_steps=1, mixture_lr=1.0)
    said = [str(one.message) for one in caught]
    assert any("no better than a constant" in line for line in said)
    assert any("have no weight in the mixture although their loss is higher" in s for s in said)


def used(**given):
    plan = Plan(**given)
    return plan.used_optimizer, plan.used_server_optimizer


def test_optimizers_follow_the_work_of_a_client():
    assert Plan().local_steps == 1
    assert used() == (sgd(1.0), adam(0.01))
    assert used(local_epochs=1) == (sgd(0.05), sgd(1.0))
    assert used(lr=0.1) == (sgd(1.0), adam(0.1))
    assert used(lr=0.1, local_steps=5) == (sgd(0.1), sgd(1.0))
    assert used(optimizer=sgd(0.3), local_epochs=2) == (sgd(0.3), sgd(1.0))
    assert used(server_optimizer=sgd(1.0, 0.5)) == (sgd(0.05), sgd(1.0, 0.5))
    assert Plan().changed(local_epochs=2) == Plan(local_epochs=2)
    assert Plan(local_epochs=2).changed(local_steps=1) == Plan()


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_or_foreign_name_of_an_option_is_answered_with_its_name_here(old):
    clients, _, _ = digits(by_class=False)
    for call in (
        lambda: Plan(**{old: 1}),
        lambda: Plan().changed(**{old: 1}),
        lambda: dorfl.train(clients, model=network, **{old: 1}),
    ):
        with pytest.raises(ValueError, match=f"^{old}: write {RENAMED[old]}=$"):
            call()


def test_a_misspelt_option_gets_a_suggestion():
    with pytest.raises(ValueError, match="did you mean batch_size"):
        Plan(batchsize=3)
    with pytest.raises(ValueError, match=r"networks\.adam"):
        Plan(optimizer="adam")


def test_flower_apps_and_strangers_are_told_what_to_give():
    for given_method, words in (
        (methods.dorfl(), "chosen from all clients"),
        ("afl", "give one of"),
    ):
        with pytest.raises(ValueError, match=words):
            dorfl.networks.training.check_method(given_method)
