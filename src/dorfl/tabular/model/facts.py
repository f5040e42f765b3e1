"""Record what is known of a model beside its parameters: data, choice, clients, guarantee.

Models of tables and of federations have the same record; statistics that sites did not report are
left out. It is written into `model.json` and checked field by field when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from dorfl.certificates.certified import Frame
from dorfl.support import wire

MIN_ROWS = 20  # rows below which no client is named the worst: 50 % ± 11 points at 20 rows


class ClientStatistics(NamedTuple):
    """A client's statistics on the rows trained with.

    Attributes
    ----------
    name, rows
        The client and its number of rows.
    loss
        Mean loss, rows weighed as in training: outliers hardly count.
    score
        Accuracy, or mean absolute error, over all rows; outliers count like other rows.
    """

    name: str
    rows: int
    loss: float | None = None
    score: float | None = None


class Weights(NamedTuple):
    """Histogram of the rows' weights, in units of an ordinary row's weight.

    Attributes
    ----------
    edges, rows
        Lower edges of the bins and their counts; bins of fewer than five rows are left out.
    low
        Number of down-weighted rows: those below half of an ordinary row's weight.
    """

    edges: tuple[float, ...]
    rows: tuple[int, ...]
    low: int | None = None


class Validation(NamedTuple):
    """Held-out losses that decided on the share of outliers: the selected one's and share 0's."""

    loss: float
    plain: float


class LossComparison(NamedTuple):
    """Loss of the model and of the best constant prediction, rows weighed as in training."""

    loss: float
    constant: float


class PaperCertificate(NamedTuple):
    """The certificate: see :class:`dorfl.Certificate`; `firm` where it is more than an estimate."""

    radius: float
    bound: float
    attained: float
    firm: bool
    words: str
    curve: tuple[tuple[float, float], ...] = ()


class Estimate(NamedTuple):
    """A mean over rows, its standard error (None if unknown) and the number of rows."""

    mean: float
    error: float | None
    rows: int


class HeldOutScores(NamedTuple):
    """Scores of a method on rows it was not trained with.

    A score is the accuracy, or the mean absolute error. An inlier is a row that the saved model
    gives at least half of an ordinary row's weight.

    Attributes
    ----------
    method
        Name of the method.
    overall
        Score over inliers; the error is that of a sample stratified by client.
    clients
        Score of each client over inliers.
    loss
        Mean Brier score over inliers; None for a regression, and in older models.
    all_rows
        Score over all held-out rows; None if all of them are inliers.
    """

    method: str
    overall: Estimate
    clients: dict[str, Estimate]
    loss: Estimate | None = None
    all_rows: Estimate | None = None


def worst_client(clients: Mapping[str, Estimate], classifies: bool) -> str | None:
    """Return the client with the worst score among those with at least `MIN_ROWS` rows.

    >>> scores = {"a": Estimate(0.9, 0.05, 40), "b": Estimate(0.8, 0.06, 40)}
    >>> worst_client({**scores, "few": Estimate(0.5, 0.2, 6)}, classifies=True)
    'b'
    """
    known = {name: found.mean for name, found in clients.items() if found.rows >= MIN_ROWS}
    if not known:
        return None
    return (min if classifies else max)(known, key=known.__getitem__)


class Promised(NamedTuple):
    """Upper bounds of mean loss and error, lower bound of the accuracy; None: no bound."""

    name: str
    loss: float | None
    error: float | None
    accuracy: float | None


class Promise(NamedTuple):
    """A certificate: see :class:`dorfl.Certified`.

    `overall` has the bounds of all clients by their rows and of every mixture at once. The lines of
    the curves are named by the drift and by the share of outliers. `confidence` is that of the
    statement for rows to come; None for the in-sample form.
    """

    outliers: float
    drift: float
    words: str
    assumption: str
    overall: tuple[Promised, ...]
    clients: tuple[Promised, ...]
    over_drift: tuple[Promised, ...]
    over_outliers: tuple[Promised, ...]
    confidence: float | None = None


class Facts(NamedTuple):
    """See the module's text; `settings` is the study as plain JSON."""

    rows: int = 0
    notes: tuple[str, ...] = ()
    choice: tuple[str, ...] = ()
    clients: tuple[ClientStatistics, ...] = ()
    center: tuple[float, ...] = ()
    weights: Weights | None = None
    learnt: LossComparison | None = None
    certificate: PaperCertificate | None = None
    warnings: tuple[str, ...] = ()  # what must not be missed
    held_out: tuple[HeldOutScores, ...] = ()
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed in place
    promise: Promise | None = None
    reference: tuple[float, ...] = ()  # (θ, σ) by which rows with outlying labels are down-weighted
    outliers: float | None = None  # share of outliers that training assumed, as given or decided
    frame: Frame | None = None  # units, centres and range of certificates, from the training rows
    table: str = ""  # fingerprint of the training table
    validation: Validation | None = None  # if a share of outliers was selected on held-out rows
    errors: tuple[tuple[float, ...], ...] = ()  # standard errors of coefficients, by output

    @property
    def promised(self) -> str:
        """The statement of the certificate, with a warning if it is about the training rows."""
        if self.promise is None:
            return ""
        if self.promise.confidence is not None:
            return self.promise.words
        return f"{self.promise.words} This is not a statement about rows to come."

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON."""
        plain: dict[str, Any] = json.loads(wire.encode(self))
        return plain


_RECORDS: dict[str, Any] = {
    "weights": Weights,
    "certificate": PaperCertificate,
    "learnt": LossComparison,
    "promise": Promise,
    "validation": Validation,
}


def from_json(written: Any) -> Facts:
    """Return the facts that this version or an older one wrote; ValueError if damaged."""
    if not isinstance(written, dict):
        raise ValueError("its facts are damaged")
    plain = {**written, **_entry(written.get("data"))}
    plain["clients"] = [_with(ClientStatistics, entry) for entry in plain.get("clients") or []]
    plain["held_out"] = [_held_out(entry) for entry in plain.get("held_out") or []]
    for name, kind in _RECORDS.items():
        plain[name] = None if plain.get(name) is None else _with(kind, plain[name])
    settings, frame = _entry(plain.pop("settings", {})), _entry(plain.get("frame"))
    if "tells" in frame:  # written before 0.3
        plain["frame"] = {"distance": frame.pop("tells"), **frame}
    known = {name: hint for name, hint in wire.hints(Facts).items() if name in plain}
    read = {name: wire.read(plain[name], hint, name, True) for name, hint in known.items()}
    return Facts(**read, settings=settings)


def _entry(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _held_out(written: Any) -> dict[str, Any]:
    """Return scores as they are written now; older models have no standard errors."""
    entry = _entry(written)
    if not isinstance(entry.get("overall"), int | float):
        return {**HeldOutScores._field_defaults, **entry}

    def known(mean: Any) -> dict[str, Any] | None:
        return None if mean is None else {"mean": mean, "error": None, "rows": 0}

    return {
        "method": entry.get("method"),
        "overall": known(entry["overall"]),
        "clients": {name: known(mean) for name, mean in _entry(entry.get("clients")).items()},
        "loss": None,
        "all_rows": known(entry.get("all_rows")),
    }


def _with(kind: Any, written: Any) -> dict[str, Any]:
    """Return a record as it is written now; fields that older versions lack have defaults."""
    entry = _entry(written)
    if kind is PaperCertificate:
        entry = {"firm": entry.get("error") is not None, **entry}
    known = {name: entry[name] for name in kind._fields if name in entry}
    defaults = {n: list(v) if isinstance(v, tuple) else v for n, v in kind._field_defaults.items()}
    return {**defaults, **known}
