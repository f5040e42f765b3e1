"""Show a model: its tables, which are alike on the terminal, on its page and on its card."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import dorfl
from dorfl.certificates.certified import ceiled, down, floored, up
from dorfl.report.content import (
    Beside,
    Block,
    Cell,
    Details,
    Figure,
    Finding,
    Measured,
    Page,
    Section,
    Series,
    Table,
    Text,
)
from dorfl.report.tables import page_as_markdown
from dorfl.support.text import percent
from dorfl.tabular.model.facts import (
    MIN_ROWS,
    ClientStatistics,
    Estimate,
    HeldOutScores,
    Promise,
    Promised,
    Weights,
    worst_client,
)
from dorfl.tabular.model.model import Model

_SHOWN = 15  # features of a figure: as many as have room for their names
MAX_CLIENTS = 16  # clients of a table or figure
_COLOURS = 7  # colours that differ enough from each other
_LONG = 16  # letters of a name below a figure
INLIERS = "Inliers have at least half of an ordinary row's weight in training."
ERRORS = "± is a standard error over rows, overall stratified by client."


def form(classifies: bool) -> str:
    """Return the format of scores: accuracies in per cent have one decimal."""
    return ".1f" if classifies else ""


def measure(classifies: bool) -> str:
    """Return the name of a score with its unit."""
    return "accuracy in %" if classifies else "mean absolute error"


def cell(found: Estimate | None, classifies: bool) -> Cell:
    """Return a score with its standard error as a cell; accuracies in per cent."""
    if found is None:
        return None
    unit = 100.0 if classifies else 1.0
    error = math.nan if found.error is None else unit * found.error
    return Measured(unit * found.mean, error)


def few_rows(clients: Mapping[str, Estimate]) -> str:
    """Return how many clients have too few rows to be named the worst; empty if none."""
    few = sum(found.rows < MIN_ROWS for found in clients.values())
    if not few:
        return ""
    return f"{few} of {len(clients)} clients have fewer than {MIN_ROWS} inliers and are not ranked."


def held_out(model: Model) -> Table:
    """Return the scores of the method, ERM and a constant on held-out rows."""
    methods, classifies = model.facts.held_out, model.classifies
    text = "One row in five of every client is held out, models are trained on the others."
    both = [INLIERS] if methods[0].all_rows else []
    notes = [text, *both, ERRORS, few_rows(methods[0].clients)]
    title = f"On held-out rows, {measure(classifies)}"
    table = methods_table("held-out", title, methods, classifies)
    return table._replace(note=" ".join(filter(None, notes)))


def methods_table(
    name: str,
    title: str,
    methods: Sequence[HeldOutScores],
    classifies: bool,
    differences: Sequence[Estimate | None] = (),
) -> Table:
    """Return the scores of methods over inliers and all rows, and of their worst clients."""
    first, rows = methods[0], []
    for k, one in enumerate(methods):
        worst = worst_client(one.clients, classifies) or "–"
        found = [one.overall]
        found += [] if one.all_rows is None else [one.all_rows]
        cells = [cell(score, classifies) for score in (*found, *differences[k : k + 1])]
        rows.append((one.method, *cells, worst, cell(one.clients.get(worst), classifies)))
    names = [f"all {(first.all_rows or first.overall).rows:,} rows"]
    if first.all_rows is not None:
        names.insert(0, f"{first.overall.rows:,} inliers")
    names += ["difference"] if differences else []
    last = "its rows" if first.all_rows is None else "its inliers"
    columns = ("method", *names, "worst client", last)
    return Table(name, title, columns, rows, form(classifies))


def clients(model: Model) -> Table:
    """Return rows, λ, loss and score of each client; the score on held-out rows, if measured."""
    facts, classifies, name = model.facts, model.classifies, measure(model.classifies)
    served, held = {found.name: found for found in facts.clients}, facts.held_out
    rows: list[tuple[Cell, ...]] = []
    for client, share in zip(model.fit.clients, model.fit.lam.tolist(), strict=True):
        of = served.get(client, ClientStatistics(client, 0))
        score, count = None if of.score is None else Estimate(of.score, None, of.rows), []
        if held:
            score = held[0].clients.get(client)
            count = [score.rows if score else 0]
        rows.append((client, of.rows or None, share, of.loss, *count, cell(score, classifies)))
    over, where = "all rows trained with", []
    if held:
        over = "held-out inliers" if held[0].all_rows else "held-out rows"
        where = [over]
    note = "Loss: mean over the rows trained with, weighed as in training."
    return Table(
        "clients",
        f"Clients, {name} over {over}",
        ("client", "rows", "λ", "loss", *where, name),
        rows,
        {"rows": ",d", "λ": ".3f", "loss": ".4f", over: ",d", name: form(classifies)},
        note=f"{note} {ERRORS}" if held else note,
    )


def down_weighted(model: Model) -> str | None:
    """Return how many rows have less than half of an ordinary row's weight, in a sentence."""
    weights, rows = model.facts.weights, model.facts.rows
    if weights is None or weights.low is None:
        return None
    if not weights.low:
        return "No row has less than half of an ordinary row's weight."
    return (
        f"{weights.low:,} of {rows:,} rows ({percent(weights.low / max(rows, 1))}) are "
        "down-weighted: each has less than half of an ordinary row's weight."
    )


