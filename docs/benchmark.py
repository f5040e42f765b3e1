"""The benchmark's page from what was run: PYTHONPATH=. python docs/benchmark.py [results]

Given a folder of results, what its cells found goes into docs/benchmark.json, in the place of what
was known of the same rows and method; without one, the file stays as it is. Then every table that
docs/benchmark.md has a mark for is made from it. Needs PyTorch, as the benchmark does.
"""

import json
import sys
from pathlib import Path
from typing import Any

from refresh import DOCS, fill

from dorfl.report.content import Table
from dorfl.report.tables import as_markdown
from experiments import benchmark
from experiments.candidates import CLEAN, NAMES
from experiments.claims import effect
from experiments.pages.common import percent

KEPT = ("worst", "mean", "weight_of_wrong_rows", "rounds", "bytes", "words")
SEEDS = 3  # fewer, and a cell is not in the tables
Known = dict[str, dict[str, list[dict[str, Any]]]]  # data set; kind/method; seeds


def gathered(known: Known, results: Path) -> Known:
    """What was known, and what the folder's cells found, the last of which was tuned last."""
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    folder = results / "cells" / "benchmark"
    for file in sorted(folder.glob("train*.json"), key=lambda path: path.stat().st_mtime):
        record = json.loads(file.read_text(encoding="utf-8"))
        told, run = record["arguments"], record["result"]
        place = (told["data"], f"{told['kind']}/{told['method']}")
        found.setdefault(place, {})[told["seed"]] = {key: _short(run[key]) for key in KEPT}
    for (data, cell), runs in found.items():
        known.setdefault(data, {})[cell] = [runs[seed] for seed in sorted(runs)]
    return known


def tables(known: Known) -> dict[str, str]:
    """Return the tables of all data sets by name, as Markdown, and the verdicts over all."""
    made, verdicts = {}, []
    for data, cells in known.items():
        found = complete(cells)
        if not found:
            continue
        kinds = list(dict.fromkeys(kind for kind, _ in found))
        names = [name for name in (*NAMES, CLEAN) if any(name == n for _, n in found)]
        rows: list[list[Any]] = [
            [name, *(percent([run["worst"] for run in found[kind, name]]) for kind in kinds)]
            for name in names
        ]
        table = Table(data, "", ("method", *kinds), rows, ".1f", "", "max", (CLEAN,))
        made[f"benchmark-{data}"] = as_markdown(table)
        verdicts += [[data, kind, *_against(found, kind)] for kind in kinds]
    columns = ("rows", "wrong", "worst client, DOR-FL against FedAvg", "against AFL")
    made["benchmark-verdicts"] = as_markdown(Table("verdicts", "", columns, verdicts))
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
    """Return whether DOR-FL helps, paired by seed, by the rule of the whole study."""
    cells = []
    for other in ("FedAvg", "AFL"):
        pairs = zip(found[kind, "DOR-FL"], found[kind, other], strict=False)
        cells.append(effect([100.0 * (one["worst"] - two["worst"]) for one, two in pairs]))
    return cells


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    return [_short(one) for one in value] if isinstance(value, list) else value


def main(results: Path | None) -> None:
    """Gather, and write the page."""
    file = DOCS / "benchmark.json"
    known: Known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if results is not None:
        known = gathered(known, results)
        lines = [
            f" {json.dumps(data)}: {{\n" + ",\n".join(
                f"  {json.dumps(cell)}: {json.dumps(runs, ensure_ascii=False)}"
                for cell, runs in sorted(cells.items())
            ) + "\n }"
            for data, cells in sorted(known.items())
        ]  # fmt: skip
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    fill(DOCS / "benchmark.md", tables(known).__getitem__)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
