"""The engine for rows that are all here: the coordinator's own steps, over a table's clients.

Nothing is decided here that a federation decides otherwise. What one process can do better is a
matter of speed: columns are read once for both exchanges about them, rows are stacked once, and all
clients answer a round in one pass.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

import dorfl
from dorfl import networks
from dorfl.certificates.certificate import paper
from dorfl.data import preprocessing, validation
from dorfl.data.preprocessing import Plan, columns, summaries
from dorfl.data.robust import LocationReport, find_centers
from dorfl.data.tables import DataError, Split
from dorfl.data.tables.errors import need_memory
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
from dorfl.protocol import coordinator, guard, labels, meaning, settings
from dorfl.protocol.coordinator import State
from dorfl.protocol.meaning import dtype_of, loss_of, mechanism_of, plan_of
from dorfl.protocol.messages import Answer, Enrolled, Reports
from dorfl.protocol.settings import Study
from dorfl.protocol.settling import scale_label, settle_label
from dorfl.selection import defaults, outliers
from dorfl.selection.outliers import Candidate, HeldOut
from dorfl.site import serving
from dorfl.support.threads import each
from dorfl.support.types import Array
from dorfl.tabular import network, promises, remarks, results
from dorfl.tabular.model import Model
from dorfl.tabular.rows import Rows, left_out, open_split

_CURVED = 500_000  # numbers; every radius of the curve takes some twenty looks at all rows
_CURVE = np.geomspace(0.1, 10.0, 9)  # radii of the certificate's curve, in units of its own

Progress = Callable[[Round], object]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A study whose columns and label are agreed on, and its rows as numbers."""

    state: State
    rows: Rows
    # as methods asked
    places: dict[tuple[str, int, bool], LocationReport] = field(default_factory=dict)


def run(
    study: Study,
    progress: Progress | None = None,
    keep: Callable[[Model], object] | None = None,
    *,
    certify: bool = True,
) -> tuple[Model, Rows]:
    """Train on a table.

    Parameters
    ----------
    study
        The table and its settings.
    progress
        Called with every round of the final training.
    keep
        Called with the trained model before it is certified, which may take a while.
    certify
        Whether to certify the model in sample.

    Returns
    -------
    model, rows
        The model and the rows it was trained on.
    """
    loading = threading.Thread(target=_load_kernels)
    loading.start()
    try:
        prepared = _opened(study)
    finally:
        loading.join()  # a process that ends under a thread at work in compiled code is aborted
    return model_of(study, prepared, progress, keep, certify=certify), prepared.rows


def _opened(study: Study) -> Prepared:
    """The study's table, prepared."""
    split = open_split(study)
    prepared = prepare(study, split)
    rows, data = prepared.rows, study.data
    lost = None if study.sites else left_out(split, rows.order, data.label, data.client)
    warnings = () if lost is None else (lost,)
    return replace(prepared, rows=replace(rows, warnings=warnings, split=split))


def model_of(
    study: Study,
    prepared: Prepared,
    progress: Progress | None = None,
    keep: Callable[[Model], object] | None = None,
    *,
    certify: bool = True,
) -> Model:
    """The model of a study for rows that are ready, with all that is known of it."""
    made, state, group = trained(study, prepared, progress)
    if keep is not None:
        keep(made)
    if certify and state.step == "certify" and not made.network:
        assert state.outcome is not None
        told = serving.certify(group, state.outcome.theta, state, meaning.thin(state))
        state = coordinator.receive(state, dict(zip(group.names, told, strict=True)))
    return replace(made, facts=made.facts._replace(promise=promises.of_study(state)))


def trained(
    study: Study, prepared: Prepared, progress: Progress | None = None
) -> tuple[Model, State, Group]:
    """The model without its certificate, and the state and rows of the linear model it is or has.

    A network takes the place of the linear model that settled what the study's words mean.
    """
    rows = prepared.rows
    if study.training.model == "linear":
        state, group = fit(study, prepared, progress)
        return results.model_of(state, rows.notes, rows.warnings), state, group
    state, group = fit(settings.linear(study), prepared)
    made = results.model_of(state, rows.notes, rows.warnings)
    return network.model_of(study, made, rows, progress), state, group