def columns(model: Model) -> Table:
    """Return how every column is used, and why some are not."""
    used = [
        (
            part.name,
            "date" if getattr(part, "date", False) else type(part).__name__.lower(),
            len(part.features),
            part.missing,
        )
        for part in model.transform.parts
    ]
    left = [(name, f"not used: {why}", None, None) for name, why in model.transform.ignored.items()]
    return Table(
        "columns",
        "Columns",
        ("column", "kind", "features", "missing"),
        [*used, *left],
        {"features": "d", "missing": ".1%"},
    )


def of_model(model: Model) -> Page:
    """Return the page of a model."""
    facts, fit = model.facts, model.fit
    certificate, promise = facts.certificate, facts.promise
    sections = []
    if facts.held_out:
        sections.append(Section("Held-out rows", [held_out(model)]))
    sections.append(Section("Clients", _clients(model)))
    if not model.network:
        sections.append(Section("Coefficients", [_coefficients(model)]))
    if facts.weights:
        sections.append(Section("Weights of rows", _rows(model, facts.weights)))
    guarantees: list[Block] = []
    if promise:
        guarantees = [
            Text([facts.promised, promise.assumption]),
            *_curves(promise),
            *_certified(promise),
        ]
    if certificate:
        guarantees.append(
            Details("The certificate as the paper has it", [Text([certificate.words])])
        )
    if guarantees:
        sections.append(Section("What it guarantees", guarantees))
    sections.append(Section("How it was made", _making(model)))
    classes = f" ({_few(model.classes)})" if model.classifies else ""
    kind = "network" if model.network else "linear model"
    lead = (
        f"A {kind} ({fit.problem.loss.name} loss) that predicts {model.label}{classes}, trained "
        f"over {len(fit.clients)} client{'s' * (len(fit.clients) > 1)} with the method "
        f"{fit.problem.method.name}."
    )
    return Page(f"A model of {model.label}", lead, _cards(model), sections)


def _cards(model: Model) -> list[Finding]:
    """Return what is wrong, then the scores, the outliers, the certificate and the training."""
    facts, fit = model.facts, model.fit
    cards = [Finding(words, "rows left out", False) for words in facts.warnings]
    for words, verdict in (
        (model.shortfall, "not converged"),
        (model.useless, "no better than a constant"),
        (model.idle, "no better than a constant"),
    ):
        if words:
            cards.append(Finding(words, verdict, False))
    sound = not cards
    cards += _score_cards(model)
    if facts.weights and facts.weights.low is not None:
        share = percent(facts.weights.low / max(facts.rows, 1))
        claim = f"of {facts.rows:,} rows are down-weighted as outliers ({share})"
        cards.append(Finding(claim, f"{facts.weights.low:,}"))
    if facts.promise:
        cards.append(_promised(facts.promise))
    if sound:
        cards.append(Finding(f"in {fit.rounds} exchanges of messages", fit.status))
    return cards


