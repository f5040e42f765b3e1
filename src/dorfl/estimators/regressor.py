"""Regressor with scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from dorfl.estimators.base import Robust
from dorfl.objective.mixture import Mixture
from dorfl.protocol import labels as labelling
from dorfl.protocol.settings import Data, Study
from dorfl.support.types import Array
from dorfl.tabular import given
from dorfl.tabular.arrays import LABEL


class RobustRegressor(RegressorMixin, Robust):  # type: ignore[misc]
    """Linear regressor that is robust to outliers in X or y and to drift of rows.

    Like :class:`RobustClassifier`, with Huber's loss: residuals beyond `epsilon` robust standard
    deviations count linearly.

    Parameters
    ----------
    method : str
        "dorfl", or for comparison "erm", "afl", "wafl" or "gdrfl".
    model : str, module or callable
        "linear"; "mlp", a network of two layers (:mod:`dorfl.networks.tabular`); a
        `torch.nn.Module`; or a function that makes one, called with the numbers of inputs and
        outputs if it takes them. All but "linear" need PyTorch.
    loss : str
        "huber" or "squared".
    epsilon : float
        Residual scales beyond which Huber's loss is linear; the default is that of scikit-learn's
        `HuberRegressor`, whose own scale is smaller.
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
        Adds ½ l2 ‖θ‖² to the mean loss; by default 1/n, as alpha = 1 in Ridge.
    tol : float
        Stop when the gap is below this share of the objective.
    max_rounds : int, optional
        Largest number of rounds; by default as many as the solver needs.

    Attributes
    ----------
    coef_ : array
        (d,) in the units of X and y. Linear models only.
    intercept_ : float
        Linear models only.
    features_ : array
        Names of the coefficients: columns, or column=level of a data frame.
    network_ : torch.nn.Module
        Trained network, of scaled rows. Networks only.
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
        """Fit the model.

        Parameters
        ----------
        X, y : array-like
            (n, d) rows or a data frame, and (n,) numbers.
        clients : array-like, optional
            (n,) name of the client of each row; by default there is one.
        sample_weight : array-like, optional
            (n,) weights of the rows, as in :meth:`RobustClassifier.fit`.
        """
        if self.loss not in ("huber", "squared"):
            raise ValueError(f'loss={self.loss!r}: choose "huber" or "squared"')
        table, values = self._read(X, y, y_numeric=True, ensure_min_samples=2)
        settings = Study(Data(LABEL, task="regression")).changed(
            training_loss=self.loss, training_delta=self.epsilon
        )
        weights = given.weights(sample_weight, len(values))
        state = self._fit(table, np.asarray(values, dtype=np.float64), clients, weights, settings)
        self._target = state.target
        assert state.target is not None
        if np.abs(self._encode(values)).max() > labelling.FARTHEST:  # clipped in training
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
        """Return the prediction for every row."""
        out = self._output(X)
        if not hasattr(self, "network_"):
            return out
        target = self._target
        assert target is not None
        return np.asarray(target.center + target.spread * out[:, 0])
