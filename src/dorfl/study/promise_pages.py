"""What a model promises, as parts of a page: curves over drift and wrong rows, bounds by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dorfl.guarantees.certified import ceiled, down, floored, up
from dorfl.report.content import (
    Beside,
    Block,
    Details,
    Figure,
    Finding,
    Page,
    Section,
    Series,
    Table,
    Text,
)
from dorfl.study.model.facts import Promise, Promised

ROOM = 16  # clients in a table


def of_promises(found: dict[str, Promise], label: str) -> Page:
    """What models guarantee, beside each other, on one page."""
    words = [
        Text([f"{name}: {promise.words}", promise.assumption]) for name, promise in found.items()
    ]
    sections = [
        Section("What is certified", [*words, *certified(found)]),
        Section("How far it reaches", curves(found)),
    ]
    lead = "How bad it can get if some rows are wrong and the others drift: bounds, not estimates."
    cards = [promised(promise, name) for name, promise in found.items()]
    return Page(f"What is guaranteed for {label}", lead, cards, sections)


def promised(promise: Promise, name: str = "") -> Finding:
    """The first thing to be read: what is certified under which words."""
    at, of = promise.overall[0], f"{name}: " if name else ""
    terms = f"{100 * promise.outliers:.3g} % of rows wrong, drift {promise.drift:.3g}"
    if at.accuracy is not None:
        return Finding(f"{of}certified accuracy, {terms}", f"≥ {floored(at.accuracy)}", True)
    error = "no bound" if at.error is None else f"≤ {ceiled(at.error)}"
    return Finding(f"{of}certified mean absolute error, {terms}", error, at.error is not None)


def curves(found: dict[str, Promise]) -> list[Block]:
    """Certified score and loss over the drift and over the share of wrong rows."""
    first = next(iter(found.values()))
    classifies = first.overall[0].accuracy is not None
    score = "accuracy" if classifies else "mean absolute error"
    least = "accuracy at least, in %" if classifies else "mean absolute error at most"
    blocks: list[Block] = []
    for part, x_label, scale, at, note in (
        ("over_drift", "drift in standard deviations", 1.0,
         f"{100 * first.outliers:.3g} % of rows wrong", ""),
        ("over_outliers", "wrong rows in %", 100.0, f"a drift of {first.drift:.3g}",
         "With fewer rows held for wrong, far ones count as good and as what is to come."),
    ):  # fmt: skip
        figures = []
        for kind, what, y_label in (("score", score, least), ("loss", "loss", "loss at most")):
            series = [
                Series(name or "certified", [x for x, _ in known], [y for _, y in known])
                for name, promise in found.items()
                if (known := _known(getattr(promise, part), kind, scale))
            ]
            figure = Figure(
                f"{part.replace('_', '-')}-{kind}", f"Certified {what}, {at}", x_label, y_label,
                series, note=note, alt=f"{y_label} against {x_label}.",
            )  # fmt: skip
            figures += [figure] if series else []
        blocks.append(Beside(figures))
    return blocks


def _known(lines: Sequence[Promised], kind: str, scale: float) -> list[tuple[float, float]]:
    """The points of a curve, where there is a bound."""
    heights = [(scale * float(line.name), _height(line, kind)) for line in lines]
    return [(x, y) for x, y in heights if y is not None]


def _height(line: Promised, kind: str) -> float | None:
    if kind == "loss":
        return line.loss
    return line.error if line.accuracy is None else float(np.floor(1e4 * line.accuracy)) / 1e2


def certified(found: dict[str, Promise]) -> list[Block]:
    """The bounds of every client; of many, those with the least certified, the rest folded."""
    table, room = by_client(found), ROOM
    first = next(iter(found.values()))
    if len(first.clients) <= room:
        return [table]
    clients, overall = table.rows[: len(first.clients)], table.rows[len(first.clients) :]
    sign = 1.0 if first.overall[0].accuracy is not None else -1.0
    known = [row for row in clients if isinstance(row[1], float)]
    worst = sorted(known, key=lambda row: sign * float(str(row[1])))[:room]
    shown = table._replace(
        name="least-certified", rows=[*overall, *worst],
        title=f"What is certified: over all, and the {len(worst)} clients with the least",
    )  # fmt: skip
    return [shown, Details(f"All {len(clients)} clients", [table])]


def by_client(found: dict[str, Promise]) -> Table:
    """Certified score and loss of every client, and of mixtures of them."""
    first = next(iter(found.values()))
    note = (
        f"At most {100 * first.outliers:.3g} % of rows wrong, a drift of at most "
        f"{first.drift:.3g} standard deviations (root mean square); columns of categories and "
        "flags do not move."
    )
    lines = {name: (*promise.clients, *promise.overall) for name, promise in found.items()}
    table = bounds("certified", "What is certified, by client", "client", lines)
    return table._replace(note=note)


def bounds(name: str, title: str, head: str, found: Mapping[str, Sequence[Promised]]) -> Table:
    """Certified score and loss, line by line; no bound is rounded to the better."""
    classifies = next(iter(found.values()))[0].accuracy is not None
    measures = ("accuracy ≥" if classifies else "mean absolute error ≤", "loss ≤")
    heads = [f"{what} {model}".rstrip() for model in found for what in measures]
    rows = [
        (at[0].name, *(value for line in at for value in _rounded(line)))
        for at in zip(*found.values(), strict=True)
    ]
    forms = {h: ".1%" if classifies and k % 2 == 0 else "" for k, h in enumerate(heads)}
    return Table(name, title, (head, *heads), rows, forms)


def _rounded(line: Promised) -> tuple[float | None, float | None]:
    if line.accuracy is not None:
        score: float | None = down(line.accuracy)
    else:
        score = None if line.error is None else up(line.error)
    return score, None if line.loss is None else up(line.loss)
