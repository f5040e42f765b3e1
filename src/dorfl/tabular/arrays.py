"""Run a study on rows that are in memory: `dorfl.train` with an open method, and the estimators.

The rows become the table of a study, so that they go through the same steps as a file or the rows
of sites: robust locations and scales, selection of the outlier share, training on standardised
columns. The fit is given back in the units of the rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from dorfl.data import validation
from dorfl.data.preprocessing import Numeric, Transform
from dorfl.data.preprocessing import columns as columnar
from dorfl.data.tables import Split
from dorfl.data.validation import Clients
from dorfl.federated import training
from dorfl.federated.diagnostics import FitWarning, diagnose
from dorfl.federated.fit import Fit
from dorfl.federated.options import Options
from dorfl.federated.simulation import Round
from dorfl.linear.group import Group
from dorfl.linear.problem import Problem
from dorfl.objective import losses, methods, scores
from dorfl.objective.base import Loss, Score
from dorfl.objective.costs import squared
from dorfl.objective.methods import AUTO, AutoMethod, Method
from dorfl.objective.mixture import Mixture
from dorfl.objective.scores import Quadratic
from dorfl.protocol import checks, resolution
from dorfl.protocol.settings import Data, Defence, Privacy, Study, Training, Used, Words, linear
from dorfl.protocol.state import State
from dorfl.selection.defaults import RULES, Choice
from dorfl.support.types import Array
from dorfl.tabular import results
from dorfl.tabular import table as engine
from dorfl.tabular.rows import Prepared, prepare

LABEL = "(label)"
TOLERANCE = Training().tol  # relative optimality gap of an open method, as in a study

# Options that a study has no setting for: a method is resolved first and trained as given then.
_DIRECT = ("theta_radius", "batch", "participation", "tolerance", "limits", "privacy", "intercept")


@dataclass(frozen=True, eq=False)
class Fitted:
    """A study that was run on rows in memory."""

    state: State
    group: Group
    prepared: Prepared
    weights: Array  # (n,) weight of each given row relative to the mean of its client

    @property
    def fit(self) -> Fit:
        """The fit for standardised columns."""
        group = self.group
        return replace(results.fit_of(self.state), problem=group.problem, centers=group.centers)

    @property
    def defects(self) -> list[str]:
        """Warnings about the fit: see :func:`dorfl.federated.diagnostics.diagnose`."""
        outcome = self.state.outcome
        weights = self.group.sample_weights(outcome.theta)
        return diagnose(self.group, outcome.theta, outcome.lam, weights)


def train(
    clients: Any,
    method: AutoMethod,
    options: Options | None = None,
    *,
    progress: Callable[[Round], object] | None = None,
    sample_weight: Any = None,
    class_weight: Any = None,
    start: Any = None,
    absent: Any = None,
    tamper: Any = None,
    **given_options: Any,
) -> Fit:
    """Train an open method; parameters and returns are those of :func:`dorfl.train`."""
    merged = (options or Options()).changed(**given_options)
    direct = [name for name in _DIRECT if getattr(merged, name) != getattr(Options(), name)]
    direct += [n for n, v in (("start", start), ("absent", absent), ("tamper", tamper)) if v]
    if options is None and "tol" not in given_options and not direct:
        merged = merged.changed(tol=TOLERANCE)
    if direct or method.cost is not None or _has_weights(method.mixture):
        if merged.loss == "auto":
            merged = merged.changed(loss=validation.loss_name(validation.clients(clients)))
        chosen = choose(clients, method, loss=merged.loss).method
        return training.train(
            clients, chosen, merged, start=start, absent=absent, tamper=tamper, progress=progress,
            sample_weight=sample_weight, class_weight=class_weight,
        )  # fmt: skip
    own_ridge = options is not None or "l2" in given_options
    rows = _Stacked(clients, merged.loss, sample_weight)
    study = _study(method, merged, rows.loss, merged.l2 if own_ridge else None)
    weights = rows.weights
    if class_weight is not None:
        base = np.ones(len(rows.y)) if weights is None else weights
        weights = base * validation.class_weights(rows.y, base, class_weight)
    score = method.score if isinstance(method.score, Score) else None
    table, used = table_of(rows.X, rows.labels, frozen=None, weights=weights)
    fitted = run(
        study._replace(columns=used), table, rows.owners, weights, score, progress=progress
    )
    fit = in_given_units(fitted, rows.classes, rows.X.shape[1])
    if fit.status not in ("converged", "stopped"):
        warnings.warn(fit.message, stacklevel=3)
    for defect in fitted.defects:
        warnings.warn(defect, FitWarning, stacklevel=3)
    by_client = {name: fitted.weights[at] for name, at in rows.places.items()}
    shares = {name: w / w.sum() for name, w in by_client.items()}
    return replace(fit, sample_weights=shares)


def choose(
    clients: Any,
    method: AutoMethod | str = "dorfl",
    *,
    loss: str | Loss = "auto",
    frozen: Sequence[int] | None = None,
    **parts: Any,
) -> Choice:
    """Resolve an open method for these clients.

    Parameters
    ----------
    clients
        A list of (X, y), or a mapping of client name to (X, y); columns in any unit.
    method
        An open method from :func:`dorfl.methods.dorfl`, or the name of a method: "dorfl", "erm",
        "afl", "wafl", "gdrfl".
    loss
        The loss of the training; "auto" fits the labels.
    frozen
        Columns that cannot drift and have no outlying values. By default those with two values.
    **parts
        Parts of the open method by name (`outliers`, `shift`, `rho`, `beta`, `score`, `mixture`).

    Returns
    -------
    Choice
        The method in the units of the rows, with the reasons for it.

    >>> import dorfl
    >>> data = dorfl.datasets.synthetic(seed=0)
    >>> choice = dorfl.defaults.choose(data.clients)
    >>> choice.decision.share
    0.1
    >>> choice.method.score.name
    'quadratic'
    """
    if isinstance(method, str):
        if method not in RULES:
            raise ValueError(f"method={method!r} is unknown; choose one of {', '.join(RULES)}")
        parts = {"mixture": RULES[method], **parts}
        method = AutoMethod(method)
    if parts:
        method = replace(method, **parts)
        methods.check_outliers(method.outliers)
        methods.check_shift(method.shift)
    study, prepared = prepared_for(clients, method, loss=loss, frozen=frozen)
    state = engine.resolve(study, prepared)
    choice = resolution.chosen(state.agreed)
    scale = _Units(state, len(state.agreed.columns))
    made = scale.method(choice.method, _centers(state))
    if isinstance(method.score, Score) or method.score is None:
        made = replace(made, score=method.score)
    if method.cost is not None:
        made = replace(made, cost=method.cost)
    if isinstance(method.mixture, Mixture):
        made = replace(made, mixture=method.mixture)
    return Choice(made, choice.words, choice.decision)


def prepared_for(
    clients: Any, method: AutoMethod, *, loss: str | Loss, frozen: Sequence[int] | None = None
) -> tuple[Study, Prepared]:
    """Return the study of an open method, and the clients' rows standardised for it."""
    rows = _Stacked(clients, loss, None)
    study = _study(method, Options(loss=rows.loss, tol=TOLERANCE), rows.loss, None)
    table, used = table_of(rows.X, rows.labels, frozen=frozen)
    study = study._replace(columns=used)
    return study, _prepare(study, table, rows.owners, None)[0]


