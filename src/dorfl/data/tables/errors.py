"""What is wrong with a file, in words that say what to do about it."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path


class DataError(ValueError):
    """The data cannot be used as they are; the message says which column and what would help."""


def find_column(names: Iterable[str], wanted: str, what: str) -> str:
    """The column of that name, or an error with the nearest ones.

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
    """Refuse a table in which two columns have one name."""
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise DataError(f"{path.name}: two columns are called {twice[0]!r}; rename one of them")


def need_memory(path: Path, numbers: int, instead: str) -> None:
    """Refuse what would not fit: `numbers` bytes are needed, `instead` says what would help."""
    free = _available()
    if free is not None and numbers > free:
        raise DataError(
            f"{path.name}: needs about {_size(numbers)} of memory, {_size(free)} is available; "
            f"{instead}"
        )


def _available() -> int | None:
    """Bytes this process may still take: of the machine, and of its control group if it has one."""
    free: list[int] = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        group = Path("/sys/fs/cgroup")
        most = (group / "memory.max").read_text(encoding="ascii").strip()
        if most != "max":
            free.append(int(most) - int((group / "memory.current").read_text(encoding="ascii")))
    except (OSError, ValueError):
        pass  # another system: the next best
    if not free and hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        free.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(free, default=None)


def _size(numbers: float) -> str:
    return f"{numbers / 1e9:.1f} GB" if numbers >= 1e9 else f"{numbers / 1e6:.0f} MB"
