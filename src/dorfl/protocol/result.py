"""What a finished study leaves: a model for the coordinator, and for every site its own results.

A model holds no row. What a site finds out about its rows stays in its folder.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from dorfl import files, losses, model
from dorfl.model import Model
from dorfl.protocol import coordinator
from dorfl.protocol.coordinator import State
from dorfl.protocol.messages import Agreement, Outcome
from dorfl.risk import Group
from dorfl.scores import Quadratic
from dorfl.studies.audit import audit
from dorfl.studies.rows import Rows
from dorfl.training import Fit
from dorfl.types import Array

_SUSPECT = 0.1  # of an ordinary row's weight


def model_of(state: State) -> Model:
    """The model of a study that is done. What only rows can tell (their weights) is not in it."""
    outcome, transform, centers = state.outcome, state.transform, state.centers
    assert outcome is not None
    assert transform is not None
    problem = coordinator.problem_of(state)
    if centers is None:
        centers = np.zeros((len(state.roster), problem.dims))
    fit = _fit(outcome, problem, state.roster, outcome.lam, outcome.risks, centers)
    fit.history.extend(state.history)
    label = state.study.data.label
    return Model(fit, transform, label, None, state.classes, state.target, _facts(state))


def write_site(
    folder: Path, agreement: Agreement, group: Group, outcome: Outcome, places: Array
) -> str:
    """A site's results in `folder`: the model, and audit.csv with its rows, the most suspect first.

    `places` are the rows' places in the site's table. Returns what was found, in words.
    """
    (name,) = group.names
    risks = group.risks(outcome.theta).values
    fit = _fit(outcome, group.problem, group.names, np.ones(1), risks, group.centers)
    assert agreement.transform is not None
    own = Model(
        fit, agreement.transform, agreement.study.data.label, None, agreement.classes,
        agreement.target, {"data": {"rows": len(group.target), "notes": []}},
    )  # fmt: skip
    model.save(own, folder / "model")
    if not isinstance(group.problem.method.score, Quadratic):
        return f"{agreement.run}: done, the model is in {folder}"
    y = losses.decode(group.problem.loss, group.target, group.problem.classes)
    found = audit(own, Rows((name,), group.bounds, group.rows, y, places))
    with (
        files.replacing(folder / "audit.csv") as draft,
        draft.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(["row", "weight", "distance", "columns"])
        writer.writerows(zip(found.row, found.weight, found.distance, found.columns, strict=True))
    few = int((found.weight < _SUSPECT).sum())
    return f"{agreement.run}: done, {few} of {len(y)} rows hardly counted; see {folder}"


def _fit(
    outcome: Outcome, problem: Any, names: tuple[str, ...], lam: Array, risks: Array, centers: Array
) -> Fit:
    return Fit(
        theta=outcome.theta.reshape(problem.shape),
        lam=lam,
        clients=names,
        risks=risks,
        objective=outcome.objective,
        gap=np.nan if outcome.gap is None else outcome.gap,
        rounds=outcome.rounds,
        status=outcome.status,
        message=outcome.message,
        history=[],
        sample_weights={},
        centers=centers,
        problem=problem,
        rho=problem.method.rho,
        l2=outcome.l2,
    )


def _facts(state: State) -> dict[str, Any]:
    notes = [f"trained among {len(state.roster)} sites by study {state.study.name!r}"]
    stood_in = [line for line in state.history if len(line.answered) < len(state.roster)]
    if stood_in:
        notes.append(f"in {len(stood_in)} rounds the last report of a site stood in for it")
    bound, outcome = coordinator.certificate(state), state.outcome
    assert outcome is not None
    first = state.history[0].objective  # at θ = 0, where a training begins: a constant prediction
    noisy = state.study.privacy.epsilon is not None
    words = None if bound is None else (
        f"Worst-case risk over all distributions within UW distance {bound.radius:.4g} of the "
        f"mixture: at most {bound.bound:.6g}. Bounded is L = l − h, the loss less the outlier "
        "score."
    )  # fmt: skip
    return {
        "data": {"rows": sum(state.rows), "notes": notes},
        "clients": [
            {"name": name, "rows": rows}
            for name, rows in zip(state.roster, state.rows, strict=True)
        ],
        "learnt": None if noisy else {"loss": outcome.objective, "constant": first},
        "certificate": None if bound is None else {**bound._asdict(), "words": words},
    }
