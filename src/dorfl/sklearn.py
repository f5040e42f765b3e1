"""Base class of the estimators: from rows to a trained study."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data

from dorfl.certificates.certificate import Certificate, paper
from dorfl.certificates.certified import CONFIDENCE, Certified, certify
from dorfl.data.preprocessing import Transform
from dorfl.data.validation import Clients
from dorfl.estimators import frames
from dorfl.federated.diagnostics import FitWarning
from dorfl.federated.fit import Fit
from dorfl.networks.layered import NO_CERTIFICATE
from dorfl.objective.base import Score
from dorfl.objective.mixture import Mixture
from dorfl.protocol import meaning
from dorfl.protocol.coordinator import State
from dorfl.protocol.settings import Study
from dorfl.support.types import Array
from dorfl.tabular import arrays, given, network, results

_NUMBERS = [np.float64, np.float32]
_LARGEST = 1e100  # larger numbers of a table count as missing


class Robust(BaseEstimator):  # type: ignore[misc]
    """Base of classifier and regressor: clients, scaling, choice of the method, training."""

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
    ) -> None:
        self.method = method
        self.model = model
        self.outliers = outliers
        self.shift = shift
        self.frozen = frozen
        self.rho = rho
        self.beta = beta
        self.mixture = mixture
        self.l2 = l2
        self.tol = tol
        self.max_rounds = max_rounds

    def _read(
        self, X: Any, y: Any = None, *, reset: bool = True, **how: Any
    ) -> tuple[Array | pa.Table, Any]:
        """Check X and y as scikit-learn does; a frame that is not all numbers becomes a table."""
        if reset:
            self._framed = frames.table_of_frame(X) is not None
        if not self._framed:
            if y is None and not reset:
                return validate_data(self, given.dense(X), reset=reset, dtype=_NUMBERS), None
            checked = validate_data(self, given.dense(X), y, reset=reset, dtype=_NUMBERS, **how)
            return checked[0], checked[1]
        table = frames.table_of_frame(X, with_numbers=True)
        if table is None:
            raise ValueError("X: the model was fitted to a data frame; give one with its columns")
        if y is not None or reset:
            check_consistent_length(X, y)
            how.pop("ensure_min_samples", None)
            y = validate_data(self, "no_validation", y, **how) if reset else column_or_1d(y)
        validate_data(self, X, reset=reset, skip_check_array=True)
        return table, y

    def _labelled(self, X: Array | pa.Table, y: Any, weights: Array | None) -> frames.LabelledTable:
        """Return the rows with their label as a table."""
        if not isinstance(X, np.ndarray):
            return frames.with_label(X, y, self.frozen)
        if max(float(X.max()), -float(X.min())) > _LARGEST:
            raise ValueError(f"X has values beyond {_LARGEST:g}, which no measurement reaches")
        known = [str(name) for name in getattr(self, "feature_names_in_", ())]
        table, used = arrays.table_of(
            X, y, frozen=self.frozen, names=known, weights=weights,
            plain=self.outlier_score is not None,
        )  # fmt: skip
        return frames.LabelledTable(table, used)

    def _fit(
        self, X: Array | pa.Table, y: Any, clients: Any, weights: Array | None, settings: Study
    ) -> State:
        """Run a study on these rows, and set the attributes of the fit in the units of X."""
        if weights is not None and self._is_network:
            raise ValueError(
                "sample_weight, class_weight: networks have no sample weights; repeat rows "
                'instead, or use model="linear"'
            )
        rows, used = self._labelled(X, y, weights)
        study = settings._replace(columns=used).changed(
            method_name=self.method, method_outliers=given.number(self.outliers),
            method_shift=given.number(self.shift), method_rho=self.rho, method_beta=self.beta,
            training_model=given.model(self.model), training_l2=self.l2, training_tol=self.tol,
            training_max_rounds=self.max_rounds, **given.mixture(self.mixture),
        )  # fmt: skip
        fitted = arrays.run(study, rows, clients, weights, self.outlier_score)
        state, prepared = fitted.state, fitted.prepared
        assert state.transform is not None
        fit = results.model_of(state).fit
        fit = replace(fit, problem=fitted.group.problem, centers=fitted.group.centers)
        self.choice_ = meaning.chosen(state).words
        self._trained = (fit, state.transform)
        self._rows: Clients | None = prepared.rows.clients
        self.sample_weights_ = fitted.weights
        for old in ("coef_", "intercept_", "features_", "network_"):
            self.__dict__.pop(old, None)
        if self._is_network:
            trained = network.train(study, fit, prepared.rows, model=self.model)
            self.network_ = trained.model
            by_client = [trained.sample_weights[name] for name in prepared.rows.names]
            self.sample_weights_ = np.zeros(rows.num_rows)
            self.sample_weights_[prepared.rows.order] = np.concatenate(
                [p * len(p) for p in by_client]
            )
            self.n_iter_, lam = trained.rounds, trained.lam
        else:
            if fit.status != "converged":
                warnings.warn(fit.message, ConvergenceWarning, stacklevel=3)
            for defect in fitted.defects:
                warnings.warn(defect, FitWarning, stacklevel=3)
            self._set_coefficients(fit, state.transform, X)
            self.n_iter_, lam = fit.rounds, fit.lam
        self.client_weights_ = dict(zip(fit.clients, lam.tolist(), strict=True))
        return state

    @property
    def _is_network(self) -> bool:
        return given.model(self.model) != "linear"

    def _set_coefficients(self, fit: Fit, transform: Transform, X: Array | pa.Table) -> None:
        """Set the coefficients in the units of X; a data frame has one for every level."""
        theta = np.atleast_2d(fit.theta)
        names = [f"x{k}" for k in range(X.shape[1])]
        self.coef_: Any = theta[:, :-1]
        self.intercept_: Any = theta[:, -1].copy()
        self.features_ = np.array(
            transform.names if self._framed else getattr(self, "feature_names_in_", names),
            dtype=object,
        )
        if self._framed:
            spread, center = frames.units(transform)
            self.coef_ = self.coef_ / spread
            self.intercept_ -= self.coef_ @ center
            return
        self.coef_, self.intercept_ = arrays.coefficients(theta, transform, X.shape[1])

    def certificate(self, X: Any = None, y: Any = None, clients: Any = None) -> Certificate:
        """Compute the paper's certificate, :func:`dorfl.certificate.paper`.

        The radius is in robust standard deviations of the columns.

        Parameters
        ----------
        X, y, clients : array-like
            Rows; by default the training rows, which a pickled model has not.
        """
        return paper(*self._fit_and_rows(X, y, clients))

    def certify(
        self,
        X: Any = None,
        y: Any = None,
        clients: Any = None,
        *,
        outliers: float = 0.1,
        drift: float = 0.1,
        confidence: float | None = CONFIDENCE,
    ) -> Certified:
        """Bound the accuracy or the mean absolute error, by :func:`dorfl.certify`.

        Parameters
        ----------
        X, y, clients : array-like
            Rows that the model was not trained on. Without them the certificate is in sample: about
            the training rows, and not about rows to come.
        outliers, drift, confidence : float
            As in :func:`dorfl.certify`; `confidence=None` for the in-sample form.

        Returns
        -------
        Confident or InSample
            The mean absolute error of a regression is in the unit of y.
        """
        fit, rows = self._fit_and_rows(X, y, clients)
        sure = None if X is None else confidence
        return replace(certify(fit, rows, outliers, drift, confidence=sure), unit=self._unit)

    outlier_score: Score | None = None  # replaces the score of the study
    _unit = 1.0  # of predictions, in that of y

    def _fit_and_rows(self, X: Any, y: Any, clients: Any) -> tuple[Fit, Clients]:
        """Return the fit, and the features of the training rows or of others by client."""
        check_is_fitted(self)
        if hasattr(self, "network_"):
            raise ValueError(NO_CERTIFICATE)
        fit, transform = self._trained
        if X is None:
            if self._rows is None:
                raise ValueError(
                    "certificate: the training rows are not available (the model was pickled, or "
                    "labels far from the others were clipped); give X and y"
                )
            return fit, self._rows
        table, target = self._read(X, y, reset=False)
        rows = frames.features(transform, table)
        owners, places = given.owners(clients, len(rows))
        target = self._encode(target)
        return fit, {o: (rows[at], target[at]) for o, at in zip(owners, places, strict=True)}

    def _encode(self, y: Array) -> Array:
        """Encode targets as in training."""
        return y

    def _output(self, X: Any) -> Array:
        check_is_fitted(self)
        table, _ = self._read(X, reset=False)
        if not hasattr(self, "network_"):
            return self._linear(table)
        from dorfl.networks.training import outputs  # noqa: PLC0415 - brings in torch

        out = outputs(self.network_, frames.features(self._trained[1], table)).astype(np.float64)
        two = out.shape[1] == 2 and len(getattr(self, "classes_", ())) == 2
        return out[:, 1:] - out[:, :1] if two else out  # two classes have one logit

    def _linear(self, X: Array | pa.Table) -> Array:
        rows = frames.unscaled_features(self._trained[1], X) if self._framed else X
        return np.asarray(rows @ self.coef_.T + self.intercept_)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "_rows" in state:  # training rows are not pickled
            state["_rows"] = None
        return state
