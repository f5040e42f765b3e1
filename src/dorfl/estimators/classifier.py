"""Classifier with scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from dorfl.data import validation
from dorfl.estimators.base import Robust
from dorfl.federated.fit import probabilities
from dorfl.objective.base import Score
from dorfl.objective.mixture import Mixture
from dorfl.protocol.settings import Data, Study
from dorfl.support.types import Array
from dorfl.tabular import given
from dorfl.tabular.arrays import LABEL, coded_labels


class RobustClassifier(ClassifierMixin, Robust):  # type: ignore[misc]
    """Linear classifier that is robust to outliers and to drift of rows.

    Logistic or softmax regression by DOR-FL: an adversary moves and reweights rows, and outliers
    are down-weighted. :mod:`dorfl.defaults` chooses the parameters. Columns may be in any units; a
    data frame may have text, dates and missing values, which are encoded as by `dorfl train`.

    Parameters
    ----------
    method : str
        "dorfl", or for comparison "erm", "afl", "wafl" or "gdrfl".
    model : str, module or callable
        "linear"; "mlp", a network of two layers (:mod:`dorfl.networks.tabular`); a
        `torch.nn.Module`; or a function that makes one, called with the numbers of inputs and
        outputs if it takes them. All but "linear" need PyTorch.
    outliers : float or "auto"
        Share of rows that may be outliers; "auto" decides on held-out rows.
    shift : float or "auto"
        Distance by which rows may drift, in standard deviations; "auto" is 0 if no row is
        down-weighted, else 0.25.
    frozen : sequence, optional
        Indices or names of columns that cannot drift; by default columns with two values, which are
        treated as categories.
    rho : float, optional
        Price of transport; by default derived from `shift`.
    beta : float, optional
        Price of reweighting rows, in units of transport.
    mixture : str or Mixture, optional
        "fixed" (clients count by size), "agnostic" (worst mixture) or one of :mod:`dorfl.mixture`.
    l2 : float, optional
        Adds ½ l2 ‖θ‖² to the mean loss; by default 1/n, as C = 1 in LogisticRegression.
    tol : float
        Stop when the gap is below this share of the objective.
    max_rounds : int, optional
        Largest number of rounds; by default as many as the solver needs.
    class_weight : mapping or "balanced", optional
        A weight for each label, which multiplies the sample weights.
    outlier_score : Score, optional
        Score from :mod:`dorfl.scores`, or your own, on scaled columns; by default the distance from
        robust centres.

    Attributes
    ----------
    coef_ : array
        (1, d), or (classes, d) for more than two classes, in the units of X. Linear models only.
    intercept_ : array
        (1,) or (classes,). Linear models only.
    features_ : array
        Names of the coefficients: columns, or column=level of a data frame.
    network_ : torch.nn.Module
        Trained network, of scaled rows. Networks only.
    classes_ : array
        The labels.
    sample_weights_ : array
        (n,) weights of the training rows: 1 for an inlier (or its `sample_weight`), 0 for an
        outlier.
    client_weights_ : dict
        λ by client.
    choice_ : str
        What was chosen, and why.
    n_iter_ : int
        Number of rounds.
    """

    def __init__(
        self,
        method: str = "dorfl",
        *,
        model: Any = "linear",
        outliers: float | str = "auto",
        shift: float | str = "auto",
        frozen: Sequence[int | str] | None = None,
        rho: float | None = None,
        beta: float | None = None,
        mixture: str | Mixture | None = None,
        l2: float | None = None,
        tol: float = 1e-4,
        max_rounds: int | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        outlier_score: Score | None = None,
    ) -> None:
        super().__init__(
            method, model=model, outliers=outliers, shift=shift, frozen=frozen, rho=rho, beta=beta,
            mixture=mixture, l2=l2, tol=tol, max_rounds=max_rounds,
        )  # fmt: skip
        self.class_weight = class_weight
        self.outlier_score = outlier_score

    def fit(
        self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None
    ) -> RobustClassifier:
        """Fit the model.

        Parameters
        ----------
        X, y : array-like
            (n, d) rows or a data frame, and (n,) labels.
        clients : array-like, optional
            (n,) name of the client of each row; by default there is one.
        sample_weight : array-like, optional
            (n,) weights of the rows in their client's distribution P̂_i, which the tilt
            multiplies (:mod:`dorfl.data.validation`). An integer weight k is equivalent to k
            copies; scales of columns round other weights to a quarter of their mean.
        """
        table, labels = self._read(X, y)
        check_classification_targets(labels)
        weights = given.weights(sample_weight, len(labels))
        if self.class_weight is not None:
            base = np.ones(len(labels)) if weights is None else weights
            weights = base * validation.class_weights(labels, base, self.class_weight)
        self.classes_ = np.unique(labels if weights is None else labels[weights > 0])
        if len(self.classes_) < 2:
            only = self.classes_.tolist()[0]
            raise ValueError(f"y has one class only ({only!r}); a classifier needs at least two")
        coded = coded_labels(np.searchsorted(self.classes_, labels), len(self.classes_))
        self._fit(table, coded, clients, weights, Study(Data(LABEL, task="classification")))
        return self

    def _encode(self, y: Array) -> Array:
        strange = np.setdiff1d(y, self.classes_)
        if len(strange):
            raise ValueError(
                f"y has the label {strange.tolist()[0]!r}, which the model does not know"
            )
        return np.searchsorted(self.classes_, y)

    def decision_function(self, X: Any) -> Array:
        """Return logits (n,), or (n, classes) for more than two classes."""
        out = self._output(X)
        return out[:, 0] if out.shape[1] == 1 else out

    def predict_proba(self, X: Any) -> Array:
        """Return class probabilities (n, classes)."""
        return probabilities(self.decision_function(X))

    def predict(self, X: Any) -> Array:
        """Return the most likely label of every row."""
        out = self.decision_function(X)
        return np.asarray(self.classes_[out.argmax(axis=1) if out.ndim == 2 else (out > 0) * 1])
