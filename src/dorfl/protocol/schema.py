"""The schema of a study: its columns, and the task, classes or scale of its label."""

from __future__ import annotations

from dorfl.data import preprocessing
from dorfl.data.preprocessing import Column, Deviation, Transform, columns
from dorfl.protocol import labels, resolution
from dorfl.protocol.state import State


def settle_label(state: State, summaries: dict[str, Column]) -> State:
    """Settle the task, and the classes or the centre of a numeric label."""
    study, label = state.study, state.study.data.label
    task = resolution.task_of(study)
    if task == "auto":
        task = labels.task_from(list(summaries.values()))
    if task == "classification":
        held = {level for column in summaries.values() for level in column.levels}
        classes = tuple(columns.in_order(study.data.classes or held))
        if not (study.data.classes or state.here) and len(classes) > 2:
            check_support(label, summaries)
        if len(classes) < 2:
            raise ValueError(f"label {label!r}: the sites hold rows of one class only")
        return state.agree(classes=classes)
    scaled = preprocessing.agree(
        {s: {label: c} for s, c in summaries.items()}, labels.unit_plan(study)
    )
    if not scaled.numeric:
        raise ValueError(f"label {label!r}: {scaled.ignored.get(label, 'has too few values')}")
    return state.agree(target=scaled.numeric[0]._replace(flagged=False, missing=0.0))


def scale_label(state: State, deviations: dict[str, Deviation]) -> State:
    """Settle the scale of a numeric label from the deviations of its values."""
    name, target = state.study.data.label, state.agreed.target
    far = {site: {name: deviation} for site, deviation in deviations.items()}
    parts = () if target is None else (target,)
    scaled = preprocessing.scale(Transform(parts, {}), far, labels.unit_plan(state.study))
    return state.agree(target=scaled.numeric[0])


def check_support(label: str, summaries: dict[str, Column]) -> None:
    """Raise ValueError for classes of one site alone, which could invent any number of them."""
    for site, column in summaries.items():
        others = [set(other.levels) for name, other in summaries.items() if name != site]
        if others and (alone := set(column.levels).difference(*others)):
            raise ValueError(
                f"label {label!r}: {len(alone)} class(es) are at site {site!r} alone; name the "
                "classes that there are: [data] classes = [...]"
            )


def needs_scales(state: State) -> bool:
    """Return whether a column or the label is scaled."""
    return state.agreed.target is not None or state.study.columns.scaling != "none"


def check_columns(state: State) -> None:
    """Raise ValueError if no column is left to learn from."""
    transform = state.agreed.transform
    if not transform.names:
        reasons = "; ".join(f"{name!r}: {why}" for name, why in transform.ignored.items())
        raise ValueError(f"no column is left to learn from ({reasons or 'none but the label'})")
