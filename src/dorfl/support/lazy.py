"""Modules that are loaded when something in them is first used.

A site waits for most of its life. What takes tens of megabytes and is needed only to compute with
(Numba and what it has compiled, a solver of cone programs) comes in with the first question.
"""

from __future__ import annotations

import importlib
from typing import Any


class Later:
    """Stands for the module of that name.

    >>> Later("fractions").Fraction(1, 2)
    Fraction(1, 2)
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        """What the module has by that name, at hand from then on."""
        found = getattr(importlib.import_module(self._name), name)
        setattr(self, name, found)
        return found


optimize = Later("scipy.optimize")  # a fifth of a second, and few trainings look for a root
