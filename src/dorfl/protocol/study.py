"""A study, written down: what is learnt from which columns, how, and the rules all keep to.

Coordinator and sites read the same study: it is sent with every request, so that a site can see
what it is asked to take part in and refuse.

>>> study = parse('''
... name = "stroke"
... sites = ["north", "south"]
... [data]
... label = "stroke"
... [columns]
... use = ["age", "pressure"]
... [method]
... name = "gdrfl"
... rho = 20
... ''')
>>> study.method.rho, study.absent.then
(20.0, 'wait')
"""

from __future__ import annotations

import difflib
import tomllib
from typing import Any, NamedTuple

import numpy as np

from dorfl import costs, losses, methods, mixture, privacy, scores
from dorfl.defaults import RULES, STEEPNESS, STRENGTH, share_kept, tilt
from dorfl.federation.defence import Limits
from dorfl.losses import Loss
from dorfl.methods import Method
from dorfl.preprocessing import Plan
from dorfl.privacy import Gaussian
from dorfl.protocol import wire


class Data(NamedTuple):
    """What to predict; classes that are not named are those the sites hold enough rows of."""

    label: str
    task: str = "classification"
    classes: tuple[str, ...] = ()


class Used(NamedTuple):
    """From what (none named: every column that the sites release), and how columns are read."""

    use: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    category: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    scaling: str = "robust"


class Choice(NamedTuple):
    """The method, in words (`outliers`, `shift`: see :mod:`dorfl.defaults`) or by its parts."""

    name: str = "dorfl"
    outliers: float = 0.1
    shift: float = 0.25
    rho: float | None = None
    beta: float | None = None
    rho2: float | None = None  # the score of the outermost of the bulk of the rows
    center: str = "client"
    mixture: str = ""  # "fixed" or "agnostic"; nothing: agnostic for `afl` and `gdrfl` alone
    cap: float = 1.0  # the most a site may count in an agnostic mixture
    by: str = "loss"

    @property
    def scores(self) -> bool:
        """Whether rows far from a centre are suspect."""
        return self.name == "dorfl" and self.outliers > 0

    @property
    def bulk(self) -> float:
        """The share of rows that nobody suspects."""
        return share_kept(self.outliers)


class Training(NamedTuple):
    """What :func:`dorfl.train` takes too; l2 is by default 1 / rows."""

    loss: str = "auto"
    solver: str = "sqp"
    tolerance: float = 1e-6
    rounds: int = 100
    intercept: bool = True
    l2: float | None = None
    seed: int = 0


class Privacy(NamedTuple):
    """A site with fewer rows takes no part; a statistic of fewer rows than `least` is not sent.

    With `epsilon`, the rounds are differentially private: see :mod:`dorfl.privacy`, also for
    `clip`, and `highest`, the most that a row's loss counts for.
    """

    minimum_rows: int = 20
    least: int = 5
    epsilon: float | None = None
    delta: float = 1e-5
    clip: float = 1.0
    highest: float = 2.0


class Defence(NamedTuple):
    """Against a site that lies: see docs/attacks.md.

    `row` is how long a row can be once columns are scaled (`target`: how large what is predicted);
    reports are then clipped to what is possible. `trim` is the share of the mixture whose gradients
    may be lies (solver "optimistic"). A fixed mixture weighs sites by the rows they say they have:
    `most_rows` is the most that is believed.
    """

    row: float | None = None
    target: float | None = None
    trim: float = 0.0
    most_rows: int | None = None


class Absent(NamedTuple):
    """The rule for a site that does not answer a round.

    After `answer_within` seconds its last report stands in for it, for up to `stand_in` rounds in a
    row; "then" the round waits for it ("wait"), or training goes on with the old report ("go on").
    """

    answer_within: float = 60.0
    stand_in: int = 3
    then: str = "wait"


