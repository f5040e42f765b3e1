"""A solver that somebody else wrote: in `train`, in a study's engine and in its checkpoint."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
from scipy.optimize import minimize

import dorfl
from dorfl import Options, methods, solvers
from dorfl.federated.training import prepare
from dorfl.protocol import checkpoint, coordinator
from dorfl.site import local
from dorfl.solvers import Needs
from dorfl.solvers.base import Info, Setting, Task, pieces
from dorfl.support.types import Array
from study_cases import make_sites, make_study, synthetic_tables


class AscentState(NamedTuple):
    setting: Setting
    theta: Array
    lam: Array
    before: Array
    steep: float = 0.0
    speed: float = 1.0


NEEDS = Needs(reports_gap=True, rounds=3000)


@dataclass(frozen=True)
class Accelerated:
    """Nesterov's method on the pooled risk, with a step that shrinks when the slope grows."""

    name: str = "accelerated"
    needs: Needs = NEEDS

    def init(self, setting, theta, lam):
        return AscentState(setting, theta, lam, theta)

    def ask(self, state):
        return Task(state.theta, state.lam)

    def update(self, state, answers):
        setting = state.setting
        seen = pieces(setting, state.theta, answers, state.lam)
        lam = state.lam if setting.mixture.adversarial else np.ones(1)
        slope = lam @ seen.gradients
        steep = float(slope @ slope)
        point = state.theta - 0.2 * slope
        speed = 1.0 if steep > state.steep else 0.5 + np.sqrt(0.25 + state.speed**2)
        ahead = point + (state.speed - 1.0) / speed * (point - state.before)
        height = setting.mixture.height(seen.values)
        done = "converged" if steep <= setting.tol**2 else ""
        info = Info(height, steep, answers.values, state.lam, state.theta, done)
        return state._replace(theta=ahead, before=point, steep=steep, speed=speed), info


def test_it_trains_to_the_optimum_that_scipy_finds():
    data = dorfl.datasets.synthetic(seed=0)
    options = Options(solver=Accelerated(), l2=0.1, tol=1e-7)
    fit = dorfl.train(data.clients, methods.erm(), options)
    group = prepare(data.clients, methods.erm())
    share = group.counts / group.counts.sum()

    def objective(theta):
        risks = group.evaluate(theta)
        weights = np.append(0.1 * theta[:-1], 1e-4 * theta[-1])
        return share @ risks.values + 0.5 * weights @ theta, share @ risks.gradients + weights

    best = minimize(objective, np.zeros(6), jac=True, method="BFGS", options={"gtol": 1e-9})
    assert fit.status == "converged" and fit.rounds < 3000
    np.testing.assert_allclose(fit.theta, best.x, atol=1e-5)
    assert fit.objective == pytest.approx(best.fun, rel=1e-9)


def test_its_rounds_are_those_it_asks_for_or_the_user_gives():
    data = dorfl.datasets.synthetic(seed=0)
    for given, rounds in (({}, 7), ({"max_rounds": 4}, 4)):
        short = Accelerated(needs=Needs(rounds=7))
        fit = dorfl.train(data.clients, methods.erm(), solver=short, tol=1e-12, **given)
        assert (fit.rounds, fit.status) == (rounds, "budget")  # and no warning: it reports no gap
    with pytest.warns(UserWarning, match="max_rounds"):
        dorfl.train(data.clients, methods.erm(), solver=Accelerated(), max_rounds=2)


@pytest.mark.parametrize(
    ("needs", "given", "reason"),
    [
        (Needs(every_client=True), {"participation": 0.5}, "every client"),
        (Needs(all_rows=True), {"batch": 5}, "all rows"),
        (Needs(), {"trim": 0.2}, "trim"),
    ],
)
def test_what_it_needs_is_asked_for_and_nothing_else(needs, given, reason):
    data = dorfl.datasets.synthetic(seed=0)
    with pytest.raises(ValueError, match=f"'accelerated'.*{reason}"):
        dorfl.train(data.clients, methods.erm(), solver=Accelerated(needs=needs), **given)
    able = Accelerated(needs=Needs(trims=True, rounds=3))
    assert dorfl.train(data.clients, methods.erm(), solver=able, **given).rounds == 3


def test_a_study_names_it_once_it_is_registered_and_a_checkpoint_holds_it(monkeypatch, tmp_path):
    tables = synthetic_tables()
    words = 'solver = "accelerated"\ntol = 1e-3\nl2 = 0.1'
    with pytest.raises(ValueError, match="'accelerated': choose one of auto, sqp"):
        make_study(tables, training=words)
    monkeypatch.setattr(solvers, "_NAMED", dict(solvers._NAMED))
    solvers.register(Accelerated)
    study = make_study(tables, method='name = "erm"', training=words)
    states = [coordinator.begin(study, "run-1")]
    end = local.run(states[0], make_sites(tables), states.append)
    assert end.outcome.status == "converged"
    middle = states[len(states) // 2]
    checkpoint.save(tmp_path / "checkpoint.json", middle)
    again = local.run(checkpoint.load(tmp_path / "checkpoint.json"), make_sites(tables))
    assert middle.step == "round" and again.outcome.rounds == end.outcome.rounds
    assert np.array_equal(again.outcome.theta, end.outcome.theta)
