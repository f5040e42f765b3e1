"""A model in labelled lines: what `dorfl train`, `dorfl info` and `dorfl run` print of it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping

from dorfl.certificates.certified import ceiled, floored
from dorfl.cli.screen import ResultLine, Screen
from dorfl.report.content import Table, finite
from dorfl.support.text import percent
from dorfl.tabular import audit
from dorfl.tabular.model import Model, views
from dorfl.tabular.model.facts import (
    MIN_ROWS,
    Estimate,
    HeldOutScores,
    Promise,
    Promised,
    worst_client,
)
from dorfl.tabular.model.views import conditions

_CLASSES = 4  # classes that are listed by name
_FEW = 12  # clients that are listed one by one
_LOSS = 3  # place of the loss in the table of clients
_GAP = (
    "The gap bounds by how much further training could lower the objective. Training stops when "
    "the gap is within the tolerance (--tol), a share of the objective."
)


def of_model(model: Model, table: str = "TABLE", folder: str = "MODEL") -> list[ResultLine]:
    """Return the lines of a model that was trained on a table and is saved in a folder."""
    table, folder = shlex.quote(table), shlex.quote(folder)
    weights = model.facts.weights
    audit = f"dorfl outliers {folder} {table}" if weights and weights.low else ""
    lines = [
        ResultLine("Data", _data(model)),
        ResultLine("Outliers", _outliers(model), audit),
        ResultLine("Training", _training(model)),
    ]
    held = model.facts.held_out
    if held:
        lines.append(ResultLine("Held-out", _held_out(model, held)))
    else:
        lines.append(
            ResultLine("Held-out", _trained_with(model), f"dorfl evaluate {folder} NEW.csv")
        )
    if held and len(model.fit.clients) > 1:
        own = held[0].clients
        lines.append(ResultLine("Worst", worst(model, own, worst_client(own, model.classifies))))
    promise = model.facts.promise
    if promise is None:
        lines.append(ResultLine("Guaranteed", f"nothing{_why_nothing(model)}"))
    else:
        lines.append(
            ResultLine("Guaranteed", guaranteed(promise), f"dorfl certify {folder} {table}")
        )
    return lines


def explain(screen: Screen, model: Model) -> None:
    """Print what the lines of a model leave out, if verbose: choices, tables, certificate."""
    if not screen.verbose:
        return
    promise = model.facts.promise
    stated = "" if promise is None else f"{promise.words} {promise.assumption}"
    gap = "" if model.network else _GAP
    for line in (*model.facts.choice, views.down_weighted(model), f"{model.fit.message}.", gap):
        if line:
            screen.say(line)
    screen.table(_clients_listed(model))
    if model.facts.held_out:
        screen.table(views.held_out(model))
    if stated:
        screen.say(stated)


def not_used(model: Model) -> list[str]:
    """Return the columns that dorfl does not use, and why."""
    ignored = {n: why for n, why in model.transform.ignored.items() if why != "as the study says"}
    return [f"column {name!r} is not used: {why}" for name, why in ignored.items()]


def _clients_listed(model: Model) -> Table:
    """Return the table of clients; of many, the worst, the median and the best one."""
    table = views.clients(model)
    if len(table.rows) <= _FEW:
        return table
    sign = 1.0 if model.classifies else -1.0
    order = sorted(
        (row for row in table.rows if row[-1] is not None),
        key=lambda row: (sign * (finite(row[-1]) or 0.0), -(finite(row[_LOSS]) or 0.0)),
    )
    middle = len(order) // 2
    more = f": the worst three of {len(order)}, the middle one, the best"
    rows = (*order[:3], *order[middle : middle + 1], *order[-1:])
    return table._replace(title=table.title + more, rows=rows)


def worst(model: Model, clients: Mapping[str, Estimate], name: str | None) -> str:
    """Return the name and the score of the worst client, or why none is named."""
    if name is None:
        return f"not named: no client has {MIN_ROWS} held-out inliers"
    return f"{name} {scored(model, clients[name])} on {clients[name].rows:,} rows"


def guaranteed(promise: Promise) -> str:
    """Return the bound for rows to come with its conditions."""
    bound = bounded(promise.overall[0])
    sure = promise.confidence
    scope = "on the rows trained with" if sure is None else f"with {100 * sure:.3g} % confidence"
    return f"{bound} {scope}, {conditions(promise)}"


def bounded(at: Promised) -> str:
    """Return a bound, rounded to the safe side."""
    if at.accuracy is not None:
        return f"accuracy at least {floored(at.accuracy)}"
    return "no bound" if at.error is None else f"mean absolute error at most {ceiled(at.error)}"


def scored(model: Model, found: Estimate) -> str:
    """Return a score with its standard error, such as 79.8 ± 2.9 %."""
    if found.error is None:
        return model.scored(found.mean)
    if model.classifies:
        return f"{100 * found.mean:.1f} ± {100 * found.error:.1f} %"
    if not found.error > 0:
        return f"{model.scored(found.mean)} ± 0"
    digits = max(1 - math.floor(math.log10(found.error)), 0)  # two digits of the error
    return f"{found.mean:,.{digits}f} ± {found.error:,.{digits}f}"


def counted(rows: int, clients: int, column: str | None) -> str:
    """Return numbers of rows and clients, and the column that names the clients."""
    if clients == 1:
        return f"{rows:,} rows, 1 client"
    return f"{rows:,} rows, {clients} clients{f' ({column})' if column else ''}"


def _data(model: Model) -> str:
    names = model.classes
    kind = "a number"
    if names:
        kind = " / ".join(names) if len(names) <= _CLASSES else f"{len(names)} classes"
    used, ignored = len(model.transform.parts), len(model.transform.ignored)
    features = f"{used} feature{'s' * (used != 1)}"
    clients = max(len(model.fit.clients), len(model.facts.settings.get("sites", ())))
    unused = f" ({ignored} column{'s' * (ignored != 1)} not used)" if ignored else ""
    return (
        f"{counted(model.facts.rows, clients, model.client)}, {features}"
        f"{unused}, label {model.label} ({kind})"
    )


def _outliers(model: Model) -> str:
    weights, rows, found = model.facts.weights, model.facts.rows, model.facts.validation
    if weights is None or weights.low is None:
        assumed = model.facts.outliers
        return f"up to {percent(assumed, 0)} of rows assumed; not counted" if assumed else "none"
    share = percent(weights.low / max(rows, 1), 1 if weights.low < 0.1 * rows else 0)
    text = f"{weights.low:,} rows ({share}) down-weighted" if weights.low else "none found"
    if found is None and (reason := audit.why_none(model)) is not None:
        return "not looked for" + ("" if audit.TOO_FEW not in reason else f": {audit.TOO_FEW}")
    if found is None:
        return text
    return f"{text}; validation loss {found.loss:.3g} instead of {found.plain:.3g}"


def _training(model: Model) -> str:
    fit = model.fit
    before = fit.history[0].round - 1 if fit.history else 0
    extra = f", after {before} to compare outlier shares" if before else ""
    status = fit.status if model.shortfall is None else fit.message
    return f"{status} in {fit.rounds} rounds{extra}"


def _held_out(model: Model, found: tuple[HeldOutScores, ...]) -> str:
    own, constant = found[0], found[-1]
    others = [(one.method.replace("erm", "plain").replace(",", ""), one) for one in found[1:-1]]
    others.append(("constant", constant))
    means = "".join(f", {name} {model.scored(one.overall.mean)}" for name, one in others)
    every = [one.all_rows for one in found]
    text = f"{model.measure} {scored(model, own.overall)}{means}"
    if own.all_rows is None:
        return text
    listed = ", ".join(model.scored(one.mean).removesuffix(" %") for one in every if one)
    return f"{text} (with outliers: {listed})"


def _trained_with(model: Model) -> str:
    """Return the scores over the rows trained with, of a model without held-out rows."""
    known = {one.name: one.score for one in model.facts.clients if one.score is not None}
    if not known:
        return "not measured"
    name = (min if model.classifies else max)(known, key=known.__getitem__)
    return (
        f"not measured; over rows trained with, the worst {model.measure} is "
        f"{model.scored(known[name])} ({name})"
    )


def _why_nothing(model: Model) -> str:
    if model.network:
        return ": certificates are for linear models"
    private = model.facts.settings.get("privacy", {}).get("epsilon") is not None
    return ": a certificate would not be private" if private else ""
