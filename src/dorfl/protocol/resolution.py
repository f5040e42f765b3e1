"""What the words of a study mean: loss, method, plan, limits and noise; one rule for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dorfl.certificates import bound, certified
from dorfl.certificates.bound import Question, Units
from dorfl.data.preprocessing import Plan, Transform
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
from dorfl.protocol.settings import (
    Study,
    linear,
)
from dorfl.selection import defaults, outliers
from dorfl.selection.defaults import Choice
from dorfl.support.types import Array

if TYPE_CHECKING:
    from dorfl.protocol.coordinator import State

BEFORE = 0.1  # of what (ε, δ) allows, for how columns are scaled
_PRIVATE_ROUNDS = 100
_LONGEST = 30.0  # standard deviations that the rows of a site are away from the middle of all
_SINGLE = 1e-8  # the gap, in units of the objective, that rows in single precision can show


def agreed(state: State, site: str) -> Agreement:
    """What is settled so far, as `site` is told."""
    at = 0 if state.study.privacy.summed else state.roster.index(site)  # of all, or its own
    center = None if state.centers is None else state.centers[at]
    return Agreement(
        state.run, site, state.study, state.columns, state.classes, state.transform, state.target,
        state.apart, state.spread, center, state.cutoffs, state.scatter, state.candidate,
        state.row_limit, state.decision, state.decay, state.reference,
    )  # fmt: skip


def options_of(study: Study, rows: float, seed: int = 0, scatter: float | None = None) -> Options:
    """What the study says of training, as :func:`dorfl.train` takes it, for so many rows.

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
    if state.candidate is None:
        return options_of(study, sum(state.believed), scatter=state.scatter)
    options = options_of(study, sum(trained_on(state)))
    return options.changed(tol=outliers.TOLERANCE, max_rounds=outliers.MAX_ROUNDS)


def trained_on(state: State) -> tuple[int, ...]:
    """Return the number of training rows of each client: all, or those that candidates see."""
    if state.candidate is None:
        return state.rows
    return tuple(len(outliers.split_rows(rows, state.row_limit)[0]) for rows in state.rows)


def task_of(study: Study) -> str:
    """What is learnt: as the study says, or as its loss does; else "auto"."""
    if study.data.task != "auto" or study.training.loss == "auto":
        return study.data.task
    classifies = losses.resolve(study.training.loss).classifies
    return "classification" if classifies else "regression"


def loss_of(study: Study, classes: int, scatter: float | None = None) -> Loss:
    """Return the loss by name; "auto" is logistic, softmax, or Huber's for a regression.

    Parameters
    ----------
    study
        The study; under differential privacy Huber's loss is in the label's unit.
    classes
        Number of classes; 0 for a regression.
    scatter
        Scale of the residuals in the label's unit. While it is unknown, it is estimated together
        with the model.
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
    """What rows are kept in: single precision, unless a tolerance asks for what it cannot show."""
    return np.float64 if study.training.tol < _SINGLE else np.float32


def share_of(agreed: Agreement | State) -> float:
    """Return the assumed share of outliers: the candidate's, as given, or as decided."""
    given = agreed.study.method.outliers
    if agreed.candidate is not None:
        return agreed.candidate.share
    if not isinstance(given, str):
        return given
    return 0.0 if agreed.decision is None else agreed.decision.share


def shift_of(agreed: Agreement | State) -> float | str:
    """Return the assumed drift: the candidate's, or the study's."""
    return agreed.study.method.shift if agreed.candidate is None else agreed.candidate.shift


def labels_of(agreed: Agreement | State) -> bool:
    """Whether rows with outlying labels are down-weighted."""
    if agreed.candidate is not None:
        return agreed.candidate.labels
    return agreed.decision is not None and agreed.decision.labels


def wrong_of(agreed: Agreement | State) -> float:
    """Return the share of outliers that the certificate assumes."""
    return share_of(agreed)


