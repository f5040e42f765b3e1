"""Control of a training: aggregation, sampling, schedules, evaluation, callbacks, stopping."""

import numpy as np
import pytest
import torch
from test_network_training import blobs, model, quick

from dorfl import methods, networks
from dorfl.networks import (
    adam,
    coordinate_median,
    cosine,
    geometric_median,
    krum,
    sgd,
    trimmed_mean,
)
from dorfl.networks.plan import Plan
from dorfl.networks.server import ServerSettings, _sample, ask, begin
from dorfl.networks.training import prepare
from dorfl.objective import mixture

pytestmark = pytest.mark.filterwarnings("ignore:on the way of")
RULES = {
    "trimmed mean": trimmed_mean(0.25), "median": coordinate_median(),
    "geometric median": geometric_median(100), "krum": krum(1, kept=2),
}  # fmt: skip


class Liars:
    """The first client's update is replaced before it is aggregated."""

    def __init__(self, rule):
        self.rule = rule

    def __call__(self, updates, weights):
        spoilt = updates.clone()
        spoilt[0] = -100.0 * spoilt[0]
        return self.rule(spoilt, weights)


def mean(updates, weights):
    return weights @ updates


@pytest.mark.parametrize("rule", RULES)
def test_a_robust_aggregator_withstands_a_client_that_lies_and_the_mean_does_not(rule):
    clients, test = blobs((60,) * 5), blobs((300,), seed=2)["c0"]
    given = {"rounds": 40, "lr": 0.3, "local_epochs": 1}
    robust = quick(clients, methods.erm(), aggregator=Liars(RULES[rule]), **given)
    assert robust.score(*test) > 0.8
    with pytest.raises(ValueError, match="diverged"):
        quick(clients, methods.erm(), aggregator=Liars(mean), **{**given, "rounds": 200})


def test_the_mean_as_an_aggregator_is_the_default_and_one_update_is_its_own_aggregate():
    fits = [quick(blobs(), methods.erm(), aggregator=rule) for rule in (None, mean)]
    assert fits[0].theta == pytest.approx(fits[1].theta, abs=1e-6)
    one = torch.randn(1, 7)
    for rule in (trimmed_mean(0.4), coordinate_median(), geometric_median()):
        assert torch.allclose(rule(one, torch.ones(1)), one[0])


def test_what_is_no_aggregator_is_refused():
    with pytest.raises(ValueError, match="aggregator='krum': give a function"):
        quick(blobs(), methods.erm(), aggregator="krum")
    with pytest.raises(ValueError, match="must return one update"):
        quick(blobs(), methods.erm(), aggregator=lambda updates, weights: updates)


def test_the_geometric_median_has_no_direction_of_descent():
    generator = torch.Generator().manual_seed(0)
    updates, weights = torch.randn(9, 3, generator=generator).double(), torch.rand(9).double()
    found = geometric_median(200)(updates, weights / weights.sum())
    away = updates - found
    pull = (weights[:, None] * away / away.norm(dim=1, keepdim=True)).sum(0)
    assert float(pull.norm()) < 1e-4


def test_sampled_clients_of_fedavg_count_in_proportion_to_their_rows():
    local = prepare(blobs((60, 37, 12, 33)), methods.erm(), model, Plan())
    counts = local.rows.counts

    def asked(number, **given):
        plan = Plan(participation=0.5, **given)
        setting = ServerSettings(methods.erm(), plan, local.rows.names, counts)
        state = begin(setting, local.network.start())
        return ask(setting, type(state)(**{**vars(state), "round": number}))

    drawn = [asked(number) for number in range(600)]
    for one in drawn:
        assert one.weights[one.clients].sum() == pytest.approx(1.0)
        assert one.weights[one.clients] == pytest.approx(
            counts[one.clients] / counts[one.clients].sum()
        )
    often = np.bincount(np.concatenate([one.clients for one in drawn])) / 600
    assert often == pytest.approx(np.full(4, 0.5), abs=0.07)
    unbiased = [asked(number, weighting="unbiased") for number in range(3000)]
    steps = np.zeros(4)
    for one in unbiased:
        steps[one.clients] += one.weights[one.clients]
    assert steps / 3000 == pytest.approx(counts / counts.sum(), rel=0.1)
    with pytest.raises(ValueError, match="weighting"):
        Plan(weighting="equal")


def test_schedules_scale_the_learning_rates():
    half = quick(blobs(), methods.erm(), rounds=3, server_optimizer=sgd(0.1), optimizer=sgd(1.0))
    same = quick(
        blobs(), methods.erm(), rounds=3, server_optimizer=sgd(0.2), optimizer=sgd(1.0),
        server_lr_schedule=lambda number: 0.5,
    )  # fmt: skip
    assert same.theta == pytest.approx(half.theta, abs=1e-7)
    local = quick(
        blobs(), methods.erm(), rounds=3, local_epochs=1, lr=0.2, lr_schedule=lambda number: 0.25
    )
    assert local.theta == pytest.approx(
        quick(blobs(), methods.erm(), rounds=3, local_epochs=1, lr=0.05).theta, abs=1e-7
    )
    warm = quick(blobs(), methods.erm(), rounds=10, server_lr_schedule=cosine(10, warmup=3))
    assert np.isfinite(warm.theta).all()


