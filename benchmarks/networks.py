"""A FedAvg round of 100 clients with a network, against a loop, pfl and Flower's simulation.

All train 100 clients with 100 pictures each, an MLP 784-128-10, for one local epoch of SGD, and
average the results. Each has one thread and is measured in processor time, including that of the
processes it starts: Flower's simulation runs clients in workers of Ray. The table also has a round
of DOR-FL with 7 steps of ascent. With `--loop`, FedAvg rounds of several networks and client sizes
are compared with a hand-written loop of PyTorch instead.

    pip install 'dorfl[torch]' pfl 'flwr[simulation]'; python benchmarks/networks.py
"""

from __future__ import annotations

import argparse
import logging
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import dorfl
from dorfl import networks

CLIENTS, ROWS, RATE = 100, 100, 0.1
TARGETS = {"pfl, FedAvg": 3.0, "Flower's simulation, FedAvg": 20.0}  # times our FedAvg round
MAX_ROBUST_RATIO = 10.0  # FedAvg rounds that one of DOR-FL may take
MAX_LOOP_RATIO = 1.1  # times a hand-written loop

Clients = dict[str, tuple[np.ndarray, np.ndarray]]


def clients() -> Clients:
    rng = np.random.default_rng(0)
    return {
        f"client-{i}": (rng.random((ROWS, 784), dtype=np.float32), rng.integers(0, 10, ROWS))
        for i in range(CLIENTS)
    }


def spent() -> float:
    """Return the processor time of this process and of all processes it has started."""
    import psutil  # noqa: PLC0415 - optional

    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:  # ended meanwhile
            continue
        total += times.user + times.system
    return total


def mean_round(stamps: list[float]) -> float:
    """Return the mean time of a round, without the first one, which includes warm-up."""
    return (stamps[-1] - stamps[0]) / (len(stamps) - 1)


def ours(data: Clients, batch: int, rounds: int, *, robust: bool = False) -> float:
    method = dorfl.methods.erm()
    options: dict[str, Any] = {}
    if robust:
        method = dorfl.methods.method(rho=20.0, temperature=20.0, name="dorfl")
        options = {"inner_steps": 7, "max_loss": 20.0, "score": networks.distance(20.0)}
    stamps: list[float] = []
    dorfl.train(
        data,
        method,
        model=lambda: networks.mlp(784, (128,), 10),
        classes=range(10),
        rounds=rounds,
        batch_size=batch,
        local_epochs=1,
        lr=RATE,
        progress=lambda _: stamps.append(spent()),
        **options,
    )
    return mean_round(stamps)


def pfl(data: Clients, batch: int, rounds: int) -> float:
    from pfl.aggregate.simulate import SimulatedBackend  # noqa: PLC0415 - optional
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams  # noqa: PLC0415
    from pfl.callback.base import TrainingProcessCallback  # noqa: PLC0415
    from pfl.data import FederatedDataset  # noqa: PLC0415
    from pfl.data.dataset import Dataset  # noqa: PLC0415
    from pfl.data.sampling import get_user_sampler  # noqa: PLC0415
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams  # noqa: PLC0415
    from pfl.model.pytorch import PyTorchModel  # noqa: PLC0415

    class Net(torch.nn.Sequential):
        def loss(self, X: Any, y: Any) -> Any:
            return torch.nn.functional.cross_entropy(self(X), y)

        def metrics(self, X: Any, y: Any) -> dict[str, Any]:  # noqa: ARG002 - no evaluation
            return {}

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            from pfl.metrics import Metrics  # noqa: PLC0415

            stamps.append(spent())
            return False, Metrics()

    stamps: list[float] = []
    users = {n: Dataset((torch.as_tensor(X), torch.as_tensor(y)), n) for n, (X, y) in data.items()}
    dataset = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    net = Net(*networks.mlp(784, (128,), 10).children())
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    settings = NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=10**9,
        train_cohort_size=len(users),
        val_cohort_size=0,
    )
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=batch)
    FederatedAveraging().run(
        settings,
        SimulatedBackend(dataset, dataset),
        model,
        local,
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )
    return mean_round(stamps)


