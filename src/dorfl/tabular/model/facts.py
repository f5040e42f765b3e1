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
    """A client's statistics on the rows trained with."""

    name: str
    rows: int
    loss: float | None = None  # mean, rows weighed as in training: outliers hardly count
    score: float | None = None  # accuracy, or mean absolute error; outliers count like other rows


class Weights(NamedTuple):
    """Histogram of the rows' weights, in units of an ordinary row's weight."""

    edges: tuple[float, ...]  # lower edges of the bins
    rows: tuple[int, ...]  # bins of fewer than five rows are left out
    low: int | None = None  # down-weighted rows: those below half of an ordinary row's weight


class Validation(NamedTuple):
    """Held-out losses that decided on the share of outliers: the selected one's and share 0's."""

    loss: float
    plain: float


class LossComparison(NamedTuple):
    """Loss of the model and of the best constant prediction, rows weighed as in training."""

    loss: float
    constant: float


class PaperCertificate(NamedTuple):
    """The paper's certificate, :class:`dorfl.Certificate`; an estimate unless `firm`."""

    radius: float
    bound: float
    attained: float
    firm: bool
    words: str


class Estimate(NamedTuple):
    """A mean over rows, its standard error (None if unknown) and the number of rows."""

    mean: float
    error: float | None
    rows: int


class HeldOutScores(NamedTuple):
    """Accuracy, or mean absolute error, of a method on rows it was not trained with.

    An inlier is a row that the saved model gives at least half of an ordinary row's weight.
    """

    method: str
    overall: Estimate  # over inliers, stratified by client
    clients: dict[str, Estimate]  # over inliers
    loss: Estimate | None = None  # Brier score over inliers; None for a regression
    all_rows: Estimate | None = None  # None if all held-out rows are inliers


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
    """What is known of a model; `settings` is the study as plain JSON."""

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
    ridge: float = 1.0  # l2 in multiples of its default, as decided
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


def from_json(written: Any) -> Facts:
    """Return the facts of a model folder; raise ValueError or KeyError if they are damaged."""
    if not isinstance(written, dict) or not isinstance(written.get("settings"), dict):
        raise ValueError("its facts are damaged")
    hints = {name: hint for name, hint in wire.hints(Facts).items() if name != "settings"}
    fields = {name: wire.read(written[name], hint, name, True) for name, hint in hints.items()}
    return Facts(**fields, settings=written["settings"])