def test_held_out_rows_are_evaluated_every_few_rounds_and_not_trained_on():
    clients = blobs()
    fit = quick(clients, methods.erm(), rounds=6, validation=0.25, evaluate_every=2)
    assert [one.round for one in fit.evaluations] == [2, 4, 6]
    held = {name: one.rows for name, one in fit.evaluations[-1].clients.items()}
    assert held == {name: int(np.ceil(0.25 * len(y))) for name, (_, y) in clients.items()}
    kept = {name: len(weights) for name, weights in fit.sample_weights.items()}
    assert {n: kept[n] + held[n] for n in kept} == {n: len(y) for n, (_, y) in clients.items()}


def test_validation_may_be_of_clients_that_do_not_train_and_tells_what_the_fit_tells():
    other = {"new": blobs((200,), seed=5)["c0"]}
    fit = quick(blobs(), methods.erm(), rounds=30, validation=other)
    (found,) = fit.evaluations
    assert found.round == 30
    assert found.clients["new"].score == pytest.approx(fit.score(*other["new"]))
    with pytest.raises(ValueError, match="validation="):
        quick(blobs(), methods.erm(), patience=3)


def overfitted():
    """Few rows with wrong labels: held-out loss falls and rises again."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 10)).astype(np.float32)
    y = np.where(rng.random(60) < 0.25, 1, 0) ^ (X[:, 0] > 0)
    return {"a": (X[:30], y[:30]), "b": (X[30:], y[30:])}


def test_early_stopping_returns_the_best_fit_and_survives_an_interruption(tmp_path):
    given = {
        "model": lambda: networks.mlp(10, (64,), 2), "rounds": 400, "server_optimizer": adam(0.01),
        "validation": 0.4, "evaluate_every": 5, "patience": 4, "average": 0.0,
    }  # fmt: skip
    fit = quick(overfitted(), methods.erm(), **given)
    losses = {one.round: one.objective(worst=False) for one in fit.evaluations}
    assert fit.rounds == min(losses, key=losses.get) < max(losses) < 400
    again = quick(overfitted(), methods.erm(), **{**given, "rounds": fit.rounds, "patience": None})
    assert np.array_equal(fit.theta, again.theta)

    class StoppedError(Exception):
        pass

    def interrupt(progress):
        if progress.round.round == 12:
            raise StoppedError

    file = tmp_path / "state"
    with pytest.raises(StoppedError):
        quick(overfitted(), methods.erm(), checkpoint=file, callbacks=[interrupt], **given)
    resumed = quick(overfitted(), methods.erm(), checkpoint=file, **given)
    assert np.array_equal(fit.theta, resumed.theta)
    assert resumed.evaluations == fit.evaluations


def test_callbacks_see_the_model_and_may_end_the_training():
    X = blobs()["c0"][0]
    seen = []

    def look(progress):
        seen.append(progress.model(torch.from_numpy(X)).argmax(1).numpy())
        return len(seen) == 3

    fit = quick(blobs(), methods.erm(), callbacks=[look], validation=blobs(seed=1))
    assert fit.rounds == 3
    assert np.array_equal(seen[-1], fit.predict(X))


def test_metrics_are_logged_for_tensorboard(tmp_path):
    pytest.importorskip("tensorboardX")
    quick(blobs(), methods.afl(), validation=0.2, evaluate_every=1,
          callbacks=[networks.tensorboard(tmp_path)])  # fmt: skip
    (file,) = tmp_path.iterdir()
    written = file.read_bytes()
    for name in (b"objective", b"held_out/worst_client_accuracy"):
        assert name in written


def test_a_worst_mixture_is_drawn_by_its_weights_and_a_fixed_one_is_not():
    lam = np.array([0.7, 0.1, 0.1, 0.1])
    plan = Plan(participation=0.5)
    often = {}
    for rule in (mixture.agnostic(), mixture.fixed()):
        state = begin(
            ServerSettings(methods.erm(), plan, ("a", "b", "c", "d"), np.ones(4)), torch.ones(1)
        )
        drawn = [
            _sample(plan, rule, type(state)(**{**vars(state), "lam": lam}), k)[0]
            for k in range(500)
        ]
        often[rule.adversarial] = np.bincount(np.concatenate(drawn), minlength=4)[0] / 500
    assert often[True] > 0.75
    assert often[False] < 0.6