def _score_cards(model: Model) -> list[Finding]:
    """Return the score beside plain training and a constant, and that of the worst client."""
    facts, classifies = model.facts, model.classifies
    if not facts.held_out:
        known = [served.score for served in facts.clients if served.score is not None]
        if not known:
            return []
        worst = (min if classifies else max)(known)
        claim = f"{model.measure} of the worst client, over all rows trained with"
        return [Finding(claim, model.scored(worst))]
    own, *others = facts.held_out
    rows = "inliers" if own.all_rows else "rows"
    names = [one.method.replace("erm", "plain training") for one in others]
    means = [model.scored(one.overall.mean) for one in others]
    beside = "".join(f"; {name} {mean}" for name, mean in zip(names, means, strict=True))
    claim = f"{model.measure}{_error(model, own.overall)} on held-out {rows}{beside}"
    cards = [Finding(claim, model.scored(own.overall.mean))]
    client = worst_client(own.clients, classifies)
    if client is not None:
        found = own.clients[client]
        claim = (
            f"{model.measure}{_error(model, found)} of the worst client, {client}, on "
            f"{found.rows} held-out {rows}"
        )
        cards.append(Finding(claim, model.scored(found.mean)))
    return cards


def _error(model: Model, found: Estimate) -> str:
    """Return a standard error in brackets, if it is known."""
    return "" if found.error is None else f" (± {model.scored(found.error)})"


def _clients(model: Model) -> list[Block]:
    served = {one.name: one for one in model.facts.clients}
    shares = dict(zip(model.fit.clients, model.fit.lam.tolist(), strict=True))
    table = clients(model)
    table = table._replace(note=f"λ is the weight of a client in training. {table.note}")
    if len(shares) > MAX_CLIENTS:
        return _many(table, served)
    return [table] if served else []


def _many(table: Table, served: dict[str, ClientStatistics]) -> list[Block]:
    """Return the clients with the largest loss, and all of them folded."""
    rows = {str(row[0]): row for row in table.rows}
    losses = {name: served[name].loss for name in rows if name in served}
    known = {name: loss for name, loss in losses.items() if loss is not None}
    worst = sorted(known, key=lambda name: -known[name])[:MAX_CLIENTS]
    shown = table._replace(
        name="worst-clients",
        title=f"{table.title}: the {len(worst)} with the largest loss",
        rows=[rows[name] for name in worst],
    )
    every = Details(f"All {len(rows)} clients", [table])
    return [shown, every] if worst else [every]


