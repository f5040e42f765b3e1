"""dorfl: federated learning that holds up when clients differ, data shift and some rows are wrong.

>>> import dorfl
>>> data = dorfl.datasets.synthetic(seed=0)
>>> fit = dorfl.train(data.clients, dorfl.methods.dorfl(rho=20, beta=1))
>>> bool(fit.score(*data.test["client-3"]) > 0.98)
True
"""

import sys
from typing import TYPE_CHECKING, Any

from dorfl import solvers
from dorfl.data import datasets
from dorfl.federation import privacy
from dorfl.federation.fit import Fit
from dorfl.federation.options import Options
from dorfl.federation.training import risk, train
from dorfl.guarantees import theory
from dorfl.guarantees.certificate import Certificate, WorstCase, certify, saddle_gap, worst_case
from dorfl.guarantees.distance import Transport, unbalanced_wasserstein, wasserstein
from dorfl.objective import costs, losses, methods, mixture, scores
from dorfl.oracle.group import Risk
from dorfl.study import defaults
from dorfl.study.tuning import Tuning, tune

if TYPE_CHECKING:
    from dorfl.estimators import RobustClassifier, RobustRegressor

__version__ = "0.1.0"

__all__ = [
    "Certificate",
    "Fit",
    "Options",
    "Risk",
    "RobustClassifier",
    "RobustRegressor",
    "Transport",
    "Tuning",
    "WorstCase",
    "certify",
    "costs",
    "datasets",
    "defaults",
    "losses",
    "methods",
    "mixture",
    "privacy",
    "risk",
    "saddle_gap",
    "scores",
    "solvers",
    "theory",
    "train",
    "tune",
    "unbalanced_wasserstein",
    "wasserstein",
    "worst_case",
]

# Folders go by what a thing is about; `from dorfl.methods import …` stays true all the same.
for _part in (costs, datasets, losses, methods, mixture, privacy, scores, theory):
    sys.modules[f"dorfl.{_part.__name__.rpartition('.')[2]}"] = _part


def __getattr__(name: str) -> Any:
    """The estimators bring in scikit-learn, which takes a while: only when asked for."""
    if name in ("RobustClassifier", "RobustRegressor"):
        from dorfl import estimators as estimator  # noqa: PLC0415

        return getattr(estimator, name)
    raise AttributeError(f"module 'dorfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
