"""Estimators with scikit-learn's interface.

>>> import numpy as np
>>> from dorfl import RobustClassifier
>>> rng = np.random.default_rng(0)
>>> X = rng.normal(size=(300, 3))
>>> y = np.where(X[:, 0] > 0, "yes", "no")
>>> X[:30] *= -8                                                # one row in ten is an outlier
>>> model = RobustClassifier().fit(X, y)
>>> bool(model.score(X[30:], y[30:]) > 0.97)
True
>>> bool(model.sample_weights_[:30].max() < model.sample_weights_[30:].mean())
True
"""

from dorfl.estimators.classifier import RobustClassifier
from dorfl.estimators.regressor import RobustRegressor

__all__ = ["RobustClassifier", "RobustRegressor"]
