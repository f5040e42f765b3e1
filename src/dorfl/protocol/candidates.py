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
    place = untrained(state.models)[0]
    models = (*state.models[:place], theta, *state.models[place + 1 :])
    return state._replace(models=models, step="select")


def decide(state: State, decision: Decision) -> State:
    """Go on to the final training by a decision; an earlier one stands beside one without rows.

    Without models the step `compare` is not needed, and the final training comes next.
    """
    known = state.decision if state.decision is not None and not decision.rows else decision
    return state._replace(
        step=NEXT,
        decision=known,
        reference=state.reference if known.labels else None,
        candidate=None,
        servers=(),
        models=(),
        row_limit=0,
    )


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
