"""A whole study in one process: every message is made bytes and read back, as on a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dorfl.study import coordinator
from dorfl.study.coordinator import State
from dorfl.study.messages import Answer
from dorfl.study.site import Site
from dorfl.support import wire


def run(
    state: State, sites: Mapping[str, Site], keep: Callable[[State], object] = lambda _: None
) -> State:
    """From any state to the end; `keep` is given every state on the way."""
    while state.step != "done":
        answers: dict[str, Answer] = {}
        for name in coordinator.asked(state):
            asked = wire.encode(coordinator.request(state, name))
            answers[name] = coordinator.read(state, name, sites[name].respond(asked))
        state = coordinator.receive(state, answers)
        keep(state)
    return state