def curved(model: Model, rows: Rows, tick: Callable[[], object] = lambda: None) -> Model:
    """The model with the paper's certificate at several radii; `tick` is called before each."""
    found = model.facts.certificate
    if found is None or not found.radius > 0 or rows.X.size >= _CURVED:
        return model
    certificate = paper(model.fit, rows.clients)
    curve = []
    for radius in (found.radius * _CURVE).tolist():
        tick()
        curve.append((radius, certificate.at(radius)))
    facts = model.facts._replace(certificate=found._replace(curve=tuple(curve)))
    return replace(model, facts=facts)


def fit(
    study: Study,
    prepared: Prepared,
    progress: Progress | None = None,
    *,
    mass: Array | None = None,
    score: Score | None = None,
) -> tuple[State, Group]:
    """Run the study's steps from the location of rows to the end of training.

    Parameters
    ----------
    study
        The study with the method to train.
    prepared
        Standardised rows.
    progress
        Called with every round of the final training.
    mass
        (n,) weights of rows.
    score
        Outlier score in place of the study's own.

    Returns
    -------
    state, group
        The coordinator's state, and the rows with the model's problem.
    """
    names, clients = prepared.state.roster, validation.clients(prepared.rows.clients)
    if mass is not None or score is not None:  # candidates are compared for equal weights only
        study = study.changed(method_outliers=_given_share(study, score))
    state = resolve(study, prepared)
    group = _group(state, clients, mass, score)
    noise = mechanism_of(state.study, secrets.randbits(64))
    least, seed = state.study.privacy.least, state.study.training.seed
    while state.step == "round":
        assert state.server is not None
        reports = respond(group, federated.broadcast(state.server), seed, noise, least)
        state = coordinator.receive(state, {report.client: report for report in reports})
        if progress is not None:
            progress(state.history[-1])
    if noise is not None:  # statistics of a private model would not be private
        return coordinator.receive(state, {}), group
    assert state.outcome is not None
    if group.problem.estimates_scale:
        assert state.scatter is not None
        fixed = meaning.problem_of(state)
        if score is not None:
            fixed = scaling.fixed(group.problem, state.scatter)
        group = replace(group, problem=fixed)
    told = serving.finish(group, state.outcome.theta, state.target, least=1)
    return coordinator.receive(state, dict(zip(names, told, strict=True))), group


def resolve(
    study: Study, prepared: Prepared, candidates: tuple[Candidate, ...] | None = None
) -> State:
    """Run the study's steps up to the final training: locations, scales, and selection.

    Parameters
    ----------
    study
        The study with the method to resolve.
    prepared
        Standardised rows.
    candidates
        Candidates to compare, instead of the usual outlier shares.
    """
    rows, names, state = prepared.rows, prepared.state.roster, prepared.state
    words = state.study._replace(method=study.method, training=study.training)
    state = state._replace(study=words, network=state.study.training.model != "linear")
    if candidates is not None:
        state = state._replace(candidates=candidates)
    state = coordinator.prepared(state)
    clients = validation.clients(rows.clients)

    def answer(state: State, one: Callable[[str], Answer]) -> State:
        return coordinator.receive(state, dict(zip(names, each(one, names), strict=True)))

    if state.step == "center":
        gaps = {} if rows.gaps is None else dict(zip(names, rows.gaps, strict=True))

        def place(name: str) -> LocationReport:
            asked = name, meaning.centered_classes(state), state.apart
            if asked not in prepared.places:
                found = serving.place(*clients[name], state, gaps.get(name))
                prepared.places[asked] = found
            return prepared.places[asked]

        state = answer(state, place)
    if state.step == "edge":
        assert state.centers is not None
        known = dict(zip(names, state.centers, strict=True))
        state = answer(state, lambda name: serving.distances(*clients[name], known[name], state))
    return _select(state, clients)


def _given_share(study: Study, score: Score | None) -> float:
    """Return the outlier share of a training whose candidates cannot be compared."""
    given = study.method.outliers
    return given if not isinstance(given, str) else 0.1 if score is not None else 0.0


