"""Train on the rows of one table: the coordinator's own steps, over clients in this process.

Nothing is decided here that a federation decides otherwise. A process that has all rows is faster:
columns are read once for both exchanges about them, rows are stacked once, and all clients report
in one pass.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dorfl.data import validation
from dorfl.data.robust import LocationReport, find_centers
from dorfl.data.validation import Clients
from dorfl.federated import server as federated
from dorfl.federated import training
from dorfl.federated.client import respond
from dorfl.federated.messages import Report
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
from dorfl.protocol.steps import compare, cutoff, finish, location
from dorfl.protocol.steps.certify import bounds
from dorfl.selection import defaults, outliers
from dorfl.selection.outliers import Candidate, HeldOut
from dorfl.support.threads import each
from dorfl.support.types import Array
from dorfl.tabular import network, promises, results
from dorfl.tabular.model import Model
from dorfl.tabular.rows import Prepared, Rows, open_split, prepare

# Steps that are computed here, for all clients at once.
_STEPS = frozenset(
    {"location", "cutoff", "select", "compare", "round", "network", "finish", "certify", "done"}
)

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
    names, clients = prepared.state.sites, validation.clients(prepared.rows.clients)
    if mass is not None or score is not None:  # candidates are compared for equal weights only
        study = study.changed(method_outliers=_given_share(study, score))
    state = resolve(study, prepared)
    group = _group(state, clients, mass, score)
    noise = mechanism_of(state.study, secrets.randbits(64))
    least, seed = state.study.privacy.least, state.study.training.seed
    while state.step == "round":
        reports = respond(group, federated.broadcast(state.running), seed, noise, least)
        state = _receive(state, {report.client: report for report in reports})
        if progress is not None:
            progress(state.history[-1])
    if noise is not None:  # statistics of a private model would not be private
        return _receive(state, {}), group
    if group.problem.estimates_scale:
        assert state.agreed.scatter is not None
        fixed = resolution.problem_of(state.agreed)
        if score is not None:
            fixed = scaling.fixed(group.problem, state.agreed.scatter)
        group = replace(group, problem=fixed)
    statistics = finish.statistics(group, state.outcome.theta, state.agreed.target, least=1)
    return _receive(state, dict(zip(names, statistics, strict=True))), group


def resolve(
    study: Study, prepared: Prepared, candidates: tuple[Candidate, ...] | None = None
) -> State:
    """Run the study's steps up to the final training; `candidates` replace the usual shares."""
    rows, names, state = prepared.rows, prepared.state.sites, prepared.state
    resolved = state.study._replace(method=study.method, training=study.training)
    is_network = state.study.training.model != "linear"
    state = state.agree(study=resolved)._replace(network=is_network)
    if candidates is not None:
        state = state._replace(selection=Selection(candidates))
    state = _skip(coordinator.proceed(state, "scales"))
    clients = validation.clients(rows.clients)

    def answer(state: State, one: Callable[[str], Answer]) -> State:
        return _receive(state, dict(zip(names, each(one, names), strict=True)))

    if state.step == "location":
        gaps = {} if rows.gaps is None else dict(zip(names, rows.gaps, strict=True))

        def report(name: str) -> LocationReport:
            key = name, resolution.centered_classes(state.agreed), state.agreed.own_centers
            if key not in prepared.locations:
                found = location.report(*clients[name], state.agreed, gaps.get(name))
                prepared.locations[key] = found
            return prepared.locations[key]

        state = answer(state, report)
    if state.step == "cutoff":
        assert state.centers is not None
        known = dict(zip(names, state.centers, strict=True))
        agreed = state.agreed
        state = answer(state, lambda name: cutoff.distances(*clients[name], known[name], agreed))
    return _select(state, clients)


def _receive(state: State, answers: dict[str, Answer]) -> State:
    """Return the state after a step, at a step that is computed here."""
    return _skip(coordinator.receive(state, answers))


