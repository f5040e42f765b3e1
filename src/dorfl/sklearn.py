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

A data frame of numbers without missing values is an array. Any other is encoded and imputed as
`dorfl train` does with a file, so that the same rows give the same model.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dorfl.certificates.certificate import Certificate, paper
from dorfl.certificates.certified import CONFIDENCE, Certified, certify
from dorfl.data import validation
from dorfl.data.preprocessing import Category, Numeric, Transform, columns
from dorfl.data.tables import FileTable
from dorfl.data.validation import Clients
from dorfl.federated.diagnostics import FitWarning
from dorfl.federated.fit import Fit, probabilities
from dorfl.networks.layered import NO_CERTIFICATE
from dorfl.objective.base import Score
from dorfl.objective.mixture import Mixture
from dorfl.protocol import labels as labelling
from dorfl.protocol import resolution
from dorfl.protocol.settings import Data, Study, Used
from dorfl.protocol.state import State
from dorfl.support.types import Array
from dorfl.tabular import arrays, network
from dorfl.tabular.arrays import LABEL, coded_labels

_NUMBERS = [np.float64, np.float32]
_LARGEST = 1e100  # larger numbers of a table count as missing
# Sections of the docstrings of both estimators.
_PARAMETERS = """\
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
        Adds ½ l2 ‖θ‖² to the mean loss; by default 1/n, as C = 1 in
        LogisticRegression and alpha = 1 in Ridge. If `outliers` is "auto" too, 0.01/n is compared
        with it on held-out rows.
    tol : float
        Stop when the gap is below this share of the objective.
    max_rounds : int, optional
        Largest number of rounds; by default as many as the solver needs.
"""
_ATTRIBUTES = """\
    features_ : array
        Names of the coefficients: columns, or column=level of a data frame.
    network_ : torch.nn.Module
        Trained network, of scaled rows. Networks only.
    sample_weights_ : array
        (n,) weights of the training rows, relative to the mean of their client: about 1 or a
        little more for an inlier, nearly 0 for an outlier. They multiply `sample_weight`, if given;
        the mean is then weighted by it.
    client_weights_ : dict
        λ by client.
    choice_ : str
        What was chosen, and why.
    n_iter_ : int
        Number of rounds.
"""


