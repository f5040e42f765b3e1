"""A whole study in one process: every message is made bytes and read back, as on a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dorfl.protocol import coordinator
from dorfl.protocol.state import State
from dorfl.protocol.transcript import Exchange, Transcript
from dorfl.site.site import Site


def run(
    state: State,
    sites: Mapping[str, Site],
    keep: Callable[[State], object] = lambda _: None,
    transcript: Transcript | None = None,
) -> State:
    """Run a study from any state to the end.

    Parameters
    ----------
    state
        Where to begin.
    sites
        The sites by name.
    keep
        Called with every state on the way.
    transcript
        The replies before `state`, if the study is a summed one that has begun.
    """
    transcript = transcript or Transcript()
    while state.step != "done":
        step = Exchange(state, transcript)
        for name in coordinator.recipients(state):
            while not step.read(name, sites[name].respond(step.payload(name))):
                pass
        state = step.close()
        keep(state)
    return state