def table_of(
    X: Array,
    labels: Any,
    *,
    frozen: Sequence[int | str] | None,
    names: Sequence[str] = (),
    weights: Array | None = None,
    plain: bool = False,
) -> tuple[pa.Table, Used]:
    """Return numeric rows as a table with columns x0, x1, …, and how a study uses them.

    Columns that cannot drift are `frozen`, by place or by their `names`. By default those with two
    values are, in rows of positive weight, and are read as categories as in a file unless `plain`.
    """
    two = _has_two_values(X if weights is None else X[weights > 0])
    places = frozen_columns(np.flatnonzero(two) if frozen is None else frozen, list(names))
    for place in places:
        if not 0 <= place < X.shape[1]:
            raise ValueError(f"frozen: there is no column {place}; X has {X.shape[1]} columns")
    category = np.zeros_like(two) if plain or frozen is not None else two
    numeric = tuple(f"x{k}" for k in np.flatnonzero(~category))
    table = pa.table({**{f"x{k}": X[:, k] for k in range(X.shape[1])}, LABEL: labels})
    return table, Used(numeric=numeric, frozen=tuple(f"x{k}" for k in places))


def run(
    study: Study,
    table: columnar.ColumnTable,
    clients: Any,
    weights: Array | None = None,
    score: Score | None = None,
    progress: Callable[[Round], object] | None = None,
) -> Fitted:
    """Run a study, whose label is the column ``LABEL``, on the rows of a table.

    A weight of k is equivalent to k copies of the row, and None in place of the rows' clients means
    one client. A `score` on standardised columns replaces the study's own. `progress` is called
    with every round of the final training.
    """
    prepared, mass = _prepare(study, table, clients, weights)
    state, group = engine.fit(linear(study), prepared, progress, mass=mass, score=score)
    counts = group.lots if mass is not None else np.repeat(group.counts, group.counts)
    relative = np.zeros(table.num_rows)
    relative[prepared.rows.order] = (
        np.concatenate(group.sample_weights(state.outcome.theta)) * counts
    )
    for note in resolution.unused(study):
        warnings.warn(note, UserWarning, stacklevel=4)
    return Fitted(state, group, prepared, relative)


