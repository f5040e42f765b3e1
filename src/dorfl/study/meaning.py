"""What the words of a study mean: loss, method, plan, limits and noise; one rule for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dorfl.data.preprocessing import Plan, Transform
from dorfl.data.spread import Spread
from dorfl.federation import privacy
from dorfl.federation.defence import Limits, defend
from dorfl.federation.options import Options
from dorfl.federation.privacy import Gaussian
from dorfl.guarantees import bound, certified
from dorfl.guarantees.bound import Question, Units
from dorfl.networks.layered import Layered
from dorfl.objective import losses
from dorfl.objective import mixture as mixing
from dorfl.objective.kinds import Loss
from dorfl.oracle.problem import Problem
from dorfl.study import defaults, private, suspects
from dorfl.study.defaults import Choice
from dorfl.study.messages import Agreement
from dorfl.study.settings import (
    Study,
    linear,
)
from dorfl.support.types import Array

if TYPE_CHECKING:
    from dorfl.study.coordinator import State

FIRST = 0.1  # the unit of Huber's loss before residuals are known, in that of the label
REFINED = 4  # times that residuals are asked for, at most
NEAR = 0.8  # of a unit: one that is nearer to it makes no difference
EXACT = 1e-4  # of the label's unit: residuals that scatter less are rounding, and no unit
BEFORE = 0.1  # of what (ε, δ) allows, for how columns are scaled
_PRIVATE_ROUNDS = 100
_LONGEST = 30.0  # standard deviations that the rows of a site are away from the middle of all
_SINGLE = 1e-8  # the gap, in units of the objective, that rows in single precision can show


def agreed(state: State, site: str) -> Agreement:
    """What is settled so far, as `site` is told."""
    at = 0 if state.study.privacy.secure_sum else state.roster.index(site)  # of all, or its own
    center = None if state.centers is None else state.centers[at]
    return Agreement(
        state.run, site, state.study, state.columns, state.classes, state.transform, state.target,
        state.apart, state.spread, center, state.edge, state.scatter, state.refined, state.trial,
        state.verdict, state.decay, state.reference,
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
    """The same for the training that a study is at: a trial is one of some rows, and short."""
    study = linear(state.study)
    if state.trial is None:
        return options_of(study, sum(state.believed), scatter=state.scatter)
    trial = options_of(study, sum(trained_on(state)))
    return trial.changed(tol=suspects.TOL, max_rounds=suspects.ROUNDS)


def trained_on(state: State) -> tuple[int, ...]:
    """How many rows of each client a training is on: all, or those that a trial leaves."""
    if state.trial is None:
        return state.rows
    return tuple(len(suspects.parts(rows, state.trial.most)[0]) for rows in state.rows)


def task_of(study: Study) -> str:
    """What is learnt: as the study says, or as its loss does; else "auto"."""
    if study.data.task != "auto" or study.training.loss == "auto":
        return study.data.task
    classifies = losses.resolve(study.training.loss).classifies
    return "classification" if classifies else "regression"


def loss_of(study: Study, classes: int, scatter: float = 1.0) -> Loss:
    """The loss by name; "auto": logistic for two classes, softmax for more, Huber's for numbers.

    `scatter` is how far residuals spread, in the label's unit; that is 1 until they are known.
    """
    name = study.training.loss
    if name == "auto":
        regression = not classes or study.data.task == "regression"
        name = "huber" if regression else "logistic" if classes == 2 else "softmax"
    return losses.resolve(name).scaled(study.training.delta * scatter)


def dtype_of(study: Study) -> type[np.floating[Any]]:
    """What rows are kept in: single precision, unless a tolerance asks for what it cannot show."""
    return np.float64 if study.training.tol < _SINGLE else np.float32


def share_of(agreed: Agreement | State) -> float:
    """The share of rows held for wrong: as the study says, as was decided, or while it is not."""
    given, trial, verdict = agreed.study.method.outliers, agreed.trial, agreed.verdict
    if not isinstance(given, str):
        return given
    if not _tells(agreed.study):
        return 0.0
    if trial is not None:
        return trial.share
    if verdict is None and agreed.spread is not None and not shape_of(agreed).any():
        return 0.0  # in categories alone no row lies far out
    return suspects.ASSUMED if verdict is None else verdict.share


def wrong_of(agreed: Agreement | State) -> float:
    """The share of rows held for wrong, by where they lie or by their labels."""
    return max(share_of(agreed), agreed.verdict.labels if agreed.verdict else 0.0)


def assumed_of(study: Study) -> float:
    """The share of wrong rows that units and distances are measured for."""
    given = study.method.outliers
    return suspects.ASSUMED if isinstance(given, str) else given


def measured_of(study: Study) -> float:
    """The share of the rows, nearest first, that says what a standard deviation is."""
    return suspects.measured(assumed_of(study))


def tries(study: Study) -> bool:
    """Whether it is tried if rows that lie far out are wrong: by a solver that needs few rounds."""
    lies = study.defence.trim > 0 or study.defence.liars > 0  # looked for from the first round on
    usual = study.training.solver in ("auto", "sqp") and not lies
    return study.method.outliers == suspects.AUTO and usual


def unused(study: Study) -> tuple[str, ...]:
    """What the study says by hand that its method has no part for, and which has."""
    words = study.method
    drift = {"shift": words.shift not in (suspects.AUTO, 0), "rho": words.rho is not None}
    rest = {
        "outliers": words.outliers not in (suspects.AUTO, 0),
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
        spread = Spread(np.ones(len(transform.names)))
    words = study.method
    rule = words.mixture if words.mixture != "auto" else defaults.RULES[words.name]
    worst = rule == "agnostic"
    mixture = mixing.capped(words.cap, words.by) if worst else mixing.fixed(by=words.by)
    return defaults.method_for(
        spread, method=words.name, outliers=share_of(agreed), shift=words.shift,
        frozen=frozen_of(study, transform), loss=_loss(agreed), rho=words.rho, beta=words.beta,
        score_weight=words.score_weight, center=words.center, mixture=mixture, edge=agreed.edge,
        verdict=_verdict(agreed),
    )  # fmt: skip


def _verdict(agreed: Agreement | State) -> suspects.Verdict | None:
    """What was decided of rows that lie far out, where the study leaves that open."""
    if agreed.study.method.outliers != suspects.AUTO:
        return None
    if agreed.trial is not None:
        return suspects.Verdict(agreed.trial.share)
    return agreed.verdict or suspects.Verdict(share_of(agreed))


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


def shape_of(agreed: Agreement | State) -> Array:
    """V but for its size, in which distances from ξ̄ are measured."""
    assert agreed.transform is not None
    assert agreed.spread is not None
    return defaults.shape_of(agreed.spread, frozen_of(agreed.study, agreed.transform))


def _loss(agreed: Agreement | State) -> Loss:
    told = _tells(agreed.study)
    return loss_of(agreed.study, len(agreed.classes), agreed.scatter or (FIRST if told else 1.0))


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
    """Whether residuals set the unit of the loss: Huber's, unless they must not be told."""
    return problem.loss.has_unit and _tells(study)


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
    spread = agreed.spread or Spread(np.ones(len(agreed.transform.names)))
    units = bound.units_of(spread, frozen_of(agreed.study, agreed.transform))
    share, scatter = wrong_of(agreed), agreed.scatter or 1.0
    return units, certified.ask(_loss(agreed), units, share, scatter, thin)


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
    floors = private.floors(study)
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
    if study.method.scores and study.method.outliers != suspects.AUTO:
        raise ValueError(
            "study: privacy.epsilon: where rows lie must not be told, so no row can be suspected "
            "for where it lies; leave method.outliers out, or set method.outliers = 0"
        )
    return privacy.gaussian(
        asked.epsilon, asked.delta, clip=asked.clip, values=(0.0, asked.highest),
        rounds=study.training.max_rounds or _PRIVATE_ROUNDS, seed=seed,
        before=BEFORE if asked.known else 0.0,
    )  # fmt: skip