def _skip(state: State) -> State:
    """Go on to a step that is computed here: steps of a user run at sites only."""
    while state.step not in _STEPS:
        state = coordinator.proceed(state, state.step)
    return state


def _given_share(study: Study, score: Score | None) -> float:
    """Return the outlier share of a training whose candidates cannot be compared."""
    given = study.method.outliers
    return given if not isinstance(given, str) else 0.1 if score is not None else 0.0


def _select(state: State, clients: Clients) -> State:
    """Train the candidates, all in the same rounds, and compare them on held-out rows."""
    least, seed = state.study.privacy.least, state.study.training.seed
    while state.step == "select":
        groups = {
            str(k): _group(state.agree(candidate=candidate), clients)
            for k, (candidate, server) in enumerate(
                zip(state.selection.candidates, state.selection.servers, strict=True)
            )
            if server is not None
        }
        candidates = state.selection.candidates
        while state.step == "select" and state.selection.candidates == candidates:
            state = _receive(state, _reports(state, groups, seed, least))
        if state.step == "compare":
            state = _receive(state, dict(_compared(state, clients)))
    return state


def _compared(state: State, clients: Clients) -> dict[str, HeldOut]:
    """Return the clients' statistics of the candidates' held-out losses.

    Clients with too few held-out rows for a variance of their own are one stratum, if their rows
    may be reported on: it is entered for the first of them.
    """
    models, problem = np.array(state.selection.models), resolution.problem_of(state.agreed)

    def losses(name: str) -> list[Array]:
        center = None if state.centers is None else state.centers[state.sites.index(name)]
        return compare.candidate_losses(problem, models, *clients[name], state.agreed, center)

    found = dict(zip(state.sites, each(losses, state.sites), strict=True))
    least = state.study.privacy.least
    small = [name for name, own in found.items() if len(own[0]) < outliers.STRATUM]
    if least <= 1 and len(small) > 1:
        joined = [np.concatenate(parts) for parts in zip(*(found[n] for n in small), strict=True)]
        found |= {name: [part[:0] for part in joined] for name in small}
        found[small[0]] = joined
    return {
        n: outliers.compare_losses(state.selection.candidates, own, least)
        for n, own in found.items()
    }


def _reports(state: State, groups: dict[str, Group], seed: int, least: int) -> dict[str, Answer]:
    """Return every client's reports on the candidates that are still trained."""
    found: dict[str, dict[str, Report]] = {name: {} for name in state.sites}
    for place, group in groups.items():
        server = state.selection.servers[int(place)]
        if server is not None:
            for report in respond(group, federated.broadcast(server), seed, None, least):
                found[report.client][place] = report
    return {name: Reports(reports) for name, reports in found.items()}


def _group(
    state: State, clients: Clients, mass: Array | None = None, score: Score | None = None
) -> Group:
    """Return the rows as the problem at hand sees them."""
    problem = resolution.problem_of(state.agreed)
    dims = next(iter(clients.values()))[0].shape[1]
    centers = np.zeros((len(state.sites), dims)) if state.centers is None else state.centers
    if score is not None:
        temperature = min(problem.method.temperature, defaults.TEMPERATURE)
        method = replace(problem.method, score=score, temperature=temperature)
        problem = replace(problem, method=method)
        problem.check()
        tables = {name: X for name, (X, _) in clients.items()}
        centers = find_centers(problem.method, tables, len(state.agreed.classes))
    used = {name: training_rows.select(*pair, state.agreed) for name, pair in clients.items()}
    if resolution.labels_of(state.agreed) and state.agreed.reference is not None:
        mass = np.concatenate(
            [training_rows.weights(problem, *pair, state.agreed) for pair in used.values()]
        )
    return training.stack(problem, used, centers, mass=mass)


def _load_kernels() -> None:
    """Train on four rows: loading compiled code from disk takes most of a second."""
    rows, labels_ = np.eye(4, 2, dtype=np.float32), np.array([0, 1, 1, 0])
    training.train([(rows, labels_)], methods.erm(), l2=1.0)
