"""Cells of a study: each runs once, on any core, and its result is kept as a file.

A cell is a function of a module of this package with plain arguments and a plain result. The
result is written as JSON. It is read instead of run again unless the arguments, or the code that
it depends on, have changed.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import multiprocessing
import os
import re
import runpy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import dorfl
from dorfl.support.files import write_whole

_ROOTS = {"dorfl": Path(dorfl.__file__).parent, "experiments": Path(__file__).parent}
# code that presents results and does not change them
_BESIDE = (
    *("dorfl/cli/", "dorfl/report/", "dorfl/tabular/pages.py", "dorfl/flower/"),
    *("experiments/commands/", "experiments/pages/", "experiments/study.py"),
)
_BENCHMARK = tuple(
    f"experiments/{name}.py" for name in ("baselines", "benchmark", "candidates", "corruption")
)
_NETWORKS = ("dorfl/networks/", *_BENCHMARK, "experiments/tables.py")  # what the benchmark needs
_BELOW = (
    *(f"dorfl/{name}/" for name in ("support", "objective", "data", "linear", "federated")),
    "experiments/data/",
)


class Cell(NamedTuple):
    """`function` of the module `experiments.<part>`, called with `arguments` and nothing else.

    `load` are Python files that register methods or data sets; they run before the function.
    """

    part: str
    function: str
    arguments: dict[str, Any]
    load: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return a file name that is unique in the part."""
        values = [f"{key}={value}" for key, value in self.arguments.items()]
        return re.sub(r"[^A-Za-z0-9=.+-]+", "_", " ".join([self.function, *values]))


def run(
    cells: Sequence[Cell],
    folder: Path,
    tick: Callable[[Cell, bool], object] | None = None,
    workers: int | None = None,
) -> list[Any]:
    """Return the results of all cells in order; `tick(cell, fresh)` is called for each.

    Cells run in processes of their own, one for each core. If one fails, its error is raised, and
    the results of others are kept.
    """
    found: dict[int, Any] = {}
    missing = []
    for k, cell in enumerate(cells):
        kept = _read(cell, folder)
        if kept is None:
            missing.append(k)
        else:
            found[k] = kept["result"]
            if tick:
                tick(cell, False)
    if missing:
        count = min(workers or os.cpu_count() or 1, len(missing))
        context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks
        with _one_thread_each(), ProcessPoolExecutor(count, context) as pool:
            waiting = {pool.submit(compute, cells[k], folder): k for k in missing}
            try:
                for done in as_completed(waiting):
                    found[waiting[done]] = done.result()
                    if tick:
                        tick(cells[waiting[done]], True)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return [found[k] for k in range(len(cells))]


def compute(cell: Cell, folder: Path) -> Any:
    """Run one cell in this process, and keep its result."""
    register(cell.load)
    function = getattr(importlib.import_module(f"experiments.{cell.part}"), cell.function)
    result = json.loads(json.dumps(function(**cell.arguments)))  # as it will be read again
    code = fingerprint(cell.part, cell.load)
    record = {"arguments": cell.arguments, "code": code, "result": result}
    write_whole(_path(cell, folder), json.dumps(record, indent=1).encode())
    return result


@cache
def register(files: tuple[str, ...]) -> None:
    """Run Python files that register methods or data sets, once in a process."""
    for file in files:
        runpy.run_path(file)


@cache
def fingerprint(part: str = "", load: tuple[str, ...] = ()) -> str:
    """Return a hash of the code that results of a part of the study depend on."""
    digest = hashlib.sha256()
    files = {
        f"{name}/{path.relative_to(root).as_posix()}": path
        for name, root in _ROOTS.items()
        for path in root.rglob("*.py")
    }
    for place in sorted(files):
        if part == "benchmark":
            counts = place.startswith((*_NETWORKS, *_BELOW))
        else:
            counts = not place.startswith((*_NETWORKS, *_BESIDE))
        if counts:
            digest.update(place.encode() + b"\0" + files[place].read_bytes() + b"\0")
    for file in load:
        digest.update(Path(file).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let processes start with one thread each, because there are as many as cores."""
    names = ("DORFL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _path(cell: Cell, folder: Path) -> Path:
    return folder / "cells" / cell.part / f"{cell.name}.json"


def _read(cell: Cell, folder: Path) -> Any:
    """Return the record of a cell, or None if it is of other code or cannot be read."""
    try:
        record = json.loads(_path(cell, folder).read_text(encoding="utf-8"))
        code = fingerprint(cell.part, cell.load)
        fits = record["arguments"] == cell.arguments and record["code"] == code
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if fits and "result" in record else None
