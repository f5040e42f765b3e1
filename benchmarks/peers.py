"""A DOR-FL round against the plain FedAvg round of two well-known simulators, in one process.

The same data for all: 3 clients in the proportions 1 : 2 : 5, logistic regression, at the size of
the paper's synthetic study and at that of Adult. A peer's round is one local gradient step of every
client on all of its rows and the average of the results, by the library's own loop, without
evaluation or logging. Ours is an average round of a training: messages down, robust risks, messages
up and checked, the server's step, and now and then curvature. It is shown for both solvers: a round
of `optimistic` is what a FedAvg round is, one gradient step, while one of `sqp` also solves a
quadratic program, and takes some 10 rounds where others take hundreds.

Everyone has one thread and is measured in processor time, which is wall time on an idle machine and
hardly changes on a busy one. Peers are fed the way their own datasets and tutorials do it; FedLab
without its DataLoader is shown beside. No round can be quicker than reading the rows once.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

import dorfl
from dorfl.support import threads

ROUNDS = 20  # rounds a peer runs per turn, so that its start-up does not count
TURNS = 15
RATE = 0.1
TARGET = 10  # times faster
BESIDE = "(FedLab, FedAvg without its DataLoader)"

Clients = dict[str, tuple[np.ndarray, np.ndarray]]


def dorfl_training(clients: Clients, solver: str) -> Callable[[], float]:
    method = dorfl.methods.paper(rho=20, beta=1, score=dorfl.scores.quadratic(0.5))

    def run() -> float:
        stamps: list[float] = []
        dorfl.train(
            clients, method, solver=solver, max_rounds=5 * ROUNDS,  # it asks for curvature rarely
            progress=lambda _: stamps.append(time.process_time()),
        )  # fmt: skip
        return (stamps[-1] - stamps[0]) / (len(stamps) - 1)

    return run


def pfl_training(clients: Clients) -> Callable[[], float]:
    import torch  # noqa: PLC0415 - these two are optional
    from pfl.aggregate.simulate import SimulatedBackend  # noqa: PLC0415
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams  # noqa: PLC0415
    from pfl.data import FederatedDataset  # noqa: PLC0415
    from pfl.data.dataset import Dataset  # noqa: PLC0415
    from pfl.data.sampling import get_user_sampler  # noqa: PLC0415
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams  # noqa: PLC0415
    from pfl.model.pytorch import PyTorchModel  # noqa: PLC0415

    class Logistic(torch.nn.Linear):
        def loss(self, X: Any, y: Any) -> Any:
            return torch.nn.functional.binary_cross_entropy_with_logits(self(X)[:, 0], y)

        def metrics(self, X: Any, y: Any) -> dict[str, Any]:  # noqa: ARG002 - no evaluation
            return {}

    users = {
        name: Dataset((torch.as_tensor(X), torch.as_tensor((y > 0).astype(np.float32))), name)
        for name, (X, y) in clients.items()
    }
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    module = Logistic(len(next(iter(clients.values()))[0][0]), 1)
    central = torch.optim.SGD(module.parameters(), lr=1.0)
    model = PyTorchModel(module, torch.optim.SGD, central)
    settings = NNAlgorithmParams(
        central_num_iterations=ROUNDS,
        evaluation_frequency=10**9,  # which still means once, in the first round
        train_cohort_size=len(users),
        val_cohort_size=0,
    )
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=None)

    def run() -> float:
        algorithm, backend = FederatedAveraging(), SimulatedBackend(data, data)
        evaluation = NNEvalHyperParams(local_batch_size=None)
        start = time.process_time()
        algorithm.run(settings, backend, model, local, evaluation, send_metrics_to_platform=False)
        return (time.process_time() - start) / ROUNDS

    return run


def fedlab_training(clients: Clients, loader: bool) -> Callable[[], float]:
    _stand_in_for_torchvision()
    import torch  # noqa: PLC0415
    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: PLC0415
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: PLC0415
    from fedlab.core.standalone import StandalonePipeline  # noqa: PLC0415

    tables = [
        (torch.as_tensor(X), torch.as_tensor((y > 0).astype(np.int64))) for X, y in clients.values()
    ]

    class Rows:
        def get_dataloader(self, client: int, batch_size: int) -> Any:
            if not loader:  # the whole table as one ready batch
                return [tables[client]]
            rows = torch.utils.data.TensorDataset(*tables[client])
            return torch.utils.data.DataLoader(rows, batch_size=batch_size)

    class Silent(StandalonePipeline):
        def evaluate(self) -> None:
            pass

    module = torch.nn.Linear(len(next(iter(clients.values()))[0][0]), 2)

    def run() -> float:
        trainer = SGDSerialClientTrainer(module, len(clients))
        trainer.setup_dataset(Rows())
        trainer.setup_optim(1, 10**6, RATE)
        pipeline = Silent(SyncServerHandler(module, ROUNDS, 1.0), trainer)
        start = time.process_time()
        pipeline.main()
        return (time.process_time() - start) / ROUNDS

    return run


def reading_once(clients: Clients) -> Callable[[], float]:
    """The least any round can take: every number of every row is looked at (by BLAS's dot)."""
    tables = [X.ravel() for X, _ in clients.values()]

    def run() -> float:
        start = time.process_time()
        for _ in range(ROUNDS):
            for numbers in tables:
                numbers @ numbers
        return (time.process_time() - start) / ROUNDS

    return run


def _stand_in_for_torchvision() -> None:
    """FedLab imports torchvision for its picture datasets only; nothing here touches them."""
    try:
        import torchvision  # noqa: F401, PLC0415
    except (ImportError, RuntimeError):
        for broken in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[broken]
        fake, transforms = (
            types.ModuleType("torchvision"),
            types.ModuleType("torchvision.transforms"),
        )
        fake.transforms = transforms  # type: ignore[attr-defined]
        sys.modules.update({"torchvision": fake, "torchvision.transforms": transforms})


def main(console: Console) -> None:
    before, threads.THREADS = threads.THREADS, 1
    with threadpool_limits(1):
        for rows, columns, turns in ((800, 5, TURNS), (32_561, 108, 3)):
            compare(console, rows, columns, turns)
    threads.THREADS = before


def compare(console: Console, total: int, columns: int, turns: int) -> None:
    rng = np.random.default_rng(0)
    clients: Clients = {}
    for rows in (total // 8, total // 4, total - total // 8 - total // 4):
        X = rng.standard_normal((rows, columns), dtype=np.float32)
        clients[f"of {rows}"] = X, np.where(X.sum(axis=1) + rng.logistic(size=rows) > 0, 1, -1)
    ours = {
        "dorfl, DOR-FL by `optimistic`": lambda: dorfl_training(clients, "optimistic"),
        "dorfl, DOR-FL by `sqp`": lambda: dorfl_training(clients, "sqp"),
    }
    with contextlib.suppress(ImportError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch  # noqa: PLC0415

        torch.set_num_threads(1)
    theirs = {
        "pfl, FedAvg": lambda: pfl_training(clients),
        "FedLab, FedAvg": lambda: fedlab_training(clients, loader=True),
        BESIDE: lambda: fedlab_training(clients, loader=False),
    }
    runs: dict[str, Callable[[], float]] = {}
    for name, make in (ours | theirs).items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                runs[name] = make()
        except ImportError as error:
            console.print(f"not measured: {name} ({error})", markup=False)
    if len(runs) < len(ours | theirs):
        console.print("pip install -e '.[bench]' would help", markup=False)
    if len(runs) == len(ours):
        return
    runs["every row read once"] = reading_once(clients)
    times: dict[str, list[float]] = {name: [] for name in runs}
    logging.disable(logging.WARNING)  # both peers log every round otherwise
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ours, that a few rounds are too few for `optimistic`
        for _ in range(turns):  # in turns, so that whatever else the machine does hits all alike
            for name, run in runs.items():
                times[name].append(run())
    logging.disable(logging.NOTSET)
    best = {name: min(taken) for name, taken in times.items()}
    table = Table(
        "round",
        "ms",
        "÷ optimistic",
        "÷ sqp",
        title=f"A whole round: 3 clients, {total:,} rows × {columns}",
    )
    for name, taken in best.items():
        ratios = [taken / best[own] for own in ours] if name in theirs else []
        judge = "{:.1f}".format if name == BESIDE else verdict
        table.add_row(name, f"{1e3 * taken:.3f}", *map(judge, ratios))
    console.print(table)


def verdict(ratio: float) -> str:
    style, word = ("green", "met") if ratio >= TARGET else ("red", "missed")
    return f"[{style}]{ratio:.1f} {word}[/] (≥ {TARGET})"


if __name__ == "__main__":
    main(Console(width=110))
