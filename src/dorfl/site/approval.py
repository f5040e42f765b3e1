"""What a person at a site reads before approving a study: half a page of plain text.

The study's author must not be able to write part of the page. Names from the study's text are
quoted, cut and never wrapped, so a line begins with the page's own words or with spaces.
"""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import TextWrapper

from dorfl.protocol.settings import Study
from dorfl.site.policy import Policy
from dorfl.site.rules import mode_objection
from dorfl.support.text import one_line

NETWORK_ROUNDS = 500  # of a network at sites, by default: networks.tabular.plan_for
_MAX_NAME = 40  # characters of a name that are shown
_WRAPPER = TextWrapper(88, subsequent_indent="    ", break_on_hyphens=False)
_STATISTICS = "a risk, its gradient and curvature"  # of a round of a linear model
_UPDATES = (
    "a risk and an update with a number for every parameter of the network (in rounds of a linear "
    "model before it, a gradient and curvature)"
)

_LEAVES = {
    "summed": (
        "In the open: the number of rows, the kinds of columns and the names of their levels. "
        "Everything else is masked: counts, medians and scales of columns, and in every round "
        f"{_STATISTICS}. The coordinator and the other sites read sums over all "
        "sites. This site recomputes each question and answers no other."
    ),
    "open": (
        "The number of rows; counts, means of blocks and scales of columns; in every round "
        f"{_STATISTICS}; at the end how the model serves this site. The "
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
    """Return half a page on a study: what is learnt, from which columns, and what is sent.

    Of the columns that the study ignores, those that the site has released are named.
    """
    mode, privacy = study.privacy.mode, study.privacy
    uses = quoted(study.columns.use) or "every released column: " + quoted(policy.released)
    without = quoted(name for name in study.columns.ignore if name in policy.released)
    ignored = f" (without {without})" if without else ""
    is_network, rounds = study.training.model != "linear", study.training.max_rounds
    model = "neural network" if is_network else "linear model"
    often = f"at most {rounds} rounds" if rounds else "usually 5 to 40 rounds, until it converges"
    if is_network:
        often = (
            f"{rounds or NETWORK_ROUNDS} rounds of the network, and usually 5 to 40 of a linear "
            "model before them"
        )
    absent = study.absent
    away = (
        "goes on without sites that are away, for any number of rounds"
        if absent.then == "go on"
        else f"waits for a site that was away {absent.stand_in} times"
    )
    leaves = _LEAVES[mode].replace(_STATISTICS, _UPDATES if is_network else _STATISTICS)
    if mode == "summed":
        figures = "released, rounded" if policy.release_figures else "not released"
        leaves += f" This site's own accuracy and loss at the end: {figures}."
    if mode == "private":
        leaves += f" ε = {privacy.epsilon:g}, δ = {privacy.delta:g}."
        if not privacy.known:
            leaves += " Statistics of columns before training have no noise."
    lines = [
        f"Study: {quoted([study.name])}. Sites: {quoted(study.sites) or 'not named'}.",
        f"Learnt: a {model} that predicts {quoted([study.data.label])}, "
        f"{_METHODS[study.method.name]}.",
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
    return "\n".join(_WRAPPER.fill(line) for line in lines).replace("\xa0", " ")


def quoted(names: Iterable[str]) -> str:
    r"""Return names in quotes, each on one line and cut to a length, that are not wrapped.

    >>> quoted(["age", "a\nMode: private."]).replace("\xa0", " ")
    "'age', 'a Mode: private.'"
    """
    short = (one_line(name) for name in names)
    cut = (name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…" for name in short)
    return ", ".join(repr(name).replace(" ", "\xa0") for name in cut)