def flower(data: Clients, batch: int, rounds: int) -> float:
    import ray  # noqa: F401, PLC0415 - optional
    from flwr.client import ClientApp, NumPyClient  # noqa: PLC0415
    from flwr.common import Context, ndarrays_to_parameters  # noqa: PLC0415
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig  # noqa: PLC0415
    from flwr.server.strategy import FedAvg  # noqa: PLC0415
    from flwr.simulation import run_simulation  # noqa: PLC0415

    stamps: list[float] = []
    pairs = list(data.values())

    class Client(NumPyClient):
        def __init__(self, number: int) -> None:
            self.rows = [torch.as_tensor(part) for part in pairs[number]]

        def fit(self, parameters: Any, config: Any) -> tuple[Any, int, dict[str, Any]]:
            del config
            torch.set_num_threads(1)
            net = networks.mlp(784, (128,), 10)
            for parameter, value in zip(net.parameters(), parameters, strict=True):
                parameter.data = torch.tensor(value)
            step = torch.optim.SGD(net.parameters(), lr=RATE)
            X, y = self.rows
            for part in torch.randperm(len(y)).split(batch):
                step.zero_grad()
                torch.nn.functional.cross_entropy(net(X[part]), y[part]).backward()
                step.step()
            return [p.detach().numpy() for p in net.parameters()], len(y), {}

    class Timed(FedAvg):
        def aggregate_fit(self, *given: Any) -> Any:
            found = super().aggregate_fit(*given)
            stamps.append(spent())
            return found

    start = [p.detach().numpy() for p in networks.mlp(784, (128,), 10).parameters()]

    def serve(_: Context) -> ServerAppComponents:
        strategy = Timed(
            fraction_evaluate=0.0,
            min_fit_clients=CLIENTS,
            min_available_clients=CLIENTS,
            initial_parameters=ndarrays_to_parameters(start),
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

    def client(context: Context) -> Any:
        return Client(int(context.node_config["partition-id"])).to_client()

    run_simulation(
        server_app=ServerApp(server_fn=serve),
        client_app=ClientApp(client_fn=client),
        num_supernodes=CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 1, "include_dashboard": False},
        },
    )
    return mean_round(stamps)


def cnn() -> torch.nn.Module:
    part = torch.nn
    return part.Sequential(
        part.Conv2d(1, 16, 5),
        part.ReLU(),
        part.MaxPool2d(2),
        part.Conv2d(16, 32, 5),
        part.ReLU(),
        part.MaxPool2d(2),
        part.Flatten(),
        part.Linear(512, 10),
    )


def loop(data: Clients, make: Callable[[], torch.nn.Module], batch: int, rounds: int) -> float:
    """Return the time of a hand-written FedAvg round: one module, SGD, a weighted mean."""
    rows = [(torch.from_numpy(X), torch.from_numpy(y)) for X, y in data.values()]
    net, count = make(), sum(len(y) for _, y in rows)
    theta = {name: value.clone() for name, value in net.state_dict().items()}
    stamps = []
    for _ in range(rounds):
        total = {name: torch.zeros_like(value) for name, value in theta.items()}
        for X, y in rows:
            net.load_state_dict(theta)
            step = torch.optim.SGD(net.parameters(), lr=RATE)
            for part in torch.randperm(len(y)).split(batch):
                step.zero_grad()
                torch.nn.functional.cross_entropy(net(X[part]), y[part]).backward()
                step.step()
            for name, value in net.state_dict().items():
                total[name].add_(value, alpha=len(y) / count)
        theta = total
        stamps.append(time.process_time())
    return mean_round(stamps)


