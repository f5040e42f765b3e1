"""Errors about a table: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path


class DataError(ValueError):
    """Data that cannot be used as they are; the message names the column and a remedy."""


def find_column(names: Iterable[str], wanted: str, what: str) -> str:
    """Return `wanted` if it is a column; raise a DataError that suggests similar names if not.

    >>> find_column(["income", "race"], "incom", "label")
    Traceback (most recent call last):
    ...
    dorfl.data.tables.errors.DataError: label: there is no column 'incom'; did you mean 'income'?
    """
    known = list(names)
    if wanted in known:
        return wanted
    folded = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(wanted.strip().casefold(), folded, n=3, cutoff=0.6)
    if near:
        hint = "did you mean " + " or ".join(repr(folded[name]) for name in near) + "?"
    else:
        shown = ", ".join(map(repr, known[:20])) + (", …" if len(known) > 20 else "")
        hint = f"the table has {shown}"
    raise DataError(f"{what}: there is no column {wanted!r}; {hint}")


def check_distinct(path: Path, names: Sequence[str]) -> None:
    """Raise a DataError if two columns have one name."""
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise DataError(f"{path.name}: two columns are called {twice[0]!r}; rename one of them")


def need_memory(path: Path, numbers: int, instead: str) -> None:
    """Raise a DataError that names the remedy `instead` if fewer than `numbers` bytes are free."""
    free = _available()
    if free is not None and numbers > free:
        raise DataError(
            f"{path.name}: needs about {_size(numbers)} of memory, {_size(free)} is available; "
            f"{instead}"
        )


def _available() -> int | None:
    """Return the bytes that this process may still allocate, or None if unknown.

    The limits are those of the machine and of the process's control group.
    """
    free: list[int] = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        group = Path("/sys/fs/cgroup")
        most = (group / "memory.max").read_text(encoding="ascii").strip()
        if most != "max":
            free.append(int(most) - int((group / "memory.current").read_text(encoding="ascii")))
    except (OSError, ValueError):
        pass  # not Linux
    if not free and hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        free.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(free, default=None)


def _size(numbers: float) -> str:
    return f"{numbers / 1e9:.1f} GB" if numbers >= 1e9 else f"{numbers / 1e6:.0f} MB"