def cutoff_of(agreed: Agreement | State) -> float | None:
    """Return the squared distance within which inliers lie, if it was measured."""
    return dict(agreed.cutoffs).get(share_of(agreed))


def measured_of(study: Study) -> float:
    """Return the share of the rows, nearest first, that robust scales are measured on."""
    given = study.method.outliers
    return defaults.share_measured(0.0 if isinstance(given, str) else given)


def shares_of(state: State) -> tuple[float, ...]:
    """Return the outlier shares that cutoffs are needed for."""
    given = state.study.method.outliers
    listed = [given] if not isinstance(given, str) else [c.share for c in state.candidates]
    return tuple(dict.fromkeys(share for share in listed if share > 0))


def selects(study: Study) -> bool:
    """Whether candidates are compared to decide on outliers."""
    byzantine = study.defence.trim > 0 or study.defence.liars > 0
    usual = study.training.solver in ("auto", "sqp") and not byzantine
    return study.method.scores and study.method.outliers == AUTO and usual and _tells(study)


def compares_labels(state: State) -> bool:
    """Whether down-weighting of outlying labels is a candidate: of a linear Huber regression."""
    usual = all(candidate.shift == AUTO for candidate in state.candidates)
    linear_model = not state.network and state.study.training.model == "linear"
    return usual and linear_model and refines(state.study, problem_of(state))


def unused(study: Study) -> tuple[str, ...]:
    """What the study says by hand that its method has no part for, and which has."""
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
    told = ", ".join(named)
    return (f"{told}: has no part in training by method {words.name!r}{still}, but by {whose}",)


def chosen(agreed: Agreement | State) -> Choice:
    """The method the study's words mean for rows that spread as agreed, and why."""
    study, transform, spread = agreed.study, agreed.transform, agreed.spread
    assert transform is not None
    if spread is None:  # nothing was told of it: columns are in units of their own, by scaling
        spread = ColumnScales(np.ones(len(transform.names)))
    words = study.method
    rule = words.mixture if words.mixture != "auto" else defaults.RULES[words.name]
    worst = rule == "agnostic"
    mixture = mixing.capped(words.cap, words.by) if worst else mixing.fixed(by=words.by)
    return defaults.method_for(
        spread, method=words.name, outliers=share_of(agreed), shift=shift_of(agreed),
        frozen=frozen_of(study, transform), loss=_loss(agreed), rho=words.rho, beta=words.beta,
        score_weight=words.score_weight, center=words.center, mixture=mixture,
        cutoff=cutoff_of(agreed), decision=agreed.decision,
    )  # fmt: skip


def problem_of(agreed: Agreement | State) -> Problem:
    """What is trained, once columns and classes are agreed on; classes are 0, 1, … in order."""
    assert agreed.transform is not None
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


def shape_of(agreed: Agreement | State) -> Array:
    """V but for its size, in which distances from ξ̄ are measured."""
    assert agreed.transform is not None
    assert agreed.spread is not None
    return defaults.shape_of(agreed.spread, frozen_of(agreed.study, agreed.transform))


def _loss(agreed: Agreement | State) -> Loss:
    return loss_of(agreed.study, len(agreed.classes), agreed.scatter)


def asks_where(study: Study) -> bool:
    """Whether sites tell where their rows lie: not under differential privacy."""
    return study.method.measures and _tells(study)


def keeps_center(agreed: Agreement | State) -> bool:
    """Whether every site has a centre of its own."""
    return agreed.apart and agreed.study.method.center == "client"


def centered_classes(agreed: Agreement | State) -> int:
    """How many classes sites tell the middle of: all of them where rows far out are suspect."""
    return len(agreed.classes) if agreed.study.method.scores and agreed.apart else 0


def refines(study: Study, problem: Problem) -> bool:
    """Whether the scale of residuals is estimated: of Huber's loss, unless noise is added."""
    return (problem.loss.has_unit or problem.loss.estimates_scale) and _estimates_scale(study)


