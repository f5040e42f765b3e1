"""Fashion-MNIST on the page: accuracy of the worst client, beside published figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dorfl.report.content import Beside, Cell, Figure, Section, Series, Table, Text
from experiments.claims import Claim
from experiments.fashion import L2

TITLE = "Fashion-MNIST, one class per client"
PUBLISHED = {  # accuracy of the worst client on the three classes, in %
    "FedAvg, published": 66.6,
    "AFL, published": 77.3,
    "DRFA-Prox, published": 78.0,
    "ASPIRE-EASE, published": 78.8,
}
_ERM, _AFL, _TEN = "ERM, three classes", "AFL, three classes", "AFL, ten classes"


def section(found: Mapping[str, dict[str, Any]]) -> tuple[Section, list[Claim]]:
    """Return the section and its claim; `found` has the runs by the names of the rows."""
    rows: list[list[Cell]] = [
        [name, 100.0 * run["overall"], _worst(run), run["loss"], run["objective"], run["gap"],
         run["rounds"]]
        for name, run in found.items()
    ]  # fmt: skip
    for count, many in ((3, "three"), (10, "ten")):
        rows.append(
            [f"constant, {many} classes", 100.0 / count, 0.0, math.log(count), None, None, None]
        )
    rows += [[name, None, worst, None, None, None, None] for name, worst in PUBLISHED.items()]
    table = Table(
        "fashion",
        "Fashion-MNIST: accuracy on the test pictures in %",
        ("method", "overall", "worst client", "log loss", "objective", "gap", "rounds"),
        rows,
        {
            "overall": ".1f",
            "worst client": ".1f",
            "log loss": ".3f",
            "objective": ".4f",
            "gap": ".0e",
        },
        f"Linear softmax, pixels from 0 to 1, l2 = {L2:g}. The gap is in units of the objective: "
        "the mean loss (ERM), or the loss of the worst mixture of clients (AFL). Classes are "
        "equally frequent, so balanced accuracy is accuracy; one run each, so no standard error.",
        None,
        (*PUBLISHED, "constant, three classes", "constant, ten classes"),
    )
    three, ten = {name: found[name] for name in (_ERM, _AFL)}, {_TEN: found[_TEN]}
    figures = Beside([_figure("fashion-three", three), _figure("fashion-ten", ten)])
    erm, afl = _worst(found[_ERM]), _worst(found[_AFL])
    lam = ", ".join(
        f"{share:.2f} {client}"
        for client, share in zip(found[_AFL]["clients"], found[_AFL]["lam"], strict=True)
    )
    words = Text(
        [
            "The example of the paper on agnostic federated learning: T-shirts, pullovers and "
            "shirts look alike, and every client has one of the three classes. Published figures "
            "are from stochastic methods with their authors' settings. Ours are the optimum and do "
            "not depend on a step size. The worst loss is minimised, not the worst accuracy, so a "
            "model that stops before the optimum may have a higher worst accuracy.",
            f"AFL finds the mixture {lam}.",
            *(
                f"{name}: not converged after {run['rounds']} rounds, so its row is not "
                "the optimum."
                for name, run in found.items()
                if not run["converged"]
            ),
        ]
    )
    claim = Claim.single(
        "AFL is at least 5 points more accurate than ERM for the worst client of Fashion-MNIST",
        "Mohri, Sivek and Suresh",
        f"AFL {afl:.1f} %, ERM {erm:.1f} %",
        afl >= erm + 5.0 and all(run["converged"] for run in found.values()),
    )
    return Section(TITLE, [words, table, figures]), [claim]


def _figure(name: str, runs: Mapping[str, dict[str, Any]]) -> Figure:
    series = [
        Series(label.split(",")[0], run["clients"], [100.0 * a for a in run["by_client"]])
        for label, run in runs.items()
    ]
    count = len(series[0].x)
    title = f"Accuracy by client, {count} classes"
    return Figure(name, title, "client", "accuracy in %", series, "dots", y_range=(0.0, 100.0))


def _worst(run: Mapping[str, Any]) -> float:
    return 100.0 * float(min(run["by_client"]))
