"""Make the benchmark's page from its results: PYTHONPATH=. python docs/benchmark.py [results]

Given a folder of results, docs/benchmark.json is made from its cells. Then the tables of
docs/benchmark.md are made from docs/benchmark.json. Needs PyTorch, as the benchmark does.
"""

import json
import sys
from pathlib import Path
from typing import Any

from refresh import DOCS, fill

from dorfl.report.content import Table
from dorfl.report.tables import as_markdown
from experiments import benchmark
from experiments.candidates import CLEAN, CONSTANT
from experiments.claims import effect
from experiments.pages.common import percent

KEPT = ("worst", "mean", "weight_of_wrong_rows", "rounds", "bytes", "words")
SEEDS = 3  # fewer, and a cell is not in the tables
JUDGED = ("DOR-FL", "DOR-FL, capped", "DOR-FL, by size")  # each beside FedAvg
Known = dict[str, dict[str, list[dict[str, Any]]]]  # data set; kind/method; seeds


def gathered(results: Path) -> Known:
    """Return what the complete kinds of rows of a folder found, the last tuning of each."""
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    folder = results / "cells" / "benchmark"
    for file in sorted(folder.glob("train*.json"), key=lambda path: path.stat().st_mtime):
        record = json.loads(file.read_text(encoding="utf-8"))
        cell, run = record["arguments"], record["result"]
        place = (cell["data"], f"{cell['kind']}/{cell['method']}")
        found.setdefault(place, {})[cell["seed"]] = {
            key: float(f"{run[key]:.5g}") if isinstance(run[key], float) else run[key]
            for key in KEPT
        }
    known: Known = {}
    for (data, name), runs in sorted(found.items()):
        known.setdefault(data, {})[name] = [runs[seed] for seed in sorted(runs)]
    for data, cells in known.items():
        kinds = {kind for kind, _ in complete(cells)}
        known[data] = {name: runs for name, runs in cells.items() if name.split("/")[0] in kinds}
    return {data: cells for data, cells in known.items() if cells}


def tables(known: Known) -> dict[str, str]:
    """Return the tables of all data sets by name, as Markdown, and the verdicts over all."""
    made, verdicts = {}, []
    for data in (name for name in benchmark.SETS if name in known):
        found = complete(known[data])
        kinds = list(dict.fromkeys(kind for kind, _ in found))
        names = [name for name in benchmark.EVERY if any(name == n for _, n in found)]
        rows: list[list[Any]] = [
            [name, *(percent([run["worst"] for run in found[kind, name]]) for kind in kinds)]
            for name in names
        ]
        table = Table(data, "", ("method", *kinds), rows, ".1f", "", "max", (CONSTANT, CLEAN))
        made[f"benchmark-{data}"] = as_markdown(table).replace(" ± ", "±")
        verdicts += [[data, kind, *_against(found, kind)] for kind in kinds]
    columns = ("rows", "wrong", *JUDGED)
    made["benchmark-verdicts"] = as_markdown(Table("verdicts", "", columns, verdicts)).replace(
        " ± ", "±"
    )
    return made


def complete(cells: dict[str, list[dict[str, Any]]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the cells with enough seeds, of kinds of rows for which every method has one.

    On rows of which none are wrong, AFL without the wrong rows is AFL.
    """
    found = {tuple(cell.split("/", 1)): runs for cell, runs in cells.items() if len(runs) >= SEEDS}
    if ("clean", "AFL") in found:
        found["clean", CLEAN] = found["clean", "AFL"]
    names = {name for _, name in found}
    kinds = [kind for kind in benchmark.KINDS if all((kind, name) in found for name in names)]
    return {(kind, name): found[kind, name] for kind in kinds for name in names}


def _against(found: dict[tuple[str, str], list[dict[str, Any]]], kind: str) -> list[str]:
    """Return the effect of DOR-FL on the worst client against FedAvg, by the study's rule."""
    base = [run["worst"] for run in found[kind, "FedAvg"]]
    pairs = [zip((run["worst"] for run in found[kind, name]), base, strict=True) for name in JUDGED]
    return [effect([100.0 * (ours - other) for ours, other in runs]) for runs in pairs]


def main(results: Path | None) -> None:
    """Write the record of the results, if a folder is given, and the tables of the page."""
    file = DOCS / "benchmark.json"
    if results is not None:
        lines = [
            f" {json.dumps(data)}: {{\n" + ",\n".join(
                f"  {json.dumps(cell)}: {json.dumps(runs, ensure_ascii=False)}"
                for cell, runs in cells.items()
            ) + "\n }"
            for data, cells in gathered(results).items()
        ]  # fmt: skip
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    known: Known = json.loads(file.read_text(encoding="utf-8"))
    fill(DOCS / "benchmark.md", tables(known).__getitem__)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
