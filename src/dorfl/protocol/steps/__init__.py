"""The steps of a study, in order. Each is one object: :class:`Step`.

    enrol → columns → scales → location → cutoff → round … round → finish → certify

A study that leaves the share of outliers open trains candidates (`select`) and compares them
(`compare`) before its rounds. A network is trained after those (`network`). A summed study has
three steps more: `levels`, `medians` and `class centers`. A step that a study does not need is
skipped (:meth:`Step.is_due`).
"""

from __future__ import annotations

from dorfl.protocol import messages
from dorfl.protocol.step import Step
from dorfl.protocol.steps.certify import Certify
from dorfl.protocol.steps.columns import ColumnScaling, ColumnStatistics, Levels, Medians
from dorfl.protocol.steps.enrol import Enrol
from dorfl.protocol.steps.finish import Finish
from dorfl.protocol.steps.location import ClassCenters, Cutoff, Location
from dorfl.protocol.steps.network import NetworkRound
from dorfl.protocol.steps.round import TrainingRound
from dorfl.protocol.steps.select import Compare, Select

DONE = "done"  # as `State.step`: the study has ended
ORDER: list[Step] = []


def register(step: Step, before: str = DONE) -> None:
    """Add a step to all studies.

    Parameters
    ----------
    step
        The step.
    before
        Name of the step that it comes before; by default it is the last one.

    Raises
    ------
    ValueError
        If the name of the step or of a class of its answers is taken.
    """
    names = [one.name for one in ORDER]
    if step.name in (*names, DONE):
        raise ValueError(f"step {step.name!r}: this name is taken")
    kinds = step.answer if isinstance(step.answer, tuple) else (step.answer,)
    new = [kind for kind in kinds if kind not in messages.ANSWERS]
    if taken := {kind.__name__ for kind in new} & {kind.__name__ for kind in messages.ANSWERS}:
        raise ValueError(f"step {step.name!r}: rename its answer, {taken.pop()} is taken")
    ORDER.insert(names.index(before) if before != DONE else len(names), step)
    messages.ANSWERS.extend(new)


def find(name: str) -> Step | None:
    """Return the step of this name, or None."""
    return next((step for step in ORDER if step.name == name), None)


def named(name: str) -> Step:
    """Return the step of this name, which exists."""
    found = find(name)
    assert found is not None, name
    return found


def following(name: str) -> str:
    """Return the name of the next step in order."""
    names = [step.name for step in ORDER] + [DONE]
    return names[names.index(name) + 1]


for _step in (
    Enrol(),
    Levels(),
    ColumnStatistics(),
    Medians(),
    ColumnScaling(),
    Location(),
    ClassCenters(),
    Cutoff(),
    Select(),
    Compare(),
    TrainingRound(),
    NetworkRound(),
    Finish(),
    Certify(),
):
    register(_step)
