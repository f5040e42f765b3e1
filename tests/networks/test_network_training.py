"""Training: repeatable, resumable, unbiased, and what the methods are for."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import dorfl
from dorfl import methods, mixture
from dorfl.networks import adam, distance, mlp, sgd, train
from dorfl.networks.plan import Plan
from dorfl.networks.server import RoundRequest, ServerState, _next_mixture, _sample, probabilities
from dorfl.networks.training import prepare

BLOBS = np.array([[2.0, 0.0], [0.0, 2.0], [-2.0, -2.0]])


def blobs(counts=(60, 37, 12), seed=0):
    """Clients of different sizes, three classes each."""
    rng = np.random.default_rng(seed)
    clients = {}
    for i, n in enumerate(counts):
        y = np.concatenate([[0, 1, 2], rng.integers(0, 3, n - 3)])
        X = BLOBS[y] + rng.normal(size=(n, 2)) + 0.3 * i
        clients[f"c{i}"] = (X.astype(np.float32), y)
    return clients


def model():
    return mlp(2, (8,), 3)


def quick(clients, method, **given):
    given = {"model": model, "rounds": 5, "batch_size": 16, **given}
    return train(clients, method, **given)


@pytest.mark.filterwarnings("ignore:on the way of")  # ReLU has kinks, and a few rows are many here
@pytest.mark.parametrize(
    "given",
    [
        {},
        {
            "local_steps": 3,
            "local_epochs": 0,
            "server_optimizer": adam(0.05),
            "optimizer": sgd(1.0),
        },
        {"participation": 0.67},
        {"optimizer": adam(0.01), "server_optimizer": sgd(1.0, momentum=0.5)},
        {"average": 0.5, "l2": 0.01},
    ],
    ids=["plain", "steps", "sampled", "rules", "average"],
)
def test_the_same_seed_gives_the_same_model_and_a_checkpoint_goes_on_from_it(given, tmp_path):
    method = methods.paper(5, 4)
    whole = quick(blobs(), method, **given)
    again = quick(blobs(), method, **given)
    assert np.array_equal(whole.theta, again.theta)
    file = tmp_path / "state.safetensors"
    quick(blobs(), method, checkpoint=file, **{**given, "rounds": 2})
    resumed = quick(blobs(), method, checkpoint=file, **given)
    assert np.array_equal(resumed.theta, whole.theta)
    assert np.array_equal(resumed.lam, whole.lam)
    assert [line.objective for line in resumed.history] == [
        line.objective for line in whole.history
    ]
    other = quick(blobs(), method, **{**given, "seed": 1})
    assert not np.array_equal(other.theta, whole.theta)


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    file = tmp_path / "state.safetensors"
    quick(blobs(), methods.afl(), rounds=1, checkpoint=file)
    with pytest.raises(ValueError, match="another training"):
        quick(blobs(), methods.erm(), checkpoint=file)


def test_clients_together_and_one_by_one_give_the_same_model():
    together = quick(blobs(), methods.paper(5, 4), rounds=2)
    alone = quick(blobs(), methods.paper(5, 4), rounds=2, max_parameters=1)
    assert together.theta == pytest.approx(alone.theta, abs=1e-4)


def test_one_full_step_is_the_gradient_of_the_objective():
    """θ − θ' of one local step on all rows is Σ λ_i ∇F_i."""
    method, plan = (
        methods.paper(5, 4),
        Plan(rounds=1, batch_size=60, local_epochs=1, optimizer=sgd(1.0), inner_steps=20),
    )
    local = prepare(blobs(), method, model, plan)
    start = local.network.start()
    exact = local.risks(start, gradients=True)
    fit = train(blobs(), method, model, plan)
    assert start.numpy() - fit.theta == pytest.approx(exact.gradients.mean(0), abs=1e-5)
    assert fit.history[0].risks == pytest.approx(exact.values, abs=1e-5)


def test_sampling_is_unbiased():
    lam = np.array([0.7, 0.2, 0.05, 0.05])
    plan = Plan(participation=0.5)
    state = ServerState(0, *[torch.zeros(1)] * 2, [], lam, lam)
    counts, steps, rises = np.zeros(4), np.zeros(4), np.zeros(4)
    risks = np.array([1.0, 2.0, 3.0, 4.0])
    for number in range(4000):
        drawn, chance = _sample(plan, mixture.agnostic(), state, number)
        assert len(drawn) == 2
        counts[drawn] += 1
        steps[drawn] += lam[drawn] / chance[drawn]
        reported = np.full(4, np.nan)
        reported[drawn] = risks[drawn]
        request = RoundRequest(number, drawn, chance, lam)
        rate = Plan(mixture_lr=1.0)
        after = _next_mixture(rate, mixture.agnostic(), request, state, reported)
        rises += np.log(after / lam) - np.log(after[0] / lam[0])
    assert counts / 4000 == pytest.approx(probabilities(0.5 * lam + 0.125, 2), abs=0.03)
    assert steps / 4000 == pytest.approx(lam, rel=0.08)
    assert rises / 4000 == pytest.approx(risks - risks[0], abs=0.15)


