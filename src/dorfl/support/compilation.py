"""A word while kernels are compiled: the one time on a machine that nothing else is to be seen.

Numba keeps what it has compiled, so a first training takes half a minute longer than all others. A
person who waits is told so, once in a process, as a warning of the logger "dorfl".
"""

from __future__ import annotations

import logging

from numba.core import event


class _Told(event.Listener):
    """Says at the first function of `module` that is compiled, not loaded, what takes so long."""

    def __init__(self, module: str) -> None:
        self.module = module

    def on_start(self, event_: event.Event) -> None:
        if event_.data["dispatcher"].py_func.__module__ == self.module:
            event.unregister("numba:compile", self)  # type: ignore[no-untyped-call]
            logging.getLogger("dorfl").warning(
                "dorfl compiles its kernels: once on this machine, half a minute or so."
            )

    def on_end(self, event_: event.Event) -> None:
        pass


def tell(module: str) -> None:
    """Tell when functions of `module` are compiled in this process.

    >>> tell("a_module_without_kernels")
    """
    event.register("numba:compile", _Told(module))  # type: ignore[no-untyped-call]
