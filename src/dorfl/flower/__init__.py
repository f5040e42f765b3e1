"""Sites over a network: carries the messages of :mod:`dorfl.study` on Flower, with TLS and keys.

    coordinator's machine                          a site's machine
    ┌──────────────────────────────────────┐       ┌───────────────────────┐
    │ dorfl run ── SuperLink ── front ─────┼─ TLS ─┼── dorfl site start    │
    │ (rounds)     (loopback)   (public)   │       │   (rows stay here)    │
    └──────────────────────────────────────┘       └───────────────────────┘

The front is the SuperLink's one node: it keeps each site's questions until the site fetches them,
and hands the answers on. Flower's SuperLink serves its control and runtime interfaces on one port
without authentication, so it listens on the loopback. Flower's SuperNode would run whatever app the
coordinator sends it; our site runs only the dorfl that is installed there, in one process that
loads its rows once, and needs nothing of Flower. A site makes two requests in a round, and waits
for its question in one of them: many sites cost a round little.
"""

from __future__ import annotations

import importlib.util

from dorfl.support import extras


def require() -> None:
    """Raise with what to install where the extra is missing."""
    if importlib.util.find_spec("flwr") is None:
        raise ValueError(f"this needs the extra 'flower': {extras.install('flower')}")
