"""Train on the rows of one table: the coordinator's own steps, over clients in this process.

Nothing is decided here that a federation decides otherwise. A process that has all rows is faster:
columns are read once for both exchanges about them, rows are stacked once, and all clients report
in one pass.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dorfl.data import validation
from dorfl.data.robust import LocationReport, find_centers
from dorfl.federated import server as federated
from dorfl.federated import training
from dorfl.federated.client import respond
from dorfl.federated.messages import Report
from dorfl.federated.privacy import Gaussian
from dorfl.federated.simulation import Round
from dorfl.linear import scale as scaling
from dorfl.linear.group import Group
from dorfl.objective import methods
from dorfl.objective.base import Score
from dorfl.protocol import coordinator, resolution, settings, training_rows
from dorfl.protocol.messages import Answer, Reports
from dorfl.protocol.resolution import mechanism_of
from dorfl.protocol.settings import Study
from dorfl.protocol.state import Selection, State
from dorfl.protocol.steps import finish, location, select
from dorfl.protocol.steps.certify import bounds
from dorfl.selection import defaults, outliers
from dorfl.selection.outliers import Candidate
from dorfl.support.threads import each
from dorfl.support.types import Array
from dorfl.tabular import network, promises, results
from dorfl.tabular.model import Model
from dorfl.tabular.rows import Prepared, Rows, open_split, prepare

_TRAINED = ("network", "certify", "done")  # steps after the final training

Progress = Callable[[Round], object]


def run(
    study: Study,
    progress: Progress | None = None,
    keep: Callable[[Model], object] | None = None,
    *,
    certify: bool = True,
) -> tuple[Model, Rows]:
    """Train on a table, and certify in sample if `certify`; return the model and its rows.

    `keep` is called with the trained model before it is certified, which may take a while.
    """
    loading = threading.Thread(target=_load_kernels)
    loading.start()
    try:
        prepared = prepare(study, open_split(study))
    finally:
        loading.join()  # a process that ends under a thread at work in compiled code is aborted
    model, state, group = trained(study, prepared, progress)
    if keep is not None:
        keep(model)
    if certify and state.step == "certify" and not model.network:
        parts = bounds(group, state.outcome.theta, state.agreed, resolution.grid_stride(state))
        state = coordinator.receive(state, dict(zip(group.names, parts, strict=True)))
    facts = model.facts._replace(promise=promises.of_study(state))
    return replace(model, facts=facts), prepared.rows


def trained(
    study: Study, prepared: Prepared, progress: Progress | None = None
) -> tuple[Model, State, Group]:
    """Train without certifying; return the model, and the state and rows of the linear model.

    A network is trained by the method that is resolved for a linear model.
    """
    rows = prepared.rows
    if study.training.model == "linear":
        state, group = fit(study, prepared, progress)
        return results.model_of(state, rows.notes, rows.warnings), state, group
    state, group = fit(settings.linear(study), prepared)
    linear = results.model_of(state, rows.notes, rows.warnings)
    return network.model_of(study, linear, rows, progress), state, group


def fit(
    study: Study,
    prepared: Prepared,
    progress: Progress | None = None,
    *,
    mass: Array | None = None,
    score: Score | None = None,
) -> tuple[State, Group]:
    """Run the study's steps from the location of rows to the end of training.

    `mass` has (n,) weights of rows, and `score` takes the place of the study's own.
    """
    if mass is not None or score is not None:  # candidates are compared for equal weights only
        share = 0.0 if score is None else 0.1
        given = study.method.outliers
        study = study.changed(method_outliers=share if isinstance(given, str) else given)
    state, clients = resolve(study, prepared), _Clients(prepared, mass, score)
    clients.group = clients.stack(state)
    clients.noise = mechanism_of(state.study, secrets.randbits(64))
    state = clients.run(state, _TRAINED, progress)
    return state, clients.group


def resolve(
    study: Study, prepared: Prepared, candidates: tuple[Candidate, ...] | None = None
) -> State:
    """Run the study's steps up to the final training; `candidates` replace the usual shares."""
    state = prepared.state
    resolved = state.study._replace(method=study.method, training=study.training)
    is_network = state.study.training.model != "linear"
    state = state.agree(study=resolved)._replace(network=is_network)
    if candidates is not None:
        state = state._replace(selection=Selection(candidates))
    return _Clients(prepared).run(coordinator.proceed(state, "scales"), ("round", *_TRAINED))


