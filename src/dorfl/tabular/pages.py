"""Make the tables and the page of a comparison of methods."""

from __future__ import annotations

from collections.abc import Sequence

from dorfl.protocol.settings import Study
from dorfl.report.content import Block, Cell, Details, Figure, Finding, Page, Section, Series, Table
from dorfl.tabular.comparison import Comparison
from dorfl.tabular.model import views
from dorfl.tabular.model.facts import HeldOutScores


def compared(found: Comparison) -> Table:
    """Return every method's score over inliers and all rows, with differences from the best."""
    methods, differences = [], []
    for i, name in enumerate(found.methods):
        own, every = found.score(i), found.score(i, inliers=False)
        label = name + " ✗" * found.fell_short(i)
        all_rows = None if found.inlier.all() else every.overall
        methods.append(HeldOutScores(label, own.overall, own.clients, all_rows=all_rows))
        differences.append(None if i == found.highest else found.difference(i, found.highest))
    title = f"Held-out rows of {found.folds} folds, {views.measure(found.classifies)}"
    table = views.methods_table("methods", title, methods, found.classifies, differences)
    return table._replace(note=_note(found))


def _note(found: Comparison) -> str:
    """Return what the numbers of a comparison are over."""
    words = [
        "Every row is scored by models that were not trained with it. Held-out rows may contain "
        "outliers."
    ]
    if found.inlier.all():
        words.append("No held-out row has less than half of an ordinary row's weight.")
    else:
        words.append("Inliers have at least half of an ordinary row's weight in dorfl's models.")
    words.append(f"{views.ERRORS} Differences from the best score are paired by row.")
    words.append(views.few_rows(found.score(0).clients))
    if found.shortfalls:
        words.append("✗ marks a method of which a training fell short.")
    return " ".join(filter(None, words))


def compared_clients(found: Comparison, most: int | None = None) -> Table:
    """Return every client's score by method over inliers, the worst first; at most `most`."""
    scores = [found.score(i).clients for i in range(len(found.methods))]
    order = found.order[:most]
    rows: list[Sequence[Cell]] = []
    for k in order.tolist():
        name = found.clients[k]
        cells = [views.cell(own.get(name), found.classifies) for own in scores]
        rows.append((f"{name} ({found.rows[k]:,})", *cells))
    left = len(found.clients) - len(order)
    over = "over all rows" if found.inlier.all() else "over inliers"
    return Table(
        "clients",
        f"Clients, {views.measure(found.classifies)} {over}",
        ("client (rows)", *found.methods),
        rows,
        views.form(found.classifies) or ".4g",
        note=f"The worst first; {left} more are not shown." if left else "The worst first.",
    )


def of_comparison(found: Comparison, study: Study) -> Page:
    """Return the page of a comparison."""
    cards = [Finding(words, "fell short", False) for words in found.shortfalls[:3]]
    cards.append(Finding(found.verdict, found.best or "a tie"))
    rest: list[Block] = []
    if len(found.clients) > views.MAX_CLIENTS:
        every = compared_clients(found)._replace(name="all-clients")
        rest = [Details(f"All {len(found.clients)} clients", [every])]
    sections = [
        Section("Methods", [compared(found)]),
        Section("Clients", [compared_clients(found, most=views.MAX_CLIENTS), _dots(found), *rest]),
    ]
    label, count = study.data.label, len(found.methods)
    lead = f"{count} methods to learn {label} across {len(found.clients)} clients, cross-validated."
    return Page(f"Methods compared on {label}", lead, cards, sections)


def _dots(found: Comparison) -> Figure:
    """Return a dot with its standard error for every method and client, of many the worst."""
    unit = 100.0 if found.classifies else 1.0
    scores = [found.score(i).clients for i in range(len(found.methods))]
    names = [
        found.clients[k] for k in found.order[: views.MAX_CLIENTS] if found.clients[k] in scores[0]
    ]
    series = [
        Series(
            method,
            names,
            [unit * own[name].mean for name in names],
            [unit * (own[name].error or 0.0) for name in names],
        )
        for method, own in zip(found.methods, scores, strict=True)
    ]
    which = "" if len(names) == len(found.clients) else f": the worst {len(names)}"
    return Figure(
        "client-scores",
        f"Clients by method{which}",
        "",
        views.measure(found.classifies),
        series,
        "dots",
        note="The worst client first; ± is a standard error over rows.",
        alt="A dot for every method's score of every client.",
    )
