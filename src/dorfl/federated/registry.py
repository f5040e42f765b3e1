"""Methods and data sets of one's own, by name.

A registered method is trained by name: ``dorfl.train(clients, "term")``. ``dorfl compare`` and the
commands of the repository's experiments train it beside the built-in ones. A package registers by
entry points in the groups `dorfl.methods` and `dorfl.datasets`; these are loaded when a name is
asked for, and errors while loading name the entry point.

>>> import dorfl
>>> register_method("by size twice", lambda reports: [report.rows**2 for report in reports])
>>> data = dorfl.datasets.synthetic(seed=0)
>>> fit = train("by size twice", data.clients)
>>> fit.lam.round(2).tolist()
[0.03, 0.13, 0.83]
>>> del _methods["by size twice"]  # other examples and tests list what is registered
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import metadata
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dorfl.data.datasets.base import Clients, Dataset
from dorfl.federated.diagnostics import FitWarning
from dorfl.federated.fit import Fit
from dorfl.federated.training import train as _train
from dorfl.objective import methods, mixture
from dorfl.objective.methods import AutoMethod, Method
from dorfl.support.types import Array

BUILT_IN = ("erm", "afl", "wafl", "gdrfl", "dorfl")
_TOLERANCE = 1e-4  # largest change of a client's weight at which reweighting has converged
_MAX_UPDATES = 100  # of the weights


class ClientReport(NamedTuple):
    """What a rule for weights sees of a client: its name, number of rows and risk F_i(θ)."""

    client: str
    rows: int
    risk: float


Weights: TypeAlias = Callable[[Sequence[ClientReport]], Sequence[float] | Array]
Loader: TypeAlias = Callable[[int], Dataset | tuple[Clients, Clients]]


class Registered(NamedTuple):
    """A registered method and the work that introduced it."""

    parts: Method | Weights
    bibtex: str = ""
    options: Mapping[str, Any] = MappingProxyType({})


_methods: dict[str, Registered] = {}
_datasets: dict[str, Loader] = {}


def register_method(
    name: str,
    parts: Method | Weights,
    *,
    options: Mapping[str, Any] = MappingProxyType({}),
    bibtex: str = "",
) -> None:
    """Register a method under a name.

    Parameters
    ----------
    name
        The name users type. A name that is registered again is replaced.
    parts
        A choice of parts, made by :func:`dorfl.methods.method`. Or a function from the clients'
        reports to one weight ≥ 0 for each: training then ends at a θ that minimises Σ λ_i F_i(θ)
        with λ proportional to the function's weights at that very θ.
    options
        Options of :class:`dorfl.networks.Plan` for networks, such as an optimizer or aggregator.
    bibtex
        The reference, which tables and pages may print.

    Raises
    ------
    ValueError
        If the name is that of a built-in method, or `parts` is neither.
    """
    if name in BUILT_IN:
        raise ValueError(f"register_method({name!r}): is a built-in method; take another name")
    if isinstance(parts, AutoMethod) or not (isinstance(parts, Method) or callable(parts)):
        raise ValueError(
            f"register_method({name!r}): give a dorfl.methods.method(…), or a function from client "
            "reports to weights"
        )
    _methods[name] = Registered(parts, bibtex, options)


def register_dataset(name: str, load: Loader) -> None:
    """Register a data set under a name.

    Parameters
    ----------
    name
        The name users type and files are named by: letters, digits, `-` and `_`. A name that is
        registered again is replaced.
    load
        A function from a seed to the training clients and the test rows, both mappings of client
        name to (X, y) with labels ±1, or to a :class:`~dorfl.datasets.Dataset`.

    Raises
    ------
    ValueError
        If the name has other characters, or `load` is no function.
    """
    if not re.fullmatch(r"[\w-]+", name):
        raise ValueError(f"register_dataset({name!r}): a name is letters, digits, - and _")
    if not callable(load):
        raise ValueError(f"register_dataset({name!r}): give a function from a seed to rows")
    _datasets[name] = load


def method_names() -> tuple[str, ...]:
    """Return the names of all registered methods, in the order of registration."""
    _load("dorfl.methods")
    return tuple(_methods)


def dataset_names() -> tuple[str, ...]:
    """Return the names of all registered data sets, in the order of registration."""
    _load("dorfl.datasets")
    return tuple(_datasets)


def method(name: str) -> Registered:
    """Return a registered method, or an error with the names that there are."""
    if name not in method_names():
        known = ", ".join(method_names()) or "none"
        raise ValueError(f"method {name!r} is not registered; registered methods: {known}")
    return _methods[name]


def dataset(name: str, seed: int = 0) -> Dataset:
    """Load a registered data set, or raise an error with the names that there are."""
    if name not in dataset_names():
        known = ", ".join(dataset_names()) or "none"
        raise ValueError(f"data set {name!r} is not registered; registered data sets: {known}")
    found = _datasets[name](seed)
    if isinstance(found, Dataset):
        return found
    clients, test = ({str(k): rows for k, rows in part.items()} for part in found)
    unknown = {k: np.zeros(len(y), dtype=bool) for k, (_, y) in clients.items()}
    columns = next(iter(clients.values()))[0].shape[1]
    return Dataset(clients, test, unknown, tuple(f"x{k + 1}" for k in range(columns)))


def train(name: str, clients: Any, **options: Any) -> Fit:
    """Train a linear model by a registered method; options are those of :func:`dorfl.train`.

    A rule for weights is followed to a fixed point: train with λ given, ask the rule for the
    weights at that model, go half of the way there, and train on from that model.
    """
    parts = method(name).parts
    if isinstance(parts, Method):
        return _train(clients, parts, **options)
    lam: dict[str, float] | None = None
    fit: Fit | None = None
    for _ in range(_MAX_UPDATES):
        given = options if fit is None else {**options, "start": fit}
        fit = _train(clients, methods.method(mixture=mixture.fixed(lam), name=name), **given)
        rows = {client: fit.sample_weights[client].size for client in fit.clients}
        wanted = weights_of(name, rows, fit.risks)
        change = wanted - fit.lam
        if np.abs(change).max() <= _TOLERANCE:
            return fit
        lam = dict(zip(fit.clients, (fit.lam + 0.5 * change).tolist(), strict=True))
    assert fit is not None
    message = (
        f"method {name!r}: the weights of clients still change by {np.abs(change).max():.2g} after "
        f"{_MAX_UPDATES} updates; make the rule flatter"
    )
    warnings.warn(message, FitWarning, stacklevel=2)
    return replace(fit, status="spent", message=message)


def weights_of(name: str, rows: Mapping[str, int], risks: Array) -> Array:
    """Return the weights of clients by a registered rule, normalised."""
    rule = method(name).parts
    assert not isinstance(rule, Method)
    parts = zip(rows, rows.values(), risks.tolist(), strict=True)
    reports = [ClientReport(*part) for part in parts]
    found = np.asarray(rule(reports), dtype=float)
    if found.shape != (len(reports),) or not (np.isfinite(found).all() and (found >= 0).all()):
        raise ValueError(
            f"method {name!r}: must give a number ≥ 0 for each of {len(reports)} clients"
        )
    if not found.sum() > 0:
        raise ValueError(f"method {name!r}: gives every client the weight 0")
    return np.asarray(found / found.sum())


@cache
def _load(group: str) -> None:
    """Import the entry points of a group; one that is no method or data set registers itself."""
    for entry in metadata.entry_points(group=group):
        try:
            found = entry.load()
        except Exception as error:
            raise ValueError(f"entry point {entry.name!r} ({entry.value}): {error}") from error
        if group == "dorfl.methods":
            register_method(entry.name, found)
        else:
            register_dataset(entry.name, found)
