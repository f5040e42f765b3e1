"""Options of training a network: local steps of clients, and the server's steps."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from dorfl.federated.privacy import Gaussian
from dorfl.networks.aggregation import Aggregator
from dorfl.networks.optimizers import Adam, Optimizer, adam, sgd
from dorfl.networks.tilt import RowRisk

RENAMED = {  # names of options in other libraries
    "batch": "batch_size",
    "epochs": "local_epochs",
    "epochs_per_round": "local_epochs",
    "fraction_fit": "participation",
    "fraction_train": "participation",
    "learning_rate": "lr",
    "max_rounds": "rounds",
    "num_rounds": "rounds",
    "steps": "local_steps",
}
REMOVED = {
    "inner_layer": "the layer's output as the clients' rows, which transport then moves",
    "optimistic": "a lower mixture_lr, with which λ oscillates less",
    "scaffold": "local_steps=1 (the default), with which no client drifts",
}
_WHOLE = ("rounds", "batch_size", "local_epochs", "local_steps", "inner_steps", "seed")
WEIGHTING = (None, "renormalised", "unbiased")


@dataclass(frozen=True)
class NetworkPlan:
    """Options of a training; the objective is the method's.

    The default is one minibatch gradient per client and round (FedSGD, McMahan et al., 2017) with
    Adam at the server (FedAdam, Reddi et al., 2021) and an averaged model. Without local steps no
    client drifts, so it trains on clients with one class each as well as on random ones
    (``benchmarks/network_defaults.py``). Local epochs need fewer rounds if clients are alike: with
    `local_epochs`, or `local_steps` above 1, the default optimizers are those of FedAvg.

    Parameters
    ----------
    rounds
        Exchanges of messages.
    batch_size
        Rows in a minibatch.
    local_epochs
        Passes of a client over its rows in a round.
    local_steps
        Minibatches of a client in a round, instead of epochs. 1 if neither is given.
    lr
        Learning rate of the optimizer that is chosen by default: that of the server's Adam for one
        local step, otherwise that of the clients' SGD.
    optimizer
        The client's :class:`~dorfl.networks.optimizers.Optimizer`; it starts anew every round. By
        default ``sgd(1.0)`` for one step with Adam at the server, so that the update is the
        gradient, otherwise ``sgd(0.05)``.
    server_optimizer
        The server's step along the aggregated update Σ λ_i (θ − θ_i). By default ``adam(0.01)``
        for one local step, otherwise ``sgd(1.0)``, which averages the clients' models.
    lr_schedule, server_lr_schedule
        Functions of the round's number, from 1, that give a factor of the learning rate, such as
        :func:`~dorfl.networks.cosine`. With one local step only the server's has an effect.
    aggregator
        How the server combines the clients' updates, such as
        :func:`~dorfl.networks.trimmed_mean`; see :mod:`dorfl.networks.aggregation`. By default
        their weighted mean.
    average
        Decay rate of the running mean of θ that is the trained model. 0 takes the last θ.
    mixture_lr
        Learning rate of the worst mixture, λ_i ∝ λ_i exp(mixture_lr · F_i).
    fairness
        q of q-fair learning (Li et al., 2020), λ_i ∝ λ_i F_i^q, for a fixed mixture. 0: none.
    participation
        Share of clients sampled in a round.
    weighting
        Weights of sampled clients. "renormalised": sampled evenly, with their λ scaled to sum 1, as
        FedAvg is reported. "unbiased": clients with a larger λ are sampled more often and weighted
        by 1 / probability, so that the step is the same on average. By default "renormalised"
        for a fixed mixture and "unbiased" for a worst one, which needs it.
    inner_steps
        Steps of gradient ascent for the supremum of a row.
    inner_lr
        Length of the first of these steps, in units of 1 / curvature of the cost. Later lengths are
        those of Barzilai and Borwein (1988).
    inner_tol
        Stop the ascent if every row is about so near to its supremum.
    input_bounds
        Range of inputs, such as (0, 1) for pixels, for the ascent.
    max_loss
        Upper bound on the loss of one row.
    risk_momentum
        Decay rate of the running mean that a tilt is normalised by.
    row_risk
        The risk of a client's rows, in place of their mean or the method's tilt: a function of
        losses and mask, (clients, n) each, that returns risks (clients,) and weights of rows
        (clients, n). See ``examples/term.py``.
    trim
        Share of each batch that is left out, largest loss first (DORO, Zhai et al., 2021).
    l2
        Add ½ l2 ‖θ‖² to the objective.
    seed
        Seed of all random streams.
    max_parameters
        Number of parameters of clients that are held at a time; bounds the memory of a round.
    device
        Where the model is trained: "cpu", "cuda", "mps", or "auto", the first accelerator there is.

    Raises
    ------
    ValueError
        If an option is out of range, unknown, or has an old name.
    """

    rounds: int = 200
    batch_size: int = 64
    local_epochs: int = 0
    local_steps: int = 0
    lr: float | None = None
    optimizer: Optimizer | None = None
    server_optimizer: Optimizer | None = None
    lr_schedule: Callable[[int], float] | None = None
    server_lr_schedule: Callable[[int], float] | None = None
    aggregator: Aggregator | None = None
    average: float = 0.9
    mixture_lr: float = 0.03
    fairness: float = 0.0
    participation: float = 1.0
    weighting: str | None = None
    inner_steps: int = 7
    inner_lr: float = 1.0
    inner_tol: float = 0.0
    input_bounds: tuple[float, float] | None = None
    max_loss: float = np.inf
    risk_momentum: float = 0.9
    row_risk: RowRisk | None = None
    trim: float = 0.0
    l2: float = 0.0
    seed: int = 0
    max_parameters: int = 2_000_000
    privacy: Gaussian | None = None
    device: str = "cpu"

    def __new__(cls, *_: Any, **given: Any) -> NetworkPlan:
        """Refuse options that do not exist, with a hint."""
        check_names(given)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if self.local_epochs == self.local_steps == 0:
            object.__setattr__(self, "local_steps", 1)
        for name in _WHOLE:
            if not isinstance(getattr(self, name), int | np.integer):
                raise ValueError(f"{name}={getattr(self, name)!r}: must be a whole number")
        for name, valid, need in (
            ("rounds", self.rounds >= 1, "must be at least 1"),
            ("batch_size", self.batch_size >= 1, "must be at least 1 row"),
            ("local_steps", self.local_steps >= 0, "must be a number ≥ 0"),
            ("local_epochs", self.local_epochs >= 0, "must be a number ≥ 0"),
            ("lr", self.lr is None or self.lr > 0, "must be positive"),
            ("mixture_lr", self.mixture_lr > 0, "must be positive"),
            ("average", 0 <= self.average < 1, "must be from 0 to below 1"),
            ("fairness", self.fairness >= 0, "must be a number ≥ 0"),
            ("participation", 0 < self.participation <= 1, "must be above 0 and at most 1"),
            ("weighting", self.weighting in WEIGHTING, f"must be one of {WEIGHTING}"),
            ("inner_steps", self.inner_steps >= 1, "must be at least 1 step"),
            ("inner_lr", self.inner_lr > 0, "must be positive"),
            ("max_loss", self.max_loss > 0, "must be positive (infinity: no bound)"),
            ("risk_momentum", 0 <= self.risk_momentum < 1, "must be from 0 to below 1"),
            ("trim", 0 <= self.trim < 1, "must be from 0 to below 1"),
            ("l2", 0 <= self.l2 < np.inf, "must be a number ≥ 0"),
        ):
            if not valid:
                raise ValueError(f"{name}={getattr(self, name)}: {need}")
        for name in ("optimizer", "server_optimizer"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, Optimizer):
                raise ValueError(
                    f"{name}={given!r}: give networks.sgd(…), networks.adam(…) or an object with "
                    "lr, start and step"
                )
        for name in ("aggregator", "row_risk", "lr_schedule", "server_lr_schedule"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise ValueError(
                    f"{name}={given!r}: give a function, such as one of dorfl.networks"
                )
        if self.privacy is not None:
            self._check_private(self.privacy)
        if self.lr is not None and self.optimizer and self.server_optimizer:
            raise ValueError("lr: both optimizers are given with a learning rate of their own")

    @property
    def used_server_optimizer(self) -> Optimizer:
        """The server's optimizer: as given, or the default for the work of a client in a round."""
        if self.server_optimizer is not None:
            return self.server_optimizer
        return adam(self.lr or 0.01) if self.local_steps == 1 else sgd(1.0)

    @property
    def used_optimizer(self) -> Optimizer:
        """The clients' optimizer: as given, or the default for their work in a round."""
        if self.optimizer is not None:
            return self.optimizer
        # The update of a local step of rate 1 is the gradient, and Adam sets the step's length.
        is_gradient = self.local_steps == 1 and isinstance(self.used_server_optimizer, Adam)
        return sgd(1.0) if is_gradient else sgd(self.lr or 0.05)

    def _check_private(self, privacy: Gaussian) -> None:
        if self.rounds > privacy.rounds:
            raise ValueError(
                f"rounds={self.rounds}: the privacy budget is for {privacy.rounds} rounds; give "
                "privacy.gaussian(…, rounds=) as many"
            )
        for name, is_given in (
            ("local_epochs", self.local_epochs > 0),
            ("local_steps", self.local_steps > 1),
            ("optimizer", self.optimizer is not None),
            ("trim", self.trim > 0),
            ("row_risk", self.row_risk is not None),
        ):
            if is_given:
                raise ValueError(
                    f"{name}: not with privacy, whose bound is for one gradient of all rows"
                )

    def changed(self, **given: Any) -> NetworkPlan:
        """Return the plan with other options. `local_epochs` or `local_steps` replaces both.

        `privacy` sets the number of rounds, unless it is given.

        >>> Plan().changed(rounds=3).rounds
        3
        >>> plan = Plan().changed(local_epochs=2)
        >>> plan.local_steps, plan.used_optimizer.lr, plan.used_server_optimizer.lr
        (0, 0.05, 1.0)
        """
        check_names(given)
        if given.keys() & {"local_epochs", "local_steps"}:
            given = {"local_epochs": 0, "local_steps": 0, **given}
        if given.get("privacy") is not None:
            given = {"rounds": given["privacy"].rounds, **given}
        return replace(self, **given)


Plan = NetworkPlan  # the public name, dorfl.networks.Plan


def check_names(given: Any) -> None:
    """Raise ValueError if an option has an old name or none that is known, with a suggestion."""
    known = [part.name for part in fields(NetworkPlan)]
    for name in given:
        if name in known:
            continue
        if name in RENAMED:
            raise ValueError(f"{name}: write {RENAMED[name]}=")
        if name in REMOVED:
            raise ValueError(f"{name}: there is no such option any more; use {REMOVED[name]}")
        near = difflib.get_close_matches(name, [*known, *RENAMED], 1)
        meant = RENAMED.get(near[0], near[0]) if near else None
        hint = f"; did you mean {meant}?" if meant else f"; choose from {', '.join(known)}"
        raise ValueError(f"{name}: no such option of a network's training{hint}")
