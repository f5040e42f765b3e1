"""Resolve the settings of a study: loss, method, plan, bounds and noise, by one rule for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from dorfl.certificates import bound
from dorfl.certificates.bound import CertificateRequest, Units
from dorfl.data.preprocessing import ColumnPlan, Transform
from dorfl.data.robust import ColumnScales
from dorfl.federated import privacy
from dorfl.federated import scale as scaling
from dorfl.federated.options import Options
from dorfl.federated.privacy import Gaussian
from dorfl.federated.report_bounds import Limits, defend
from dorfl.linear.problem import Problem
from dorfl.networks.layered import Layered
from dorfl.objective import losses
from dorfl.objective import mixture as mixing
from dorfl.objective.base import Loss
from dorfl.objective.methods import AUTO
from dorfl.protocol import private_columns
from dorfl.protocol.messages import Agreement
from dorfl.protocol.settings import Study, linear
from dorfl.protocol.state import State
from dorfl.selection import defaults, outliers
from dorfl.selection.defaults import Choice
from dorfl.support.types import Array

BEFORE = 0.1  # share of the privacy budget for the scales of columns
_PRIVATE_ROUNDS = 100
_MAX_ROW = 30.0  # standard deviations of a column that the rows of an honest site reach
_SINGLE = 1e-8  # smallest gap, in units of the objective, that single precision resolves


def options_of(study: Study, rows: float, seed: int = 0, scatter: float | None = None) -> Options:
    """Return the options of a training on so many rows, as :func:`dorfl.train` takes them.

    The `seed` is that of the noise which makes rounds private. As in scikit-learn's Huber
    regression the ridge is in the unit of the residuals: where these `scatter` little, any other
    would be most of the error.
    """
    words, mechanism = study.training, mechanism_of(study, seed)
    return Options(
        solver=words.solver if mechanism is None else "auto",
        tol=words.tol,
        max_rounds=words.max_rounds,
        curvature=words.curvature,
        bytes_per_round=words.bytes_per_round,
        intercept=words.intercept,
        l2=(1.0 if scatter is None else scatter) / rows if words.l2 is None else words.l2,
        seed=words.seed,
        limits=limits_of(study),
        liars=study.defence.liars,
        trim=study.defence.trim,
        privacy=mechanism,
    )


def options_now(state: State) -> Options:
    """Return the options of the training at hand: the study's, or those of a candidate."""
    study = linear(state.study)
    if state.agreed.candidate is None:
        options = options_of(study, sum(state.counted_rows), scatter=state.agreed.scatter)
    else:
        options = options_of(study, sum(trained_on(state)))
        options = options.changed(tol=outliers.TOLERANCE, max_rounds=outliers.MAX_ROUNDS)
    return options.changed(l2=ridge_of(state.agreed) * options.l2)


def trained_on(state: State) -> tuple[int, ...]:
    """Return the number of training rows of each client: all, or those that candidates see."""
    if state.agreed.candidate is None:
        return state.rows
    return tuple(outliers.trained_count(rows, state.agreed.row_limit) for rows in state.rows)


def task_of(study: Study) -> str:
    """Return the task by the study or its loss, or "auto" if both leave it open."""
    if study.data.task != "auto" or study.training.loss == "auto":
        return study.data.task
    classifies = losses.resolve(study.training.loss).classifies
    return "classification" if classifies else "regression"


def loss_of(study: Study, classes: int, scatter: float | None = None) -> Loss:
    """Return the loss by name; "auto" is logistic, softmax, or Huber's for a regression.

    `classes` is 0 for a regression. The scale of residuals is estimated with the model while
    `scatter` is None.
    """
    name = study.training.loss
    if name == "auto":
        regression = not classes or study.data.task == "regression"
        name = "huber" if regression else "logistic" if classes == 2 else "softmax"
    loss = losses.resolve(name)
    if not loss.has_unit:
        return loss
    if scatter is None and _estimates_scale(study):
        return losses.huber(study.training.delta, scale="auto", least=scaling.LEAST)
    return loss.scaled(study.training.delta * (scatter or 1.0))


def dtype_of(study: Study) -> type[np.floating[Any]]:
    """Return the precision of rows: single, unless the tolerance is too small for it."""
    return np.float64 if study.training.tol < _SINGLE else np.float32


def share_of(agreed: Agreement) -> float:
    """Return the assumed share of outliers: the candidate's, as given, or as decided."""
    given = agreed.study.method.outliers
    if agreed.candidate is not None:
        return agreed.candidate.share
    if not isinstance(given, str):
        return given
    return 0.0 if agreed.decision is None else agreed.decision.share


def shift_of(agreed: Agreement) -> float | str:
    """Return the assumed drift: the candidate's, or the study's."""
    return agreed.study.method.shift if agreed.candidate is None else agreed.candidate.shift


def ridge_of(agreed: Agreement) -> float:
    """Return l2 in multiples of its default: the candidate's, or as decided."""
    if agreed.candidate is not None:
        return agreed.candidate.ridge
    return 1.0 if agreed.decision is None else agreed.decision.ridge


