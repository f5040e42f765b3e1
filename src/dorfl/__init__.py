"""dorfl: federated learning that holds up when clients differ, data shift and some rows are wrong.

>>> import dorfl
>>> data = dorfl.datasets.synthetic(seed=0)
>>> fit = dorfl.train(data.clients, dorfl.methods.dorfl(rho=20, beta=1))
>>> bool(fit.score(*data.test["client-3"]) > 0.98)
True
"""

from typing import TYPE_CHECKING, Any

from dorfl import (
    costs,
    datasets,
    defaults,
    losses,
    methods,
    mixture,
    privacy,
    scores,
    solvers,
    theory,
)
from dorfl.certificate import Certificate, WorstCase, certify, saddle_gap, worst_case
from dorfl.distance import Transport, unbalanced_wasserstein, wasserstein
from dorfl.risk import Risk
from dorfl.training import Fit, risk, train
from dorfl.tuning import Tuning, tune

if TYPE_CHECKING:
    from dorfl.estimator import RobustClassifier, RobustRegressor

__version__ = "0.1.0"

__all__ = [
    "Certificate",
    "Fit",
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


def __getattr__(name: str) -> Any:
    """The estimators bring in scikit-learn, which takes a while: only when asked for."""
    if name in ("RobustClassifier", "RobustRegressor"):
        from dorfl import estimator  # noqa: PLC0415

        return getattr(estimator, name)
    raise AttributeError(f"module 'dorfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