def _prepare(
    study: Study, table: columnar.ColumnTable, clients: Any, weights: Array | None
) -> tuple[Prepared, Array | None]:
    """Return standardised rows, and their weights unless all are equal."""
    count = table.num_rows
    owners, places = rows_by_client(clients, count)
    copies = None
    if weights is not None:  # copies stand for weights where quantiles are taken
        places = [rows[weights[rows] > 0] for rows in places]
        owners = [owner for owner, rows in zip(owners, places, strict=True) if len(rows)]
        copies = np.zeros(count, dtype=np.int64)
        copies[weights > 0] = validation.copies(weights[weights > 0])
        places = [np.repeat(rows, copies[rows]) for rows in places if len(rows)]
    fewest = min(len(rows) for rows in places)
    # Rows stay in this process: clients below the minimum of a study report on single rows.
    privacy = Privacy() if fewest >= Privacy().minimum_rows else Privacy(least=1)
    study = study._replace(privacy=privacy)
    checks.check(study)
    order = np.concatenate(places)
    bounds = np.concatenate([[0], np.cumsum([len(rows) for rows in places])])
    split = Split(table, tuple(owners), bounds, order)
    prepared = prepare(study, split, with_notes=False)
    if weights is None or copies is None:
        return prepared, None
    mass = (weights / np.maximum(copies, 1))[prepared.rows.order]  # copies share the row's weight
    sizes = np.add.reduceat(mass, prepared.rows.bounds[:-1]).tolist()
    prepared = replace(prepared, state=prepared.state._replace(sizes=tuple(sizes)))
    return prepared, None if (mass == mass[0]).all() else mass


def in_given_units(fitted: Fitted, classes: Array, dims: int) -> Fit:
    """Return the fit in the units of the given rows, of `dims` columns.

    `classes` are the labels in their order; empty for a regression.
    """
    fit = fitted.fit
    units, old = _Units(fitted.state, dims), fit.problem
    theta = units.theta(fit.theta)
    loss = old.loss if old.loss.classifies else old.loss.scaled(old.loss.max_slope * units.label)
    problem = Problem(units.method(old.method, fit.centers), loss, dims, classes, True)
    return replace(
        fit,
        theta=theta.reshape(problem.shape),
        problem=problem,
        centers=units.centers(fit.centers),
        risks=fit.risks * units.loss,
        objective=fit.objective * units.loss,
        gap=fit.gap * units.loss,
        rho=problem.method.rho,
        scales=units.scales,
    )


def frozen_columns(asked: Sequence[int | str] | Array, names: list[str]) -> list[int]:
    """Return the indices of columns that are given by index or by name."""
    for column in asked:
        if isinstance(column, str) and column not in names:
            raise ValueError(
                f"frozen: there is no column {column!r}; "
                + (f"the columns are {', '.join(names)}" if names else "X has no column names")
            )
    return [names.index(c) if isinstance(c, str) else int(c) for c in asked]


def number(value: Any) -> float | str:
    """Return "auto", or a number as a Python float, which a study can hold."""
    return value if isinstance(value, str) else float(value)