def by_dorfl(data: Clients, make: Callable[[], torch.nn.Module], batch: int, rounds: int) -> float:
    stamps: list[float] = []
    dorfl.train(
        data,
        "erm",
        model=make,
        classes=range(10),
        rounds=rounds,
        batch_size=batch,
        local_epochs=1,
        lr=RATE,
        progress=lambda _: stamps.append(time.process_time()),
    )
    return mean_round(stamps)


def compare_with_loop(console: Console, batch: int, turns: int) -> None:
    rng = np.random.default_rng(0)
    unequal = np.clip(np.exp(rng.normal(4.2, 1.0, CLIENTS)).astype(int), 5, 2_000)

    def rows(sizes: Any, *shape: int) -> Clients:
        return {
            f"client-{i}": (rng.random((n, *shape), dtype=np.float32), rng.integers(0, 10, n))
            for i, n in enumerate(sizes)
        }

    equal = [ROWS] * CLIENTS
    cases = {
        "MLP 20-16-10": (rows(equal, 20), lambda: networks.mlp(20, (16,), 10)),
        "MLP 64-64-64-10": (rows(equal, 64), lambda: networks.mlp(64, (64, 64), 10)),
        "MLP 784-128-10": (rows(equal, 784), lambda: networks.mlp(784, (128,), 10)),
        "MLP 784-128-10, log-normal": (rows(unequal, 784), lambda: networks.mlp(784, (128,), 10)),
        "CNN, 18,378 parameters": (rows(equal, 1, 28, 28), cnn),
    }
    table = Table("network", "loop, s", "dorfl, s", f"ratio (target ≤ {MAX_LOOP_RATIO:g})")
    for name, (data, make) in cases.items():
        pairs = [(loop(data, make, batch, 3), by_dorfl(data, make, batch, 3)) for _ in range(turns)]
        one, two = (min(part) for part in zip(*pairs, strict=True))
        table.add_row(name, f"{one:.3f}", f"{two:.3f}", f"{two / one:.2f}")
        console.print(name, f"{one:.3f} {two:.3f} {two / one:.2f}")
    console.print(table)


def main(console: Console) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=20, help="rows of a local step")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--loop", action="store_true", help="compare with a hand-written loop")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    if given.loop:
        compare_with_loop(console, given.batch, given.turns)
        return
    data, batch = clients(), given.batch
    runs: dict[str, Callable[[], float]] = {
        "dorfl, FedAvg": lambda: ours(data, batch, 6),
        "dorfl, DOR-FL (7 steps of ascent)": lambda: ours(data, batch, 4, robust=True),
        "pfl, FedAvg": lambda: pfl(data, batch, 6),
        "Flower's simulation, FedAvg": lambda: flower(data, batch, 4),
    }
    times: dict[str, list[float]] = {}
    for _ in range(given.turns):  # in turns, so that other load on the machine affects all alike
        for name, run in runs.items():
            try:
                times.setdefault(name, []).append(run())
            except ImportError as error:
                console.print(f"not measured: {name} ({error})", markup=False)
    title = f"A round: {CLIENTS} clients of {ROWS} rows, MLP 784-128-10, batches of {batch}"
    table = Table("round", "processor time, s", "÷ dorfl's FedAvg", "target", title=title)
    best = {name: min(taken) for name, taken in times.items() if taken}
    for name, taken in best.items():
        ratio = taken / best["dorfl, FedAvg"]
        least = TARGETS.get(name)
        robust = name.startswith("dorfl, DOR-FL")
        target = "" if least is None else f"≥ {least:g}: {'met' if ratio >= least else 'missed'}"
        if robust:
            target = f"≤ {MAX_ROBUST_RATIO:g}: {'met' if ratio <= MAX_ROBUST_RATIO else 'missed'}"
        table.add_row(name, f"{taken:.3f}", f"{ratio:.1f}", target)
    console.print(table)
    console.print(f"{time.strftime('%d %B %Y')}, torch {torch.__version__}, {os.cpu_count()} cores")


if __name__ == "__main__":
    main(Console(width=110))
