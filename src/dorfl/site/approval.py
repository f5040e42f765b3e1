"""What a person at a site reads before approving a study: half a page of plain text."""

from __future__ import annotations

from textwrap import fill

from dorfl.protocol.settings import Study
from dorfl.site.policy import Policy
from dorfl.site.rules import mode_objection

_LEAVES = {
    "summed": (
        "In the open: the number of rows, the kinds of columns and the names of their levels. "
        "Everything else is masked: counts, medians and scales of columns, and in every round a "
        "risk, its gradient and curvature. The coordinator and the other sites read sums over all "
        "sites. This site recomputes each question and answers no other."
    ),
    "open": (
        "The number of rows; counts, means of blocks and scales of columns; in every round a "
        "risk, its gradient and curvature; at the end how the model serves this site. The "
        "coordinator reads this site's own numbers and could work rows out of them. It is trusted "
        "by contract."
    ),
    "private": (
        "The number of rows exactly. Every statistic of rows has noise, so that one row changes "
        "what is seen by little: (ε, δ)-differential privacy."
    ),
}
_METHODS = {
    "dorfl": "robust to differing sites, drift and outliers",
    "gdrfl": "robust to differing sites and drift",
    "wafl": "robust to drift",
    "afl": "for the worst site",
    "erm": "plain",
}


def summary(study: Study, policy: Policy) -> str:
    """Return half a page on a study: what is learnt, from which columns, and what is sent."""
    mode, privacy = study.privacy.mode, study.privacy
    uses = ", ".join(study.columns.use) or "every released column: " + ", ".join(policy.released)
    ignored = f" (without {', '.join(study.columns.ignore)})" if study.columns.ignore else ""
    model = "linear model" if study.training.model == "linear" else "neural network"
    rounds = study.training.max_rounds
    often = f"at most {rounds} rounds" if rounds else "usually 5 to 40 rounds, until it converges"
    absent = study.absent
    away = (
        "goes on without sites that are away, for any number of rounds"
        if absent.then == "go on"
        else f"waits for a site that was away {absent.stand_in} times"
    )
    leaves = _LEAVES[mode]
    if mode == "summed":
        figures = "released, rounded" if policy.release_figures else "not released"
        leaves += f" This site's own accuracy and loss at the end: {figures}."
    if mode == "private":
        leaves += f" ε = {privacy.epsilon:g}, δ = {privacy.delta:g}."
        if not privacy.known:
            leaves += " Statistics of columns before training have no noise."
    lines = [
        f"Study: {study.name}. Sites: {', '.join(study.sites) or 'not named'}.",
        f"Learnt: a {model} that predicts {study.data.label}, {_METHODS[study.method.name]}.",
        f"Columns: {uses}{ignored}.",
        f"Mode: {mode}. {leaves}",
        f"How often: one approval is for every run of this text; each run has {often}. "
        f"The study {away}.",
        f"Rules here: at least {policy.least} rows behind every count, level and class (the study: "
        f"{privacy.least}); at least {policy.minimum_rows} rows at the site (the study: "
        f"{privacy.minimum_rows}); at most {policy.parameters_per_row:g} columns of the model per "
        f"row; at most {policy.max_runs} runs of all studies on this table.",
    ]
    if (reason := mode_objection(study, policy)) is not None:
        lines.append(f"As the policy is, the site refuses: {reason}.")
    if privacy.summed:
        lines.append(
            "Before approving, compare the fingerprints of the other sites' keys with those sites, "
            "not with the coordinator."
        )
    return "\n".join(fill(line, 88, subsequent_indent="    ") for line in lines)