def _select(state: State, clients: Clients) -> State:
    """Train the candidates, all in the same rounds, and compare them on held-out rows."""
    least, seed = state.study.privacy.least, state.study.training.seed
    while state.step == "select":
        groups = {
            str(k): _group(state._replace(candidate=candidate), clients)
            for k, (candidate, server) in enumerate(
                zip(state.candidates, state.servers, strict=True)
            )
            if server is not None
        }
        candidates = state.candidates
        while state.step == "select" and state.candidates == candidates:
            state = coordinator.receive(state, _reports(state, groups, seed, least))
        if state.step == "compare":
            state = coordinator.receive(state, dict(_compared(state, clients)))
    return state


def _compared(state: State, clients: Clients) -> dict[str, HeldOut]:
    """Return the clients' statistics of the candidates' held-out losses.

    Clients with too few held-out rows for a variance of their own are one stratum, if their rows
    may be reported on: it is entered for the first of them.
    """
    models, problem = np.array(state.models), meaning.problem_of(state)

    def losses(name: str) -> list[Array]:
        center = None if state.centers is None else state.centers[state.roster.index(name)]
        return serving.candidate_losses(problem, models, *clients[name], state, center)

    found = dict(zip(state.roster, each(losses, state.roster), strict=True))
    least = state.study.privacy.least
    small = [name for name, own in found.items() if len(own[0]) < outliers.STRATUM]
    if least <= 1 and len(small) > 1:
        joined = [np.concatenate(parts) for parts in zip(*(found[n] for n in small), strict=True)]
        found |= {name: [part[:0] for part in joined] for name in small}
        found[small[0]] = joined
    return {n: outliers.compare_losses(state.candidates, own, least) for n, own in found.items()}


def _reports(state: State, groups: dict[str, Group], seed: int, least: int) -> dict[str, Answer]:
    """Return every client's reports on the candidates that are still trained."""
    found: dict[str, dict[str, Report]] = {name: {} for name in state.roster}
    for place, group in groups.items():
        server = state.servers[int(place)]
        if server is not None:
            for report in respond(group, federated.broadcast(server), seed, None, least):
                found[report.client][place] = report
    return {name: Reports(reports) for name, reports in found.items()}


def _group(
    state: State, clients: Clients, mass: Array | None = None, score: Score | None = None
) -> Group:
    """Return the rows as the problem at hand sees them."""
    problem = meaning.problem_of(state)
    dims = next(iter(clients.values()))[0].shape[1]
    centers = np.zeros((len(state.roster), dims)) if state.centers is None else state.centers
    if score is not None:
        temperature = min(problem.method.temperature, defaults.TEMPERATURE)
        method = replace(problem.method, score=score, temperature=temperature)
        problem = replace(problem, method=method)
        problem.check()
        tables = {name: X for name, (X, _) in clients.items()}
        centers = find_centers(problem.method, tables, len(state.classes))
    used = {name: serving.seen(*pair, state) for name, pair in clients.items()}
    if meaning.labels_of(state) and state.reference is not None:
        mass = np.concatenate([serving.mass(problem, *pair, state) for pair in used.values()])
    return training.stack(problem, used, centers, mass=mass)


def prepare(study: Study, split: Split, *, remark: bool = True) -> Prepared:
    """Labels read, columns fitted federatedly, everything as numbers; with notes on the table."""
    if study.training.model != "linear":
        networks.require()
        if study.defence.most_rows is not None:
            raise ValueError(
                "defence.most_rows: is for sites elsewhere; a table's rows are counted"
            )
    said = study.data.task != "auto"
    study, split, notes = task_settled(study, split)
    skipped = (study.data.label, study.data.client)
    names = tuple(name for name in split.column_names if name not in skipped)
    study = study._replace(sites=split.names)
    # Who has too few rows was decided when the table was split.
    state = coordinator.begin(study.changed(privacy_minimum_rows=1), "table")._replace(here=True)
    split = split.only(state.roster)
    counts = dict(zip(split.names, np.diff(split.bounds).tolist(), strict=True))
    try:
        state = coordinator.receive(
            state, {name: Enrolled(n, names, dorfl.__version__) for name, n in counts.items()}
        )
        used = [name for name in state.columns if name not in study.columns.ignore]
        transform = preprocessing.fit(split.clients(used), plan_of(study))
        state = _label(state._replace(study=study, transform=transform), split)
        coordinator.prepared(state)
        label = study.data.label
        y, _ = labels.encode(split.column(label), label, state.classes, state.target)
    except ValueError as error:
        raise DataError(str(error)) from None
    need_memory(
        Path(study.data.file or "table"),
        3 * split.num_rows * len(transform.names) * 4,
        "use fewer columns or rows, or a larger machine",
    )
    if remark:
        notes += remarks.of_columns(split, transform)
        notes += remarks.of_labels(split, transform, study, y)
        if not (said or study.data.classes):
            notes += remarks.of_numbers(split, study.data.label)
    state = state._replace(transform=remarks.explained(split, transform))
    y = labels.for_training(y, loss_of(study, len(state.classes)))
    X = transform.apply(split, dtype_of(study)).X
    private = study.privacy.epsilon is not None  # then a row must not change others
    places = [] if private else pairwise(split.bounds.tolist())
    for first, stop in places:  # as a site does, or models would differ
        settled = guard.settle(X[first:stop], study.privacy.least)
        if settled.base is not X:
            X[first:stop] = settled
    pa.default_memory_pool().release_unused()  # what reading took, training may need
    gaps = serving.gaps(split, transform, split.bounds)
    rows = Rows(split.names, split.bounds, X, y, split.order, (*split.notes, *notes), (), gaps)
    return Prepared(state, rows)