def labels_of(agreed: Agreement) -> bool:
    """Return whether rows with outlying labels are down-weighted."""
    if agreed.candidate is not None:
        return agreed.candidate.labels
    return agreed.decision is not None and agreed.decision.labels


def cutoff_of(agreed: Agreement) -> float | None:
    """Return the squared distance within which inliers lie, if it was measured."""
    return dict(agreed.cutoffs).get(share_of(agreed))


def measured_of(study: Study) -> float:
    """Return the share of the rows, nearest first, that robust scales are measured on."""
    given = study.method.outliers
    return defaults.share_measured(0.0 if isinstance(given, str) else given)


def shares_of(state: State) -> tuple[float, ...]:
    """Return the outlier shares that cutoffs are needed for."""
    given, candidates = state.study.method.outliers, state.selection.candidates
    listed = [given] if not isinstance(given, str) else [c.share for c in candidates]
    return tuple(dict.fromkeys(share for share in listed if share > 0))


def selects(study: Study) -> bool:
    """Return whether candidates are compared to decide on outliers."""
    byzantine = study.defence.trim > 0 or study.defence.liars > 0
    usual = study.training.solver in ("auto", "sqp") and not byzantine
    is_open = study.method.scores and study.method.outliers == AUTO
    return is_open and usual and _reports_plainly(study)


def compares_labels(state: State) -> bool:
    """Return whether down-weighting of outlying labels is a candidate, as in Huber regression."""
    usual = all(candidate.shift == AUTO for candidate in state.selection.candidates)
    linear_model = not state.network and state.study.training.model == "linear"
    return usual and linear_model and refines(state.study, problem_of(state.agreed))


def unused(study: Study) -> tuple[str, ...]:
    """Return a sentence on settings that the method does not use, and on methods that do."""
    words = study.method
    drift = {"shift": words.shift not in (AUTO, 0), "rho": words.rho is not None}
    rest = {
        "outliers": words.outliers not in (AUTO, 0),
        "beta": words.beta is not None,
        "score_weight": words.score_weight is not None,
    }
    given = {"dorfl": {}, "wafl": rest, "gdrfl": rest}.get(words.name, drift | rest)
    named = [name for name, said in given.items() if said]
    if not named:
        return ()
    whose = "wafl, gdrfl and dorfl" if set(named) <= set(drift) else "dorfl"
    still = " (the certificate goes by it)" if "outliers" in named else ""
    listed = ", ".join(named)
    return (f"{listed}: has no part in training by method {words.name!r}{still}, but by {whose}",)


def is_adversarial(study: Study) -> bool:
    """Return whether the study's mixture is the worst one."""
    words = study.method
    rule = words.mixture if words.mixture != "auto" else defaults.RULES[words.name]
    return rule == "agnostic"


def chosen(agreed: Agreement) -> Choice:
    """Return the method for columns with the scales agreed on, and why."""
    study, words = agreed.study, agreed.study.method
    worst = is_adversarial(study)
    mixture = mixing.capped(words.cap, words.by) if worst else mixing.fixed(by=words.by)
    return defaults.method_for(
        scales_of(agreed),
        method=words.name,
        outliers=share_of(agreed),
        shift=shift_of(agreed),
        frozen=frozen_of(study, agreed.transform),
        loss=_loss(agreed),
        rho=words.rho,
        beta=words.beta,
        score_weight=words.score_weight,
        center=words.center,
        mixture=mixture,
        cutoff=cutoff_of(agreed),
        decision=agreed.decision,
    )


def problem_of(agreed: Agreement) -> Problem:
    """Return the training problem; classes are 0, 1, … in the order agreed on."""
    kind = Problem if agreed.decay is None else Layered
    problem = kind(
        chosen(agreed).method,
        _loss(agreed),
        len(agreed.transform.names),
        np.arange(len(agreed.classes)),
        agreed.study.training.intercept,
    )
    problem.check()
    return problem


def start_of(problem: Problem) -> Array:
    """Return where training starts: θ = 0, and a residual scale of one label unit if estimated."""
    start = np.zeros(problem.size)
    return np.append(start, 1.0) if problem.estimates_scale else start


def shape_of(agreed: Agreement) -> Array:
    """Return the diagonal of V up to a factor, for distances from ξ̄."""
    return defaults.shape_of(scales_of(agreed), frozen_of(agreed.study, agreed.transform))


def scales_of(agreed: Agreement) -> ColumnScales:
    """Return the scales of columns; 1 in the units of their scaling if none are reported."""
    return agreed.scales or ColumnScales(np.ones(len(agreed.transform.names)))


def _loss(agreed: Agreement) -> Loss:
    return loss_of(agreed.study, len(agreed.classes), agreed.scatter)


def measures_location(study: Study) -> bool:
    """Return whether sites report the location of their rows: not under differential privacy."""
    return study.method.measures and _reports_plainly(study)