@dataclass(eq=False, repr=False, kw_only=True)
class RobustEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of classifier and regressor: clients, scaling, choice of the method, training."""

    method: str = field(default="dorfl", kw_only=False)
    model: Any = "linear"
    outliers: float | str = "auto"
    shift: float | str = "auto"
    frozen: Sequence[int | str] | None = None
    rho: float | None = None
    beta: float | None = None
    mixture: str | Mixture | None = None
    l2: float | None = None
    tol: float = 1e-4
    max_rounds: int | None = None

    def _read(
        self, X: Any, y: Any = None, *, reset: bool = True, **how: Any
    ) -> tuple[Array | pa.Table, Any]:
        """Check X and y as scikit-learn does; a frame that is not all numbers becomes a table."""
        if reset:
            self._framed = _table_of_frame(X) is not None
        if not self._framed:
            if y is None and not reset:
                return validate_data(self, _dense(X), reset=reset, dtype=_NUMBERS), None
            checked = validate_data(self, _dense(X), y, reset=reset, dtype=_NUMBERS, **how)
            return checked[0], checked[1]
        table = _table_of_frame(X, with_numbers=True)
        if table is None:
            raise ValueError("X: the model was fitted to a data frame; give one with its columns")
        if y is not None or reset:
            check_consistent_length(X, y)
            how.pop("ensure_min_samples", None)
            y = validate_data(self, "no_validation", y, **how) if reset else column_or_1d(y)
        validate_data(self, X, reset=reset, skip_check_array=True)
        return table, y

    def _labelled(
        self, X: Array | pa.Table, y: Any, weights: Array | None
    ) -> tuple[columns.ColumnTable, Used]:
        """Return the rows with their label as a table, and how a study uses its columns."""
        if not isinstance(X, np.ndarray):
            return _with_label(X, y, self.frozen)
        if max(float(X.max()), -float(X.min())) > _LARGEST:
            raise ValueError(f"X has values beyond {_LARGEST:g}, which no measurement reaches")
        known = [str(name) for name in getattr(self, "feature_names_in_", ())]
        is_plain = self._score is not None
        return arrays.table_of(
            X, y, frozen=self.frozen, names=known, weights=weights, plain=is_plain
        )

    def _fit(
        self, X: Array | pa.Table, y: Any, clients: Any, weights: Array | None, settings: Study
    ) -> State:
        """Run a study on these rows, and set the attributes of the fit in the units of X."""
        if weights is not None and self._kind != "linear":
            raise ValueError(
                "sample_weight, class_weight: networks have no sample weights; repeat rows "
                'instead, or use model="linear"'
            )
        rows, used = self._labelled(X, y, weights)
        study = settings._replace(columns=used).changed(
            method_name=self.method,
            method_outliers=arrays.number(self.outliers),
            method_shift=arrays.number(self.shift),
            method_rho=self.rho,
            method_beta=self.beta,
            training_model=self._kind,
            training_l2=self.l2,
            training_tol=self.tol,
            training_max_rounds=self.max_rounds,
            **arrays.mixture_settings(self.mixture),
        )
        fitted = arrays.run(study, rows, clients, weights, self._score)
        state, prepared, fit = fitted.state, fitted.prepared, fitted.fit
        self.choice_ = resolution.chosen(state.agreed).words
        self._trained = (fit, state.agreed.transform)
        self._rows: Clients | None = prepared.rows.clients
        self.sample_weights_ = fitted.weights
        for old in ("coef_", "intercept_", "features_", "network_"):
            self.__dict__.pop(old, None)
        if self._kind != "linear":
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
            self._set_coefficients(fit, state.agreed.transform, X)
            self.n_iter_, lam = fit.rounds, fit.lam
        self.client_weights_ = dict(zip(fit.clients, lam.tolist(), strict=True))
        return state

    @property
    def _kind(self) -> str:
        """The kind of model: modules, and functions that make one, are networks."""
        return self.model if isinstance(self.model, str) else "mlp"

    @property
    def _score(self) -> Score | None:
        """The outlier score of a classifier, in place of the study's own."""
        return getattr(self, "outlier_score", None)

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
            spread, center = _units(transform)
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
        rows = _features(transform, table)
        owners, places = arrays.rows_by_client(clients, len(rows))
        target = self._encode(target)
        return fit, {o: (rows[at], target[at]) for o, at in zip(owners, places, strict=True)}

    def _encode(self, y: Array) -> Array:
        """Encode targets as in training."""
        return y

    def _output(self, X: Any) -> Array:
        check_is_fitted(self)
        table, _ = self._read(X, reset=False)
        if not hasattr(self, "network_"):
            rows = _unscaled_features(self._trained[1], table) if self._framed else table
            return np.asarray(rows @ self.coef_.T + self.intercept_)
        from dorfl.networks.training import outputs  # noqa: PLC0415 - brings in torch

        out = outputs(self.network_, _features(self._trained[1], table)).astype(np.float64)
        two = out.shape[1] == 2 and len(getattr(self, "classes_", ())) == 2
        return out[:, 1:] - out[:, :1] if two else out  # two classes have one logit

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "_rows" in state:  # training rows are not pickled
            state["_rows"] = None
        return state


