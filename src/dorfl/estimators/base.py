"""What classifier and regressor share: from rows and words to a trained study."""

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
from dorfl.study import arrays, given, meaning, network, results
from dorfl.study.coordinator import State
from dorfl.study.settings import Study
from dorfl.support.types import Array

_NUMBERS = [np.float64, np.float32]
_LARGEST = 1e100  # a table's larger numbers count as missing


class Robust(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share: clients, units, choice of the method, training."""

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
        """X and y, checked as scikit-learn does; X is a table where it is not all numbers."""
        if reset:
            self._framed = frames.of_frame(X) is not None
        if not self._framed:
            if y is None and not reset:
                return validate_data(self, given.dense(X), reset=reset, dtype=_NUMBERS), None
            checked = validate_data(self, given.dense(X), y, reset=reset, dtype=_NUMBERS, **how)
            return checked[0], checked[1]
        table = frames.of_frame(X, whatever=True)
        if table is None:
            raise ValueError("X: the model was fitted to a data frame; give one with its columns")
        if y is not None or reset:
            check_consistent_length(X, y)
            how.pop("ensure_min_samples", None)
            y = validate_data(self, "no_validation", y, **how) if reset else column_or_1d(y)
        validate_data(self, X, reset=reset, skip_check_array=True)
        return table, y

    def _taken(self, X: Array | pa.Table, y: Any, weights: Array | None) -> frames.Taken:
        """Rows with their label as a study takes them."""
        if not isinstance(X, np.ndarray):
            return frames.taken(X, y, self.frozen)
        if max(float(X.max()), -float(X.min())) > _LARGEST:
            raise ValueError(f"X has values beyond {_LARGEST:g}, which no measurement reaches")
        known = [str(name) for name in getattr(self, "feature_names_in_", ())]
        table, used = arrays.table_of(
            X, y, frozen=self.frozen, names=known, weights=weights,
            plain=self.outlier_score is not None,
        )  # fmt: skip
        return frames.Taken(table, used)

    def _fit(
        self, X: Array | pa.Table, y: Any, clients: Any, weights: Array | None, words: Study
    ) -> State:
        """Run the study `words` over these rows; give θ back in the units of X."""
        if weights is not None and self._is_network:
            raise ValueError(
                "sample_weight, class_weight: a network counts every row alike; repeat rows "
                'instead, or use model="linear"'
            )
        rows, used = self._taken(X, y, weights)
        study = words._replace(columns=used).changed(
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
        """θ in the units of X; of a data frame, a number for every level too."""
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
        """The paper's certificate, :func:`dorfl.certificate.paper`, of its training rows or others.

        The radius is in units of the columns, robust standard deviations. A model that was pickled
        has left its training rows behind: give it rows then.
        """
        return paper(*self._seen(X, y, clients))

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
        fit, rows = self._seen(X, y, clients)
        sure = None if X is None else confidence
        return replace(certify(fit, rows, outliers, drift, confidence=sure), unit=self._unit)

    outlier_score: Score | None = None  # in place of the study's own
    _unit = 1.0  # of what is predicted, in that of y

    def _seen(self, X: Any, y: Any, clients: Any) -> tuple[Fit, Clients]:
        """The fit, and the training rows or others as it sees them."""
        check_is_fitted(self)
        if hasattr(self, "network_"):
            raise ValueError(NO_CERTIFICATE)
        fit, transform = self._trained
        if X is None:
            if self._rows is None:
                raise ValueError(
                    "certificate: the training rows are not kept as they were (of a pickled model, "
                    "or with labels so far out that they count as less far); give X and y"
                )
            return fit, self._rows
        table, target = self._read(X, y, reset=False)
        rows = frames.seen(transform, table)
        owners, places = given.owners(clients, len(rows))
        target = self._encode(target)
        return fit, {o: (rows[at], target[at]) for o, at in zip(owners, places, strict=True)}

    def _encode(self, y: Array) -> Array:
        """Targets as the model was trained on them."""
        return y

    def _output(self, X: Any) -> Array:
        check_is_fitted(self)
        table, _ = self._read(X, reset=False)
        if not hasattr(self, "network_"):
            return self._linear(table)
        from dorfl.networks.training import outputs  # noqa: PLC0415 - brings in torch

        out = outputs(self.network_, frames.seen(self._trained[1], table)).astype(np.float64)
        two = out.shape[1] == 2 and len(getattr(self, "classes_", ())) == 2
        return out[:, 1:] - out[:, :1] if two else out  # of two classes, one number is enough

    def _linear(self, X: Array | pa.Table) -> Array:
        rows = frames.raw(self._trained[1], X) if self._framed else X
        return np.asarray(rows @ self.coef_.T + self.intercept_)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "_rows" in state:  # rows stay where they are
            state["_rows"] = None
        return state