def _few(names: Sequence[str], most: int = 8) -> str:
    """Return names for a sentence; of many the first ones and their number."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{len(names)} classes ({shown}, …)"


def _coefficients(model: Model) -> Figure:
    problem = model.fit.problem
    weights, _ = problem.split(model.fit.theta)
    size = np.abs(weights).max(axis=0)
    top = np.argsort(-size, kind="stable")[:_SHOWN]
    names = [model.transform.names[k] for k in top]
    towards = model.classes[-1] if model.classifies else f"more {model.label}"
    one = problem.outputs == 1
    labels = (f"towards {towards}",) if one else model.classes
    if len(labels) > _COLOURS:  # features across, a class a line
        names = [name if len(name) < _LONG else f"{name[: _LONG - 1]}…" for name in names]
    errors = np.array(model.facts.errors) if model.facts.errors else None
    many = len(labels) > _COLOURS
    series = [
        Series(label, names, row[top], None if many or errors is None else errors[k, top])
        for k, (label, row) in enumerate(zip(labels, weights, strict=True))
    ]
    return Figure(
        "coefficients",
        f"Coefficients: positive is {labels[0]}" if one else "Coefficients by class",
        "feature",
        "coefficient",
        series,
        "heat" if many else "dots",
        note="Per robust standard deviation of a number, or for having a level; the largest first."
        + " ± is a standard error over rows, weighed as in training." * (errors is not None),
        alt=f"{'A heat map' if many else 'Dots'} of the {len(names)} largest coefficients.",
    )


def _rows(model: Model, histogram: Weights) -> list[Block]:
    """Return how many rows are down-weighted, and a histogram unless all weights are equal."""
    low = down_weighted(model)
    if sum(rows > 0 for rows in histogram.rows) < 2:
        return [Text([low or "All rows have the same weight."])]
    edges = histogram.edges
    names = [*(f"{a:g}–{b:g}" for a, b in pairwise(edges)), f"≥ {edges[-1]:g}"]
    figure = Figure(
        "weights",
        "Weights of rows",
        "weight (1: an ordinary row)",
        "rows",
        [Series("rows", names, histogram.rows)],
        "bars",
        note="`dorfl outliers` lists the rows by weight. Bars of fewer than five rows are left "
        "out.",
        alt="Bars of how many rows have which weight.",
    )
    return [*([Text([low])] if low else []), figure]


def _making(model: Model) -> list[Block]:
    facts, fit = model.facts, model.fit
    words = [
        *facts.choice,
        f"{_parameters(model)}.",
        f"{fit.message}, in {fit.rounds} exchanges of messages.",
    ]
    settings = Table(
        "settings",
        "Settings",
        ("setting", "value"),
        [(name, _shown(value)) for name, value in _flat(facts.settings).items()],
    )
    return [
        Text([*words, *facts.notes]),
        Details("Columns", [columns(model)]),
        Details("Settings", [settings]),
    ]


def _parameters(model: Model) -> str:
    """Return the method with its prices, and how columns are scaled."""
    method = model.fit.problem.method
    words = [f"Method {method.name}, scaling {model.transform.scaling}"]
    if np.isfinite(model.fit.rho):
        words.append(f"ρ = {model.fit.rho:.6g} (price of moving a row)")
    if np.isfinite(method.temperature):
        words.append(f"ρβ = {method.temperature:.6g} (price of reweighting rows)")
    if method.score is not None:
        words.append(method.score.words)
    return "; ".join(words)


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings by section and name, in one dictionary."""
    return {
        f"{section}.{name}" if isinstance(entries, dict) else section: value
        for section, entries in settings.items()
        for name, value in (entries.items() if isinstance(entries, dict) else [("", entries)])
    }


def _shown(value: object) -> str:
    if value is None:
        return "chosen by dorfl"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def card(model: Model) -> str:
    """Return the model card in Markdown: the page without its figures, and how to use the model."""
    needs = "and NumPy" if model.network else "alone"
    use = (
        "## Use",
        "",
        "```",
        "dorfl predict MODEL new.csv -o scored.csv     # with dorfl",
        f"python MODEL/score.py new.csv > scored.csv    # with Python {needs}",
        "```",
        "",
        f"Written by dorfl {dorfl.__version__}.",
    )
    return page_as_markdown(of_model(model)) + "\n" + "\n".join(use) + "\n"


def of_promise(promise: Promise, label: str) -> Page:
    """Return the page of a certificate."""
    sections = [
        Section(
            "What is certified", [Text([promise.words, promise.assumption]), *_certified(promise)]
        ),
        Section("Over drift and outliers", _curves(promise)),
    ]
    lead = "Bounds, not estimates, if some rows are outliers and inliers drift."
    return Page(f"Certificate of {label}", lead, [_promised(promise)], sections)


def _promised(promise: Promise) -> Finding:
    """Return the headline: the bound, with its confidence, share of outliers and drift."""
    at = promise.overall[0]
    scope = "on the rows trained with" if promise.confidence is None else _confidence(promise)
    score = "accuracy" if at.accuracy is not None else "mean absolute error"
    claim = f"{score} guaranteed {scope}, {conditions(promise)}"
    if at.accuracy is not None:
        return Finding(claim, f"≥ {floored(at.accuracy)}")
    return Finding(claim, "no bound" if at.error is None else f"≤ {ceiled(at.error)}")