def mixture_settings(rule: str | Mixture | None) -> dict[str, Any]:
    """Return the settings of a study for a mixture."""
    if not isinstance(rule, Mixture):
        return {"method_mixture": rule}
    if rule.weights is not None:
        raise ValueError(
            "mixture: weights of your own are for dorfl.train; here clients count by size"
        )
    kind = "agnostic" if rule.adversarial else "fixed"
    return {"method_mixture": kind, "method_cap": rule.cap, "method_by": rule.by}


def rows_by_client(clients: Any, count: int) -> tuple[list[str], list[Array]]:
    """Return the names of the clients, and the indices of each client's rows."""
    if clients is None:
        return ["all"], [np.arange(count)]
    listed = np.asarray(clients)
    if listed.shape != (count,):
        raise ValueError(
            f"clients: X has {count} rows, so give {count} names, not shape {listed.shape}"
        )
    import pandas as pd  # noqa: PLC0415 - half a second that a site can do without

    owner, found = pd.factorize(listed)
    if owner.min() < 0:
        raise ValueError(
            f"clients: row {int(owner.argmin())} has no client; name its client or drop it"
        )
    places = {str(name): np.flatnonzero(owner == k) for k, name in enumerate(found)}
    names = sorted(places)
    return names, [places[name] for name in names]


def coefficients(theta: Array, transform: Transform, dims: int) -> tuple[Array, Array]:
    """Return (outputs, d) coefficients and (outputs,) intercepts for columns x0, x1, … as given.

    `theta` has (outputs, features + 1) parameters for standardised columns, the intercept last.
    """
    coef, intercept = np.zeros((len(theta), dims)), theta[:, -1].copy()
    first = 0
    for part in transform.parts:
        own = theta[:, first : first + len(part.features)]
        first += len(part.features)
        if isinstance(part, Numeric):
            slope, at, there = own[:, 0] / part.spread, part.center, np.zeros(len(own))
        else:  # a line through what both values add
            at, to = map(float, part.levels)
            slope, there = (own[:, 1] - own[:, 0]) / (to - at), own[:, 0]
        coef[:, int(part.name[1:])] = slope
        intercept += there - slope * at
    return coef, intercept


class _Units:
    """Conversion of a model of standardised columns to the units of the given columns."""

    def __init__(self, state: State, dims: int) -> None:
        self.transform: Transform = state.agreed.transform
        self.dims, self.clients = dims, state.sites
        self.label = 1.0 if state.agreed.target is None else state.agreed.target.spread
        self.middle = 0.0 if state.agreed.target is None else state.agreed.target.center
        self.loss = self.label**2  # squared and Huber's losses are in squared units of the label
        self.scales = np.ones(dims)
        self.locations = np.zeros(dims)
        self.features = np.full(dims, -1)  # the feature that a numeric column became
        first = 0
        for part in self.transform.parts:
            column = int(part.name[1:])
            if isinstance(part, Numeric):
                self.scales[column], self.locations[column] = part.spread, part.center
                self.features[column] = first
            first += len(part.features)

    def theta(self, theta: Array) -> Array:
        """Return (outputs, d + 1) parameters, the intercept last, in the given units."""
        coef, intercept = coefficients(np.atleast_2d(theta), self.transform, self.dims)
        return np.column_stack([self.label * coef, self.label * intercept + self.middle])

    def centers(self, centers: Array) -> Array:
        """Return (clients, …, d) centres in the given units; 0 for columns without a scale."""
        out = np.zeros((*centers.shape[:-1], self.dims))
        known = self.features >= 0
        out[..., known] = centers[..., self.features[known]]
        return np.asarray(np.where(known, out * self.scales + self.locations, 0.0))

    def method(self, method: Method, centers: Array) -> Method:
        """Return the method with ρ, V and ξ̄ in the given units."""
        known, features = self.features >= 0, self.features
        weights = method.cost.weights(len(self.transform.names))
        price, frozen = np.ones(self.dims), ~known
        finite = np.isfinite(weights[features]) & known
        price[finite] = weights[features[finite]] / self.scales[finite] ** 2
        frozen = ~finite
        score = method.score
        if isinstance(score, Quadratic):
            shape = np.zeros(self.dims)
            diagonal = score.shape(len(self.transform.names))
            shape[known] = diagonal[features[known]] / self.scales[known] ** 2
            own = self.centers(centers)
            center: Any = own[0] if len(own) == 1 or (own == own[0]).all() else None
            named = dict(zip(self.clients, own, strict=True)) if center is None else center
            score = scores.quadratic(score.weight * self.loss, named, shape)
        return replace(
            method,
            rho=method.rho * self.loss,
            temperature=method.temperature * self.loss,
            cost=squared(price.tolist(), frozen=np.flatnonzero(frozen).tolist()),
            score=score,
        )


