"""dorfl: federated learning that holds up when clients differ, data shift and some rows are wrong.

>>> import dorfl
>>> data = dorfl.datasets.synthetic(seed=0)
>>> fit = dorfl.train(data.clients, dorfl.methods.dorfl(rho=20, beta=1))
>>> bool(fit.score(*data.test["client-3"]) > 0.98)
True
"""

from dorfl import costs, datasets, losses, methods, mixture, scores, solvers, theory
from dorfl.certificate import Certificate, WorstCase, certify, saddle_gap, worst_case
from dorfl.distance import Transport, unbalanced_wasserstein, wasserstein
from dorfl.risk import Risk
from dorfl.training import Fit, risk, train

__version__ = "0.1.0"

__all__ = [
    "Certificate",
    "Fit",
    "Risk",
    "Transport",
    "WorstCase",
    "certify",
    "costs",
    "datasets",
    "losses",
    "methods",
    "mixture",
    "risk",
    "saddle_gap",
    "scores",
    "solvers",
    "theory",
    "train",
    "unbalanced_wasserstein",
    "wasserstein",
    "worst_case",
]
