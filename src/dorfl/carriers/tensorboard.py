"""Write the rounds of a run for TensorBoard (extra `tensorboard`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dorfl.carriers.runs import Watch
from dorfl.protocol.state import State
from dorfl.support import lazy


@contextmanager
def with_tensorboard(watch: Watch, folder: Path | None) -> Iterator[Watch]:
    """Extend a function that watches a run to write every round's figures as well.

    Parameters
    ----------
    watch
        Called with every event, as before.
    folder
        Where to write; None returns `watch` as it is.
    """
    if folder is None:
        yield watch
        return
    try:
        from tensorboardX import SummaryWriter  # noqa: PLC0415 - an extra
    except ImportError:
        raise ValueError(
            f"--tensorboard needs a package more: {lazy.install_command('tensorboard')}"
        ) from None

    with SummaryWriter(str(folder)) as board:

        def both(state: State, event: str, line: dict[str, Any]) -> None:
            watch(state, event, line)
            if event == "round":
                for name, value in _figures(line).items():
                    board.add_scalar(name, value, line["round"])

        yield both


def _figures(line: dict[str, Any]) -> dict[str, float]:
    """Return the finite figures of a round by name."""
    figures = {name: line[name] for name in ("objective", "gap", "seconds")}
    for site, values in line["sites"].items():
        figures |= {f"lambda/{site}": values["lambda"], f"risk/{site}": values["risk"]}
    figures["answered"] = len(line["answered"])
    return {name: value for name, value in figures.items() if value is not None}
