"""Steps `columns` and `scales`: agree on how columns become features, and on the label.

In a summed study two steps are added. Before it, `levels` asks for the kinds of columns and the
names of their levels, which cannot be summed. After it, `medians` finds medians by counting rows
around an estimate, again around the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dorfl.data import preprocessing, sketch
from dorfl.data.preprocessing import Column, Deviation, columns, summaries
from dorfl.data.sketch import Sketch
from dorfl.protocol import labels, private_columns, resolution
from dorfl.protocol.messages import Columns, Refused, Request, Scales
from dorfl.protocol.reply_validation import check_column, check_deviation, limit_count, limit_sketch
from dorfl.protocol.state import State
from dorfl.protocol.step import NEXT, Answers, LocalSite, Reasons, Step
from dorfl.support.types import Array

_NUMBERS = 4  # of a column beside its levels: rows, missing, Σx, Σ|x|; or Σ1, Σ log₂|x| of medians
_MAX_TURNS = 8  # sums for which a median is looked for
_OTHER_COLUMNS = "the sum is of other columns than those agreed on"


class _Statistics(Step):
    """Base of the steps about columns: summaries of the columns and the label."""

    answer = Columns
    needs_columns = False

    def local(self, site: LocalSite, request: Request) -> Columns:
        """Summarise the columns and the label."""
        agreement, study = request.agreement, request.agreement.study
        rows = site.rows(agreement)
        if study.privacy.known:
            site.noise(agreement)  # counts the run's ε before its first statistic
            return private_columns.columns(rows, agreement)
        label = labels.summarise(rows.column(study.data.label), study)
        plan = resolution.plan_of(study)
        return Columns(preprocessing.summarise(rows.select(agreement.columns), plan), label)

    def validate(self, state: State, site: str, answer: Columns) -> str | None:
        """Check every column against the rows of the site."""
        rows = state.rows_of(site)
        reasons = (check_column(column, rows) for column in _all(answer))
        return next((reason for reason in reasons if reason), None)

    def limit_rows(self, answer: Columns, rows: int, most: float) -> Columns:
        """Scale all counts and sums."""
        share = most / rows

        def limited(column: Column) -> Column:
            return column._replace(
                rows=limit_count(column.rows, share),
                missing=limit_count(column.missing, share),
                values=limit_sketch(column.values, most),
                total=tuple(part * share for part in column.total),
                levels={level: limit_count(n, share) for level, n in column.levels.items()},
            )

        own = {name: limited(column) for name, column in answer.columns.items()}
        return Columns(own, limited(answer.label))

    def validate_sum(self, state: State, answer: Columns) -> str | None:
        """Check the sums against the rows of all sites."""
        rows = sum(state.rows)
        plain = (column._replace(values=Sketch(0, ())) for column in _all(answer))
        return next((reason for one in plain if (reason := check_column(one, rows))), None)


class Levels(_Statistics):
    """Agree on the kinds of columns and the levels that are counted in sums."""

    name = "levels"
    sends = "the kinds of columns, and the names of their frequent levels"
    is_open = True
    sum_only = True

    def is_due(self, state: State) -> bool:
        """Return whether the study is a summed one."""
        return state.study.privacy.summed

    def local(self, site: LocalSite, request: Request) -> Columns:
        """Return kinds and names of levels, without counts."""
        rows = site.rows(request.agreement).num_rows

        def bare(column: Column) -> Column:
            there = 0 if column.kind == "empty" else rows
            names = dict.fromkeys(column.levels, 1)
            return Column(column.kind, there, levels=names, numbering=column.numbering)

        whole = super().local(site, request)
        return Columns({n: bare(one) for n, one in whole.columns.items()}, bare(whole.label))

    def combine(self, state: State, answers: Answers[Columns], refused: Reasons) -> State:
        """Keep the names; raise ValueError if sites read a column differently."""
        _check_names(state, answers)
        held = {level for answer in answers.values() for level in answer.label.levels}
        if not state.study.data.classes and len(held) > 2:
            labels.check_support(
                state.study.data.label, {site: answer.label for site, answer in answers.items()}
            )
        for name in next(iter(answers.values())).columns:
            kinds = {answer.columns[name].kind for answer in answers.values()} - {"empty"}
            if len(kinds) > 1:
                raise ValueError(
                    f"column {name!r} is of different kinds at different sites; declare it"
                )
        return state._replace(
            step=NEXT, column_sums=state.column_sums._replace(named=dict(answers))
        )


class ColumnStatistics(_Statistics):
    """Agree on the transformation of columns, on classes, or on the centre of the label."""

    name = "columns"
    sends = "counts, sums and sketches of the columns, and their frequent levels"
    is_summed = True
    in_private = True  # of the study's text, or the site allows reports without noise
    bits = 20

    def combine(self, state: State, answers: Answers[Columns], refused: Reasons) -> State:
        """Settle the columns and the label."""
        study, used = state.study, _check_names(state, answers)
        ordered = {s: {name: own.columns[name] for name in used} for s, own in answers.items()}
        plan = resolution.plan_of(study)
        state = state.agree(transform=preprocessing.agree(ordered, plan))
        state = labels.settle_label(state, {site: own.label for site, own in answers.items()})
        if not resolution.needs_scales(state):
            resolution.check_columns(state)
        return state._replace(step=NEXT)

    def sum_settings(self, state: State) -> dict[str, Any]:
        """Return the levels that are counted."""
        return {"levels": counted_levels(state.column_sums.named)}

    def size(self, state: State) -> int:
        """Return how many numbers count the columns and their levels."""
        levels = counted_levels(state.column_sums.named)
        return sum(_NUMBERS + len(names) for names in levels.values())

    def encode(self, site: LocalSite, request: Request, answer: Columns) -> Array:
        """Return counts, sums and sizes of every column, by name; the label is ""."""
        levels, label = request.sum.levels, request.agreement.study.data.label
        if set(levels) != {*answer.columns, ""}:
            raise Refused(_OTHER_COLUMNS)
        rows = site.rows(request.agreement)
        numbers: list[float] = []
        for name, names in sorted(levels.items()):
            column = answer.columns[name] if name else answer.label
            numbers += _column_numbers(column, rows, name or label)
            numbers += [column.levels.get(level, 0) for level in names]
        return np.array(numbers, dtype=np.float64)

    def decode(self, state: State, total: Array) -> tuple[State, Columns | None]:
        """Return the columns; with medians to find, go on to the step `medians`."""
        sums = state.column_sums
        found, units = _columns_of(
            total, sums.named, lambda name: labels.uses_median(state.study, name)
        )
        numeric = {name: column for name, column in found.columns.items() if not column.levels}
        if "regression" in (resolution.task_of(state.study), labels.task_from([found.label])):
            numeric[""] = found.label
        medians = {
            name: 0.0
            for name, column in numeric.items()
            if labels.uses_median(state.study, name) and column.kind in ("numeric", "date")
        }
        sums = sums._replace(units=units, medians=medians, found=found)
        state = state._replace(column_sums=sums)
        return (state._replace(step=Medians.name), None) if medians else (state, found)


class Medians(_Statistics):
    """Find medians of columns from sums."""

    name = "medians"
    is_summed = True
    sum_only = True

    def is_due(self, state: State) -> bool:
        """Return whether a median is left to find."""
        return bool(state.column_sums.medians)

    def sum_settings(self, state: State) -> dict[str, Any]:
        """Return units, and the last estimates of medians."""
        return {"units": state.column_sums.units, "medians": state.column_sums.medians}

    def size(self, state: State) -> int:
        """Return the numbers of all histograms."""
        return sketch.TWO_SIDED * len(state.column_sums.medians)

    def encode(self, site: LocalSite, request: Request, answer: Columns) -> Array:
        """Return histograms of the columns around the last estimates."""
        asked = request.sum
        if not set(asked.medians) <= {*answer.columns, ""} & set(asked.units):
            raise Refused(_OTHER_COLUMNS)
        parts = [
            sketch.histogram_around(
                (answer.columns[name] if name else answer.label).values, median, asked.units[name]
            )
            for name, median in sorted(asked.medians.items())
        ]
        return np.concatenate([np.zeros(0), *parts])

    def decode(self, state: State, total: Array) -> tuple[State, Columns | None]:
        """Return the columns with their medians, or None while one is not found."""
        sums = state.column_sums
        assert sums.found is not None
        turn, parts = sums.turns + 1, total.reshape(-1, sketch.TWO_SIDED)
        own, label, left = dict(sums.found.columns), sums.found.label, dict[str, float]()
        for (name, median), part in zip(sorted(sums.medians.items()), parts, strict=True):
            found = sketch.histogram_median(part, median, sums.units[name])
            if not found.found and turn < _MAX_TURNS:
                left[name] = found.value
            elif name:
                own[name] = own[name]._replace(values=found.values)
            else:
                label = label._replace(values=found.values)
        known = Columns(own, label)
        sums = sums._replace(medians=left, found=known, turns=turn)
        state = state._replace(column_sums=sums)
        if left:
            return state, None
        return state._replace(step=ColumnStatistics.name), known


def counted_levels(named: Mapping[str, Columns]) -> dict[str, tuple[str, ...]]:
    """Return the levels of every column that are counted in sums; the label is "".

    A numeric column has none if some site has more than two values of it.
    """
    if not named:
        return {}
    names = next(iter(named.values())).columns
    found = {name: _joint_levels([one.columns[name] for one in named.values()]) for name in names}
    return {**found, "": _joint_levels([one.label for one in named.values()])}


def _joint_levels(summaries: Sequence[Column]) -> tuple[str, ...]:
    used = [column for column in summaries if column.kind != "empty"]
    if not all(column.levels or column.kind == "category" for column in used):
        return ()
    return tuple(columns.in_order({level for column in used for level in column.levels}))


def _column_numbers(column: Column, rows: pa.Table, name: str) -> list[float]:
    """Return the rows, missing values, sum and size of a column."""
    total, size = sum(column.total), 0.0
    if column.total:
        size = float(np.abs(columns.present(columns.numbers(rows.column(name), name))).sum())
    elif column.values.rows:  # for medians only the order of magnitude, which is robust
        means, sizes = np.abs(column.values.means), column.values.sizes
        logs = np.log2(means, out=np.zeros_like(means), where=means > 0)
        total, size = float(sizes[means > 0].sum()), float(sizes @ logs)
    return [column.rows, column.missing, total, size]


def _columns_of(
    total: Array, named: Mapping[str, Columns], uses_median: Callable[[str], bool]
) -> tuple[Columns, dict[str, float]]:
    """Return the sum as the columns of one site with all rows, and the unit of every number.

    Columns with medians have no sum yet that says where their values are.
    """
    found, units, at = dict[str, Column](), dict[str, float](), 0
    for name, names in sorted(counted_levels(named).items()):
        own = [one.columns[name] if name else one.label for one in named.values()]
        kinds = [column.kind for column in own if column.kind != "empty"] or ["empty"]
        rows, missing, sum_, size = total[at : at + _NUMBERS].tolist()
        counts = total[at + _NUMBERS : at + _NUMBERS + len(names)].tolist()
        at += _NUMBERS + len(names)
        held = {level: round(n) for level, n in zip(names, counts, strict=True) if n > 0}
        numbers_rows = all(column.numbering for column in own if column.kind != "empty")
        sums = () if uses_median(name) else (sum_,)
        found[name] = Column(
            kinds[0], round(rows), round(missing), sums, levels=held, numbering=numbers_rows
        )
        if uses_median(name):
            units[name] = float(np.exp2(np.clip(size / max(sum_, 1.0), -900.0, 900.0)))
        else:
            units[name] = size / rows if rows > 0 and size > 0 else 1.0
    label = found.pop("")
    return Columns(found, label), units


def _all(answer: Columns) -> list[Column]:
    return [*answer.columns.values(), answer.label]


def _check_names(state: State, answers: Mapping[str, Columns]) -> list[str]:
    """Return the columns in use; raise ValueError if a site reports on others."""
    used = [name for name in state.agreed.columns if name not in state.study.columns.ignore]
    for site, answer in answers.items():
        if set(answer.columns) != set(used):
            raise ValueError(f"site {site!r}: reports on other columns than those asked for")
    return used


class ColumnScaling(Step):
    """Scale numeric columns by deviations from the centres agreed on."""

    name = "scales"
    answer = Scales
    sends = "the scale of numeric columns around the agreed medians"
    is_summed = True
    in_private = True  # as `columns`

    def is_due(self, state: State) -> bool:
        """Return whether anything is scaled."""
        return resolution.needs_scales(state)

    def local(self, site: LocalSite, request: Request) -> Scales:
        """Return the deviations of columns and label from their centres."""
        agreement, study = request.agreement, request.agreement.study
        rows, target, label = site.rows(agreement), agreement.target, None
        if study.privacy.known:
            return private_columns.scales(rows, agreement, site.noise(agreement))
        if target is not None:
            column, plan = rows.column(study.data.label), labels.unit_plan(study)
            label = summaries.deviation(column, target, plan)
        plan = resolution.plan_of(study)
        return Scales(preprocessing.deviations(rows, agreement.transform, plan), label)

    def validate(self, state: State, site: str, answer: Scales) -> str | None:
        """Check every deviation against the rows of the site."""
        rows = state.rows_of(site)
        noisy = bool(state.study.privacy.known)
        reasons = (check_deviation(one, rows, has_noise=noisy) for one in _deviations(answer))
        return next((reason for reason in reasons if reason), None)

    def limit_rows(self, answer: Scales, rows: int, most: float) -> Scales:
        """Scale all counts and sums."""
        share = most / rows

        def limited(deviation: Deviation) -> Deviation:
            squares = tuple(part * share for part in deviation.squares)
            distances = limit_sketch(deviation.distances, most)
            return Deviation(limit_count(deviation.rows, share), squares, distances)

        own = {name: limited(deviation) for name, deviation in answer.columns.items()}
        return Scales(own, None if answer.label is None else limited(answer.label))

    def combine(self, state: State, answers: Answers[Scales], refused: Reasons) -> State:
        """Settle the scales."""
        transform, study = state.agreed.transform, state.study
        for site, answer in answers.items():
            if set(answer.columns) != {part.name for part in transform.numeric}:
                raise ValueError(f"site {site!r}: reports on other columns than those asked for")
            if (answer.label is None) != (state.agreed.target is None):
                raise ValueError(f"site {site!r}: its answer does not fit the label")
        if transform.scaling != "none":
            own = {site: answer.columns for site, answer in answers.items()}
            plan = resolution.plan_of(study)
            state = state.agree(transform=preprocessing.scale(transform, own, plan))
        if state.agreed.target is not None:
            state = labels.scale_label(state, {s: a.label for s, a in answers.items() if a.label})
        resolution.check_columns(state)
        return state._replace(step=NEXT)

    def sum_settings(self, state: State) -> dict[str, Any]:
        """Return the units of columns."""
        return {"units": state.column_sums.units}

    def size(self, state: State) -> int:
        """Return the numbers of all columns."""
        return sum(_widths(state))

    def encode(self, site: LocalSite, request: Request, answer: Scales) -> Array:
        """Return counts, and squares or histograms of deviations, in units agreed on."""
        units, study = request.sum.units, request.agreement.study
        if not {*answer.columns, ""} <= set(units):
            raise Refused(_OTHER_COLUMNS)
        own = sorted(answer.columns.items())
        own += [] if answer.label is None else [("", answer.label)]
        parts = [
            np.r_[one.rows, sketch.histogram(one.distances, units[name])]
            if labels.uses_median(study, name)
            else np.array([one.rows, sum(one.squares) / units[name] ** 2])
            for name, one in own
        ]
        return np.concatenate([np.zeros(0), *parts])

    def decode(self, state: State, total: Array) -> tuple[State, Scales]:
        """Return the deviations of all rows."""
        names = sorted(part.name for part in state.agreed.transform.numeric)
        units = state.column_sums.units

        def deviation(name: str, part: Array) -> Deviation:
            if labels.uses_median(state.study, name):
                distances = sketch.from_histogram(part[1:], units[name])
                return Deviation(round(part[0]), distances=distances)
            return Deviation(round(part[0]), (max(float(part[1]), 0.0) * units[name] ** 2,))

        parts = np.split(total, np.cumsum(_widths(state))[:-1])
        found = {
            name: deviation(name, part) for name, part in zip([*names, ""], parts, strict=False)
        }
        return state, Scales({name: found[name] for name in names}, found.get(""))

    def validate_sum(self, state: State, answer: Scales) -> str | None:
        """Check the sums against the rows of all sites."""
        odd = any(not 0 <= one.rows <= sum(state.rows) for one in _deviations(answer))
        return "a column has more or fewer values than there are rows" if odd else None


def _deviations(answer: Scales) -> list[Deviation]:
    return [*answer.columns.values(), *([answer.label] if answer.label else [])]


def _widths(state: State) -> list[int]:
    """Return how many numbers are summed for every column, and for a numeric label."""
    names = sorted(part.name for part in state.agreed.transform.numeric)
    names += [""] if state.agreed.target is not None else []
    return [1 + sketch.ONE_SIDED if labels.uses_median(state.study, name) else 2 for name in names]
