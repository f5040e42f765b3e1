"""The scikit-learn face: robust linear models that fit, predict, pickle and search as others do.

>>> import numpy as np
>>> from dorfl import RobustClassifier
>>> rng = np.random.default_rng(0)
>>> X = rng.normal(size=(300, 3))
>>> y = np.where(X[:, 0] > 0, "yes", "no")
>>> X[:30] *= -8                                                # one row in ten is wrong
>>> model = RobustClassifier().fit(X, y)
>>> bool(model.score(X[30:], y[30:]) > 0.97)
True
>>> bool(model.sample_weights_[:30].max() < model.sample_weights_[30:].mean())
True
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dorfl.data import weighing
from dorfl.data.tables import Split
from dorfl.data.validation import Clients
from dorfl.federation.fit import Fit, probabilities
from dorfl.guarantees.certificate import Certificate, paper
from dorfl.guarantees.certified import Certified, certify
from dorfl.objective.kinds import Score
from dorfl.objective.mixture import Mixture
from dorfl.study import given, meaning, results
from dorfl.study import labels as labelling
from dorfl.study import table as engine
from dorfl.study.coordinator import State
from dorfl.study.settings import Data, Privacy, Study, Used
from dorfl.support.types import Array

LABEL = "(label)"
_LARGEST = 1e100  # a table's larger numbers count as missing


class _Robust(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share: clients, units, choice of the method, training."""

    def __init__(
        self,
        method: str = "dorfl",
        *,
        outliers: float | str = "auto",
        shift: float = 0.25,
        frozen: Sequence[int | str] | None = None,
        rho: float | None = None,
        beta: float | None = None,
        mixture: str | Mixture | None = None,
        l2: float | None = None,
        tol: float = 1e-4,
        max_rounds: int | None = None,
    ) -> None:
        self.method = method
        self.outliers = outliers
        self.shift = shift
        self.frozen = frozen
        self.rho = rho
        self.beta = beta
        self.mixture = mixture
        self.l2 = l2
        self.tol = tol
        self.max_rounds = max_rounds

    def _fit(self, X: Array, y: Any, clients: Any, weights: Array | None, words: Study) -> State:
        """Run the study `words` over these rows; give θ back in the units of X."""
        if max(float(X.max()), -float(X.min())) > _LARGEST:
            raise ValueError(f"X has values beyond {_LARGEST:g}, which no measurement reaches")
        owners, places = given.owners(clients, len(X))
        if weights is not None:  # where quantiles are taken, copies stand for weights
            places = [rows[weights[rows] > 0] for rows in places]
            owners = [owner for owner, rows in zip(owners, places, strict=True) if len(rows)]
            whole = np.zeros(len(X), dtype=np.int64)
            whole[weights > 0] = weighing.copies(weights[weights > 0])
            places = [np.repeat(rows, whole[rows]) for rows in places if len(rows)]
        names = [f"x{k}" for k in range(X.shape[1])]
        known = [str(name) for name in getattr(self, "feature_names_in_", ())]
        frozen = given.frozen(self.frozen, known, X if weights is None else X[weights > 0])
        fewest = min(len(rows) for rows in places)
        study = words._replace(
            columns=Used(numeric=tuple(names), frozen=tuple(names[k] for k in frozen)),
            # Of fewer rows than a study takes a client with, nothing could be told: they stay here.
            privacy=Privacy() if fewest >= Privacy().minimum_rows else Privacy(least=1),
        ).changed(
            method_name=self.method, method_outliers=given.share(self.outliers),
            method_shift=self.shift, method_rho=self.rho, method_beta=self.beta,
            training_l2=self.l2, training_tol=self.tol,
            training_max_rounds=self.max_rounds, **given.mixture(self.mixture),
        )  # fmt: skip
        meaning.check(study)
        order = np.concatenate(places)
        bounds = np.concatenate([[0], np.cumsum([len(rows) for rows in places])])
        columns = {name: X[:, k] for k, name in enumerate(names)}
        split = Split(pa.table({**columns, LABEL: y}), tuple(owners), bounds, order)
        prepared = engine.prepare(study, split)
        order, mass = prepared.rows.order, None
        if weights is not None:
            mass = (weights / np.maximum(whole, 1))[order]  # copies share the row's weight
            sizes = np.add.reduceat(mass, prepared.rows.bounds[:-1]).tolist()
            prepared = replace(prepared, state=prepared.state._replace(sizes=tuple(sizes)))
            mass = None if (mass == mass[0]).all() else mass
        state, group = engine.fit(study, prepared, mass=mass, score=self.outlier_score)
        assert state.outcome is not None
        assert state.transform is not None
        if state.outcome.status != "converged":
            warnings.warn(state.outcome.message, ConvergenceWarning, stacklevel=3)

        fit = results.model_of(state).fit
        fit = replace(fit, problem=group.problem, centers=group.centers)
        theta, parts = np.atleast_2d(fit.theta), state.transform.numeric
        self.coef_: Any = np.zeros((len(theta), X.shape[1]))
        used = [names.index(part.name) for part in parts]
        self.coef_[:, used] = theta[:, :-1] / [part.spread for part in parts]
        middle = [part.center for part in parts]
        self.intercept_: Any = theta[:, -1] - self.coef_[:, used] @ middle
        counted = np.concatenate(group.sample_weights(state.outcome.theta)) * group.lots
        self.sample_weights_ = np.zeros(len(X))
        self.sample_weights_[order] = counted
        self.client_weights_ = dict(zip(fit.clients, fit.lam.tolist(), strict=True))
        self.choice_ = meaning.chosen(state).words
        self.n_iter_ = fit.rounds
        self._trained = (fit, state.transform)
        self._rows: Clients | None = prepared.rows.clients
        return state

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
        fit, transform = self._trained
        if X is None:
            if self._rows is None:
                raise ValueError(
                    "certificate: a pickled model does not keep its training rows; give X and y"
                )
            return fit, self._rows
        table, target = validate_data(
            self, given.dense(X), y, reset=False, dtype=[np.float64, np.float32]
        )
        owners, places = given.owners(clients, len(table))
        rows = transform.apply({f"x{k}": column for k, column in enumerate(table.T)}, np.float32).X
        target = self._encode(target)
        return fit, {o: (rows[at], target[at]) for o, at in zip(owners, places, strict=True)}

    def _encode(self, y: Array) -> Array:
        """Targets as the model was trained on them."""
        return y

    def _output(self, X: Any) -> Array:
        check_is_fitted(self)
        table = validate_data(self, given.dense(X), reset=False, dtype=[np.float64, np.float32])
        return np.asarray(table @ self.coef_.T + self.intercept_)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "_rows" in state:  # rows stay where they are
            state["_rows"] = None
        return state


