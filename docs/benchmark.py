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

from dorfl.report.content import Page, Section, Table
from dorfl.report.content import blocks as all_blocks
from dorfl.report.tables import as_markdown
from experiments import benchmark
from experiments.candidates import CLEAN, NAMES
from experiments.pages.benchmark import blocks

KEPT = ("worst", "mean", "attack", "weight_of_wrong_rows", "rounds", "bytes", "words", "curve")
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
    """The tables of all data sets by name, as Markdown."""
    made = {}
    for data, cells in known.items():
        found = {tuple(cell.split("/", 1)): runs for cell, runs in cells.items()}
        kinds = [kind for kind in benchmark.KINDS if any(kind == k for k, _ in found)]
        names = [name for name in (*NAMES, CLEAN) if any(name == n for _, n in found)]
        seeds, rounds = max(map(len, found.values())), next(iter(found.values()))[0]["rounds"]
        asked = benchmark.Asked(data, kinds, names, seeds, rounds)
        page = Page("", "", [], [Section("", blocks(asked, found))])
        for block in all_blocks(page):
            if isinstance(block, Table):
                made[block.name] = as_markdown(block)
        for kind in kinds:
            course = {cell: runs[0] for cell, runs in cells.items() if runs[0]["curve"]}
            course = {cell: run for cell, run in course.items() if cell.startswith(f"{kind}/")}
            if course:
                made[f"benchmark-{data}-{kind}-curve"] = as_markdown(_curve(course))
    return made


def _curve(course: dict[str, dict[str, Any]]) -> Table:
    """Mean accuracy of clients after so many rounds, by method."""
    stops = [stop for stop, *_ in next(iter(course.values()))["curve"]]
    rows: list[list[Any]] = [
        [
            name,
            *(100.0 * mean for _, mean, _ in course[cell]["curve"]),
            100.0 * course[cell]["mean"],
        ]
        for name in (*NAMES, CLEAN)
        for cell in course
        if cell.split("/", 1)[1] == name
    ]
    last = next(iter(course.values()))["rounds"]
    return Table("curve", "", ("method", *(str(stop) for stop in (*stops, last))), rows, ".1f")


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
