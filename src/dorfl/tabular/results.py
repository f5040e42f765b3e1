"""Make the results of a finished study: the coordinator's model, and the results of each site.

A model holds no row. The weights of a site's rows stay in the site's folder.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dorfl.federated.fit import Fit
from dorfl.linear.group import Group
from dorfl.linear.problem import Problem
from dorfl.protocol import constant_baseline, resolution
from dorfl.protocol.messages import Agreement, Finished, Outcome
from dorfl.protocol.state import State
from dorfl.protocol.steps import certify, finish, network
from dorfl.protocol.steps.network import risks_of
from dorfl.selection.outliers import Decision
from dorfl.support import files
from dorfl.support.types import Array
from dorfl.tabular import model, promises
from dorfl.tabular.audit import MIN_WEIGHT, audit
from dorfl.tabular.model import Facts, Model
from dorfl.tabular.model.facts import (
    ClientStatistics,
    LossComparison,
    PaperCertificate,
    Validation,
    Weights,
)
from dorfl.tabular.rows import Rows

_MIN_BIN = 5  # rows of a bin below which the histogram of weights leaves it out
_BELOW_HALF = finish.EDGES.index(MIN_WEIGHT)  # bins of down-weighted rows


def fit_of(state: State) -> Fit:
    """Return the fit of a finished study, for standardised columns."""
    outcome, centers = state.outcome, state.centers
    problem = resolution.problem_of(state.agreed)
    if centers is None:
        centers = np.zeros((len(state.reported_rows), problem.dims))
    fit = _fit(outcome, problem, tuple(state.reported_rows), outcome.lam, outcome.risks, centers)
    fit.history.extend(state.history)
    return fit


def model_of(state: State, notes: tuple[str, ...] = (), warnings: tuple[str, ...] = ()) -> Model:
    """Return the model of a finished study; statistics that no site reported are left out."""
    fit, agreed, data = fit_of(state), state.agreed, state.study.data
    facts = _facts(state, fit.centers, notes)._replace(warnings=warnings)
    return Model(
        fit, agreed.transform, data.label, data.client, agreed.classes, agreed.target, facts
    )


def write_site(
    folder: Path, agreement: Agreement, group: Group, outcome: Outcome, places: Array
) -> str:
    """Write a site's model, and audit.csv with its rows by ascending weight; return a summary.

    `places` has the rows' places in the site's table.
    """
    (name,) = group.names
    risks = risks_of(group, outcome.theta)
    fit = _fit(outcome, group.problem, group.names, np.ones(1), risks, group.centers)
    own = Model(
        fit,
        agreement.transform,
        agreement.study.data.label,
        None,
        agreement.classes,
        agreement.target,
        Facts(
            rows=len(group.target),
            settings=agreement.study.to_json(),
            reference=_plain(agreement.reference),
        ),
    )
    model.save(own, folder / "model")
    if group.problem.score.center is None and agreement.reference is None:
        return f"{agreement.run}: done, the model is in {folder}"
    y = group.problem.decode(group.target)
    found = audit(own, Rows((name,), group.bounds, group.rows, y, places))
    with (
        files.replacing(folder / "audit.csv") as draft,
        draft.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(["row", "weight", "distance", "columns"])
        writer.writerows(zip(found.row, found.weight, found.distance, found.columns, strict=True))
    return (
        f"{agreement.run}: done, {found.low} of {len(y)} rows have less than half of an ordinary "
        f"row's weight; see {folder}"
    )


def _fit(
    outcome: Outcome,
    problem: Problem,
    names: tuple[str, ...],
    lam: Array,
    risks: Array,
    centers: Array,
) -> Fit:
    return Fit(
        theta=outcome.theta.astype(np.float64).reshape(problem.shape),
        lam=lam,
        clients=names,
        risks=risks,
        objective=outcome.objective,
        gap=np.nan if outcome.gap is None else outcome.gap,
        gap_kind=outcome.gap_kind,
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


def _facts(state: State, centers: Array, notes: tuple[str, ...]) -> Facts:
    reports, rows = state.finished, state.reported_rows
    notes += _notes(state)
    weights = learnt = None
    if set(reports) == set(state.sites):
        weights, learnt = totals([reports[name] for name in state.sites], state.outcome.lam)
        if weights.low and not state.here:
            notes += (
                f"sites report weights in blocks of at least {state.study.privacy.least} rows, so "
                "the number of down-weighted rows is approximate",
            )
    common = np.average(centers, axis=0, weights=list(rows.values()))
    return Facts(
        sum(state.rows),
        notes,
        network.describe(state) + resolution.chosen(state.agreed).words,
        _clients(state),
        tuple(common.ravel().tolist()),
        weights,
        learnt,
        _guarantee(state),
        settings=state.study.to_json(),
        promise=promises.of_study(state),
        reference=_plain(state.agreed.reference),
        outliers=resolution.share_of(state.agreed),
        ridge=resolution.ridge_of(state.agreed),
        validation=_validation(state.agreed.decision),
    )


def _notes(state: State) -> tuple[str, ...]:
    """Return notes on rounds, settings, sites and columns."""
    incomplete = sum(len(line.answered) < len(state.sites) for line in state.history)
    notes: tuple[str, ...] = ()
    if incomplete and state.study.privacy.summed:
        notes += (f"{incomplete} rounds were sums without a site that did not reply",)
    elif incomplete and state.network_training is not None:
        notes += (f"{incomplete} rounds were without a site that did not reply",)
    elif incomplete:
        notes += (f"in {incomplete} rounds the last report of a site was extrapolated",)
    notes += resolution.unused(state.study) + _discounted(state) + certify.describe_withheld(state)
    if state.network_training:
        notes += (network.NO_CERTIFICATE,)
    dates = [repr(part.name) for part in state.agreed.transform.numeric if part.date]
    if dates:
        notes += (f"dates are used as days since 1970: column {', '.join(dates)}",)
    if state.released:
        notes += ("figures of single sites are as the sites released them, rounded",)
    return notes


def _clients(state: State) -> tuple[ClientStatistics, ...]:
    """Return the statistics of clients, and in a summed study those that sites release, rounded."""
    counts = dict(zip(state.sites, state.rows, strict=True))
    found = []
    for name, rows in state.reported_rows.items():
        own = state.finished.get(name)
        loss, score = (None, None) if own is None else (own.learnt.loss, own.score)
        found.append(ClientStatistics(name, rows, loss, score))
    for name, released in state.released.items():
        if released.score is not None:
            found.append(ClientStatistics(name, counts[name], released.loss, released.score))
    return tuple(found)


def _validation(decision: Decision | None) -> Validation | None:
    if decision is None or not decision.rows or not (decision.share or decision.labels):
        return None
    return Validation(decision.loss, decision.plain)


def _plain(theta: Array | None) -> tuple[float, ...]:
    return () if theta is None else tuple(theta.tolist())


def _discounted(state: State) -> tuple[str, ...]:
    """Return a note for each site that counts as fewer rows than it reports."""
    if state.sizes or state.study.defence.most_rows is not None:
        return ()
    return tuple(
        f"site {name!r} counts as {most:,} of the {own:,} rows that it reports, four times the "
        "median site's; [defence] most_rows sets the limit"
        for name, own, most in zip(state.sites, state.rows, state.counted_rows, strict=True)
        if most < own
    )


def totals(reports: Sequence[Finished], lam: Array) -> tuple[Weights, LossComparison]:
    """Return rows by weight, without bins of few rows, and the loss beside a constant's."""
    total = np.sum([one.weights for one in reports], axis=0).tolist()
    shown = tuple(int(n) if n >= _MIN_BIN else 0 for n in total)
    weights = Weights(finish.EDGES, shown, int(sum(total[:_BELOW_HALF])))
    found = constant_baseline.against([one.learnt for one in reports], lam)
    return weights, LossComparison(*found)


def _guarantee(state: State) -> PaperCertificate | None:
    bound = finish.certificate_of(state)
    if bound is None:
        return None
    firm = bound.error is not None
    words = (
        f"Worst-case risk over all distributions within UW distance {bound.radius:.4g} of the "
        f"mixture: at most {bound.bound:.6g}, {'certified' if firm else 'estimated'}. The worst "
        f"distribution attains {bound.attained:.6g}. Bounded is L = l − h, the loss less the "
        "outlier score."
    )
    return PaperCertificate(bound.radius, bound.bound, bound.attained, firm, words)
