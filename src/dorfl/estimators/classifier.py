"""A classifier with scikit-learn's interface."""

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
from dorfl.study import given
from dorfl.study.arrays import LABEL, coded_labels
from dorfl.study.settings import Data, Study
from dorfl.support.types import Array


class RobustClassifier(ClassifierMixin, Robust):  # type: ignore[misc]
    """A linear classifier that outliers among the rows and drift of them do not throw off.

    It is a logistic regression (softmax for more than two classes) whose rows may each be moved and
    reweighted by an adversary, except for those that lie far out, which count less: DOR-FL, with
    its parameters derived as :mod:`dorfl.defaults` says. Columns may be in any units; a data frame
    may also hold words, dates and empty cells, which are read as `dorfl train` reads a file.

    Args:
        method: "dorfl", or "erm", "afl", "wafl", "gdrfl" to compare with.
        model: "linear"; "mlp", a network of two layers (:mod:`dorfl.networks.tabular`); a
            `torch.nn.Module`; or a function that makes one, given how many inputs and outputs
            there are if it takes them. All but the first need PyTorch.
        outliers: the share of rows that may be wrong; "auto": decided from the data.
        shift: how far rows may drift, in standard deviations; "auto": 0.25, but 0 where dorfl
            trusts all rows.
        frozen: columns (places or names) that cannot drift; if not given, those with two values,
            which are then a category each, as in a table.
        rho: the price of transport, if not from `shift`.
        beta: the price of reweighting, in units of transport.
        mixture: how clients count: "fixed" (by size), "agnostic" (the worst served most).
        l2: adds ½ l2 ‖θ‖² to the mean loss; if not given 1/n, what C = 1 is to LogisticRegression.
        tol: stop when the relative gap is below this.
        max_rounds: stop after so many rounds in any case (none: as many as the solver needs).
        class_weight: a weight for each label, or "balanced": it multiplies those of its rows.
        outlier_score: what makes a row suspect, one of :mod:`dorfl.scores` or one's own, in place
            of how far out it lies; it sees columns scaled, each by its middle and robust spread.

    Attributes:
        coef_: (1, d), or (classes, d) for more than two, in the units of X; of a linear model.
        intercept_: (1,) or (classes,); of a linear model.
        features_: what `coef_` has a number for: the columns, and column=level where X has words.
        network_: the trained `torch.nn.Module`, of rows in units of their own; of a network.
        classes_: the labels.
        sample_weights_: of every training row, in their order: 1 counts in full (its
            `sample_weight`, if one was given), 0 not at all.
        client_weights_: λ by client.
        choice_: what was chosen and why, in words.
        n_iter_: rounds used.
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
        """Fit to rows `X` with labels `y`; `clients` says who each row belongs to (one if none).

        `sample_weight` is how much rows count in their client's distribution P̂_i, inside the
        log-mean-exp: the tilt multiplies it (:mod:`dorfl.data.validation`). Whole weights are
        as many rows, zero is none; scales of columns round others to a quarter of their mean.
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
        """Logits: (n,) for two classes, (n, classes) for more."""
        out = self._output(X)
        return out[:, 0] if out.shape[1] == 1 else out

    def predict_proba(self, X: Any) -> Array:
        """The probability of every class, (n, classes)."""
        return probabilities(self.decision_function(X))

    def predict(self, X: Any) -> Array:
        """The likeliest label of every row."""
        out = self.decision_function(X)
        return np.asarray(self.classes_[out.argmax(axis=1) if out.ndim == 2 else (out > 0) * 1])
