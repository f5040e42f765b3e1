"""What a site checks in a question before it is answered: the coordinator is not to be trusted.

An exact answer tells of rows by what each adds to it. Six rules, whatever a study says:

- **Columns.** One in which fewer than `least` rows differ from all others is taken to be constant
  (:func:`settle`): its numbers would be those rows' own. So a level has `least` rows, or none.
- **Classes.** A label that fewer than `least` rows have is in no report (:func:`rare`): at θ = 0
  the gradient is half of all rows less those that have it.
- **Steepness.** Along a steep θ the loss is a step, and sweeping it over the rows counts them one
  by one. The outputs of half of the site's rows stay within `steepest` (:func:`steep`), whatever
  the transformation makes of their units.
- **Influence.** Every number sent is a sum over rows: F, each entry of ∇F, ∇F as a vector. No row
  may be more than `alone` of any (:func:`influence`), with or without a tilt.
- **Missing cells.** What stands for them is the coordinator's word: at most so many words as there
  are middles of a column, and a question that differs by them alone differs by few rows.
- **Differences.** Two sums tell what distinguishes them. Let W_j be what row j adds to ∇F at the
  row's place. The change from each earlier question has to rest on `least` rows,
  (Σ v_j)² / Σ v_j² ≥ `least` with v_j = ‖W_j − α W'_j‖ ‖x_j‖, for α = 1 and the α that fits best
  (:func:`differs`), for every question about the same rows, over all runs. So has what is left of
  it beside all of them together, and the sums that are told of columns and classes.

What is refused tells something too, and whoever asks again and again finds the θ, or the centre, at
which it is. So what decides is a mean over `least` rows wherever it can be: of a column the blocks
that are told of it, of outputs blocks that nobody else knows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dorfl.data import sketch
from dorfl.data.preprocessing import Category, columns
from dorfl.linear.base import Evaluation
from dorfl.linear.curvature import RESOLUTIONS, coarser
from dorfl.linear.group import Group
from dorfl.selection import outliers
from dorfl.solvers.base import Task
from dorfl.study import differences
from dorfl.study.labels import MOST_CLASSES
from dorfl.study.ledger import Ledger, mark_of
from dorfl.study.limits import Limits
from dorfl.study.messages import Agreement
from dorfl.study.settings import Study
from dorfl.support.types import Array

_PIECE = 16_384  # rows looked at together
_FAR = 1e4  # ranges of a site's own column
_ROUNDING = 1e-12  # of a sum: no difference


class Pull(NamedTuple):
    """What every row adds: to F (n,), and to ∇F at its own place (n, outputs).

    `marked` is the latter with a mark of what stands for the row's missing cells.
    """

    value: Array
    slope: Array
    marked: Array


def reread(
    study: Study, names: Sequence[str], rows: str, ledger: Ledger, limits: Limits
) -> str | None:
    """Why columns cannot be told of for these rows, or nothing: that differences show single ones.

    It goes by which rows they are, in what blocks, and without which cells. With noise only how
    many rows have a label is exact: of that there is one reading, whatever the rows are.
    """
    lost, label = study.columns.missing, study.data.label
    if study.privacy.known:
        reading = {label: [*study.data.classes, "without", *lost]}
        return ledger.measure(reading, limits.versions, "reading(s)")
    without = f" {mark_of(lost)[:16]}" if lost else ""
    return ledger.tell(tuple(names), f"{rows[:16]} {study.privacy.least}{without}", limits.versions)


def few(study: Study, rows: int, least: int) -> str | None:
    """Why so many rows are too few for the study or the site, or nothing.

    A no tells of their number, for a label with any cells taken out: ask :func:`reread` before.
    """
    if rows < max(study.privacy.minimum_rows, least):
        return "has fewer rows than the study's minimum, or than the site's own"
    return None


def settle(rows: Array, least: int) -> Array:
    """The rows with columns held constant in which fewer than `least` of them differ from the rest.

    >>> settle(np.array([[0.0, 1.0], [0.0, 2.0], [7.0, 3.0], [0.0, 4.0], [0.0, 5.0]]), least=2).T
    array([[0., 0., 0., 0., 0.],
           [1., 2., 3., 4., 5.]])
    """
    if least <= 1 or not len(rows):
        return rows
    few = np.sort(rows[: 2 * least - 1], axis=0)  # most of them have the value that nearly all have
    common = few[len(few) // 2]
    differing = (rows != common).sum(axis=0)
    rare = np.flatnonzero((differing > 0) & (differing < least))
    if not len(rare):
        return rows
    rows = rows.copy()
    rows[:, rare] = common[rare]
    return rows


def strange(
    agreement: Agreement, table: columns.Table, ledger: Ledger, limits: Limits
) -> str | None:
    """What of an agreement cannot come from what this site told of its columns, or nothing."""
    assert agreement.transform is not None
    if len(agreement.classes) > MOST_CLASSES:
        return f"more than {MOST_CLASSES} classes"
    if agreement.target is not None and not agreement.target.spread > 0:
        return "the label is to be divided by what is not positive"
    numeric = agreement.study.columns.numeric
    for part in agreement.transform.parts:
        column = table.column(part.name)
        if isinstance(part, Category):
            continue  # a level that few rows have, or none, is settled
        values = columns.numbers(column, part.name)
        guessed = part.name not in numeric and not part.date
        if guessed and columns.is_identifier(values, part.name):
            return f"column {part.name[:60]!r} only numbers the rows of this site"
        told = sketch.of(columns.present(values), agreement.study.privacy.least).means
        low, high = (told[0], told[-1]) if told else (0.0, 0.0)  # not a row's own value
        width = high - low
        if not part.spread > 0:
            return f"column {part.name[:60]!r} is to be divided by what is not positive"
        if width > 0:
            away = max(low - part.center, part.center - high, 0.0)
            if away > _FAR * width:
                return f"column {part.name[:60]!r} is to be centred far beyond its range here"
    return _repeated(agreement, table, ledger, limits)


def unasked(task: Task, wished: str) -> str | None:
    """What of a round's task no study implies that wishes for such a curvature, or nothing.

    Minibatches and local steps are in none: few rows, drawn by a seed that others know.
    """
    if task.kind != "evaluate" or task.batch is not None or task.steps != 1:
        return "the task is none that the study implies: all rows, risk and gradient"
    if task.curvature not in RESOLUTIONS or (
        wished != "auto" and coarser(task.curvature, wished) != task.curvature
    ):
        return "the task asks for a curvature that the study does not"
    return None


def about(agreement: Agreement) -> str:
    """What stands for the problem that rounds are about, whichever run they are of."""
    return mark_of(agreement._replace(run=""))[:16]


def questions(agreement: Agreement, theta: Array, wish: str) -> dict[str, str]:
    """What stands for a round's question, by the curvature told: as asked for or coarser.

    To a secure sum no site can add a coarser one.
    """
    finer = RESOLUTIONS[: RESOLUTIONS.index(wish) + 1]
    if agreement.study.privacy.secure_sum:
        finer = tuple(dict.fromkeys((finer[0], wish)))
    problem = about(agreement)
    return {finest: mark_of((problem, theta, finest)) for finest in finer}


def rare(group: Group, least: int) -> str | None:
    """Whether there is a class that fewer than `least` rows of a group have, and at least one."""
    if not group.problem.loss.classifies:
        return None
    counts = np.bincount(_codes(group))
    if counts[counts > 0].min() >= least:
        return None
    return f"fewer than {least} of the rows asked about have one of the labels"


def steep(group: Group, theta: Array, limits: Limits, secret: bytes) -> str | None:
    """Whether θ is no model of these rows: half of its outputs are beyond `steepest`.

    Found from the means of blocks of rows that only this site knows: the median of single outputs
    is that of one row, and the θ at which it is refused would tell it.
    """
    pieces, count = range(0, len(group.rows), _PIECE), len(group.rows) // max(limits.behind, 1)
    theta = theta[: group.problem.size]
    out = [group.problem.predict(theta, group.rows[k : k + _PIECE]) for k in pieces]
    outputs = np.concatenate([part.reshape(len(part), -1) for part in out])
    drawn = np.random.default_rng(list(hashlib.sha256(secret + b"blocks").digest()))
    first = np.arange(max(count, 1)) * len(outputs) // max(count, 1)
    sizes = np.diff(np.append(first, len(outputs)))[:, None]
    means = np.add.reduceat(outputs[drawn.permutation(len(outputs))], first) / sizes
    middle = np.median(means, axis=0)
    apart = np.median(np.sqrt(sizes) * np.abs(means - middle), axis=0)
    usual = float((np.abs(middle) + apart).max())
    return "θ is steeper than any model of these rows" if usual > limits.steepest else None


def pull(group: Group, seen: Evaluation, marks: Array) -> Pull:
    """What every row of a site adds to F and ∇F, by a pass over the rows."""
    assert seen.kept is not None
    weights = group.weights_of(seen.kept.value)
    slope = weights[:, None] * seen.kept.slope
    return Pull(weights * seen.kept.value, slope, marks[:, None] * slope)


def fills(agreement: Agreement, table: columns.Table) -> dict[str, float]:
    """What stands for missing cells, where there are some; where it is the middle, of all."""
    assert agreement.transform is not None
    return {
        part.name: float(part.fill)
        for part in agreement.transform.numeric
        if not agreement.apart or columns.kind_of(table.column(part.name)) == "empty"
        or np.isnan(columns.numbers(table.column(part.name), part.name)).any()
    }  # fmt: skip


def filled(agreement: Agreement, table: columns.Table, y: Array, secret: bytes) -> Array:
    """A number for every row that changes with what stands for its missing cells; mostly 1.

    Where that alone differs between two questions, so do their answers by rows with such cells
    alone. How much a column counts nobody else knows: no two changes make up for each other.
    """
    marks = np.ones(table.num_rows)
    for name, fill in fills(agreement, table).items():
        values = columns.numbers(table.column(name), name)
        missing, present = np.isnan(values), columns.present(values)
        if missing.any() and len(present):
            width = float(present.max() - present.min()) or 1.0
            digest = hashlib.sha256(secret + name.encode()).digest()
            weight = 0.5 + int.from_bytes(digest[:6]) / 2**48
            marks[missing] += weight * (fill - float(present.min())) / width
    if agreement.candidate is not None:
        labels = y if agreement.classes else None
        marks = marks[outliers.split_rows(len(marks), agreement.row_limit, labels)[0]]
    return marks


def _repeated(
    agreement: Agreement, table: columns.Table, ledger: Ledger, limits: Limits
) -> str | None:
    """What of an agreement has been otherwise too often, or nothing.

    That is what stands for missing cells; and the classes, which a site takes or refuses by whether
    some row has another.
    """
    label, classes = agreement.study.data.label, [*agreement.classes]
    listed = {label: classes} if classes else {}
    return ledger.measure(fills(agreement, table), limits.middles) or ledger.measure(
        listed, limits.versions, "list(s) of classes"
    )


def telling(group: Group, pulled: Pull, before: Iterable[Array], limits: Limits) -> str | None:
    """Why a report of what rows add would tell of a few of them, or nothing; and what to set."""
    if influence(group, pulled) > limits.alone:
        return (
            "one row makes up nearly all of a number in the report; nothing is sent (a row far "
            "out counts less with a score: method dorfl; else [limits] alone = 1 in site.toml)"
        )
    earlier, codes = list(before), _codes(group) if group.problem.loss.classifies else None
    if not differs(group, pulled.marked, earlier, limits.behind) or differences.singles_out(
        pulled.marked, earlier, limits.behind, codes
    ):
        return (
            f"beside an earlier report, this one would tell of fewer than {limits.behind} rows "
            "([limits] behind = 0 in site.toml lets it through)"
        )
    return None


def influence(group: Group, pulled: Pull) -> float:
    """The largest share that one row has in F, in an entry of ∇F, or in ∇F as a vector.

    >>> import dorfl
    >>> from dorfl.federated.training import prepare
    >>> group = prepare({"a": ([[0.0], [0.0], [1.0]], [0, 1, 1])}, dorfl.methods.erm())
    >>> seen = group.evaluate(np.zeros(2), rows=True)
    >>> influence(group, pull(group, seen, np.ones(3)))      # of the slope, one row is all
    1.0
    """
    size, dims = np.abs(pulled.slope), group.rows.shape[1]
    top, total = np.zeros((size.shape[1], dims)), np.zeros((size.shape[1], dims))
    for k in range(0, len(size), _PIECE):
        place = np.abs(group.rows[k : k + _PIECE].astype(np.float64))
        for c in range(size.shape[1]):
            part = size[k : k + _PIECE, c, None] * place
            top[c] = np.maximum(top[c], part.max(axis=0))
            total[c] += part.sum(axis=0)
    found = np.divide(top, total, out=np.zeros_like(top), where=total > 0.0).max(initial=0.0)
    whole = np.linalg.norm(size, axis=1) * _lengths(group)
    return max(float(found), *(_share(np.abs(part)) for part in (pulled.value, whole, *size.T)))


def differs(group: Group, now: Array, before: Iterable[Array], least: int) -> bool:
    """Whether the change from every earlier question rests on `least` rows; see the module."""
    length, size = _lengths(group), float(np.linalg.norm(now))
    for old in before:
        scale = float((now * old).sum()) / max(float((old * old).sum()), 1e-300)
        for factor in {1.0, scale}:
            change = np.linalg.norm(now - factor * old, axis=1)
            if float(np.linalg.norm(change)) <= _ROUNDING * size:
                continue  # the same question
            if differences.few(change * length, least):
                return False
    return True


def _codes(group: Group) -> Array:
    """The classes of the rows, by their places."""
    labels = group.problem.decode(group.target)
    return np.searchsorted(group.problem.classes, labels)


def _lengths(group: Group) -> Array:
    rows = group.rows
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64) + 1.0))


def _share(parts: Array) -> float:
    total = float(parts.sum())
    return float(parts.max(initial=0.0)) / total if total > 0.0 else 0.0
