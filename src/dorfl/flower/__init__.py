"""Sites over a network: carries the messages of :mod:`dorfl.study` on Flower, with TLS and keys.

    coordinator's machine                          a site's machine
    ┌──────────────────────────────────────┐       ┌───────────────────────┐
    │ dorfl run ── SuperLink ── front ─────┼─ TLS ─┼── dorfl site start    │
    │ (rounds)     (loopback)   (public)   │       │   (rows stay here)    │
    └──────────────────────────────────────┘       └───────────────────────┘

Flower's SuperLink keeps the queues and checks the sites' signatures. It serves its control and
runtime interfaces on the same port without authentication, so it listens on the loopback, and the
front lets only a registered site's own traffic through. Flower's SuperNode would run whatever
app the coordinator sends it; our site speaks the same fleet protocol but runs only the dorfl that
is installed there, in one process that loads its rows once. That is safer, and a round takes
fractions of a second instead of some ten.
"""

from __future__ import annotations

import importlib.util


def require() -> None:
    """Raise with what to install where the extra is missing."""
    if importlib.util.find_spec("flwr") is None:
        raise ValueError("this needs the extra 'flower': pip install 'dorfl[flower]'")
