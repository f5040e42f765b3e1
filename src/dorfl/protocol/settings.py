"""The text of a study: what is learnt from which columns, how, and the rules for all parties.

The same record whether rows are in one table (`file`, and `client`, the column that says whose row
it is) or at sites elsewhere (`sites`). Sites get it with every request, so that they see what they
are asked to take part in and can refuse.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

from dorfl import solvers
from dorfl.federated.options import Options, about
from dorfl.linear.curvature import BUDGET, RESOLUTIONS
from dorfl.objective import mixture as mixing
from dorfl.support import wire

METHODS = ("erm", "afl", "wafl", "gdrfl", "dorfl")
SUMMED_SITES = 3  # of two sites, each would know the other's part of a sum
_MESSAGE = wire.LIMIT // 2  # bytes of numbers: written as text they are a third longer

Names = tuple[str, ...]
Known = tuple[float | str, ...]  # the least and the most, or levels


class OneOf(NamedTuple):
    """The values that a setting may have; a function if users may add some."""

    choices: Names | Callable[[], Names]

    @property
    def names(self) -> Names:
        """Return the values."""
        return self.choices() if callable(self.choices) else self.choices

    def objection(self, value: Any) -> str | None:
        """Return what to write instead of a value, or None."""
        return None if value in self.names else f"choose one of {', '.join(self.names)}"


class Within(NamedTuple):
    """The range of a setting; infinity is outside."""

    least: float = 0.0
    most: float = math.inf
    positive: bool = False

    def objection(self, value: Any) -> str | None:
        """Return what to write instead of a value, or None."""
        if self.positive and not 0.0 < value < math.inf:
            return "must be a positive number"
        if not self.least <= value < math.inf:
            return f"must be at least {self.least:.10g}"
        return f"must be at most {self.most:.10g}" if value > self.most else None


POSITIVE = Within(positive=True)
_COUNT = Within(least=1, most=1e9)
_COUNT_OR_NONE = Within(most=1e9)
_SEED = Within(most=1e18)  # a message holds whole numbers of 63 bits
_YEAR = 365 * 86400.0  # seconds
_MODERATE = Within(1e-6, 1e6)  # the noise and its accounting stay far from the limits of floats


class Setting(NamedTuple):
    """A setting: its type, what it is about, and its values. TOML, commands and errors say them."""

    kind: Any
    about: str
    values: OneOf | Within | None = None

    @property
    def choices(self) -> Names:
        """Return the values to choose from, or none if there are others."""
        return self.values.names if isinstance(self.values, OneOf) else ()

    @property
    def text(self) -> str:
        """Return the description, with the choices."""
        return f"{self.about}: {', '.join(self.choices)}" if self.choices else self.about


@cache
def settings_of(record: type) -> dict[str, Setting]:
    """Return the settings of a record, whose fields are annotated with them."""
    hints = get_type_hints(record, include_extras=True)
    return {name: Setting(*get_args(hint)) for name, hint in hints.items()}


def check_values(record: Any, where: str) -> None:
    """Raise ValueError if a setting has none of its values."""
    for name, setting in settings_of(record.__class__).items():
        value, values = getattr(record, name), setting.values
        reason = None if value is None or values is None else values.objection(value)
        if reason is not None:
            raise ValueError(f"{where}{name} = {wire.short(value)}: {reason}")


class Data(NamedTuple):
    """What to predict, and where the rows are; classes that are not named are those found."""

    label: Annotated[str, "the column to predict"]
    file: Annotated[str | None, "the table: CSV (also .gz) or Parquet; sites have their own"] = None
    client: Annotated[str | None, "the column that names the client of each row"] = None
    task: Annotated[str, "what is learnt", OneOf(("auto", "classification", "regression"))] = "auto"
    classes: Annotated[Names, "the label's values; none named: those that are found"] = ()
    small: Annotated[str, "clients with too few rows", OneOf(("refuse", "drop", "merge"))] = (
        "refuse"
    )


class Used(NamedTuple):
    """From what (none named: every column, or all that the sites release), and how it is read."""

    use: Annotated[Names, "columns to learn from; none named: all"] = ()
    numeric: Annotated[Names, "columns to read as numbers"] = ()
    category: Annotated[Names, "columns to read as categories"] = ()
    ignore: Annotated[Names, "columns to leave out"] = ()
    missing: Annotated[Names, "cells that mean a missing value, as empty ones do"] = ()
    frozen: Annotated[Names, "columns that cannot drift, beside categories"] = ()
    scaling: Annotated[
        str, "the units of numbers (robust: median, MAD)", OneOf(("robust", "standard", "none"))
    ] = "robust"


class Words(NamedTuple):
    """The method, in words (`outliers`, `shift`: see :mod:`dorfl.defaults`) or by its parts."""

    name: Annotated[str, "the method", OneOf(METHODS)] = "dorfl"
    outliers: Annotated[
        float | str, "the share of rows that may be outliers; auto: decided on held-out rows"
    ] = "auto"
    shift: Annotated[
        float | str,
        "how far rows may drift, in standard deviations; auto: 0.25, or 0 if no row is an outlier",
    ] = "auto"
    rho: Annotated[float | None, "the price ρ of moving a row, instead of shift", POSITIVE] = None
    beta: Annotated[float | None, "the price β of reweighting rows", POSITIVE] = None
    score_weight: Annotated[
        float | None, "the outlier score ρ₂ of a row at the cutoff", POSITIVE
    ] = None
    center: Annotated[str, "the centre ξ̄ (client: each its own)", OneOf(("auto", "client"))] = (
        "client"
    )
    mixture: Annotated[
        str, "how clients count (fixed: by size)", OneOf(("auto", "fixed", "agnostic"))
    ] = "auto"
    cap: Annotated[
        float, "the most a client may count in an agnostic mixture", Within(most=1.0, positive=True)
    ] = 1.0
    by: Annotated[str, "what makes a client the worst", OneOf(mixing.BY)] = "loss"

    @property
    def scores(self) -> bool:
        """Return whether rows far from a centre may be outliers."""
        return self.name == "dorfl" and self.outliers != 0

    @property
    def measures(self) -> bool:
        """Return whether the scales of columns among inliers are needed."""
        return self.name not in ("erm", "afl")


class Training(NamedTuple):
    """Options of :func:`dorfl.train` that a study can set: :mod:`dorfl.federated.options`.

    A study decides by itself what to minimise, and how much of l2 that takes; raw
    tables do not deserve a finer tolerance. Huber's loss turns linear where that of scikit-learn's
    `HuberRegressor` does: 0.92 of the consistent scale is 1.35 of its own, smaller one, for both
    have b/ε² = 1/1.35² (:class:`dorfl.objective.losses.ConcomitantHuber`).
    """

    model: Annotated[
        str, "what is trained (mlp: a network, needs PyTorch)", OneOf(("linear", "mlp"))
    ] = "linear"
    loss: Annotated[str, "what is made small: auto, logistic, softmax, squared or huber"] = "auto"
    delta: Annotated[float, "where Huber's loss turns linear, in units of residuals", POSITIVE] = (
        0.92
    )
    solver: Annotated[str, "how it is solved", OneOf(solvers.names)] = "auto"
    tol: Annotated[float, about("tol")] = 1e-4
    max_rounds: Annotated[int | None, about("max_rounds"), _COUNT] = Options.max_rounds
    curvature: Annotated[str, "finest curvature requested", OneOf(("auto", *RESOLUTIONS))] = (
        Options.curvature
    )
    bytes_per_round: Annotated[int, about("bytes_per_round"), Within(most=_MESSAGE)] = BUDGET
    intercept: Annotated[bool, about("intercept")] = Options.intercept
    batch: Annotated[
        int | None,
        "rows of each client in a step of training a network; 0: all rows",
        _COUNT_OR_NONE,
    ] = None
    l2: Annotated[
        float | None, f"{about('l2')}; by default 1 / rows, of numbers in the unit of residuals"
    ] = None
    seed: Annotated[int, about("seed"), _SEED] = Options.seed


class Privacy(NamedTuple):
    """What the coordinator may learn, and the fewest rows behind a statistic.

    `reports` is one of three modes (docs/threat-model.md). "summed": the coordinator learns sums
    over sites (:mod:`dorfl.federated.secure_sum`), and sites recompute its every question
    (:mod:`dorfl.protocol.transcript`). "open": it learns each site's reports.
    "private": reports have noise for (ε, δ)-differential privacy
    (:mod:`dorfl.federated.privacy`, also for `clip` and `highest`); with `known` of every column,
    the steps before training have it too (:mod:`dorfl.protocol.private_columns`).
    """

    minimum_rows: Annotated[int, "how many rows a client needs", _COUNT] = 10
    least: Annotated[int, "how many rows stand behind a statistic", _COUNT] = 5
    reports: Annotated[
        str,
        "what the coordinator learns of a site (summed: sums over sites only; open: its reports; "
        "private: noisy ones; auto: summed, or private if epsilon is set)",
        OneOf(("auto", "summed", "open", "private")),
    ] = "auto"
    epsilon: Annotated[float | None, "what a row may show: differential privacy", _MODERATE] = None
    delta: Annotated[float, "… and with what probability more", Within(1e-100, 0.999999)] = 1e-5
    clip: Annotated[float, "… the longest gradient of a row", _MODERATE] = 1.0
    highest: Annotated[float, "… the most that a row's loss counts for", _MODERATE] = 2.0
    known: Annotated[
        dict[str, Known],
        "… columns' ranges and levels: statistics before training are private too",
    ] = {}  # noqa: RUF012 - never changed in place
    peers: Annotated[Names, "sites that sum, with their keys; `dorfl run` fills it in"] = ()

    @property
    def mode(self) -> str:
        """Return the mode; a study that names none and has no ε is an open one."""
        if self.reports != "auto":
            return self.reports
        return "open" if self.epsilon is None else "private"

    @property
    def summed(self) -> bool:
        """Return whether the coordinator learns sums only."""
        return self.reports == "summed"


class Defence(NamedTuple):
    """Defences against a site that lies: see docs/attacks.md.

    `row` is the largest norm of a row once columns are scaled (`target`: of a label); reports are
    then clipped to what is possible. `liars` is the share of sites that may lie: the sites whose
    reports differ most from the others are left out. `trim` is the share of the mixture whose
    gradients may be lies (solver "optimistic"). A fixed mixture weights sites by the rows that they
    report: `most_rows` is the most that counts.
    """

    row: Annotated[float | None, "how long a scaled row can be", POSITIVE] = None
    target: Annotated[float | None, "how large a scaled label can be", POSITIVE] = None
    liars: Annotated[float, about("liars")] = Options.liars
    trim: Annotated[float, about("trim")] = Options.trim
    most_rows: Annotated[int | None, "the most rows that a site counts for", _COUNT] = None


class Absent(NamedTuple):
    """The rule for a site that does not answer a round.

    After `answer_within` seconds its last report is extrapolated, for up to `stand_in` rounds in a
    row; "then" the round waits for it ("wait"), or training goes on with the old report ("go on").
    """

    answer_within: Annotated[float, "seconds a site has to answer", Within(1, _YEAR)] = 60.0
    stand_in: Annotated[int, "rounds for which its last report is extrapolated", _COUNT_OR_NONE] = 3
    then: Annotated[str, "what a round does then", OneOf(("wait", "go on"))] = "wait"


class Study(NamedTuple):
    """Everything that is agreed before the first number is sent."""

    data: Data
    name: str = "study"
    sites: Names = ()
    columns: Used = Used()
    method: Words = Words()
    training: Training = Training()
    privacy: Privacy = Privacy()
    defence: Defence = Defence()
    absent: Absent = Absent()

    def changed(self, **given: Any) -> Study:
        """Return the study with other values by section and name (`data_label`), unless None."""
        out = self
        for path, value in given.items():
            section, _, name = path.partition("_")
            if value is not None:
                out = out._replace(**{section: getattr(out, section)._replace(**{name: value})})
        return out

    @property
    def kinds(self) -> dict[str, str]:
        """What is said of columns, as preprocessing takes it."""
        columns = self.columns
        known = self.privacy.known.items()
        return {
            **{name: "category" if isinstance(of[0], str) else "numeric" for name, of in known},
            **dict.fromkeys(columns.numeric, "numeric"),
            **dict.fromkeys(columns.category, "category"),
            **dict.fromkeys(columns.ignore, "ignore"),
        }

    def to_json(self) -> dict[str, Any]:
        """As plain JSON; of the data's place only the file's name."""
        plain: dict[str, Any] = json.loads(wire.encode(self))
        if self.data.file is not None:
            plain["data"]["file"] = Path(self.data.file).name
        return plain


def among(study: Study, sites: Names) -> Study:
    """Return the study with its sites and mode; `sites` take part if it names none."""
    study = study._replace(sites=study.sites or sites)
    if not study.sites:
        raise ValueError("study: no site takes part; name them: sites = [...]")
    study = _with_mode(study)
    if study.training.model == "linear":
        return study
    if study.training.batch:
        raise ValueError(
            "training.batch: at sites elsewhere a network's steps are on all rows, for a few would "
            "show; set batch = 0, or leave it out"
        )
    return study.changed(training_batch=0)


def _with_mode(study: Study) -> Study:
    """Return the study with its mode named; ValueError if too few sites leave none by default."""
    if study.privacy.reports != "auto":
        return study
    if study.privacy.epsilon is not None:
        return study.changed(privacy_reports="private")
    if len(study.sites) < SUMMED_SITES:
        raise ValueError(
            "privacy.reports: sums need three sites, or each would know the other's part; set "
            '[privacy] reports = "open" (each site has to allow it) or "private" (with epsilon)'
        )
    return study.changed(privacy_reports="summed")


def linear(study: Study) -> Study:
    """Return the study of the linear model that is trained before a network, by default options.

    >>> linear(Study(Data("y"), training=Training("mlp", max_rounds=9))).training == Training()
    True
    """
    if study.training.model == "linear":
        return study
    words = study.training._replace(model="linear", max_rounds=None, batch=None, l2=None)
    return study._replace(training=words)