class Study(NamedTuple):
    """Everything that is agreed before the first number is sent."""

    name: str
    sites: tuple[str, ...]
    data: Data
    columns: Used = Used()
    method: Choice = Choice()
    training: Training = Training()
    privacy: Privacy = Privacy()
    defence: Defence = Defence()
    absent: Absent = Absent()


def parse(text: str, sites: tuple[str, ...] = ()) -> Study:
    """A study from TOML; `sites` takes part where it names none."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"study: is not valid TOML: {error}") from None
    table.setdefault("sites", list(sites))
    study: Study = _section(table, Study, "study")
    check(study)
    return study


def check(study: Study) -> None:
    """Raise where the study cannot be run as it is written."""
    data, columns, options = study.data, study.columns, study.training
    if not study.sites:
        raise ValueError("study: no site takes part; name them: sites = [...]")
    for what, names in (("sites", study.sites), ("columns.use", columns.use)):
        if len(set(names)) < len(names):
            raise ValueError(f"study: {what} names one twice")
    if not study.name.replace("-", "").replace("_", "").isalnum():
        raise ValueError("study: its name must be made of letters, digits, - and _")
    if data.label in columns.use:
        raise ValueError(f"study: the label {data.label!r} is also one of the columns")
    for what, value, allowed in (
        ("data.task", data.task, ("classification", "regression")),
        ("method.name", study.method.name, tuple(RULES)),
        ("method.center", study.method.center, ("auto", "client")),
        ("method.mixture", study.method.mixture, ("", "fixed", "agnostic")),
        ("training.solver", options.solver, ("auto", "sqp", "optimistic")),
        ("absent.then", study.absent.then, ("wait", "go on")),
    ):
        if value not in allowed:
            raise ValueError(f"study: {what} = {value!r}; choose one of {', '.join(allowed)}")
    for what, number, least in (
        ("absent.answer_within", study.absent.answer_within, 1.0),
        ("absent.stand_in", study.absent.stand_in, 0),
        ("privacy.least", study.privacy.least, 1),
        ("privacy.minimum_rows", study.privacy.minimum_rows, study.privacy.least),
        ("training.rounds", options.rounds, 1),
        ("training.l2", options.l2 or 0.0, 0.0),
        ("method.shift", study.method.shift, 0.0),
        ("method.outliers", study.method.outliers, 0.0),
    ):
        if not least <= number < np.inf:
            raise ValueError(f"study: {what} = {number}; must be at least {least}")
    if study.method.outliers > 0.4:
        raise ValueError(
            "study: method.outliers: at most 0.4; who is right if most rows are wrong?"
        )
    for name in ("rho", "beta", "rho2"):
        value = getattr(study.method, name)
        if value is not None and not 0 < value < np.inf:
            raise ValueError(f"study: method.{name} = {value}; must be a positive number")
    if not 0 < options.tolerance < np.inf:
        raise ValueError(f"study: training.tolerance = {options.tolerance}; must be positive")
    if loss_of(study, max(len(data.classes), 2)).classifies != (data.task == "classification"):
        raise ValueError(f"study: loss {options.loss!r} is not for {data.task}")
    if not 0 <= study.defence.trim <= 0.5:
        raise ValueError("study: defence.trim: from 0 (the mean) to 0.5 (the median)")
    if study.defence.trim > 0 and options.solver == "sqp":
        raise ValueError('study: defence.trim needs training.solver = "optimistic"')
    limits_of(study)
    mechanism_of(study)
    method_of(study.method)
    plan_of(study)


def limits_of(study: Study) -> Limits | None:
    """What honest sites keep to, if the study says so."""
    row, target = study.defence.row, study.defence.target
    if row is None:
        return None
    if not row > 0:
        raise ValueError(f"study: defence.row = {row}; must be positive")
    return Limits(row, np.inf if target is None else target)


def mechanism_of(study: Study, seed: int = 0) -> Gaussian | None:
    """The noise of a study that is differentially private; its seed is each site's own secret."""
    asked = study.privacy
    if asked.epsilon is None:
        return None
    if study.method.scores:
        raise ValueError(
            "study: privacy.epsilon: where rows lie must not be told, so no row can be suspected "
            "for where it lies; set method.outliers = 0"
        )
    return privacy.gaussian(
        asked.epsilon, asked.delta, clip=asked.clip, values=(0.0, asked.highest),
        rounds=study.training.rounds, seed=seed,
    )  # fmt: skip


