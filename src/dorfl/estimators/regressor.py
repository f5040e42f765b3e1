"""A regression with scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from dorfl.estimators.base import Robust
from dorfl.objective.mixture import Mixture
from dorfl.study import given
from dorfl.study import labels as labelling
from dorfl.study.arrays import LABEL
from dorfl.study.settings import Data, Study
from dorfl.support.types import Array


class RobustRegressor(RegressorMixin, Robust):  # type: ignore[misc]
    """A linear regression that outliers, in X or in y, and drift of rows do not throw off.

    As :class:`RobustClassifier`, with a Huber loss (or "squared"): residuals beyond `epsilon` of
    their standard deviations, which outliers do not move, count by size and not by its square.

    Args:
        method: "dorfl", or "erm", "afl", "wafl", "gdrfl" to compare with.
        model: "linear"; "mlp", a network of two layers (:mod:`dorfl.networks.tabular`); a
            `torch.nn.Module`; or a function that makes one, given how many inputs and outputs
            there are if it takes them. All but the first need PyTorch.
        loss: "huber" or "squared".
        epsilon: where Huber's loss turns from square to linear, in standard deviations of the
            residuals. The default is where scikit-learn's `HuberRegressor` has it, whose own scale
            is smaller.
        outliers: the share of rows that may be wrong; "auto": decided from the data.
        shift: how far rows may drift, in standard deviations; "auto": 0.25, but 0 where dorfl
            trusts all rows.
        frozen: columns (places or names) that cannot drift; if not given, those with two values,
            which are then a category each, as in a table.
        rho: the price of transport (columns and y in units of their own), if not from `shift`.
        beta: the price of reweighting, in units of transport.
        mixture: how clients count: "fixed" (by size), "agnostic" (the worst served most).
        l2: adds ½ l2 ‖θ‖² to the mean loss; if not given 1/n, as Ridge does with alpha = 1.
        tol: stop when the relative gap is below this.
        max_rounds: stop after so many rounds in any case (none: as many as the solver needs).

    Attributes:
        coef_: (d,), in the units of X and y; of a linear model.
        intercept_: a number; of a linear model.
        features_: what `coef_` has a number for: the columns, and column=level where X has words.
        network_: the trained `torch.nn.Module`, of rows in units of their own; of a network.
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
        loss: str = "huber",
        epsilon: float = 0.92,
        outliers: float | str = "auto",
        shift: float | str = "auto",
        frozen: Sequence[int | str] | None = None,
        rho: float | None = None,
        beta: float | None = None,
        mixture: str | Mixture | None = None,
        l2: float | None = None,
        tol: float = 1e-4,
        max_rounds: int | None = None,
    ) -> None:
        super().__init__(
            method, model=model, outliers=outliers, shift=shift, frozen=frozen, rho=rho, beta=beta,
            mixture=mixture, l2=l2, tol=tol, max_rounds=max_rounds,
        )  # fmt: skip
        self.loss = loss
        self.epsilon = epsilon

    def fit(
        self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None
    ) -> RobustRegressor:
        """Fit to rows `X` with values `y`; `clients` says who each row belongs to (one if none).

        `sample_weight` is how much rows count, as in :meth:`RobustClassifier.fit`.
        """
        if self.loss not in ("huber", "squared"):
            raise ValueError(f'loss={self.loss!r}: a regression has "huber" or "squared"')
        table, values = self._read(X, y, y_numeric=True, ensure_min_samples=2)
        words = Study(Data(LABEL, task="regression")).changed(
            training_loss=self.loss, training_delta=self.epsilon
        )
        weights = given.weights(sample_weight, len(values))
        state = self._fit(table, np.asarray(values, dtype=np.float64), clients, weights, words)
        self._target = state.target
        assert state.target is not None
        if np.abs(self._encode(values)).max() > labelling.FARTHEST:  # trained with as less far
            self._rows = None
        self._unit = state.target.spread
        if not hasattr(self, "network_"):
            self.coef_ = state.target.spread * self.coef_[0]
            self.intercept_ = state.target.spread * float(self.intercept_[0]) + state.target.center
        return self

    def _encode(self, y: Array) -> Array:
        target = self._target
        assert target is not None
        return np.asarray((np.asarray(y, dtype=np.float64) - target.center) / target.spread)

    def predict(self, X: Any) -> Array:
        """The value of every row."""
        out = self._output(X)
        if not hasattr(self, "network_"):
            return out
        target = self._target
        assert target is not None
        return np.asarray(target.center + target.spread * out[:, 0])