class _Clients:
    """All clients of a table, which answer a step of the study together."""

    def __init__(
        self, prepared: Prepared, mass: Array | None = None, score: Score | None = None
    ) -> None:
        self.prepared, self.mass, self.score = prepared, mass, score
        self.tables = validation.clients(prepared.rows.clients)
        self.candidates: tuple[Candidate, ...] = ()
        self.groups: dict[int, Group] = {}  # the rows as each candidate's problem sees them
        self.group: Group | None = None  # the rows as the problem of the final training sees them
        self.noise: Gaussian | None = None

    def run(self, state: State, until: Sequence[str], progress: Progress | None = None) -> State:
        """Answer one step after the other; steps of a user run at sites only."""
        answers = {
            "location": self._locate,
            "cutoff": self._measure_distances,
            "select": self._train_candidates,
            "compare": self._compare_candidates,
            "round": self._train,
            "finish": self._summarise,
        }
        while state.step not in until:
            step = state.step
            if step not in answers:
                state = coordinator.proceed(state, step)
                continue
            state = coordinator.receive(state, answers[step](state))
            if step == "round" and progress is not None:
                progress(state.history[-1])
        return state

    def stack(self, state: State) -> Group:
        """Return the rows as the problem at hand sees them."""
        agreed, mass = state.agreed, self.mass
        problem = resolution.problem_of(agreed)
        dims = next(iter(self.tables.values()))[0].shape[1]
        centers = np.zeros((len(state.sites), dims)) if state.centers is None else state.centers
        if self.score is not None:
            temperature = min(problem.method.temperature, defaults.TEMPERATURE)
            method = replace(problem.method, score=self.score, temperature=temperature)
            problem = replace(problem, method=method)
            problem.check()
            rows = {name: X for name, (X, _) in self.tables.items()}
            centers = find_centers(problem.method, rows, len(agreed.classes))
        used = {name: training_rows.select(*pair, agreed) for name, pair in self.tables.items()}
        if resolution.labels_of(agreed) and agreed.reference is not None:
            mass = np.concatenate(
                [training_rows.weights(problem, *pair, agreed) for pair in used.values()]
            )
        return training.stack(problem, used, centers, mass=mass)

    def _each(self, state: State, answer: Callable[[str], Any]) -> dict[str, Any]:
        return dict(zip(state.sites, each(answer, state.sites), strict=True))

    def _locate(self, state: State) -> dict[str, Answer]:
        """Report where rows lie; trainings on the same rows do so once."""
        gaps, known, agreed = self.prepared.rows.gaps, self.prepared.locations, state.agreed

        def report(name: str) -> LocationReport:
            key = name, resolution.centered_classes(agreed), agreed.own_centers
            if key not in known:
                missing = None if gaps is None else gaps[state.sites.index(name)]
                known[key] = location.report(*self.tables[name], agreed, missing)
            return known[key]

        return self._each(state, report)

    def _measure_distances(self, state: State) -> dict[str, Answer]:
        assert state.centers is not None
        centers, agreed = dict(zip(state.sites, state.centers, strict=True)), state.agreed
        return self._each(
            state, lambda name: location.distances(*self.tables[name], centers[name], agreed)
        )

    def _train_candidates(self, state: State) -> dict[str, Answer]:
        """Report on the candidates that are still trained."""
        candidates = state.selection.candidates
        servers = {
            k: server for k, server in enumerate(state.selection.servers) if server is not None
        }
        if candidates != self.candidates:
            self.candidates = candidates
            alike = {k: candidates[k]._replace(ridge=1.0) for k in servers}  # rows know no ridge
            stacked = {one: self.stack(state.agree(candidate=one)) for one in {*alike.values()}}
            self.groups = {k: stacked[one] for k, one in alike.items()}
        least, seed = state.study.privacy.least, state.study.training.seed
        found: dict[str, dict[str, Report]] = {name: {} for name in state.sites}
        for k, server in servers.items():
            for report in respond(self.groups[k], federated.broadcast(server), seed, None, least):
                found[report.client][str(k)] = report
        return {name: Reports(reports) for name, reports in found.items()}

    def _compare_candidates(self, state: State) -> dict[str, Answer]:
        """Report statistics of the candidates' held-out losses.

        Clients with too few held-out rows for a variance of their own are one stratum, if their
        rows may be reported on: it is entered for the first of them.
        """
        agreed, candidates = state.agreed, state.selection.candidates
        models, problem = np.array(state.selection.models), resolution.problem_of(agreed)

        def losses(name: str) -> list[Array]:
            center = None if state.centers is None else state.centers[state.sites.index(name)]
            return select.candidate_losses(problem, models, *self.tables[name], agreed, center)

        found, least = self._each(state, losses), state.study.privacy.least
        small = [name for name, own in found.items() if len(own[0]) < outliers.STRATUM]
        if least <= 1 and len(small) > 1:
            parts = zip(*(found[name] for name in small), strict=True)
            joined = [np.concatenate(part) for part in parts]
            found |= {name: [part[:0] for part in joined] for name in small}
            found[small[0]] = joined
        return {
            name: outliers.compare_losses(candidates, own, least) for name, own in found.items()
        }

    def _train(self, state: State) -> dict[str, Answer]:
        """Report on the round of the final training."""
        assert self.group is not None
        least, seed = state.study.privacy.least, state.study.training.seed
        task = federated.broadcast(state.running)
        return {r.client: r for r in respond(self.group, task, seed, self.noise, least)}

    def _summarise(self, state: State) -> dict[str, Answer]:
        """Report statistics under the trained model, unless it is private: they would not be."""
        if self.noise is not None:
            return {}
        assert self.group is not None
        problem = self.group.problem
        if problem.estimates_scale:
            assert state.agreed.scatter is not None
            fixed = resolution.problem_of(state.agreed)
            if self.score is not None:
                fixed = scaling.fixed(problem, state.agreed.scatter)
            self.group = replace(self.group, problem=fixed)
        found = finish.statistics(self.group, state.outcome.theta, state.agreed.target, least=1)
        return dict(zip(state.sites, found, strict=True))


def _load_kernels() -> None:
    """Train on four rows: loading compiled code from disk takes most of a second."""
    rows, labels_ = np.eye(4, 2, dtype=np.float32), np.array([0, 1, 1, 0])
    training.train([(rows, labels_)], methods.erm(), l2=1.0)
