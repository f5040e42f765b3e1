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
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

import dorfl
from dorfl import networks
from dorfl.data import preprocessing, spread, validation
from dorfl.data.centers import find_centers
from dorfl.data.preprocessing import Plan, columns, summaries
from dorfl.data.sketch import Sketch
from dorfl.data.spread import Place
from dorfl.data.tables import DataError, Split
from dorfl.data.tables.errors import need_memory
from dorfl.data.validation import Clients
from dorfl.federation import server as federated
from dorfl.federation import training
from dorfl.federation.client import respond
from dorfl.federation.local import Round
from dorfl.guarantees.certificate import paper
from dorfl.objective import methods
from dorfl.objective.kinds import Score
from dorfl.oracle.group import Group
from dorfl.oracle.problem import Problem
from dorfl.study import (
    coordinator,
    defaults,
    guard,
    labels,
    meaning,
    network,
    promises,
    remarks,
    results,
    serving,
    settings,
)
from dorfl.study.coordinator import State
from dorfl.study.meaning import dtype_of, loss_of, mechanism_of, plan_of
from dorfl.study.messages import Answer, Enrolled
from dorfl.study.model import Model
from dorfl.study.rows import Rows, left_out, open_split
from dorfl.study.settings import Study
from dorfl.study.settling import scale_label, settle_label
from dorfl.study.suspects import Judged
from dorfl.support.threads import each
from dorfl.support.types import Array

_CURVED = 500_000  # numbers; every radius of the curve takes some twenty looks at all rows
_CURVE = np.geomspace(0.1, 10.0, 9)  # radii of the certificate's curve, in units of its own

Progress = Callable[[Round], object]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A study whose columns and label are agreed on, and its rows as numbers."""

    state: State
    rows: Rows
    places: dict[tuple[str, int, bool], Place] = field(default_factory=dict)  # as methods asked


def run(
    study: Study, progress: Progress | None = None, keep: Callable[[Model], object] | None = None
) -> tuple[Model, Rows]:
    """Read, prepare, choose, train, certify: the model and the rows it was trained on.

    `keep` is given the model once it is trained: before it is certified, which may take a while.
    """
    loading = threading.Thread(target=_load_kernels)
    loading.start()
    try:
        prepared = _opened(study)
    finally:
        loading.join()  # a process that ends under a thread at work in compiled code is aborted
    return model_of(study, prepared, progress, keep), prepared.rows


def _opened(study: Study) -> Prepared:
    """The study's table, prepared; what it was read into is let go of."""
    split = open_split(study)
    prepared = prepare(study, split)
    rows, data = prepared.rows, study.data
    lost = None if study.sites else left_out(split, rows.order, data.label, data.client)
    return prepared if lost is None else replace(prepared, rows=replace(rows, warnings=(lost,)))


def model_of(
    study: Study,
    prepared: Prepared,
    progress: Progress | None = None,
    keep: Callable[[Model], object] | None = None,
) -> Model:
    """The model of a study for rows that are ready, with all that is known of it."""
    made, state, group = trained(study, prepared, progress)
    if keep is not None:
        keep(made)
    if state.step == "certify" and not made.network:
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
    """The study's steps from where rows lie to the end, and the rows as the model sees them.

    Rows may count by their `mass`, and a `score` take the place of the study's own.
    """
    rows, names = prepared.rows, prepared.state.roster
    state = prepared.state
    words = state.study._replace(method=study.method, training=study.training)
    if mass is not None or score is not None:  # of such rows nothing is tried
        words = words.changed(method_outliers=meaning.assumed_of(words))
    follows = state.study.training.model != "linear"
    state = coordinator.prepared(state._replace(study=words, network=follows))
    clients = validation.clients(rows.clients)

    def answer(one: Callable[[str], Answer]) -> State:
        return coordinator.receive(state, dict(zip(names, each(one, names), strict=True)))

    if state.step == "center":
        gaps = {} if rows.gaps is None else dict(zip(names, rows.gaps, strict=True))

        def place(name: str) -> Place:
            asked = name, meaning.centered_classes(state), state.apart
            if asked not in prepared.places:
                found = serving.place(*clients[name], state, gaps.get(name))
                prepared.places[asked] = found
            return prepared.places[asked]

        state = answer(place)
    if state.step == "edge":
        assert state.centers is not None
        known = dict(zip(names, state.centers, strict=True))
        state = answer(lambda name: serving.distances(*clients[name], known[name], state))
    centers = np.zeros((len(names), rows.X.shape[1])) if state.centers is None else state.centers
    noise = mechanism_of(state.study, secrets.randbits(64))
    least, seed = state.study.privacy.least, state.study.training.seed
    while state.step == "round":
        problem, trial = meaning.problem_of(state), state.trial
        if score is not None:
            tilt = min(problem.method.temperature, defaults.TEMPERATURE)  # or it says nothing
            method = replace(problem.method, score=score, temperature=tilt)
            problem = replace(problem, method=method)
            problem.check()
            tables = {name: X for name, (X, _) in clients.items()}
            centers = find_centers(problem.method, tables, len(state.classes))
        seen = {name: serving.seen(*pair, state) for name, pair in clients.items()}
        count = mass
        if state.reference is not None:
            count = np.concatenate([serving.mass(problem, *p, state) for p in seen.values()])
        group = training.stack(problem, seen, centers, mass=count)
        while state.step == "round" and state.trial == trial:
            assert state.server is not None
            sent = federated.broadcast(state.server)
            reports = respond(group, sent, seed, noise, least)
            state = coordinator.receive(state, {report.client: report for report in reports})
            if progress is not None and trial is None:
                progress(state.history[-1])
        if state.step == "judge":
            state = answer(partial(_judged, group.problem, state, clients))
        if trial is not None:
            continue
        assert state.outcome is not None
        theta = state.outcome.theta
        if state.step == "residuals":
            state = answer(partial(_residuals, problem, theta, clients, least))
    if noise is not None:  # what a private model comes with must not tell of its rows either
        return coordinator.receive(state, {}), group
    told = serving.finish(group, theta, state.target, least=1)
    return coordinator.receive(state, dict(zip(names, told, strict=True))), group


def _judged(problem: Problem, state: State, clients: Clients, name: str) -> Judged:
    agreed = meaning.agreed(state, name)
    return serving.judge(problem, np.array(state.tried), *clients[name], agreed)


def _residuals(problem: Problem, theta: Array, clients: Clients, least: int, name: str) -> Sketch:
    X, y = clients[name]
    return spread.residuals(serving.outputs(problem, theta, X), y, least)


def prepare(study: Study, split: Split) -> Prepared:
    """Labels read, columns fitted federatedly, everything as numbers."""
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
