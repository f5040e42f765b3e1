"""Candidates for the outlier share, while they are trained and compared."""

from __future__ import annotations

from collections.abc import Sequence

from dorfl.protocol.messages import Refused, Request
from dorfl.protocol.state import State
from dorfl.protocol.step import NEXT
from dorfl.selection import outliers
from dorfl.selection.outliers import Decision
from dorfl.support.types import Array

UNKNOWN = "the candidates are none that the study implies"


def untrained(models: Sequence[Array | None]) -> list[int]:
    """Return the places of candidates that have no model yet."""
    return [k for k, model in enumerate(models) if model is None]


def keep_model(state: State, theta: Array) -> State:
    """Keep the model of the candidate that was trained by itself, and go on to the next."""
    models = list(state.selection.models)
    models[untrained(models)[0]] = theta
    selection = state.selection._replace(models=tuple(models))
    return state._replace(selection=selection, step="select")


def decide(state: State, decision: Decision) -> State:
    """Go on to the final training by a decision; an earlier one stands beside one without rows.

    Without models the step `compare` is not needed, and the final training comes next.
    """
    agreed = state.agreed
    known = agreed.decision if agreed.decision is not None and not decision.rows else decision
    reference = agreed.reference if known.labels else None
    state = state.agree(decision=known, reference=reference, candidate=None, row_limit=0)
    ended = state.selection._replace(servers=(), models=())
    return state._replace(step=NEXT, selection=ended)


def check(request: Request) -> None:
    """Raise Refused for candidates that the selection of outliers does not have."""
    known = outliers.default_candidates()
    allowed = {*known, *(candidate._replace(labels=True) for candidate in known)}
    if not (request.agreement.row_limit and set(request.candidates) <= allowed):
        raise Refused(UNKNOWN)
    if len(set(request.candidates)) < len(request.candidates):
        raise Refused(UNKNOWN)
    models = request.models
    if models is not None and (models.dtype != float or len(models) != len(request.candidates)):
        raise Refused(UNKNOWN)