def test_the_worst_client_is_served_better_by_the_worst_mixture():
    rng = np.random.default_rng(0)
    many, few = rng.normal(size=(300, 2)), rng.normal(size=(20, 2))
    clients = {"many": (many, (many[:, 0] > 0) * 1), "few": (few, (few[:, 1] > 0) * 1)}
    given = {
        "rounds": 60,
        "local_epochs": 0,
        "local_steps": 1,
        "optimizer": sgd(0.3),
        "batch_size": 300,
    }
    made = lambda: mlp(2, (16,), 2)  # noqa: E731
    plain = train(clients, methods.erm(), made, **given)
    agnostic = train(clients, methods.afl(), made, mixture_lr=0.3, **given)
    assert agnostic.risks.max() < plain.risks.max() - 0.1
    assert agnostic.lam[1] > 0.4
    assert agnostic.gap_estimate >= 0


def test_a_bound_on_the_mixture_keeps_a_liar_from_taking_it_over():
    """Any model serves it badly, for 45 % of its labels are wrong: the worst mixture is its own."""
    rng = np.random.default_rng(0)
    clients = {}
    for axis, name in enumerate(("honest", "liar")):
        X = rng.normal(size=(300, 2)) * np.where(np.arange(2) == axis, 1.0, 0.3)
        clients[name] = (X, (X[:, axis] > 0) * 1)
    X, y = clients["liar"]
    clients["liar"] = (X, np.where(rng.random(300) < 0.45, 1 - y, y))
    right = {}
    for rule in (mixture.agnostic(), mixture.capped(0.6)):
        fit = train(
            clients, methods.method(mixture=rule), lambda: mlp(2, (16,), 2), rounds=150, lr=0.02,
            batch_size=300, mixture_lr=0.3,
        )  # fmt: skip
        assert fit.lam[1] <= rule.cap
        right[rule.cap] = fit.score(*clients["honest"])
    assert right[0.6] > right[1.0] + 0.1


def test_a_score_takes_the_weight_of_outliers():
    clients = blobs((200, 200), seed=1)
    for X, _ in clients.values():
        X[:20] *= -8
    tilted = methods.method(temperature=5.0, mixture=mixture.agnostic(by="loss"))
    fit = quick(clients, tilted, rounds=10, local_epochs=1, score=distance(5.0), max_loss=5.0)
    for weights in fit.sample_weights.values():
        assert weights.sum() == pytest.approx(1.0)
        assert weights[:20].max() < 0.2 * np.median(weights[20:])
    test = blobs((300,), seed=2)["c0"]
    assert fit.score(*test) > 0.75


def test_clients_may_be_tensors_and_data_sets():
    arrays = blobs()
    tensors = {n: (torch.from_numpy(X), torch.from_numpy(y)) for n, (X, y) in arrays.items()}
    sets = {name: TensorDataset(*pair) for name, pair in tensors.items()}
    fits = [quick(given, methods.afl(), rounds=1) for given in (arrays, tensors, sets)]
    assert np.array_equal(fits[0].theta, fits[1].theta)
    assert np.array_equal(fits[0].theta, fits[2].theta)


def test_a_loss_and_a_score_of_ones_own_and_pictures():
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(20, 1, 6, 6)), rng.normal(size=20)) for _ in range(2)]
    cnn = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32, 1)
    )
    fit = train(
        clients, methods.paper(50, 1, None), cnn, rounds=2, inner_steps=3,
        loss=lambda out, y: torch.log(torch.cosh(out[:, 0] - y)),
        score=lambda x, y: 0.01 * (x**2).flatten(1).sum(1),
    )  # fmt: skip
    assert np.isfinite(fit.objective)
    assert fit.predict(clients[0][0]).shape == (20,)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": torch.nn.Linear(3, 3)}, "rows of shape"),
        ({"model": torch.nn.Linear(2, 2)}, r"needs \(3,\)"),
        ({"model": 3}, "function that makes one"),
        ({"loss": "hinge"}, "unknown"),
        ({"rounds": 0}, "at least 1"),
        ({"rounds": 2.5}, "whole number"),
        ({"batch_size": None}, "whole number"),
        ({"validation": 1}, "a share between 0 and 1"),
        ({"learing_rate": 0.1}, "did you mean lr"),
        ({"speed": 3}, "no such option"),
        ({"scaffold": True}, "local_steps=1"),
        ({"method": methods.method(radius=0.1)}, "linear models"),
        ({"local_epochs": 1, "optimizer": sgd(1e30)}, "diverged"),
    ],
)
def test_errors_say_what_to_do(given, words):
    given = {"method": methods.erm(), "model": model, **given}
    with pytest.raises(ValueError, match=words):
        train(blobs(), given.pop("method"), given.pop("model"), **{"rounds": 2, **given})


def test_dorfl_train_takes_a_model():
    fit = dorfl.train(blobs(), methods.afl(), model=model, rounds=2)
    assert fit.model(torch.zeros(1, 2)).shape == (1, 3)
    assert fit.rounds == 2
