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

from dorfl.data import weighing
from dorfl.data.preprocessing import Numeric, Transform
from dorfl.data.tables import Split
from dorfl.data.validation import Clients
from dorfl.estimators import frames
from dorfl.federation.fit import Fit
from dorfl.guarantees.certificate import Certificate, paper
from dorfl.guarantees.certified import Certified, certify
from dorfl.networks.layered import NO_CERTIFICATE
from dorfl.objective.kinds import Score
from dorfl.objective.mixture import Mixture
from dorfl.study import checks, given, meaning, network, results
from dorfl.study import table as engine
from dorfl.study.coordinator import State
from dorfl.study.settings import Privacy, Study, Used, linear
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
        names = [f"x{k}" for k in range(X.shape[1])]
        known = [str(name) for name in getattr(self, "feature_names_in_", ())]
        two = given.two_valued(X if weights is None else X[weights > 0])
        frozen = given.frozen(np.flatnonzero(two) if self.frozen is None else self.frozen, known)
        # What has two values is a category, as in a table, unless columns are named by their place.
        own = two if self.frozen is None and self.outlier_score is None else np.zeros_like(two)
        used = Used(
            numeric=tuple(names[k] for k in np.flatnonzero(~own)),
            frozen=tuple(names[k] for k in frozen),
        )
        return frames.taken_array(X, y, used)

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
        count = rows.num_rows
        owners, places = given.owners(clients, count)
        if weights is not None:  # where quantiles are taken, copies stand for weights
            places = [rows[weights[rows] > 0] for rows in places]
            owners = [owner for owner, rows in zip(owners, places, strict=True) if len(rows)]
            whole = np.zeros(count, dtype=np.int64)
            whole[weights > 0] = weighing.copies(weights[weights > 0])
            places = [np.repeat(rows, whole[rows]) for rows in places if len(rows)]
        fewest = min(len(rows) for rows in places)
        study = words._replace(
            columns=used,
            # Of fewer rows than a study takes a client with, nothing could be told: they stay here.
            privacy=Privacy() if fewest >= Privacy().minimum_rows else Privacy(least=1),
        ).changed(
            method_name=self.method, method_outliers=given.number(self.outliers),
            method_shift=given.number(self.shift), method_rho=self.rho, method_beta=self.beta,
            training_model=given.model(self.model), training_l2=self.l2, training_tol=self.tol,
            training_max_rounds=self.max_rounds, **given.mixture(self.mixture),
        )  # fmt: skip
        checks.check(study)
        order = np.concatenate(places)
        bounds = np.concatenate([[0], np.cumsum([len(rows) for rows in places])])
        split = Split(rows, tuple(owners), bounds, order)
        prepared = engine.prepare(study, split)
        order, mass = prepared.rows.order, None
        if weights is not None:
            mass = (weights / np.maximum(whole, 1))[order]  # copies share the row's weight
            sizes = np.add.reduceat(mass, prepared.rows.bounds[:-1]).tolist()
            prepared = replace(prepared, state=prepared.state._replace(sizes=tuple(sizes)))
            mass = None if (mass == mass[0]).all() else mass
        state, group = engine.fit(linear(study), prepared, mass=mass, score=self.outlier_score)
        assert state.outcome is not None
        assert state.transform is not None
        fit = results.model_of(state).fit
        fit = replace(fit, problem=group.problem, centers=group.centers)
        self.choice_ = meaning.chosen(state).words
        for note in meaning.unused(study):
            warnings.warn(note, UserWarning, stacklevel=3)
        self._trained = (fit, state.transform)
        self._rows: Clients | None = prepared.rows.clients
        self.sample_weights_ = np.zeros(count)
        for old in ("coef_", "intercept_", "features_", "network_"):
            self.__dict__.pop(old, None)
        if self._is_network:
            trained = network.train(study, fit, prepared.rows, model=self.model)
            self.network_ = trained.model
            by_client = [trained.sample_weights[name] for name in prepared.rows.names]
            counted = np.concatenate([p * len(p) for p in by_client])
            self.n_iter_, lam = trained.rounds, trained.lam
        else:
            if fit.status != "converged":
                warnings.warn(fit.message, ConvergenceWarning, stacklevel=3)
            self._set_coefficients(fit, state.transform, X)
            whole = group.lots if mass is not None else np.repeat(group.counts, group.counts)
            counted = np.concatenate(group.sample_weights(state.outcome.theta)) * whole
            self.n_iter_, lam = fit.rounds, fit.lam
        self.sample_weights_[order] = counted
        self.client_weights_ = dict(zip(fit.clients, lam.tolist(), strict=True))
        return state

    @property
    def _is_network(self) -> bool:
        return given.model(self.model) != "linear"

    def _set_coefficients(self, fit: Fit, transform: Transform, X: Array | pa.Table) -> None:
        """θ in the units of X; of a data frame, a number for every level too."""
        theta = np.atleast_2d(fit.theta)
        names = [f"x{k}" for k in range(X.shape[1])]
        self.coef_: Any = theta[:, :-1] if self._framed else np.zeros((len(theta), len(names)))
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
        first = 0
        for part in transform.parts:
            own = theta[:, first : first + len(part.features)]
            first += len(part.features)
            if isinstance(part, Numeric):
                slope, at, there = own[:, 0] / part.spread, part.center, np.zeros(len(own))
            else:  # a line through what both values add
                at, to = map(float, part.levels)
                slope, there = (own[:, 1] - own[:, 0]) / (to - at), own[:, 0]
            self.coef_[:, names.index(part.name)] = slope
            self.intercept_ += there - slope * at

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
    ) -> Certified:
        """What the model guarantees (:func:`dorfl.certify`), on its training rows or others.

        The mean absolute error of a regression is in the unit of y.
        """
        found = certify(*self._seen(X, y, clients), outliers, drift)
        return replace(found, unit=self._unit)

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
