"""dorfl: federated learning that holds up when clients differ, data shift and some rows are wrong.

>>> import dorfl
>>> data = dorfl.datasets.synthetic(seed=0)
>>> fit = dorfl.train(data.clients)
>>> bool(fit.score(*data.test["client-3"]) > 0.98)
True
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_overloads, overload

from dorfl import solvers
from dorfl.certificates import certificate
from dorfl.certificates.certificate import Certificate, WorstCase, saddle_gap, worst_case
from dorfl.certificates.certified import Certified, certify
from dorfl.certificates.distance import Transport, unbalanced_wasserstein, wasserstein
from dorfl.data import datasets
from dorfl.federated import privacy, registry, serialization
from dorfl.federated.diagnostics import FitWarning
from dorfl.federated.fit import Fit
from dorfl.federated.messages import Broadcast, Report
from dorfl.federated.options import Options, numpydoc_of_options
from dorfl.federated.registry import register_dataset, register_method
from dorfl.federated.report_bounds import Limits
from dorfl.federated.simulation import Round
from dorfl.federated.training import risk
from dorfl.federated.training import train as _train_linear
from dorfl.linear.group import Risk
from dorfl.networks import resolution as _resolution
from dorfl.objective import costs, losses, methods, mixture, scores
from dorfl.objective.base import Loss

if TYPE_CHECKING:
    from dorfl import defaults
    from dorfl.networks.training import NetworkFit
    from dorfl.selection.defaults import Choice
    from dorfl.sklearn import RobustClassifier, RobustRegressor
    from dorfl.tabular.tuning import Tuning, tune

__version__ = "0.2.0"

__all__ = [
    "Certificate",
    "Certified",
    "Fit",
    "FitWarning",
    "Options",
    "Risk",
    "RobustClassifier",
    "RobustRegressor",
    "Transport",
    "Tuning",
    "WorstCase",
    "certificate",
    "certify",
    "costs",
    "datasets",
    "defaults",
    "load",
    "losses",
    "methods",
    "mixture",
    "plot",
    "privacy",
    "register_dataset",
    "register_method",
    "risk",
    "saddle_gap",
    "scores",
    "solvers",
    "train",
    "tune",
    "unbalanced_wasserstein",
    "wasserstein",
    "worst_case",
]

# Public names of modules that are in folders: `from dorfl.methods import …`.
for _part in (certificate, costs, datasets, losses, methods, mixture, privacy, scores):
    sys.modules[f"dorfl.{_part.__name__.rpartition('.')[2]}"] = _part


def _choose(clients: Any, method: methods.AutoMethod, *, loss: str) -> "Choice":
    """Resolve an open method; imported late because it reads tables."""
    from dorfl.tabular import arrays  # noqa: PLC0415

    return arrays.choose(clients, method, loss=loss)


_resolution.register(_choose)


@overload
def train(
    clients: Any,
    method: methods.Method | methods.AutoMethod | None = None,
    options: Options | None = None,
    *,
    model: None = None,
    loss: str | Loss | None = None,
    solver: str | solvers.Solver | None = None,
    tol: float | None = None,
    max_rounds: int | None = None,
    l2: float | None = None,
    theta_radius: float | None = None,
    intercept: bool | None = None,
    seed: int | None = None,
    batch: int | None = None,
    participation: float | None = None,
    tolerance: float | None = None,
    curvature: str | None = None,
    bytes_per_round: float | None = None,
    limits: Limits | None = None,
    liars: float | None = None,
    trim: float | None = None,
    privacy: privacy.Gaussian | None = None,
    sample_weight: Any = None,
    class_weight: Any = None,
    start: Any = None,
    progress: Callable[[Round], object] | None = None,
    absent: Callable[[int, str], bool] | None = None,
    tamper: Callable[[Broadcast, Report], Report] | None = None,
) -> Fit: ...
@overload
def train(
    clients: Any,
    method: methods.Method | methods.AutoMethod | None = None,
    options: Any = None,
    *,
    model: Any,
    **network_options: Any,
) -> "NetworkFit": ...
def train(
    clients: Any,
    method: methods.Method | methods.AutoMethod | None = None,
    options: Any = None,
    *,
    model: Any = None,
    **by_name: Any,
) -> Any:
    """Train one model over clients whose rows stay where they are.

    An option that is None has its default. For an open method the default of `tol` is 1e-4, and
    that of `l2` is 1/n of standardised columns, or 0.01/n if held-out rows are predicted better.

    Parameters
    ----------
    clients
        A list of (X, y), or a mapping of client name to (X, y): X is (n, d), y is (n,). Columns may
        be in any units if the method is open. X may be sparse if its parameters are given. Or an
        :class:`~dorfl.linear.base.Oracle`, which has its own method and loss.
    method
        A method from :mod:`dorfl.methods`, or the name of one, such as "afl". By default
        ``dorfl.methods.dorfl()``, whose parameters are chosen from the clients' data, as
        ``dorfl train`` and the estimators do.
    options
        Options as one record: an :class:`~dorfl.Options`, or for a network a
        :class:`~dorfl.networks.Plan`. Options given by name take precedence.
    model
        A `torch.nn.Module`, or a function that makes one; see :func:`dorfl.networks.train`. By
        default a linear model is trained.
    **by_name
        Options of :class:`~dorfl.Options`, and:
    sample_weight
        Weights (n,) of each client's rows, in a list or by name. They are part of P̂_i, inside the
        log-mean-exp: :mod:`dorfl.data.validation`.
    class_weight
        A weight for each label, or "balanced" for equal total weights.
    start
        A fit or a θ to start from.
    progress
        Called with every :class:`~dorfl.federated.simulation.Round`; True from it ends training.
    absent
        `absent(round, client)` returns whether a client does not reply; its last report is
        extrapolated.
    tamper
        `tamper(broadcast, report)` returns the report to send in place of an honest one, to study
        attacks.
    **network_options
        Options of networks: fields of :class:`~dorfl.networks.Plan`.

    Returns
    -------
    Fit or NetworkFit
        The model in the units of X, the mixture, risks, gap and history.

    Raises
    ------
    ValueError
        If the input or an option cannot be used; the message names the remedy.
    TypeError
        If there is no option of that name.

    Warns
    -----
    FitWarning
        If the fit is no better than a constant, or ignores a client or class.

    >>> import dorfl
    >>> data = dorfl.datasets.synthetic(seed=0)
    >>> dorfl.train(data.clients, dorfl.methods.afl(), l2=0.1).status
    'converged'
    """
    given = {n: v for n, v in by_name.items() if v is not None or n not in _parameters}
    if isinstance(method, str) and model is None:
        if method not in registry.method_names():
            method = methods.named(method)
        elif options is not None:
            raise ValueError(f"method {method!r}: give options of a registered method by name")
        else:
            return registry.train(method, clients, **given)
    if method is None and not hasattr(clients, "evaluate"):
        method = methods.dorfl()
    if model is not None:
        from dorfl import networks  # noqa: PLC0415 - imports torch

        return networks.train(clients, method, model, options, **given)
    if isinstance(method, methods.AutoMethod):
        from dorfl.tabular import arrays  # noqa: PLC0415 - slow to import

        return arrays.train(clients, method, options, **given)
    return _train_linear(clients, method, options, **given)


# What a linear model's overload lists is the signature, and Options describes its options.
_parameters = inspect.signature(get_overloads(train)[0]).parameters
_network_options = inspect.Parameter("network_options", inspect.Parameter.VAR_KEYWORD)
train.__signature__ = inspect.Signature([*_parameters.values(), _network_options])  # type: ignore[attr-defined]
train.__doc__ = str(train.__doc__).replace(
    "    **by_name\n        Options of :class:`~dorfl.Options`, and:\n", numpydoc_of_options()
)


def load(path: str | Path) -> Any:
    """Load the fit of `Fit.save`, or the model in a folder that `dorfl train` wrote.

    No code in the file is run.

    Parameters
    ----------
    path
        A file or a folder; for networks see :func:`dorfl.networks.load`.

    Returns
    -------
    Fit or Model
        A model takes tables (`model.predict(table)`) and has its fit as `model.fit`.

    Raises
    ------
    ModelError
        If the file is damaged or is not a model.
    """
    from dorfl.tabular import model  # noqa: PLC0415 - slow to import

    place = Path(path)
    if place.is_file():
        written = serialization.read(place)
        if isinstance(written, dict) and written.get("format") == serialization.FORMAT:
            return serialization.load(place, written)
    return model.load(place)


def __getattr__(name: str) -> Any:
    """Import estimators, networks and plots on first use.

    They need scikit-learn, PyTorch and Matplotlib, which are slow to import.
    """
    if name in ("RobustClassifier", "RobustRegressor"):
        from dorfl import sklearn  # noqa: PLC0415

        return getattr(sklearn, name)
    if name in ("tune", "Tuning"):
        return getattr(importlib.import_module("dorfl.tabular.tuning"), name)
    if name in ("defaults", "networks", "plot"):
        return importlib.import_module(f"dorfl.{name}")
    raise AttributeError(f"module 'dorfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
