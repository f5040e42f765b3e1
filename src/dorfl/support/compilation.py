"""A log message when Numba compiles kernels.

Numba caches compiled kernels on disk, so the first training on a machine takes half a minute longer
than later ones. The logger "dorfl" warns about the delay once per process.
"""

from __future__ import annotations

import logging

from numba.core import event


class _CompilationListener(event.Listener):
    """Warn at the first function of `module` that is compiled rather than loaded from the cache."""

    def __init__(self, module: str) -> None:
        self.module = module

    def on_start(self, event_: event.Event) -> None:
        if event_.data["dispatcher"].py_func.__module__ == self.module:
            event.unregister("numba:compile", self)  # type: ignore[no-untyped-call]
            logging.getLogger("dorfl").warning(
                "dorfl compiles its kernels: once per machine, about half a minute."
            )

    def on_end(self, event_: event.Event) -> None:
        pass


def announce(module: str) -> None:
    """Log a warning when a function of `module` is first compiled in this process.

    >>> announce("a_module_without_kernels")
    """
    event.register("numba:compile", _CompilationListener(module))  # type: ignore[no-untyped-call]
