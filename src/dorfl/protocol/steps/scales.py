"""Step `scales`: agree on the scale of every numeric column, and on that of a numeric label."""

from __future__ import annotations

from typing import Any

import numpy as np

from dorfl.data import preprocessing, sketch
from dorfl.data.preprocessing import Deviation, summaries
from dorfl.protocol import labels, private_columns, resolution
from dorfl.protocol.messages import Refused, Request, Scales
from dorfl.protocol.reply_validation import check_deviation, limit_count, limit_sketch
from dorfl.protocol.state import State
from dorfl.protocol.step import NEXT, Answers, LocalSite, Reasons, Step
from dorfl.support.types import Array


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
        reasons = (check_deviation(one, rows, has_noise=noisy) for one in _all(answer))
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
            raise Refused("the sum is of other columns than those agreed on")
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
        odd = any(not 0 <= one.rows <= sum(state.rows) for one in _all(answer))
        return "a column has more or fewer values than there are rows" if odd else None


def _all(answer: Scales) -> list[Deviation]:
    return [*answer.columns.values(), *([answer.label] if answer.label else [])]


def _widths(state: State) -> list[int]:
    """Return how many numbers are summed for every column, and for a numeric label."""
    names = sorted(part.name for part in state.agreed.transform.numeric)
    names += [""] if state.agreed.target is not None else []
    return [1 + sketch.ONE_SIDED if labels.uses_median(state.study, name) else 2 for name in names]
