"""Certificates of a study's model: computed, and in the form in which a model folder keeps them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from dorfl.certificates import bound, certified
from dorfl.certificates.certified import (
    CONFIDENCE,
    DRIFT,
    Bounds,
    Certified,
    Confident,
    Frame,
    InSample,
)
from dorfl.protocol import resolution
from dorfl.protocol.settings import Study
from dorfl.protocol.state import State
from dorfl.support import wire
from dorfl.tabular.model import Model
from dorfl.tabular.model.facts import Promise, Promised
from dorfl.tabular.rows import Rows, rows_for

HELD_OUT = "the model trained on four fifths of the rows"
_SAMPLES = 64  # blocks of a file that identify it, evenly spaced
_BLOCK = 65_536  # bytes of each


def of_study(state: State, drift: float = DRIFT) -> Promise | None:
    """Return the in-sample certificate of a finished study; None if a site's part is missing."""
    shown = state.reported_rows
    if not state.bounds or set(state.bounds) != set(shown):
        return None
    rows = np.array([*shown.values()], dtype=float)
    grid, less = resolution.certificate_grids(state.agreed, resolution.grid_stride(state))
    reports = tuple(state.bounds[site] for site in shown)
    if any(report.loss.shape[1] < len(grid.shares) for report in reports):
        reports = tuple(bound.restrict_report(report, grid, less) for report in reports)
        grid = less
    found = InSample(
        outliers=resolution.share_of(state.agreed),
        drift=drift,
        names=tuple(shown),
        classifies=resolution.problem_of(state.agreed).loss.classifies,
        unit=1.0 if state.agreed.target is None else state.agreed.target.spread,
        lam=rows / rows.sum(),
        reports=reports,
        request=grid,
    )
    return written(found, summed=state.study.privacy.summed)


def of_model(
    model: Model, rows: Rows, outliers: float, drift: float, confidence: float | None = CONFIDENCE
) -> Certified:
    """Return the certificate of a linear model for rows of any clients.

    Rows must be others than those trained with, unless `confidence` is None: the in-sample form.
    """
    frame, unit = model.facts.frame, 1.0 if model.target is None else model.target.spread
    fit, clients = model.fit, rows.clients
    if confidence is None or frame is None:
        found = certified.certify(
            fit, clients, outliers, drift, confidence=confidence, frozen=_frozen(model)
        )
        return replace(found, unit=unit)
    certified.check(outliers, drift, confidence)
    made = certified.confident(fit.problem, fit.theta, clients, frame, outliers, drift, confidence)
    return replace(made, unit=unit)


def frame_of(model: Model, rows: Rows) -> Frame:
    """Return the units, centres and range of a model's certificates, from its training rows."""
    return certified.measure(model.fit.problem, model.fit.theta, rows.clients, _frozen(model))


def of_held_out(
    model: Model, trained: Rows, held: Rows, outliers: float, drift: float, confidence: float
) -> Confident:
    """Return the certificate of a model trained on a part of a table, from the held-out rows."""
    certified.check(outliers, drift, confidence)
    frame = frame_of(model, trained)
    found = certified.confident(
        model.fit.problem, model.fit.theta, held.clients, frame, outliers, drift, confidence,
        about=HELD_OUT,
    )  # fmt: skip
    return replace(found, unit=1.0 if model.target is None else model.target.spread)


def of_table(
    model: Model,
    table: Path,
    outliers: float,
    drift: float,
    confidence: float,
    tick: Callable[[], object],
) -> Confident:
    """Return the certificate that `dorfl train` gave for this training table.

    A model is trained on four fifths of the rows, as in `dorfl train`, and certified on the rest.
    """
    from dorfl.tabular import held_out  # noqa: PLC0415 - it needs this module, through the table

    study = wire.read(model.facts.settings, Study, "settings", True).changed(data_file=str(table))
    models, prepared, rest = held_out.train_models(study, model, tick)
    own = next(iter(models.values()))
    return of_held_out(own, prepared.rows, rows_for(own, rest), outliers, drift, confidence)


def fingerprint(path: Path) -> str:
    """Return a digest of a file's size and of blocks of its bytes; empty if there is no file."""
    if not path.is_file():
        return ""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for place in np.linspace(0, max(size - _BLOCK, 0), _SAMPLES, dtype=np.int64).tolist():
            file.seek(place)
            digest.update(file.read(_BLOCK))
    return digest.hexdigest()


def is_training_table(model: Model, path: Path) -> bool:
    """Return whether a file is the table that a linear model was trained on."""
    known = model.facts.table
    return bool(known) and not model.network and fingerprint(path) == known


def _frozen(model: Model) -> list[int]:
    """Return the columns that cannot drift: categories, flags, and those that the study names."""
    named = model.facts.settings.get("columns", {}).get("frozen", [])
    frozen = {k for k, name in enumerate(model.transform.sources) if name in named}
    return sorted({*model.transform.frozen, *frozen})


def written(found: Certified, *, summed: bool = False) -> Promise:
    """Return a certificate as a model folder keeps it, without lines by client if `summed`."""
    lines = [
        ("all clients, by their rows", found.at()),
        *([] if summed else [("every mixture of clients", found.every)]),
    ]
    return Promise(
        found.outliers, found.drift, found.words, found.assumption,
        tuple(_line(*named) for named in lines),
        () if summed else tuple(_line(*named) for named in found.clients.items()),
        tuple(_line(f"{drift:g}", at) for drift, at in found.over_drift()),
        tuple(_line(f"{share:g}", at) for share, at in found.over_outliers()),
        found.confidence if isinstance(found, Confident) else None,
    )  # fmt: skip


def _line(name: str, at: Bounds) -> Promised:
    figures = (at.loss, at.error, at.accuracy)
    return Promised(name, *(v if v is not None and np.isfinite(v) else None for v in figures))