def loss_of(study: Study, classes: int) -> Loss:
    """The loss by name; "auto": logistic for two classes, softmax for more, Huber's for numbers."""
    if study.training.loss != "auto":
        return losses.resolve(study.training.loss)
    if study.data.task == "regression":
        return losses.huber(1.345)
    return losses.resolve("logistic" if classes == 2 else "softmax")


def method_of(
    choice: Choice, dims: int = 1, frozen: tuple[int, ...] = (), edge: float | None = None
) -> Method:
    """The method for `dims` columns in robust units, of which some cannot move.

    The rule of :func:`dorfl.defaults.choose`, which here needs one number of the data: `edge`, the
    squared distance from the centre within which the bulk of the rows lies.
    """
    name, cost = choice.name, costs.squared(frozen=frozen)
    adversarial = (choice.mixture or RULES[name]) == "agnostic"
    who = mixture.capped(choice.cap, choice.by) if adversarial else mixture.fixed(by=choice.by)
    if name in ("erm", "afl"):
        return methods.method(mixture=who, name=name)
    moves = choice.rho is not None or (choice.shift > 0 and len(frozen) < dims)
    rho = choice.rho if choice.rho is not None else STRENGTH / choice.shift if moves else np.inf
    if name in ("wafl", "gdrfl"):
        return methods.method(rho=rho, cost=cost, mixture=who, name=name)
    shape = np.full(dims, 1.0 / (edge or 1.0))
    shape[list(frozen)] = 0.0
    temperature = tilt(rho, float(shape.max())) if choice.beta is None else rho * choice.beta
    weight = temperature * STEEPNESS if choice.rho2 is None else choice.rho2
    score = scores.quadratic(weight, choice.center, shape) if choice.scores else None
    return methods.method(
        rho=rho, cost=cost, temperature=temperature, score=score, mixture=who, name=name
    )


def plan_of(study: Study) -> Plan:
    """How columns are summarised and scaled."""
    columns = study.columns
    kinds = {
        **dict.fromkeys(columns.numeric, "numeric"),
        **dict.fromkeys(columns.category, "category"),
        **dict.fromkeys(columns.ignore, "ignore"),
    }
    return Plan(scaling=columns.scaling, kinds=kinds, least=study.privacy.least)


def label_plan(study: Study) -> Plan:
    """How the label is told of: by its classes, or in robust units."""
    kind = "category" if study.data.task == "classification" else "numeric"
    return Plan(kinds={study.data.label: kind}, least=study.privacy.least)


def _section(table: Any, kind: Any, where: str) -> Any:
    """A record from a TOML table: unknown keys refused, what is left out as by default."""
    if not isinstance(table, dict):
        raise ValueError(f"{where}: must be a table, [{where}]")
    known = wire.hints(kind)
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            raise ValueError(
                f"{where}: {key!r} is unknown" + (f"; did you mean {near[0]!r}?" if near else "")
            )
    values = dict(kind._field_defaults)
    for key, hint in known.items():
        if key in table and wire.is_record(hint):
            values[key] = _section(table[key], hint, f"{where}.{key}")
        elif key in table:
            values[key] = wire.read(table[key], hint, f"{where}.{key}", finite=False)
        elif key not in values:
            raise ValueError(f"{where}: {key!r} is missing")
    if any(isinstance(v, float) and np.isnan(v) for v in values.values()):
        raise ValueError(f"{where}: NaN is no setting")
    return kind(**values)
