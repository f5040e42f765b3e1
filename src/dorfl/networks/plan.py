"""How a network is trained: what a client does in a round, and what the server makes of it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from dorfl.networks.compression import Compression
from dorfl.networks.rules import Rule, adam, sgd

OPEN = Rule(0.0)  # placeholder for a rule that `Plan` chooses by the work of a client in a round


@dataclass(frozen=True)
class Plan:
    """Every choice that is not part of the problem.

    The default is one minibatch gradient per client and round (FedSGD, McMahan et al., 2017) with
    Adam at the server (FedAdam, Reddi et al., 2021) and an averaged model. Without local steps no
    client drifts, so it trains on clients with one class each as well as on random ones
    (``benchmarks/network_defaults.py``). Local epochs need fewer rounds if clients are alike: with
    `epochs`, or `steps` above 1, the defaults of `local` and `server` are those of FedAvg.

    Args:
        rounds: exchanges of messages.
        batch: rows in a minibatch.
        epochs: passes of a client over its rows in a round.
        steps: minibatches of a client in a round, instead of epochs. 1 if neither is given.
        local: the client's steps, :func:`~dorfl.networks.sgd` or :func:`~dorfl.networks.adam`; it
            starts anew every round. By default ``sgd(1.0)`` for one step with Adam at the server,
            so that the update is the gradient, otherwise ``sgd(0.05)``.
        server: the server's step along Σ λ_i (θ − θ_i). By default ``adam(0.01)`` for one local
            step, otherwise ``sgd(1.0)``, which averages the clients' models.
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

    rounds: int = 200
    batch: int = 64
    epochs: int = 0
    steps: int = 0
    local: Rule = OPEN
    server: Rule = OPEN
    average: float = 0.9
    ascent: float = 0.03
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
        if self.epochs == self.steps == 0:
            object.__setattr__(self, "steps", 1)
        local, server = default_rules(self)
        object.__setattr__(self, "server", server if self.server is OPEN else self.server)
        object.__setattr__(self, "local", local if self.local is OPEN else self.local)
        for name, fine, need in (
            ("rounds", self.rounds >= 1, "must be at least 1"),
            ("batch", self.batch >= 1, "must be at least 1 row"),
            ("steps", self.steps >= 0, "must be a number ≥ 0"),
            ("epochs", self.epochs >= 0, "must be a number ≥ 0"),
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
        """Return the plan with other options.

        If `epochs` or `steps` is given, it replaces both, and rules that were not given are chosen
        for it.

        >>> Plan().changed(rounds=3).rounds
        3
        >>> plan = Plan().changed(epochs=2)
        >>> plan.steps, plan.local.rate, plan.server.rate
        (0, 0.05, 1.0)
        """
        known = {f.name for f in fields(self)}
        for name in given:
            if name not in known:
                raise ValueError(f"{name}: no such option of a network's training")
        if given.keys() & {"epochs", "steps", "server"}:
            chosen = dict(zip(("local", "server"), default_rules(self), strict=True))
            reopened = {n: OPEN for n, rule in chosen.items() if getattr(self, n) == rule}
            given = {**reopened, **given}
        if given.keys() & {"epochs", "steps"}:
            given = {"epochs": 0, "steps": 0, **given}
        return replace(self, **given)


def default_rules(plan: Plan) -> tuple[Rule, Rule]:
    """Return the default rules of clients and server for the work of a client in a round."""
    one = plan.steps == 1
    server = adam(0.01) if one else sgd(1.0)
    used = server if plan.server is OPEN else plan.server
    # One local step of rate 1 hands the gradient to the server, and Adam sets the step's length.
    return (sgd(1.0) if one and used.second > 0 else sgd(0.05)), server
