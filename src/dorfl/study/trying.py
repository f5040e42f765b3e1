"""The coordinator's way through the trials of :mod:`dorfl.study.suspects`: which model is next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dorfl.data import spread
from dorfl.data.sketch import Sketch
from dorfl.data.spread import Place
from dorfl.study import meaning, suspects
from dorfl.study.edges import edges_of
from dorfl.study.suspects import Judged, Trial
from dorfl.support.types import Array

if TYPE_CHECKING:
    from dorfl.study.coordinator import State


def begin(state: State, told: Sequence[Sketch]) -> State:
    """Once it is known how far rows lie out: to the first model that is tried, if any is."""
    edges = edges_of(told, meaning.assumed_of(state.study))
    state = state._replace(edge=edges[0], edges=edges)
    if not meaning.tries(state.study) or max(state.rows) < suspects.FEWEST:
        return state
    return state._replace(trial=Trial(0.0, suspects.most_of(len(state.roster))))


def labels(state: State, told: Sequence[Place], own: bool, shape: Array) -> State:
    """Where no row can lie far out, only labels that are numbers can be wrong: if that is tried."""
    asked = state.study.method.scores and meaning.tries(state.study) and _looks(state)
    if not asked or max(state.rows) < suspects.FEWEST:
        return state
    trial = Trial(0.0, suspects.most_of(len(state.roster)))
    centers = spread.centers_of(told, own, shape)
    return state._replace(centers=centers, edge=1.0, edges=(1.0,), trial=trial)


def fitted(state: State, theta: Array) -> State:
    """With one more model: to the second, or to what the rows held back say of it."""
    trial, state = state.trial, state._replace(tried=(*state.tried, theta))
    assert trial is not None
    if not meaning.shape_of(state).any():  # no row lies far out, so the second is the first
        state = state._replace(tried=(state.tried[0], theta))
    if len(state.tried) > 1:
        return state._replace(step="judge")
    return state._replace(trial=trial._replace(share=suspects.ASSUMED))


def judged(state: State, told: Sequence[Judged]) -> State:
    """With what the rows held back say: to one more model, or to the training itself."""
    trial, before = state.trial, state.verdict
    assert trial is not None
    verdict = suspects.verdict(told, before, labels=trial.labels)
    aside = verdict.share > 0 if before is None else trial.labels and verdict.labels > 0
    better = state.tried[aside : aside + 1]
    known = state.reference if verdict.labels > 0 else None
    state = state._replace(verdict=verdict, tried=better, reference=known)
    share = suspects.ASSUMED if verdict.share > 0 else 0.0
    if before is None and _looks(state) and suspects.misfit(told) > 0:
        trial = trial._replace(share=share, labels=True)
        return state._replace(trial=trial, reference=better[0])
    if trial.share != suspects.HALF and verdict.rows and len(state.edges) > 1:
        trial = trial._replace(share=suspects.HALF, labels=False)
        return state._replace(trial=trial, edge=state.edges[1])
    edge = state.edges[verdict.assumed == suspects.HALF]
    return state._replace(trial=None, edge=edge)


def _looks(state: State) -> bool:
    """Whether labels are numbers, and of a linear model: a network's rows are not weighed so."""
    network = state.network or state.study.training.model != "linear"
    return state.target is not None and not network