def _estimates_scale(study: Study) -> bool:
    """Whether the solver can estimate a residual scale; otherwise the loss is in label units."""
    usual = study.training.solver in ("auto", "sqp") and study.defence.trim == 0
    return _tells(study) and usual and study.method.by != "regret"


def certifies(study: Study) -> bool:
    """Whether the finished model is certified: columns need a unit, and rows may be told of."""
    scaled = study.columns.scaling != "none" or study.method.measures
    return scaled and _tells(study) and study.training.model == "linear"


def _tells(study: Study) -> bool:
    """Whether a site may tell more of its rows, by itself or in sums, than training takes."""
    return study.privacy.epsilon is None


def thin(state: State) -> int:
    """The grid of the certificate: a coarser one where there are many rows."""
    return bound.thinness(sum(state.rows), max(len(state.classes) - 1, 1))


def certifying(agreed: Agreement | State, thin: int) -> tuple[Units, Question]:
    """In which units rows drift for the certificate, and what clients are asked for it."""
    assert agreed.transform is not None
    spread = agreed.spread or ColumnScales(np.ones(len(agreed.transform.names)))
    units = bound.units_of(spread, frozen_of(agreed.study, agreed.transform))
    share, scatter = wrong_of(agreed), agreed.scatter or 1.0
    return units, certified.ask(_loss(agreed), share, scatter, thin)


def certificates(agreed: Agreement | State, thin: int) -> tuple[Question, Question]:
    """What clients are asked for the certificate, and what is enough of who may tell little."""
    _, asked = certifying(agreed, thin)
    return asked, bound.brief(asked, wrong_of(agreed))


def frozen_of(study: Study, transform: Transform) -> tuple[int, ...]:
    """The features that cannot drift: those of categories, flags, and columns the study names."""
    named = {k for k, name in enumerate(transform.sources) if name in study.columns.frozen}
    return tuple(sorted({*transform.frozen, *named}))


def plan_of(study: Study) -> Plan:
    """How columns are summarised and scaled."""
    scaling, missing = study.columns.scaling, study.columns.missing
    floors = private_columns.floors(study)
    return Plan(scaling, study.kinds, least=study.privacy.least, missing=missing, floors=floors)


def limits_of(study: Study) -> Limits | None:
    """What honest sites keep to, if the study says so."""
    row, target = study.defence.row, study.defence.target
    if row is None:
        return None
    if not row > 0:
        raise ValueError(f"study: defence.row = {row}; must be positive")
    return Limits(row, np.inf if target is None else target)


def bounds_of(study: Study, problem: Problem) -> Limits | None:
    """What reports are held against: as the study says, or what no scaled rows go beyond.

    Columns are in robust units and reports are averages: those of honest sites are far within. No
    bounds where numbers are in units of their own or predicted, for these may be of any size, or
    where noise is added to what is told.
    """
    given = limits_of(study)
    if given is not None:
        return given
    if study.columns.scaling == "none" or study.privacy.epsilon is not None:
        return None
    if not problem.loss.classifies:
        return None
    limits = Limits(_LONGEST * float(np.sqrt(problem.dims)), _LONGEST)
    try:
        defend(problem, limits, {})
    except (ValueError, NotImplementedError):  # a loss or score of somebody's own has none
        return None
    return limits


def mechanism_of(study: Study, seed: int = 0) -> Gaussian | None:
    """The noise of a study that is differentially private; its seed is each site's own secret."""
    asked = study.privacy
    if asked.epsilon is None:
        return None
    if study.method.scores and study.method.outliers != AUTO:
        raise ValueError(
            "study: privacy.epsilon: where rows lie must not be told, so no row can be suspected "
            "for where it lies; leave method.outliers out, or set method.outliers = 0"
        )
    return privacy.gaussian(
        asked.epsilon, asked.delta, clip=asked.clip, values=(0.0, asked.highest),
        rounds=study.training.max_rounds or _PRIVATE_ROUNDS, seed=seed,
        before=BEFORE if asked.known else 0.0,
    )  # fmt: skip