def conditions(promise: Promise) -> str:
    """Return under which outliers and drift a certificate holds."""
    share = f"up to {100 * promise.outliers:.3g} % of rows are outliers"
    wrong = share if promise.outliers else "no row is an outlier"
    return f"if {wrong} and inputs drift by up to {promise.drift:.3g} sd"


def _confidence(promise: Promise) -> str:
    return f"with {100 * (promise.confidence or 0.0):.4g} % confidence"


def _curves(promise: Promise) -> list[Block]:
    """Return figures of certified score and loss over the drift and over the share of outliers."""
    classifies = promise.overall[0].accuracy is not None
    score = "accuracy" if classifies else "mean absolute error"
    least = "accuracy at least, in %" if classifies else "mean absolute error at most"
    share = f"{100 * promise.outliers:.3g} % outliers"
    blocks: list[Block] = []
    for name, lines, x_label, scale, at in (
        ("over-drift", promise.over_drift, "drift in standard deviations", 1.0, share),
        ("over-outliers", promise.over_outliers, "outliers in %", 100.0,
         f"a drift of {promise.drift:.3g}"),
    ):  # fmt: skip
        figures = []
        for kind, what, y_label in (("score", score, least), ("loss", "loss", "loss at most")):
            heights = [(scale * float(line.name), _height(line, kind)) for line in lines]
            known = [(x, y) for x, y in heights if y is not None]
            if known:
                title, alt = f"Certified {what}, {at}", f"{y_label} against {x_label}."
                series = [Series("certified", [x for x, _ in known], [y for _, y in known])]
                figures.append(Figure(f"{name}-{kind}", title, x_label, y_label, series, alt=alt))
        blocks.append(Beside(figures))
    return blocks


def _height(line: Promised, kind: str) -> float | None:
    if kind == "loss":
        return line.loss
    return line.error if line.accuracy is None else float(np.floor(1e4 * line.accuracy)) / 1e2


def _certified(promise: Promise) -> list[Block]:
    """Return a table of all clients; if there are many, of the worst, with the rest folded."""
    table, count = certified_clients(promise), len(promise.clients)
    if count <= MAX_CLIENTS:
        return [table]
    sign = 1.0 if promise.overall[0].accuracy is not None else -1.0
    known = [row for row in table.rows[:count] if isinstance(row[1], float)]
    worst = sorted(known, key=lambda row: sign * float(str(row[1])))[:MAX_CLIENTS]
    shown = table._replace(
        name="least-certified",
        rows=[*table.rows[count:], *worst],
        title=f"What is certified: over all, and the {len(worst)} clients with the least",
    )
    return [shown, Details(f"All {count} clients", [table])]


def certified_clients(promise: Promise) -> Table:
    """Return a table of certified score and loss by client and for mixtures of clients."""
    note = (
        f"At most {100 * promise.outliers:.3g} % outliers, a drift of at most {promise.drift:.3g} "
        "standard deviations (root mean square); columns of categories and flags do not move. "
    )
    note += (
        "In sample: about the rows at hand, not about rows to come."
        if promise.confidence is None
        else f"For rows to come, {_confidence(promise)}; each line by itself."
    )
    lines = (*promise.clients, *promise.overall)
    return bounds("certified", "What is certified, by client", "client", lines)._replace(note=note)


def bounds(name: str, title: str, head: str, lines: Sequence[Promised]) -> Table:
    """Return a table of certified score and, if it is bounded, loss; bounds are rounded safely."""
    classifies = lines[0].accuracy is not None
    has_loss = any(line.loss is not None for line in lines)
    heads = ["accuracy ≥" if classifies else "mean absolute error ≤", "loss ≤"]
    rows = [(line.name, *_rounded(line)[: 1 + has_loss]) for line in lines]
    forms = {"accuracy ≥": ".1%"}
    return Table(name, title, (head, *heads[: 1 + has_loss]), rows, forms)


def _rounded(line: Promised) -> tuple[float | None, float | None]:
    if line.accuracy is not None:
        score: float | None = down(line.accuracy)
    else:
        score = None if line.error is None else up(line.error)
    return score, None if line.loss is None else up(line.loss)
