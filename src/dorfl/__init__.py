"""dorfl: federated learning that holds up when clients differ, data shift and some rows are wrong.

>>> import dorfl
>>> data = dorfl.datasets.synthetic(seed=0)
>>> fit = dorfl.train(data.clients)
>>> bool(fit.score(*data.test["client-3"]) > 0.98)
True
"""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from dorfl import solvers
from dorfl.certificates import certificate
from dorfl.certificates.certificate import Certificate, WorstCase, saddle_gap, worst_case
from dorfl.certificates.certified import Certified, certify
from dorfl.certificates.distance import Transport, unbalanced_wasserstein, wasserstein
from dorfl.data import datasets
from dorfl.federated import privacy, registry, saving
from dorfl.federated.diagnostics import FitWarning
from dorfl.federated.fit import Fit
from dorfl.federated.options import Options
from dorfl.federated.registry import register_dataset, register_method
from dorfl.federated.training import risk
from dorfl.federated.training import train as _train_linear
from dorfl.linear.group import Risk
from dorfl.networks import resolution as _resolution
from dorfl.objective import costs, losses, methods, mixture, scores

if TYPE_CHECKING:
    from dorfl import defaults
    from dorfl.estimators import RobustClassifier, RobustRegressor
    from dorfl.networks.training import NetworkFit
    from dorfl.selection.defaults import Choice
    from dorfl.study.tuning import Tuning, tune

__version__ = "0.1.0"

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

# Folders go by what a thing is about; `from dorfl.methods import …` stays true all the same.
for _part in (certificate, costs, datasets, losses, methods, mixture, privacy, scores):
    sys.modules[f"dorfl.{_part.__name__.rpartition('.')[2]}"] = _part


def _choose(clients: Any, method: methods.AutoMethod, *, loss: str) -> "Choice":
    """Resolve an open method; imported late because it reads tables."""
    from dorfl.study import arrays  # noqa: PLC0415

    return arrays.choose(clients, method, loss=loss)


_resolution.register(_choose)


@overload
def train(
    clients: Any,
    method: methods.Method | methods.AutoMethod | None = None,
    options: Options | None = None,
    *,
    model: None = None,
    **given: Any,
) -> Fit: ...
@overload
def train(
    clients: Any,
    method: methods.Method | methods.AutoMethod | None = None,
    options: Any = None,
    *,
    model: Any,
    **given: Any,
) -> "NetworkFit": ...
def train(
    clients: Any, method: Any = None, options: Any = None, *, model: Any = None, **given: Any
) -> Any:
    """Train one model over clients whose rows stay where they are.

    Parameters
    ----------
    clients
        A list of (X, y), or a mapping of client name to (X, y): X is (n, d), y is (n,). Columns may
        be in any units if the method is open. Or an :class:`~dorfl.linear.base.Oracle`.
    method
        A method from :mod:`dorfl.methods`, or the name of a registered one. By default
        ``dorfl.methods.dorfl()``, whose parameters are chosen from the clients' data, as
        ``dorfl train`` and the estimators do.
    options
        An :class:`~dorfl.federated.options.Options`, or for a network a
        :class:`~dorfl.networks.Plan`.
    model
        A `torch.nn.Module`, or a function that makes one; see :func:`dorfl.networks.train`. By
        default a linear model is trained.
    **given
        Options by name (`loss`, `l2`, `tol`, `max_rounds`, …), `sample_weight`, `class_weight`,
        `start`, `absent`, `tamper` and `progress`, as :func:`dorfl.federated.training.train`
        documents them. For an open method `l2` is 1 / n of standardised columns and `tol` 1e-4.

    Returns
    -------
    Fit or NetworkFit
        The model in the units of X, the mixture, risks, gap and history.

    Warns
    -----
    FitWarning
        If the fit is no better than a constant, or ignores a client or class.

    >>> import dorfl
    >>> data = dorfl.datasets.synthetic(seed=0)
    >>> dorfl.train(data.clients, dorfl.methods.afl(), l2=0.1).status
    'converged'
    """
    if isinstance(method, str) and model is None:
        if options is not None:
            raise ValueError(f"method {method!r}: give options of a registered method by name")
        return registry.train(method, clients, **given)
    if method is None and not hasattr(clients, "evaluate"):
        method = methods.dorfl()
    if model is None and not isinstance(method, methods.AutoMethod):
        return _train_linear(clients, method, options, **given)
    if model is None:
        from dorfl.study import arrays  # noqa: PLC0415 - reads tables, which takes a while to import

        return arrays.train(clients, method, options, **given)
    from dorfl import networks  # noqa: PLC0415 - brings in torch

    return networks.train(clients, method, model, options, **given)


def load(path: str | Path) -> Any:
    """What was saved: the fit of `Fit.save`, or the model in a folder that `dorfl train` wrote.

    A model takes tables (`model.predict(table)`) and has its fit as `model.fit`; for networks see
    :func:`dorfl.networks.load`. Whatever the file holds, no code in it is run.
    """
    from dorfl.study import model  # noqa: PLC0415 - reads tables, which takes a while to import

    place = Path(path)
    if place.is_file():
        written = saving.read(place)
        if isinstance(written, dict) and written.get("format") == saving.FORMAT:
            return saving.load(place, written)
    return model.load(place)


def __getattr__(name: str) -> Any:
    """The estimators bring in scikit-learn, which takes a while: only when asked for.

    So do networks, which need PyTorch, and plots, which need Matplotlib.
    """
    if name in ("RobustClassifier", "RobustRegressor"):
        from dorfl import estimators as estimator  # noqa: PLC0415

        return getattr(estimator, name)
    if name in ("tune", "Tuning"):
        return getattr(importlib.import_module("dorfl.study.tuning"), name)
    if name in ("defaults", "networks", "plot"):
        return importlib.import_module(f"dorfl.{name}")
    raise AttributeError(f"module 'dorfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