@dataclass(eq=False, repr=False, kw_only=True)
class RobustClassifier(ClassifierMixin, RobustEstimator):  # type: ignore[misc]
    """Linear classifier that is robust to outliers and to drift of rows.

    Logistic or softmax regression by DOR-FL: an adversary moves and reweights rows, and outliers
    are down-weighted. :mod:`dorfl.defaults` chooses the parameters. Columns may be in any units; a
    data frame may have text, dates and missing values, which are encoded as by `dorfl train`.

    Parameters
    ----------
    (shared parameters)
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
    classes_ : array
        The labels.
    (shared attributes)
    """

    class_weight: Mapping[Any, float] | str | None = None
    outlier_score: Score | None = None

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
        weights = _checked_weights(sample_weight, len(labels))
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
        """Compute logits.

        Parameters
        ----------
        X : array-like
            (n, d) rows or a data frame.

        Returns
        -------
        array
            (n,) logits, or (n, classes) for more than two classes.
        """
        out = self._output(X)
        return out[:, 0] if out.shape[1] == 1 else out

    def predict_proba(self, X: Any) -> Array:
        """Compute class probabilities.

        Parameters
        ----------
        X : array-like
            (n, d) rows or a data frame.

        Returns
        -------
        array
            (n, classes) probabilities, in the order of `classes_`.
        """
        return probabilities(self.decision_function(X))

    def predict(self, X: Any) -> Array:
        """Predict the most likely label of every row.

        Parameters
        ----------
        X : array-like
            (n, d) rows or a data frame.

        Returns
        -------
        array
            (n,) labels.
        """
        out = self.decision_function(X)
        return np.asarray(self.classes_[out.argmax(axis=1) if out.ndim == 2 else (out > 0) * 1])


@dataclass(eq=False, repr=False, kw_only=True)
class RobustRegressor(RegressorMixin, RobustEstimator):  # type: ignore[misc]
    """Linear regressor that is robust to outliers in X or y and to drift of rows.

    Like :class:`RobustClassifier`, with Huber's loss: residuals beyond `epsilon` robust standard
    deviations count linearly.

    Parameters
    ----------
    (shared parameters)
    loss : str
        "huber" or "squared".
    epsilon : float
        Residual scales beyond which Huber's loss is linear; the default is that of scikit-learn's
        `HuberRegressor`, whose own scale is smaller.

    Attributes
    ----------
    coef_ : array
        (d,) in the units of X and y. Linear models only.
    intercept_ : float
        Linear models only.
    (shared attributes)
    """

    loss: str = "huber"
    epsilon: float = 0.92

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
        weights = _checked_weights(sample_weight, len(values))
        state = self._fit(table, np.asarray(values, dtype=np.float64), clients, weights, settings)
        target = self._target = state.agreed.target
        assert target is not None
        if np.abs(self._encode(values)).max() > labelling.FARTHEST:  # clipped in training
            self._rows = None
        self._unit = target.spread
        if not hasattr(self, "network_"):
            self.coef_ = target.spread * self.coef_[0]
            self.intercept_ = target.spread * float(self.intercept_[0]) + target.center
        return self

    def _encode(self, y: Array) -> Array:
        target = self._target
        assert target is not None
        return np.asarray((np.asarray(y, dtype=np.float64) - target.center) / target.spread)

    def predict(self, X: Any) -> Array:
        """Predict the number of every row.

        Parameters
        ----------
        X : array-like
            (n, d) rows or a data frame.

        Returns
        -------
        array
            (n,) predictions, in the unit of y.
        """
        out = self._output(X)
        if not hasattr(self, "network_"):
            return out
        target = self._target
        assert target is not None
        return np.asarray(target.center + target.spread * out[:, 0])


for _kind in (RobustClassifier, RobustRegressor):
    _doc = str(_kind.__doc__).replace("    (shared parameters)\n", _PARAMETERS)
    _kind.__doc__ = _doc.replace("    (shared attributes)\n", _ATTRIBUTES)


