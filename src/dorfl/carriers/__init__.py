"""Carriers: move the bytes of a study between its coordinator and its sites.

    https      coordinator's machine                      a site's machine
               dorfl run ── dorfl server start ── TLS ──── dorfl site start --server

    flower     flwr run ── SuperLink ── TLS ── SuperNode ── dorfl site start --socket

A carrier is what has `exchange` (:class:`dorfl.carriers.driver.Carrier`). Requests and replies are
signed end to end (:mod:`dorfl.carriers.envelope`), so a carrier can delay or lose a message and do
nothing else to it. What is sent, and what it means, is in :mod:`dorfl.protocol`.
"""

from __future__ import annotations

import importlib.util

from dorfl.support import lazy

_NEEDS = {"sites": ("aiohttp", "cryptography"), "flower": ("flwr", "cryptography")}


def require(extra: str = "sites") -> None:
    """Raise ValueError with the command to install an extra if a package of it is missing."""
    if any(importlib.util.find_spec(name) is None for name in _NEEDS[extra]):
        raise ValueError(f"this needs the extra {extra!r}: {lazy.install_command(extra)}")