class RobustClassifier(ClassifierMixin, _Robust):  # type: ignore[misc]
    """A linear classifier that outliers among the rows and drift of them do not throw off.

    It is a logistic regression (softmax for more than two classes) whose rows may each be moved and
    reweighted by an adversary, except for those that lie far out, which count less: DOR-FL, with
    its parameters derived as :mod:`dorfl.defaults` says. Columns may be in any units.

    Args:
        method: "dorfl", or "erm", "afl", "wafl", "gdrfl" to compare with.
        outliers: the share of rows that may be wrong; "auto": decided from the data.
        shift: how far rows may drift, in standard deviations.
        frozen: columns (places or names) that cannot drift; those with two values if not given.
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
        coef_: (1, d), or (classes, d) for more than two, in the units of X.
        intercept_: (1,) or (classes,).
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
        outliers: float | str = "auto",
        shift: float = 0.25,
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
            method, outliers=outliers, shift=shift, frozen=frozen, rho=rho, beta=beta,
            mixture=mixture, l2=l2, tol=tol, max_rounds=max_rounds,
        )  # fmt: skip
        self.class_weight = class_weight
        self.outlier_score = outlier_score

    def fit(
        self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None
    ) -> RobustClassifier:
        """Fit to rows `X` with labels `y`; `clients` says who each row belongs to (one if none).

        `sample_weight` is how much rows count in their client's distribution P̂_i, inside the
        log-mean-exp: the tilt multiplies it (:mod:`dorfl.data.weighing`). Whole weights are as many
        rows, zero is none; units and centres of columns take others to a quarter of their mean.
        """
        table, labels = validate_data(self, given.dense(X), y, dtype=[np.float64, np.float32])
        check_classification_targets(labels)
        weights = given.weights(sample_weight, len(labels))
        if self.class_weight is not None:
            base = np.ones(len(labels)) if weights is None else weights
            weights = base * weighing.by_class(labels, base, self.class_weight)
        self.classes_ = np.unique(labels if weights is None else labels[weights > 0])
        if len(self.classes_) < 2:
            only = self.classes_.tolist()[0]
            raise ValueError(f"y has one class only ({only!r}); a classifier needs at least two")
        # By number, with as many digits each: text in the classes' own order.
        names = [f"class {k:06d}" for k in range(len(self.classes_))]
        codes = np.minimum(np.searchsorted(self.classes_, labels), len(names) - 1)
        coded = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names))
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


class RobustRegressor(RegressorMixin, _Robust):  # type: ignore[misc]
    """A linear regression that outliers, in X or in y, and drift of rows do not throw off.

    As :class:`RobustClassifier`, with a Huber loss (or "squared"): residuals beyond `epsilon` of
    their standard deviations, which outliers do not move, count by size and not by its square.

    Args:
        method: "dorfl", or "erm", "afl", "wafl", "gdrfl" to compare with.
        loss: "huber" or "squared".
        epsilon: where Huber's loss turns from square to linear, in the unit of the residuals.
        outliers: the share of rows that may be wrong; "auto": decided from the data.
        shift: how far rows may drift, in standard deviations.
        frozen: columns (places or names) that cannot drift; those with two values if not given.
        rho: the price of transport (columns and y in units of their own), if not from `shift`.
        beta: the price of reweighting, in units of transport.
        mixture: how clients count: "fixed" (by size), "agnostic" (the worst served most).
        l2: adds ½ l2 ‖θ‖² to the mean loss; if not given 1/n, as Ridge does with alpha = 1.
        tol: stop when the relative gap is below this.
        max_rounds: stop after so many rounds in any case (none: as many as the solver needs).

    Attributes:
        coef_: (d,), in the units of X and y.
        intercept_: a number.
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
        loss: str = "huber",
        epsilon: float = 1.345,
        outliers: float | str = "auto",
        shift: float = 0.25,
        frozen: Sequence[int | str] | None = None,
        rho: float | None = None,
        beta: float | None = None,
        mixture: str | Mixture | None = None,
        l2: float | None = None,
        tol: float = 1e-4,
        max_rounds: int | None = None,
    ) -> None:
        super().__init__(
            method, outliers=outliers, shift=shift, frozen=frozen, rho=rho, beta=beta,
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
        table, values = validate_data(
            self, given.dense(X), y, dtype=[np.float64, np.float32], y_numeric=True,
            ensure_min_samples=2,
        )  # fmt: skip
        words = Study(Data(LABEL, task="regression")).changed(
            training_loss=self.loss, training_delta=self.epsilon
        )
        weights = given.weights(sample_weight, len(values))
        state = self._fit(table, np.asarray(values, dtype=np.float64), clients, weights, words)
        self._target = state.target, state.study
        assert state.target is not None
        self._unit = state.target.spread
        self.coef_ = state.target.spread * self.coef_[0]
        self.intercept_ = state.target.spread * float(self.intercept_[0]) + state.target.center
        return self

    def _encode(self, y: Array) -> Array:
        target, study = self._target
        assert target is not None
        scaled = (np.asarray(y, dtype=np.float64) - target.center) / target.spread
        return labelling.for_training(scaled, meaning.loss_of(study, 0))

    def predict(self, X: Any) -> Array:
        """The value of every row."""
        return self._output(X)
