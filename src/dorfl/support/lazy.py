"""Modules that are loaded on first use, and the install command of optional packages.

A site is idle for most of its life. Modules that take tens of megabytes and are needed only to
compute (Numba and its compiled kernels, a cone solver) are loaded with the first request.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, requires
from typing import Any


class LazyModule:
    """Proxy of a module that imports it when an attribute is first read.

    >>> LazyModule("fractions").Fraction(1, 2)
    Fraction(1, 2)
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        """Import the module, and cache the attribute on this object."""
        found = getattr(importlib.import_module(self._name), name)
        setattr(self, name, found)
        return found


optimize = LazyModule("scipy.optimize")  # takes 0.2 s to import; few trainings need a root finder


def install_command(extra: str) -> str:
    """Return the command that installs the packages of one of dorfl's extras.

    >>> install_command("torch")
    "pip install 'torch>=2.4'"
    """
    try:
        listed = requires("dorfl") or []
    except PackageNotFoundError:  # dorfl runs from its source tree
        listed = []
    marker = f'extra == "{extra}"'
    names = [line.partition(";")[0].strip() for line in listed if line.endswith(marker)]
    return "pip install " + " ".join(f"'{name}'" for name in names or [f"dorfl[{extra}]"])