def keeps_center(agreed: Agreement) -> bool:
    """Return whether every site has a centre of its own."""
    return agreed.own_centers and agreed.study.method.center == "client"


def centered_classes(agreed: Agreement) -> int:
    """Return how many classes have centres: all if the method has a score, else none."""
    return len(agreed.classes) if agreed.study.method.scores and agreed.own_centers else 0


def refines(study: Study, problem: Problem) -> bool:
    """Return whether the scale of residuals is estimated: for Huber's loss without noise."""
    return (problem.loss.has_unit or problem.loss.estimates_scale) and _estimates_scale(study)


def _estimates_scale(study: Study) -> bool:
    """Return whether the solver can estimate a residual scale; else the loss is in label units."""
    usual = study.training.solver in ("auto", "sqp") and study.defence.trim == 0
    return _reports_plainly(study) and usual and study.method.by != "regret"


def certifies(study: Study) -> bool:
    """Return whether the finished model is certified: columns have scales, reports no noise."""
    scaled = study.columns.scaling != "none" or study.method.measures
    return scaled and _reports_plainly(study) and study.training.model == "linear"


def _reports_plainly(study: Study) -> bool:
    """Return whether sites may report statistics without noise, alone or in sums."""
    return study.privacy.epsilon is None


def grid_stride(state: State) -> int:
    """Return the stride on the certificate's grid of prices: larger for many rows."""
    return bound.grid_stride(sum(state.rows), max(len(state.agreed.classes) - 1, 1))


def certificate_grid(agreed: Agreement, stride: int) -> tuple[Units, CertificateRequest]:
    """Return the units of drift for the certificate, and the prices and shares of its grid."""
    units = bound.units_of(scales_of(agreed), frozen_of(agreed.study, agreed.transform))
    share, scatter = share_of(agreed), agreed.scatter or 1.0
    return units, bound.make_request(share, stride=stride, loss=_loss(agreed), scatter=scatter)


def certificate_grids(
    agreed: Agreement, stride: int
) -> tuple[CertificateRequest, CertificateRequest]:
    """Return the grid of the certificate, and the smaller one of sites that report less."""
    _, asked = certificate_grid(agreed, stride)
    return asked, bound.restrict(asked, share_of(agreed))


def frozen_of(study: Study, transform: Transform) -> tuple[int, ...]:
    """Return the features that cannot drift: categories, flags, and columns the study names."""
    named = {k for k, name in enumerate(transform.sources) if name in study.columns.frozen}
    return tuple(sorted({*transform.frozen, *named}))


def needs_scales(state: State) -> bool:
    """Return whether a column or the label is scaled."""
    return state.agreed.target is not None or state.study.columns.scaling != "none"


def check_columns(state: State) -> None:
    """Raise ValueError if no column is left to learn from."""
    transform = state.agreed.transform
    if not transform.names:
        reasons = "; ".join(f"{name!r}: {why}" for name, why in transform.ignored.items())
        raise ValueError(f"no column is left to learn from ({reasons or 'none but the label'})")


def plan_of(study: Study) -> ColumnPlan:
    """Return how columns are summarised and scaled."""
    scaling, missing = study.columns.scaling, study.columns.missing
    floors = private_columns.floors(study)
    return ColumnPlan(
        scaling, study.kinds, least=study.privacy.least, missing=missing, floors=floors
    )


def limits_of(study: Study) -> Limits | None:
    """Return the bounds on rows of honest sites, if the study states them."""
    row, target = study.defence.row, study.defence.target
    return None if row is None else Limits(row, np.inf if target is None else target)


def bounds_of(study: Study, problem: Problem) -> Limits | None:
    """Return the bounds that reports are clipped to: the study's, or generous ones.

    Columns are in robust units and reports are averages, so honest ones are far within. There are
    no bounds for unscaled columns and numeric labels, which may be of any size, nor with noise.
    """
    given = limits_of(study)
    if given is not None:
        return given
    if study.columns.scaling == "none" or study.privacy.epsilon is not None:
        return None
    if not problem.loss.classifies:
        return None
    limits = Limits(_MAX_ROW * float(np.sqrt(problem.dims)), _MAX_ROW)
    try:
        defend(problem, limits, {})
    except (ValueError, NotImplementedError):  # a loss or score of a user may have no bound
        return None
    return limits


def mechanism_of(study: Study, seed: int = 0) -> Gaussian | None:
    """Return the noise of a private study; its seed is each site's own secret."""
    asked = study.privacy
    if asked.epsilon is None:
        return None
    if study.method.scores and study.method.outliers != AUTO:
        raise ValueError(
            "study: privacy.epsilon: sites must not report the location of rows, so no outlier "
            "can be found; leave method.outliers out, or set method.outliers = 0"
        )
    return privacy.gaussian(
        asked.epsilon,
        asked.delta,
        clip=asked.clip,
        values=(0.0, asked.highest),
        rounds=study.training.max_rounds or _PRIVATE_ROUNDS,
        seed=seed,
        before=BEFORE if asked.known else 0.0,
    )