def _dense(X: Any) -> Any:
    """Return X; raise a TypeError if it is sparse, as centred columns have no zeros."""
    if not sparse.issparse(X):
        return X
    size = 12e-9 * X.shape[0] * X.shape[1]
    raise TypeError(
        "X is sparse, and estimators centre columns: if it was one-hot encoded, give the data "
        "frame it was made of (text is encoded here); else X.toarray(), for which training takes "
        f"about {size:.1f} GB, or train on it as it is, dorfl.train([(X, y)], …)"
    )


def _checked_weights(sample_weight: Any, count: int) -> Array | None:
    """Return the sample weights; None if all rows count alike."""
    if sample_weight is None:
        return None
    weights = validation.check_weights(sample_weight, count, "fit")
    if not weights.any():
        raise ValueError("sample_weight: all weights are zero")
    return weights


def _table_of_frame(X: Any, *, with_numbers: bool = False) -> pa.Table | None:
    """Return a data frame as a table, None if it is all numbers or no data frame.

    `with_numbers` returns a frame of numbers as a table, too.

    >>> import pandas as pd
    >>> _table_of_frame(pd.DataFrame({"age": [31, 45], "sex": ["f", "m"]})).column_names
    ['age', 'sex']
    >>> _table_of_frame(pd.DataFrame({"age": [31, 45]})) is None
    True
    """
    if not (hasattr(X, "columns") and (hasattr(X, "iloc") or hasattr(X, "__arrow_c_stream__"))):
        return None
    try:
        table: Any = columns.table_of(X) if hasattr(X, "iloc") else pa.table(X)
    except (pa.ArrowException, TypeError, ValueError) as error:
        if all(getattr(kind, "kind", "O") in "iufcb" for kind in getattr(X, "dtypes", "O")):
            return None  # repeated names: scikit-learn takes numbers by position
        raise ValueError(
            f"X: the data frame cannot be read as a table ({error}); give every column a name of "
            "its own and values of one type"
        ) from None
    return None if not with_numbers and all(map(_plain, table.columns)) else table


def _with_label(
    table: pa.Table, y: Any, frozen: Sequence[int | str] | None
) -> tuple[columns.ColumnTable, Used]:
    """Return a table with its label; columns of pandas' type "category" are categories."""
    names = list(table.column_names)
    if LABEL in names:
        raise ValueError(f"X: no column may be called {LABEL!r}; rename it")
    fixed = [names[k] for k in arrays.frozen_columns(frozen or (), names)]
    levels = [f.name for f in table.schema if pa.types.is_dictionary(f.type)]
    whole = table.append_column(LABEL, y if isinstance(y, pa.Array) else pa.array(y))
    read = FileTable(whole, text=frozenset([*levels, LABEL]))
    return read, Used(category=tuple(levels), frozen=tuple(fixed))


def _features(transform: Transform, X: Array | pa.Table, dtype: Any = np.float32) -> Array:
    """Return the features (n, d) of rows X."""
    table: Any
    if isinstance(X, np.ndarray):
        table = {f"x{k}": column for k, column in enumerate(X.T)}
    else:
        levels = frozenset(part.name for part in transform.parts if isinstance(part, Category))
        table = FileTable(X, text=levels)
    return np.asarray(transform.apply(table, dtype).X)


def _units(transform: Transform) -> tuple[Array, Array]:
    """Return the scale and the centre of every feature."""
    own = [
        (part.spread, part.center) if isinstance(part, Numeric) and not k else (1.0, 0.0)
        for part in transform.parts
        for k in range(len(part.features))
    ]
    spread, center = np.array(own).T
    return spread, center


def _unscaled_features(transform: Transform, X: pa.Table) -> Array:
    """Return the features of rows X in the units of the table."""
    parts = tuple(
        part._replace(center=0.0, spread=1.0) if isinstance(part, Numeric) else part
        for part in transform.parts
    )
    return _features(replace(transform, parts=parts), X, np.float64)


def _plain(column: Any) -> bool:
    """Return whether a column has numbers alone, none of them missing."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    return not column.null_count and any(is_kind(column.type) for is_kind in kinds)
