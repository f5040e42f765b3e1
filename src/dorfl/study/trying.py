"""The coordinator's way through the trials of :mod:`dorfl.study.suspects`: which model is next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dorfl.data.sketch import Sketch
from dorfl.study import meaning, suspects
from dorfl.study.suspects import Judged, Trial
from dorfl.support.types import Array

if TYPE_CHECKING:
    from dorfl.study.coordinator import State


def begin(state: State, told: Sequence[Sketch]) -> State:
    """Once it is known how far rows lie out: to the first model that is tried, if any is."""
    edges = suspects.edges(told, meaning.assumed_of(state.study))
    state = state._replace(edge=edges[0], edges=edges)
    if not meaning.tries(state.study) or max(state.rows) < suspects.FEWEST:
        return state
    return state._replace(trial=Trial(0.0, suspects.most_of(len(state.roster))))


def fitted(state: State, theta: Array) -> State:
    """With one more model: to the second, or to what the rows held back say of it."""
    trial, state = state.trial, state._replace(tried=(*state.tried, theta))
    assert trial is not None
    if trial.share > 0:
        return state._replace(step="judge")
    return state._replace(trial=trial._replace(share=suspects.ASSUMED))


def judged(state: State, told: Sequence[Judged]) -> State:
    """With what the rows held back say: to the third model, or to the training itself."""
    trial, verdict = state.trial, suspects.verdict(told, state.verdict)
    assert trial is not None
    if state.verdict is None and verdict.rows and len(state.edges) > 1:
        trial, better = trial._replace(share=suspects.HALF), state.tried[verdict.share > 0]
        return state._replace(trial=trial, tried=(better,), edge=state.edges[1], verdict=verdict)
    edge = state.edges[verdict.assumed == suspects.HALF]
    return state._replace(trial=None, verdict=verdict, edge=edge)