def task_settled(study: Study, split: Split) -> tuple[Study, Split, list[str]]:
    """The study with the task and the classes that the table shows; rows without a label go."""
    name, column = study.data.label, split.column(study.data.label)
    kind = columns.kind_of(column)
    if columns.beyond(column) == len(column) - column.null_count > 0:
        kind = "beyond"
    if kind not in ("numeric", "category"):
        what = {
            "empty": "is empty; name the column to predict",
            "date": "holds dates, which are not predicted; make them a number (of days, of years) "
            "or classes (words), or name another column",
            "beyond": "holds no number that is finite and below 1e100",
        }.get(kind, f"holds {column.type}; name the column to predict")
        raise DataError(f"label: column {name!r} {what}")
    try:
        task, known = labels.task_in(column, study), labels.known(column, study)
    except ValueError as error:
        raise DataError(f"label: {error}; classes need --task classification") from None
    said = study.data.task != "auto" or bool(study.data.classes)
    study = study.changed(data_task=task)
    notes: list[str] = []
    if not known.all():
        notes.append(f"{int((~known).sum())} row(s) without a label left out")
        split = split.keep(known)
    if task == "classification" and not study.data.classes:
        study = study.changed(data_classes=tuple(columns.levels(column, name).names))
    _check_label(study, column, said)
    return study, split, notes


def _check_label(study: Study, column: pa.Array, said: bool) -> None:
    name, classes = study.data.label, study.data.classes
    if study.data.task == "regression":
        present = columns.present(columns.numbers(column, name))
        if not len(present) or present.min() == present.max():
            raise DataError(f"label: column {name!r} has one value only; there is nothing to learn")
    elif len(classes) < 2:
        raise DataError(
            f"label: column {name!r} has one value only ({classes[0]!r}); a classifier needs two"
        )
    elif len(classes) > labels.MOST_CLASSES and not said:
        number = "" if columns.kind_of(column) == "category" else "a number (--task regression), "
        raise DataError(
            f"label: column {name!r} has {len(classes):,} different values, more than "
            f"{labels.MOST_CLASSES} classes; is it {number}so many classes (--task "
            "classification), or another column?"
        )


def _label(state: State, split: Split) -> State:
    """Classes, or middle and spread of the label, from what each client would tell of it."""
    study, name = state.study, state.study.data.label
    if study.data.task == "classification":
        return settle_label(state, {})
    own = {client: table.column(name) for client, table in split.clients([name]).items()}
    state = settle_label(
        state, {client: labels.summarise(column, study) for client, column in own.items()}
    )
    assert state.target is not None
    plan = Plan(least=study.privacy.least)
    far = {client: summaries.deviation(c, state.target, plan) for client, c in own.items()}
    return scale_label(state, far)


def _load_kernels() -> None:
    """A training of next to nothing: compiled code takes most of a second to load from disk."""
    rows, labels_ = np.eye(4, 2, dtype=np.float32), np.array([0, 1, 1, 0])
    training.train([(rows, labels_)], methods.erm(), l2=1.0)
