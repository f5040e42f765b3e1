"""What to install for a part of dorfl that needs more than the rest."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires


def install(extra: str) -> str:
    """A command that brings the packages of an extra, wherever dorfl itself came from.

    >>> install("torch")
    "pip install 'torch>=2.4'"
    """
    try:
        listed = requires("dorfl") or []
    except PackageNotFoundError:  # run from its source
        listed = []
    mark = f'extra == "{extra}"'
    names = [line.partition(";")[0].strip() for line in listed if line.endswith(mark)]
    return "pip install " + " ".join(f"'{name}'" for name in names or [f"dorfl[{extra}]"])
