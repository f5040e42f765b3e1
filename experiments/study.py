"""The whole study: the cells that each part needs, and the page made from them."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import dorfl
from dorfl.certificates import distance
from dorfl.report.content import Beside, Block, Details, Page, Section, Table, Text
from dorfl.support import lazy
from experiments import Part, cells, claims, fashion, theory
from experiments.cells import Cell
from experiments.claims import Claim, Situation
from experiments.data.cardio import cardio_table
from experiments.data.fashion import find_folder
from experiments.data.packages import UnavailableError
from experiments.pages import adult as adult_page
from experiments.pages import ambiguity as ambiguity_page
from experiments.pages import cardio as cardio_page
from experiments.pages import fashion as fashion_page
from experiments.pages import showcase as showcase_page
from experiments.pages import synthetic as synthetic_page
from experiments.tuning import NAMES

_FIRST = 3  # cards at the top; the rest is in a table


class Made(NamedTuple):
    """The contribution of a part to the page."""

    sections: list[Section]
    claims: list[Claim]
    opening: Sequence[Block] = ()
    first: Sequence[Claim] = ()  # of the claims, those at the top of the page
    situations: Sequence[Situation] = ()  # where a method was compared with ERM
    left_out: str = ""  # why the part was not run


class Plan(NamedTuple):
    """The cells of a part, and the function that presents their results."""

    cells: list[Cell]
    tell: Callable[[list[Any]], Made]


def plans(part: Part, seeds: int) -> list[Plan]:
    """Return the plans of a part, or of all parts."""
    chosen = list(_PLANS) if part is Part.all else [part]
    return [_PLANS[name](seeds) for name in chosen]


def reproduce(
    todo: Sequence[Plan], folder: Path, tick: Callable[[Cell, bool], object] | None = None
) -> Page:
    """Run the cells that have no result yet, and make the page.

    >>> import tempfile
    >>> plan = plans(Part.sensitivity, seeds=1)
    >>> page = reproduce(plan, Path(tempfile.mkdtemp()))  # doctest: +SKIP
    """
    found = iter(cells.run([cell for plan in todo for cell in plan.cells], folder, tick))
    made = [plan.tell([next(found) for _ in plan.cells]) for plan in todo]
    every = [claim for one in made for claim in one.claims]
    situations = [case for one in made for case in one.situations]
    first = [claim for one in made for claim in one.first] or every
    return Page(
        "Federated learning that holds up",
        "dorfl trains one model across clients that cannot pool their rows. The model stays "
        "accurate when clients differ, when data drift, and when some rows are outliers. This is "
        f"the paper's study, run again.{_counts(every)}",
        [claim.finding for claim in first[:_FIRST]],
        [
            *([_claims(every, situations)] if every else []),
            *(section for one in made for section in one.sections),
            _environment(todo, [one.left_out for one in made if one.left_out]),
        ],
        [block for one in made for block in one.opening],
    )


def _counts(every: Sequence[Claim]) -> str:
    """Return how many claims fail, tie and hold, as a sentence."""
    if not every:
        return ""
    count = claims.counted(every)
    return (
        f" Of {len(every)} claims {count['fails']} fail, {count['tie']} tie and "
        f"{count['holds']} hold."
    )


def _claims(every: Sequence[Claim], situations: Sequence[Situation]) -> Section:
    """Return when dorfl helps, and every claim; failures come first."""
    helps = [claims.summary(situations)] if situations else []
    return Section("When dorfl helps, and which claims fail", [*helps, *claims.tables(every)])


def _seeded(part: str, function: str, seeds: int) -> list[Cell]:
    """Return one cell for every seed."""
    return [Cell(part, function, {"seed": seed}) for seed in range(seeds)]


def _made(section: Section, found: list[Claim]) -> Made:
    return Made([section], found)


def _left_out(title: str, reason: str) -> Plan:
    """Return the plan of a part that cannot be run here; the page names it at the end."""
    return Plan([], lambda _: Made([], [], left_out=f"{title} ({reason.rstrip('.')})"))


def _synthetic(seeds: int) -> Plan:
    settings = [
        Cell("synthetic", "table", {"seed": seed, "intercept": intercept})
        for intercept in (True, False)
        for seed in range(seeds)
    ]
    sweeps = _seeded("synthetic", "contamination", seeds)
    shown = [
        Cell("showcase", what, {"seed": 0}) for what in ("training", "convergence", "promises")
    ]

    def tell(found: list[Any]) -> Made:
        main, paper, swept = (found[k * seeds : (k + 1) * seeds] for k in range(3))
        training, convergence, promises = found[3 * seeds :]
        ours, *rest = synthetic_page.cards(main, paper)
        certified = showcase_page.certificate(promises)
        return Made(
            [
                synthetic_page.section(main, paper),
                showcase_page.closer(training, convergence),
                showcase_page.certified(promises),
                synthetic_page.beyond(swept),
            ],
            [ours, *rest, certified, *synthetic_page.labels(swept)],
            synthetic_page.opening(training, main, swept),
            [ours, certified],
            synthetic_page.situations(main, swept),
        )

    return Plan([*settings, *sweeps, *shown], tell)


def _sensitivity(seeds: int) -> Plan:
    cells = [
        *_seeded("synthetic", "sensitivity", seeds),
        *_seeded("synthetic", "open_choices", seeds),
    ]

    def tell(found: list[Any]) -> Made:
        centre, centred = synthetic_page.sensitivity(found[:seeds])
        choices, ranked = synthetic_page.open_choices(found[seeds:])
        return Made([choices, centre], [*ranked, *centred])

    return Plan(cells, tell)


def _adult(seeds: int) -> Plan:
    runs = [
        Cell("adult", "method", {"seed": seed, "name": name})
        for seed in range(seeds)
        for name in NAMES
    ]
    every = [
        cell
        for function in ("best_linear", "mixing", "baselines")
        for cell in _seeded("adult", function, seeds)
    ]

    def tell(found: list[Any]) -> Made:
        methods = {name: found[k : len(runs) : len(NAMES)] for k, name in enumerate(NAMES)}
        rest = found[len(runs) :]
        least, mixtures, base = (rest[k * seeds : (k + 1) * seeds] for k in range(3))
        section, found_claims, situations = adult_page.section(methods, least, mixtures, base)
        return Made([section], found_claims, situations=situations)

    return Plan([*runs, *every], tell)


def _cardio(seeds: int) -> Plan:
    try:
        cardio_table()  # once, before several processes want it
    except UnavailableError as error:
        return _left_out("Cardio", str(error))

    def tell(found: list[Any]) -> Made:
        section, found_claims, situations = cardio_page.section(found)
        return Made([section], found_claims, first=found_claims[:1], situations=situations)

    return Plan(_seeded("cardio", "table", seeds), tell)


def _fashion(_: int) -> Plan:
    try:
        find_folder()
    except UnavailableError as error:
        return _left_out(fashion_page.TITLE, str(error))

    def tell(found: list[Any]) -> Made:
        return _made(*fashion_page.section(dict(zip(fashion.RUNS, found, strict=True))))

    return Plan([Cell("fashion", "method", run) for run in fashion.RUNS.values()], tell)


def _networks(_: int) -> Plan:
    """Plan a small part of the benchmark of networks; `experiments benchmark` has all of it."""
    reason = ""
    try:
        find_folder()
    except UnavailableError as error:
        reason = str(error)
    if find_spec("torch") is None:
        reason = f"It needs PyTorch: {lazy.install_command('torch')}."
    if reason:
        return _left_out("Networks, tuned alike", reason)
    from experiments import benchmark  # noqa: PLC0415 - it needs PyTorch
    from experiments.pages import benchmark as told  # noqa: PLC0415

    def tell(found: list[Any]) -> Made:
        results = {pair: [run] for pair, run in zip(benchmark.REDUCED.pairs(), found, strict=True)}
        return _made(*told.section(benchmark.REDUCED, results))

    return Plan(benchmark.reduced(), tell)


def _theory(_: int) -> Plan:
    distance.require()  # before anything is run

    def tell(found: list[Any]) -> Made:
        *found, drawn = found
        findings = [theory.findings(kept) for kept in found]
        statements = [line for one in findings for line in one.statements]
        figures = [figure for one in findings for figure in one.figures]
        held = sum(statement.holds for statement in statements)
        claim = Claim.single(
            "every statement of the paper holds on random instances", "the paper",
            f"{held} of {len(statements)}", held == len(statements),
        )  # fmt: skip
        words = Text(
            [
                "Every statement of the paper on fresh random instances, against independent "
                "solvers: the primal problems as conic programs, exact transport, brute force."
            ]
        )
        told = Section("Theory", [words, theory.table(statements), Beside(figures)])
        return Made([ambiguity_page.section(drawn), told], [claim])

    parts = [Cell("theory", "cell", {"seed": 0, "name": name}) for name in theory.PARTS]
    return Plan([*parts, Cell("ambiguity", "drawn", {})], tell)


_PLANS: dict[Part, Callable[[int], Plan]] = {
    Part.synthetic: _synthetic,
    Part.sensitivity: _sensitivity,
    Part.adult: _adult,
    Part.cardio: _cardio,
    Part.fashion: _fashion,
    Part.networks: _networks,
    Part.theory: _theory,
}


def _environment(todo: Sequence[Plan], left_out: Sequence[str]) -> Section:
    """Return seeds, versions and the parts that were not run."""
    packages = ["numpy", "numba", "scipy", "clarabel", "scikit-learn", "pandas"]
    packages += ["POT"] * (find_spec("ot") is not None)
    rows = [
        ("dorfl", dorfl.__version__),
        ("code", cells.fingerprint()),
        ("Python", platform.python_version()),
        ("machine", f"{platform.system()} {platform.machine()}"),
        *((name, metadata.version(name)) for name in packages),
    ]
    seeds = sorted(
        {cell.arguments["seed"] for p in todo for cell in p.cells if "seed" in cell.arguments}
    )
    words = "No random numbers were drawn."
    if seeds:
        words = f"Seeds {seeds[0]} to {seeds[-1]}; the same seeds give the same figures."
    missing = [f"Not run: {'; '.join(left_out)}."] if left_out else []
    versions = Table("environment", "Environment", ("what", "version"), rows)
    text = Text([words, *missing])
    return Section("Environment and seeds", [text, Details("Versions", [versions])])