class _Stacked:
    """Clients as one table: rows, labels, and which client each row belongs to."""

    def __init__(self, clients: Any, loss: str | Loss, sample_weight: Any) -> None:
        listed = clients.values() if isinstance(clients, Mapping) else clients
        if any(sparse.issparse(pair[0]) for pair in listed if isinstance(pair, tuple | list)):
            raise ValueError(
                "clients: a sparse X cannot be standardised, which an open method needs; give a "
                "method with numbers, such as dorfl.methods.erm() or methods.method(rho=…)"
            )
        checked: Clients = validation.clients(clients)
        self.loss = losses.resolve(validation.loss_name(checked) if loss == "auto" else loss)
        self.classes = validation.classes(checked, self.loss)
        sizes = [len(y) for _, y in checked.values()]
        self.X = np.concatenate([X for X, _ in checked.values()])
        self.y = np.concatenate([y for _, y in checked.values()])
        self.owners = np.repeat(np.array(list(checked), dtype=object), sizes)
        ends = np.cumsum([0, *sizes])
        self.places = {
            name: slice(int(a), int(b))
            for name, a, b in zip(checked, ends[:-1], ends[1:], strict=True)
        }
        self.weights: Array | None = None
        if sample_weight is not None:
            weighted = validation.apply_weights(checked, sample_weight)
            assert weighted.mass is not None
            mass = weighted.mass
            self.weights = np.concatenate([weighted.expand(name, mass[name]) for name in checked])

    @property
    def labels(self) -> Any:
        """The label as a column: classes as text in their own order, or numbers."""
        if not len(self.classes):
            return np.asarray(self.y, dtype=np.float64)
        return coded_labels(np.searchsorted(self.classes, self.y), len(self.classes))


def coded_labels(codes: Array, count: int) -> pa.DictionaryArray:
    """Return class numbers as text whose alphabetical order is the classes' order."""
    names = [f"class {k:06d}" for k in range(count)]
    return pa.DictionaryArray.from_arrays(pa.array(np.minimum(codes, count - 1)), pa.array(names))


def _study(method: AutoMethod, options: Options, loss: Loss, l2: float | None) -> Study:
    """Return the study that an open method and options describe."""
    numbers = {n: None if v == AUTO else v for n, v in vars(method).items() if n in ("rho", "beta")}
    task = "classification" if loss.classifies else "regression"
    chosen = (
        np.isfinite(loss.max_slope) and not loss.classifies and not isinstance(options.loss, str)
    )
    delta = loss.max_slope if chosen else Training().delta
    rule = mixture_settings(method.mixture) if not _has_weights(method.mixture) else {}
    share = 0.0 if method.score is None else method.outliers
    return Study(
        Data(LABEL, task=task),
        method=Words(
            name=method.name, outliers=number(share), shift=number(method.shift),
            rho=numbers["rho"], beta=numbers["beta"],
        ),
        training=Training(
            loss=loss.name, delta=delta, solver=_solver_name(options), tol=options.tol,
            max_rounds=options.max_rounds, curvature=options.curvature,
            bytes_per_round=int(options.bytes_per_round), l2=l2, seed=options.seed,
        ),
        defence=Defence(liars=options.liars, trim=options.trim),
    ).changed(**rule)  # fmt: skip


def _has_two_values(X: Array) -> Array:
    """Return (d,) which columns have at most two values."""
    return np.asarray(((X.min(axis=0) == X) | (X.max(axis=0) == X)).all(axis=0))


def _solver_name(options: Options) -> str:
    return options.solver if isinstance(options.solver, str) else options.solver.name


def _has_weights(rule: str | Mixture) -> bool:
    return isinstance(rule, Mixture) and rule.weights is not None


def _centers(state: State) -> Array:
    if state.centers is not None:
        return state.centers
    return np.zeros((len(state.sites), len(state.agreed.transform.names)))
