"""What a model guarantees in a person's words, as it is computed and written down for a study."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dorfl.guarantees import bound
from dorfl.guarantees.certified import DRIFT, Bounds, Certified, certify
from dorfl.study import meaning
from dorfl.study.coordinator import State
from dorfl.study.model import Model
from dorfl.study.model.facts import Promise, Promised
from dorfl.study.rows import Rows


def of_study(state: State, drift: float = DRIFT) -> Promise | None:
    """What a finished model guarantees at the study's share of wrong rows, if every site told."""
    shown = state.shown
    if not state.told or set(state.told) != set(shown):
        return None
    rows = np.array([*shown.values()], dtype=float)
    asked, less = meaning.certificates(state, meaning.thin(state))
    told = tuple(state.told[site] for site in shown)
    if any(len(one.near) < len(asked.shares) for one in told):
        told, asked = tuple(bound.shortened(one, asked, less) for one in told), less
    found = Certified(
        meaning.wrong_of(state), drift, tuple(shown), tuple(shown.values()), rows / rows.sum(),
        told, asked, meaning.problem_of(state).loss,
        1.0 if state.target is None else state.target.spread,
    )  # fmt: skip
    return written(found, summed=state.study.privacy.secure_sum)


def of_model(model: Model, rows: Rows, outliers: float, drift: float) -> Certified:
    """What a model guarantees on rows of any clients, those of categories and flags frozen."""
    named = model.facts.settings.get("columns", {}).get("frozen", [])
    frozen = {k for k, name in enumerate(model.transform.sources) if name in named}
    found = certify(
        model.fit, rows.clients, outliers, drift, frozen=sorted({*model.transform.frozen, *frozen})
    )
    return found if model.target is None else replace(found, unit=model.target.spread)


def written(found: Certified, *, summed: bool = False) -> Promise:
    """A certificate as it is written down; of what is `summed`, nothing by client."""
    lines = [
        ("all clients, by their rows", found.at()),
        *([] if summed else [("every mixture of clients", found.every)]),
        ("all, however far out", found.anywhere),
    ]
    return Promise(
        found.outliers, found.drift, found.words, found.assumption,
        tuple(_line(*named) for named in lines),
        () if summed else tuple(_line(*named) for named in found.clients.items()),
        tuple(_line(f"{drift:g}", at) for drift, at in found.over_drift()),
        tuple(_line(f"{share:g}", at) for share, at in found.over_outliers()),
    )  # fmt: skip


def _line(name: str, at: Bounds) -> Promised:
    told = (at.loss, at.error, at.accuracy)
    return Promised(name, *(v if v is not None and np.isfinite(v) else None for v in told))
