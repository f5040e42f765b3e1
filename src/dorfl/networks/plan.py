"""How a network is trained: what a client does in a round, and what the server makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from dorfl.networks.compression import Compression
from dorfl.networks.rules import Rule, sgd


@dataclass(frozen=True)
class Plan:
    """Every choice that is not part of the problem.

    Args:
        rounds: exchanges of messages.
        batch: rows in a minibatch.
        epochs: passes of a client over its rows in a round; 0 where `steps` says how much it does.
        steps: minibatches of a client in a round, instead of epochs.
        local: the client's steps, :func:`~dorfl.networks.sgd` or :func:`~dorfl.networks.adam`; it
            starts anew every round.
        server: the server's step along Σ λ_i (θ − θ_i).
        average: memory of the running mean of θ that is the trained model (0: the last θ).
        ascent: the rate of the worst mixture, λ_i ∝ λ_i exp(rate · F_i).
        optimistic: let λ climb on 2 F − (F of the round before), which swings less.
        fairness: q of q-fair learning, λ_i ∝ λ_i F_i^q, for a fixed mixture (0: none).
        participation: the share of clients asked in a round. Who has a larger λ is asked more often
            and counted less, so that the step is the same on average.
        drift: correct for clients that drift apart in their local steps (SCAFFOLD).
        compression: of what clients send, with what is left out added to the next message.
        climb: steps of ascent of a row towards its worst place.
        accuracy: stop the ascent where every row is about so near to its supremum.
        bounds: what inputs may be, such as (0, 1) for pixels, for the ascent.
        most: a bound on the loss of one row.
        memory: of the running mean that a tilt is normalised by.
        trim: the share of each batch that is left out, largest loss first (DORO).
        l2: adds ½ l2 ‖θ‖² to the objective.
        seed: where random streams begin.
        at_once: how many parameters of clients are held at a time; bounds the memory of a round.
    """

    rounds: int = 100
    batch: int = 64
    epochs: int = 1
    steps: int = 0
    local: Rule = field(default_factory=lambda: sgd(0.05))
    server: Rule = field(default_factory=lambda: sgd(1.0))
    average: float = 0.0
    ascent: float = 0.1
    optimistic: bool = False
    fairness: float = 0.0
    participation: float = 1.0
    drift: bool = False
    compression: Compression | None = None
    climb: int = 7
    accuracy: float = 0.0
    bounds: tuple[float, float] | None = None
    most: float = np.inf
    memory: float = 0.9
    trim: float = 0.0
    l2: float = 0.0
    seed: int = 0
    at_once: int = 2_000_000

    def __post_init__(self) -> None:
        for name, fine, need in (
            ("rounds", self.rounds >= 1, "must be at least 1"),
            ("batch", self.batch >= 1, "must be at least 1 row"),
            ("steps", self.steps >= 0, "must be a number ≥ 0"),
            ("epochs", self.epochs + self.steps >= 1, "a client must do something in a round"),
            ("ascent", self.ascent > 0, "must be positive"),
            ("average", 0 <= self.average < 1, "must be from 0 to below 1"),
            ("fairness", self.fairness >= 0, "must be a number ≥ 0"),
            ("participation", 0 < self.participation <= 1, "must be above 0 and at most 1"),
            ("climb", self.climb >= 1, "must be at least 1 step"),
            ("most", self.most > 0, "must be positive (infinity: no bound)"),
            ("memory", 0 <= self.memory < 1, "must be from 0 to below 1"),
            ("trim", 0 <= self.trim < 1, "must be from 0 to below 1"),
            ("l2", 0 <= self.l2 < np.inf, "must be a number ≥ 0"),
        ):
            if not fine:
                raise ValueError(f"{name}={getattr(self, name)}: {need}")
        if self.drift and (self.local.momentum > 0 or self.local.second > 0):
            raise ValueError("drift: what a client drifts by is known for plain local steps only")

    def changed(self, **given: Any) -> Plan:
        """The plan with other words.

        >>> Plan().changed(rounds=3).rounds
        3
        """
        known = {f.name for f in fields(self)}
        for name in given:
            if name not in known:
                raise ValueError(f"{name}: no such option of a network's training")
        return replace(self, **given)
