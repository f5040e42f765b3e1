"""What columns and the label are settled as, from what sites tell of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dorfl
from dorfl.data import preprocessing
from dorfl.data.preprocessing import Column, Deviation, Transform, columns
from dorfl.protocol import labels, resolution, summing
from dorfl.protocol.messages import Columns, Enrolled

if TYPE_CHECKING:
    from dorfl.protocol.coordinator import State


def enrolled(state: State, answers: dict[str, Enrolled], _: dict[str, str]) -> State:
    """Who has how many rows, and the columns that all have."""
    first = state.roster[0]
    columns = state.study.columns.use or answers[first].columns
    for site, told in answers.items():
        odd = set(told.columns) ^ set(columns)
        if odd:
            raise ValueError(
                f"column {min(odd)!r}: site {site!r} and site {first!r} do not agree on it; name "
                "the columns that all have: [columns] use = [...]"
            )
        if told.rows < state.study.privacy.minimum_rows:
            raise ValueError(f"site {site!r}: enrols with fewer rows than the study's minimum")
    rows = tuple(answers[site].rows for site in state.roster)
    if state.study.privacy.summed:
        _check_replay(answers)
        keys = {site: answers[site].key for site in state.roster}
        state = state._replace(keys=keys)
    return state._replace(step="columns", rows=rows, columns=columns)


def _check_replay(answers: dict[str, Enrolled]) -> None:
    """Raise if sites could not compute the same requests, or not sum."""
    for site, told in answers.items():
        if told.version != dorfl.__version__:
            raise ValueError(
                f"site {site!r} runs dorfl {told.version[:20]} and another party "
                f"{dorfl.__version__}; in a summed study all need the same version, because each "
                "computes the coordinator's requests itself"
            )
        if len(told.key) != 32:
            raise ValueError(f"site {site!r}: enrols without a key to sum with")


def settle_label(state: State, told: dict[str, Column]) -> State:
    """Which classes there are, or where the middle of a number is; if left open, what it is."""
    study, label = state.study, state.study.data.label
    task = resolution.task_of(study)
    if task == "auto":
        task = labels.task_from(list(told.values()))
    if task == "classification":
        held = {level for column in told.values() for level in column.levels}
        classes = tuple(columns.in_order(study.data.classes or held))
        if not (study.data.classes or state.here) and len(classes) > 2:
            check_support(label, told)
        if len(classes) < 2:
            raise ValueError(f"label {label!r}: the sites hold rows of one class only")
        return state._replace(classes=classes)
    scaled = preprocessing.agree({s: {label: c} for s, c in told.items()}, labels.unit_plan(study))
    if not scaled.numeric:
        raise ValueError(f"label {label!r}: {scaled.ignored.get(label, 'has too few values')}")
    return state._replace(target=scaled.numeric[0]._replace(flagged=False, missing=0.0))


def scale_label(state: State, told: dict[str, Deviation]) -> State:
    """The unit of a label that is a number, from how far its values are from the middle."""
    assert state.target is not None
    far = {site: {state.target.name: deviation} for site, deviation in told.items()}
    scaled = preprocessing.scale(Transform((state.target,), {}), far, labels.unit_plan(state.study))
    return state._replace(target=scaled.numeric[0])


def check_support(label: str, told: dict[str, Column]) -> None:
    """Raise for classes that nobody confirms: one site could invent any number of them."""
    for site, column in told.items():
        others = [set(other.levels) for name, other in told.items() if name != site]
        if others and (alone := set(column.levels).difference(*others)):
            raise ValueError(
                f"label {label!r}: {len(alone)} class(es) are at site {site!r} alone; name the "
                "classes that there are: [data] classes = [...]"
            )


def levels(state: State, answers: dict[str, Columns]) -> State:
    """What can be summed, once it is known of which kind columns are and which levels occur."""
    used = {name for name in state.columns if name not in state.study.columns.ignore}
    for site, told in answers.items():
        if set(told.columns) != used:
            raise ValueError(f"site {site!r}: tells of other columns than those asked for")
    held = {level for told in answers.values() for level in told.label.levels}
    if not state.study.data.classes and len(held) > 2:
        check_support(state.study.data.label, {site: told.label for site, told in answers.items()})
    odd = summing.disagree(answers)
    if odd is not None:
        raise ValueError(f"column {odd!r} is of different kinds at different sites; declare it")
    return state._replace(step="columns", sum=state.sum._replace(named=answers))
