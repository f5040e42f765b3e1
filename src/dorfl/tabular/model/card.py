"""Write the model card in Markdown: data, scores, settings, certificate and use of a model."""

from __future__ import annotations

from typing import Any

import numpy as np

import dorfl
from dorfl.report.content import Table
from dorfl.report.tables import as_markdown
from dorfl.tabular.model import tables
from dorfl.tabular.model.model import Model


def write(model: Model) -> str:
    """Return the card of a model."""
    facts, fit = model.facts, model.fit
    lines = [f"# A model of {_code(model.label)}", "", _summary(model), ""]
    red = (*facts.warnings, model.shortfall, model.useless, model.idle)
    lines += [f"**{warning}**\n" for warning in red if warning]
    lines += ["## Data", ""]
    if facts.rows:
        lines += [
            f"{facts.rows:,} rows of {len(fit.clients)} client(s), "
            f"{len(model.transform.parts)} columns used, {len(model.transform.names)} features.",
            "",
        ]
    lines += [f"- {note}" for note in facts.notes]
    lines += [f"- {_code(n)} is not used: {why}" for n, why in model.transform.ignored.items()]
    if facts.held_out:
        lines += ["", "## Held-out rows", "", *_table(tables.held_out(model))]
    lines += ["", "## Clients", ""]
    lines += _table(tables.clients(model))
    lines += ["", f"λ is the weight of each client{_why(model)}."]
    if low := tables.down_weighted(model):
        lines += ["", low]
    lines += ["", "## Settings", ""]
    lines += [f"- {line}" for line in facts.choice]
    lines += [f"- {line}" for line in _method(model)]
    lines += ["", "## Training", "", f"{fit.message}; {fit.rounds} exchanges of messages.", ""]
    if facts.promise:
        lines += ["## Certificate", "", facts.promise.words, "", facts.promise.assumption, ""]
    if facts.certificate:
        lines += ["## The paper's certificate", "", facts.certificate.words, ""]
    lines += [
        "## Use",
        "",
        "```",
        "dorfl predict MODEL new.csv -o scored.csv     # with dorfl",
        f"python MODEL/score.py new.csv > scored.csv    # with Python {_beside(model)}",
        "```",
        "",
        f"Written by dorfl {dorfl.__version__}.",
    ]
    return "\n".join(lines) + "\n"


def _summary(model: Model) -> str:
    fit = model.fit
    if model.classifies:
        what = f"predicts {_code(model.label)} ({', '.join(map(_code, model.classes))})"
    else:
        what = f"predicts {_code(model.label)}"
    split = f", trained over the clients named by {_code(model.client)}" if model.client else ""
    kind = "network" if model.network else "linear model"
    return (
        f"A {kind} ({fit.problem.loss.name} loss) that {what}{split} with the method "
        f"{fit.problem.method.name}."
    )


def _beside(model: Model) -> str:
    return "and NumPy" if model.network else "alone"


def _why(model: Model) -> str:
    worst = model.fit.problem.method.mixture.adversarial
    return " in the end: the worst mixture for this model" if worst else ": by its number of rows"


def _table(table: Table) -> list[str]:
    lines = [f"{table.title}.", "", *as_markdown(table).splitlines()]
    return [*lines, "", table.note] if table.note else lines


def _method(model: Model) -> list[str]:
    method = model.fit.problem.method
    lines = [f"method {method.name}, scaling {model.transform.scaling}"]
    if np.isfinite(model.fit.rho):
        lines.append(f"ρ = {model.fit.rho:.6g} (price of moving a row)")
    if np.isfinite(method.temperature):
        lines.append(f"ρβ = {method.temperature:.6g} (price of reweighting rows)")
    if method.score is not None:
        lines.append(method.score.words)
    frozen = len(method.cost.frozen)
    if frozen:
        lines.append(f"{frozen} feature(s) cannot move: levels of categories and flags")
    return lines


def _code(value: Any) -> str:
    return "`" + str(value).replace("`", "'").replace("|", "\\|").replace("\n", " ") + "`"
