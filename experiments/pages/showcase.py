"""One training on the page: the weights of its rows, λ, convergence, and certificates."""

from __future__ import annotations

from typing import Any

import numpy as np

from dorfl.report.content import (
    Beside,
    Block,
    Details,
    Figure,
    Section,
    Series,
    Text,
)
from experiments.claims import Claim


def closer(shown: dict[str, Any], converged: dict[str, Any]) -> Section:
    """Return one training: the weights of its rows, λ, and convergence."""
    return Section(
        "One training, looked at closely",
        [
            Text(
                [
                    "DOR-FL on the synthetic data of seed 0, in the paper's own setting (no "
                    "intercept). A row's weight is 1 for an ordinary "
                    "row and near 0 for one that is down-weighted. The weights separate outliers "
                    f"from inliers: area under the ROC curve {shown['area']:.4f}, average "
                    f"precision {shown['precision']:.4f}."
                ]
            ),
            Beside([_weights(shown), _mixture(shown), _convergence(converged)]),
        ],
    )


def certified(found: dict[str, Any]) -> Section:
    """Return the certificates of models over the drift and over the share of outliers."""
    blocks: list[Block] = [
        Text(
            [
                "One row in ten is an outlier, and models have an intercept. The accuracy of rows "
                "to come within the drift is at least the one shown, with 95 % confidence, "
                "computed from 8,000 rows that no model was trained on. The loss on the training "
                "rows is at most the one shown. ERM is close to a constant here, which no drift "
                "changes: its certified accuracy is high for the largest client and low for the "
                "smallest."
            ]
        )
    ]
    for key, x_label, scale in (
        ("drift", "drift in standard deviations", 1.0),
        ("share", "outliers in %", 100.0),
    ):
        figures = []
        for k, y_label, unit in ((1, "accuracy at least, in %", 100.0), (2, "loss at most", 1.0)):
            series = [
                Series(name, [scale * line[0] for line in one[key]],
                       [unit * line[k] for line in one[key]])
                for name, one in found.items()
            ]  # fmt: skip
            what = "accuracy" if k == 1 else "loss"
            at = "10 % outliers" if key == "drift" else "a drift of 0.1"
            figures.append(
                Figure(f"certified-{what}-over-{key}", f"Certified {what}, {at}", x_label, y_label,
                       series, alt=f"{y_label} against {x_label}, of ERM and DOR-FL.")
            )  # fmt: skip
        blocks.append(Beside(figures))
    blocks.append(Details("In words", [Text([one["words"] for one in found.values()])]))
    return Section("What is guaranteed", blocks)


def certificate(found: dict[str, Any]) -> Claim:
    """Return the accuracy certified for DOR-FL without drift, beside that on the inliers."""
    one = found["DOR-FL"]
    _, least, _ = one["drift"][0]
    return Claim.single(
        "the certified accuracy (95 % confidence, one row in ten an outlier) is not above the "
        f"accuracy measured on inliers, {100 * one['accuracy']:.1f} %",
        "ours",
        f"≥ {100 * least:.1f} %",
        least <= one["accuracy"],
    )


def _weights(shown: dict[str, Any]) -> Figure:
    weight, wrong = np.array(shown["weight"]), np.array(shown["outlier"])
    far = np.linalg.norm(np.array(shown["rows"]), axis=1)
    series = [
        Series(name, far[which], np.maximum(weight[which], 1e-16))
        for name, which in (("inliers", ~wrong), ("outliers", wrong))
    ]
    return Figure("weights", "Which rows are down-weighted", "distance from the origin in x1, x2",
                  "weight (1: an ordinary row)", series, "points", y_log=True,
                  alt="Outliers have weights many orders of magnitude below one.")  # fmt: skip


def _mixture(shown: dict[str, Any]) -> Figure:
    lam = np.array(shown["lam"])
    rounds = np.arange(1, len(lam) + 1)
    series = [Series(f"client {i + 1}", rounds, lam[:, i]) for i in range(lam.shape[1])]
    return Figure("mixture", "λ over the rounds", "round", "λ", series, y_range=(-0.04, 1.04),
                  alt="The mixture of clients settles within a few rounds.")  # fmt: skip


def _convergence(found: dict[str, Any]) -> Figure:
    series = [Series(name, curve["rounds"], curve["excess"]) for name, curve in found.items()]
    return Figure("convergence", "Exchanges of messages to convergence", "round",
                  "max F above its minimum", series, x_log=True, y_log=True,
                  note="Algorithm 1 as printed draws one row per client and round and returns an "
                  "average: each point is a run of that length.",
                  alt="sqp converges in some ten rounds, optimistic in hundreds.")  # fmt: skip
