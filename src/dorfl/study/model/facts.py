"""What is known of a model beside its numbers: data, choice, clients, guarantee. One record.

A table's model and a federation's have the same; what only rows can tell and nobody was told is
left out. It is written into `model.json` and comes back with every field checked.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from dorfl.support import wire
from dorfl.support.text import scored


class Served(NamedTuple):
    """How a client is served on the rows trained with: mean loss, and accuracy or mean error."""

    name: str
    rows: int
    loss: float | None = None
    score: float | None = None


class Weights(NamedTuple):
    """How many rows have which weight, 1 being that of an ordinary row; from which edge on."""

    edges: tuple[float, ...]
    rows: tuple[int, ...]


class Learnt(NamedTuple):
    """The loss training weighed rows for, and that of the best constant prediction."""

    loss: float
    constant: float


class Guarantee(NamedTuple):
    """The certificate: see :class:`dorfl.Certificate`; `firm` where it is more than an estimate."""

    radius: float
    bound: float
    attained: float
    firm: bool
    words: str
    curve: tuple[tuple[float, float], ...] = ()


class HeldOut(NamedTuple):
    """What a method scores on rows it was not trained with: overall, at worst, and by client.

    Where a share of the rows may be wrong, so many of every client's are left out, those furthest
    out, and `all_rows` is the score with them.
    """

    method: str
    overall: float
    worst: float
    client: str  # whose is the worst
    clients: dict[str, float]
    all_rows: float | None = None


class Promised(NamedTuple):
    """The most a mean loss and an error can be, the least an accuracy can; nothing: no bound."""

    name: str
    loss: float | None
    error: float | None
    accuracy: float | None


class Promise(NamedTuple):
    """What the model guarantees in a person's words: see :class:`dorfl.Certified`.

    `overall` has the bounds of the mixture, of every mixture at once, and of the mixture with
    nothing assumed; the curves' lines are named by the drift and by the share of wrong rows.
    """

    outliers: float
    drift: float
    words: str
    assumption: str
    overall: tuple[Promised, ...]
    clients: tuple[Promised, ...]
    over_drift: tuple[Promised, ...]
    over_outliers: tuple[Promised, ...]


class Facts(NamedTuple):
    """See the module's text; `settings` is the study as plain JSON."""

    rows: int = 0
    notes: tuple[str, ...] = ()
    choice: tuple[str, ...] = ()
    clients: tuple[Served, ...] = ()
    center: tuple[float, ...] = ()
    weights: Weights | None = None
    learnt: Learnt | None = None
    certificate: Guarantee | None = None
    warnings: tuple[str, ...] = ()  # what must not be missed
    held_out: tuple[HeldOut, ...] = ()
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed in place
    promise: Promise | None = None
    reference: tuple[float, ...] = ()  # θ by which labels were found not to fit, where they were

    @property
    def promised(self) -> str:
        """What is certified; and where rows held out are served worse, that it is of others.

        It is about the rows trained with, which a model of many columns may know by heart.
        """
        if self.promise is None:
            return ""
        at, words = self.promise.overall[0], self.promise.words
        seen = self.held_out[0].overall if self.held_out else None
        if seen is None or (at.accuracy is None and at.error is None):
            return words
        if at.accuracy is not None:
            worse, what, more = seen < at.accuracy, "accuracy", "no more"
        else:
            worse, what, more = seen > (at.error or 0.0), "the mean absolute error", "no less"
        if not worse:
            return words
        return (
            f"{words} That is about the rows trained with: on rows held out {what} is "
            f"{scored(seen, at.accuracy is not None)}, so expect {more} of new ones."
        )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        plain: dict[str, Any] = json.loads(wire.encode(self))
        return plain


def from_json(written: Any) -> Facts:
    """The facts written down, by this version or an older one; ValueError where damaged."""
    if not isinstance(written, dict):
        raise ValueError("its facts are damaged")
    plain = {**written, **_entry(written.get("data"))}
    plain["clients"] = [_with(Served, entry) for entry in plain.get("clients") or []]
    for name, kind in (("weights", Weights), ("certificate", Guarantee), ("learnt", Learnt)):
        plain[name] = None if plain.get(name) is None else _with(kind, plain[name])
    settings = _entry(plain.pop("settings", {}))
    plain.setdefault("promise", None)
    known = {name: hint for name, hint in wire.hints(Facts).items() if name in plain}
    read = {name: wire.read(plain[name], hint, name, True) for name, hint in known.items()}
    return Facts(**read, settings=settings)


def _entry(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _with(kind: Any, written: Any) -> dict[str, Any]:
    """A record as it is written now: what an older version left out as by default."""
    entry = _entry(written)
    if kind is Guarantee:
        entry = {"firm": entry.get("error") is not None, **entry}
    known = {name: entry[name] for name in kind._fields if name in entry}
    defaults = {n: list(v) if isinstance(v, tuple) else v for n, v in kind._field_defaults.items()}
    return {**defaults, **known}
