"""Speed of a training round, as ratios taken side by side in one run: `make bench`.

Candidates take turns, a tenth of a second each, and each is represented by its fastest round:
whatever else the machine is doing hits all of them alike. Not round by round: BLAS's threads keep
a core busy for a while after a product, and who comes next would pay for it. What is read of the
bandwidth is measured with rows that no cache holds any more, right after 400 MB of others. Threads
are fixed when a process starts, so every thread count is measured in a process of its own; with
one, in processor time, which is wall time on an idle machine and hardly changes on a busy one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numba import njit
from rich.console import Console
from rich.table import Table
from scipy.special import expit

import dorfl
from dorfl.federated.training import prepare
from dorfl.linear.hessian import curvature

SIZES = ((800, 5), (32_561, 108), (100_000, 100))
CLASSES = ((60_000, 784, 10), (70_000, 300, 8), (20_000, 50, 5))  # n, d, classes
CURVED = ((32_561, 108, 2), (20_000, 50, 5), (10_000, 100, 8))  # n, d, classes
METHOD = dorfl.methods.paper(rho=20, beta=1, score=dorfl.scores.quadratic(0.5))
TURN = 0.1  # seconds
console = Console(width=160)

Candidates = dict[str, Callable[[], object]]
Clients = list[tuple[np.ndarray, np.ndarray]]


def fastest(candidates: Candidates, seconds: float, threads: int) -> dict[str, float]:
    """The fastest turn of each candidate, in seconds, taking turns for so many seconds."""
    clock = time.process_time if threads == 1 else time.perf_counter
    for work in candidates.values():  # once to compile, once to warm up
        work()
        work()
    best = dict.fromkeys(candidates, np.inf)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, work in candidates.items():
            turn = time.perf_counter() + TURN
            while True:
                start = clock()
                work()
                best[name] = min(best[name], clock() - start)
                if time.perf_counter() > turn:
                    break
    return best


def after(before: Callable[[], object], work: Callable[[], object], times: int = 60) -> float:
    """The fastest of so many rounds, by the clock, each right after other work."""
    taken = []
    for _ in range(times):
        before()
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def problem(n: int, d: int, clients: int = 3) -> Clients:
    """Float32 rows of clients of about equal size (three: as 1 : 2 : 5), with noisy labels."""
    rng = np.random.default_rng(n + d)
    X = rng.standard_normal((n, d), dtype=np.float32)
    y = np.where(X[:, 0] + rng.logistic(size=n) > 0, 1, -1)
    shares = np.array([1, 2, 5]) if clients == 3 else np.ones(clients)
    edges = (np.cumsum(shares) / shares.sum() * n).astype(int)[:-1]
    return list(zip(np.split(X, edges), np.split(y, edges), strict=True))


def numpy_erm(X: np.ndarray, y: np.ndarray, theta: np.ndarray) -> Callable[[], object]:
    """Mean logistic loss and gradient in float32, as one writes it: two BLAS calls, no overflow."""
    weights, sign = theta.astype(X.dtype), y.astype(X.dtype)

    def evaluate() -> tuple[float, np.ndarray]:
        margin = sign * (X @ weights)
        return float(np.logaddexp(0, -margin).mean()), X.T @ (-sign * expit(-margin)) / len(sign)

    return evaluate


def tuned_erm(X: np.ndarray, y: np.ndarray, theta: np.ndarray) -> Callable[[], object]:
    """The same, as quick as we could: one exp, nothing allocated, wrong beyond margin −88."""
    weights, sign = theta.astype(X.dtype), y.astype(X.dtype)
    tail, work = np.empty_like(sign), np.empty_like(sign)
    minus = -sign

    def evaluate() -> tuple[float, np.ndarray]:
        np.matmul(X, weights, out=tail)
        np.multiply(tail, minus, out=tail)
        np.exp(tail, out=tail)
        value = float(np.log1p(tail, out=work).mean())
        np.add(tail, 1, out=work)
        np.divide(tail, work, out=tail)
        np.multiply(tail, minus, out=tail)
        return value, X.T @ tail / len(sign)

    return evaluate


@njit(nogil=True, fastmath=True)
def _read(numbers: np.ndarray) -> float:
    total = numbers.dtype.type(0)
    for i in range(numbers.size):
        total += numbers[i]
    return total


def bandwidth(threads: int) -> Callable[[], object]:
    """Reads 400 MB of float32, far more than any cache holds, and adds the numbers up."""
    parts = np.array_split(np.ones(100_000_000, dtype=np.float32), threads)
    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(_read, parts))


def measure_rounds(threads: int) -> dict[str, Any]:
    """The fastest round of each candidate at each size, in seconds."""
    read_all = bandwidth(threads)
    rounds = {}
    for n, d in SIZES:
        clients = problem(n, d)
        ours = prepare(clients, METHOD, intercept=False)
        # The same rows in memory for all three, so that no candidate cools another's cache.
        plain = replace(prepare(clients, dorfl.methods.erm(), intercept=False), rows=ours.rows)
        theta = np.random.default_rng(0).standard_normal(d) / np.sqrt(d)
        erm = numpy_erm(ours.rows, ours.target, theta)
        value, gradient = erm()  # type: ignore[misc]
        check, share = plain.evaluate(theta), plain.counts / n
        assert abs(check.values @ share - value) < 1e-4, "the two ERM rounds must agree"
        assert np.abs(share @ check.gradients - gradient).max() < 1e-4
        candidates: Candidates = {
            "dorfl": lambda ours=ours, theta=theta: ours.evaluate(theta),
            "erm": lambda plain=plain, theta=theta: plain.evaluate(theta),
            "numpy": erm,
            "tuned": tuned_erm(ours.rows, ours.target, theta),
        }
        found = fastest(candidates, 2.0 if n < 1000 else 8.0, threads)
        if ours.rows.nbytes > 30_000_000:
            cold = {"dorfl": candidates["dorfl"], "erm": candidates["erm"]}
            found |= {f"cold {name}": after(read_all, work) for name, work in cold.items()}
            found |= fastest({"read": read_all}, 2.0, threads)
        rounds[f"{n},{d}"] = found
    return rounds


def softmax_problem(n: int, d: int, classes: int) -> tuple[Clients, np.ndarray]:
    """Float32 rows of three clients, labels drawn from a softmax model, and its weights."""
    rng = np.random.default_rng(n + d)
    X = rng.standard_normal((n, d), dtype=np.float32)
    weights = 2.0 * rng.standard_normal((classes, d)) / np.sqrt(d)
    y = (X @ weights.T + rng.gumbel(size=(n, classes))).argmax(axis=1)
    edges = (np.cumsum([1, 2, 5]) / 8 * n).astype(int)[:-1]
    return list(zip(np.split(X, edges), np.split(y, edges), strict=True)), weights


def blas_softmax(X: np.ndarray, y: np.ndarray, theta: np.ndarray) -> Callable[[], object]:
    """Mean softmax loss and gradient in float32: two BLAS calls, no overflow, little allocated."""
    weights, label, every = theta.astype(X.dtype), y.astype(int), np.arange(len(X))
    t = np.empty((len(X), len(theta)), X.dtype)

    def evaluate() -> tuple[float, np.ndarray]:
        np.matmul(X, weights.T, out=t)
        np.subtract(t, t.max(axis=1, keepdims=True), out=t)
        own = t[every, label]
        np.exp(t, out=t)
        total = t.sum(axis=1)
        value = float((np.log(total) - own).mean())
        np.divide(t, total[:, None], out=t)
        t[every, label] -= 1
        return value, t.T @ X / len(X)

    return evaluate


def measure_softmax(threads: int) -> dict[str, dict[str, float]]:
    """The fastest softmax round of each candidate at each size, in seconds."""
    rounds = {}
    for n, d, classes in CLASSES:
        clients, weights = softmax_problem(n, d, classes)
        theta = weights.ravel()
        ours = prepare(clients, METHOD, "softmax", intercept=False)
        plain = prepare(clients, dorfl.methods.erm(), "softmax", intercept=False)
        plain = replace(plain, rows=ours.rows)
        blas = blas_softmax(ours.rows, ours.target, weights)
        value, gradient = blas()  # type: ignore[misc]
        check, share = plain.evaluate(theta), plain.counts / n
        assert abs(check.values @ share - value) < 1e-4, "the two ERM rounds must agree"
        assert np.abs(share @ check.gradients - gradient.ravel()).max() < 1e-4
        candidates: Candidates = {
            "dorfl": lambda ours=ours, theta=theta: ours.evaluate(theta),
            "erm": lambda plain=plain, theta=theta: plain.evaluate(theta),
            "blas": blas,
        }
        rounds[f"{n},{d},{classes}"] = fastest(candidates, 8.0, threads)
    return rounds


def blas_curvature(X: np.ndarray, weights: np.ndarray) -> Callable[[], object]:
    """XᵀDX for every column of the weights, (n, q): a product by BLAS each, rows in float32."""
    room = np.empty_like(X)

    def evaluate() -> list[np.ndarray]:
        return [X.T @ np.multiply(X, w[:, None], out=room) for w in weights.T]

    return evaluate


def measure_curvature(threads: int) -> dict[str, dict[str, float]]:
    """The fastest full Hessian of each candidate at each size, in seconds."""
    taken = {}
    for n, d, classes in CURVED:
        if classes == 2:
            clients, loss, outputs = problem(n, d), "logistic", 1
        else:
            clients, loss, outputs = softmax_problem(n, d, classes)[0], "softmax", classes
        ours = prepare(clients, METHOD, loss, intercept=False)
        plain = prepare(clients, dorfl.methods.erm(), loss, intercept=False)
        plain = replace(plain, rows=ours.rows)
        rng = np.random.default_rng(0)
        theta = rng.standard_normal(outputs * d) / np.sqrt(d)
        # as many weights as there are pairs of outputs
        weights = rng.random((n, outputs * (outputs + 1) // 2), dtype=np.float32)
        candidates: Candidates = {
            "dorfl": lambda ours=ours, theta=theta: curvature(ours, theta, "full"),
            "erm": lambda plain=plain, theta=theta: curvature(plain, theta, "full"),
            "blas": blas_curvature(ours.rows, weights),
        }
        taken[f"{n},{d},{classes}"] = fastest(candidates, 6.0, threads)
    return taken


def in_threads(threads: int, task: str) -> Any:
    """A task of `TASKS` in a process of its own, where dorfl and BLAS both have so many threads."""
    names = ("DORFL", "OPENBLAS", "OMP", "MKL")
    env = os.environ | {f"{name}_NUM_THREADS": str(threads) for name in names}
    command = [sys.executable, __file__, task, str(threads)]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def verdict(value: float, bound: float, below: bool = True) -> str:
    met = value <= bound if below else value >= bound
    style, word = ("green", "met") if met else ("red", "missed")
    return f"[{style}]{value:.2f} {word}[/] ({'≤' if below else '≥'} {bound})"


def show_rounds() -> None:
    table = Table("threads", "n", "d", "DOR-FL ms", "own ERM ms", "NumPy ERM ms", "tuned ms",
                  "÷ NumPy ERM", "÷ tuned", "÷ own ERM", "share of read bandwidth",
                  title="One round: DOR-FL against plain ERM (float32, 3 clients)")  # fmt: skip
    for threads in sorted({1, min(2, len(os.sched_getaffinity(0)))}):
        for key, best in in_threads(threads, "rounds").items():
            n, d = map(int, key.split(","))
            against_numpy = best["dorfl"] / best["numpy"]
            against_tuned = best["dorfl"] / best["tuned"]
            share = "in cache"
            if "read" in best:
                limit, least = 4e8 / best["read"], 0.45 if threads == 1 else 0.7
                used = {name: 4 * n * d / limit / best[f"cold {name}"] for name in ("dorfl", "erm")}
                share = verdict(used["dorfl"], least, below=False)
                share += f" of {limit / 1e9:.1f} GB/s, own ERM {used['erm']:.2f}"
            times = [f"{1e3 * best[name]:.3f}" for name in ("dorfl", "erm", "numpy", "tuned")]
            table.add_row(
                str(threads), f"{n:,}", str(d), *times,
                verdict(against_numpy, 0.6 if n > 1000 else 1.0),
                verdict(against_tuned, 1.0) if n > 1000 else f"{against_tuned:.2f}",
                verdict(best["dorfl"] / best["erm"], 1.5), share,
            )  # fmt: skip
    console.print(table)


def show_against_blas(
    task: str, title: str, blas: str, digits: int, erm: float, dorfl: float
) -> None:
    """Times of a task beside those of `blas`, and the most that ERM and DOR-FL may take of it."""
    table = Table("threads", "n", "d", "classes", "DOR-FL ms", "own ERM ms", f"{blas} ms",
                  "ERM ÷ BLAS", "DOR-FL ÷ BLAS", title=title)  # fmt: skip
    for threads in sorted({1, min(2, len(os.sched_getaffinity(0)))}):
        for key, best in in_threads(threads, task).items():
            n, d, classes = map(int, key.split(","))
            table.add_row(
                str(threads), f"{n:,}", str(d), str(classes),
                *(f"{1e3 * best[name]:.{digits}f}" for name in ("dorfl", "erm", "blas")),
                verdict(best["erm"] / best["blas"], erm),
                verdict(best["dorfl"] / best["blas"], dorfl),
            )  # fmt: skip
    console.print(table)


SERIES = {  # what grows, its place in (n, d, N), the sizes
    "rows n (d = 50, N = 10)": (0, [(n, 50, 10) for n in (50_000, 100_000, 200_000, 400_000)]),
    "columns d (n = 20,000, N = 10)": (1, [(20_000, d, 10) for d in (100, 200, 400, 800)]),
    "clients N (1,000 rows each, d = 50)": (2, [(1000 * N, 50, N) for N in (50, 100, 200, 400)]),
}


def measure_scaling(threads: int) -> dict[str, list[float]]:
    """Seconds of a DOR-FL round for every size of every series."""
    taken = {}
    for name, (_place, cases) in SERIES.items():
        candidates: Candidates = {}
        for n, d, clients in cases:
            group = prepare(problem(n, d, clients), METHOD)
            theta = np.random.default_rng(0).standard_normal(d + 1) / np.sqrt(d)
            key = f"{n},{d},{clients}"
            candidates[key] = lambda group=group, theta=theta: group.evaluate(theta)
        taken[name] = list(fastest(candidates, 6.0, threads).values())
    return taken


def show_scaling() -> None:
    """Twice the rows, columns or clients cost at most twice as much: a log-log slope of one.

    A row costs something whatever its length, so the slope in d is a little less; rows that no
    longer fit a cache cost more, so those in n and N can be a little more.
    """
    table = Table("grows", "sizes", "ns per number", "slope", title="A DOR-FL round, one thread")
    for name, taken in in_threads(1, "scaling").items():
        place, cases = SERIES[name]
        sizes, times = np.array(cases), np.array(taken)
        slope = np.polyfit(np.log(sizes[:, place]), np.log(times), 1)[0]
        each = 1e9 * times / (sizes[:, 0] * sizes[:, 1])
        table.add_row(
            name,
            "  ".join(f"{size:,}" for size in sizes[:, place]),
            "  ".join(f"{cost:.3f}" for cost in each),
            f"{slope:.2f}",
        )
    console.print(table)


def show_large() -> None:
    """One training with a thousand clients and a million rows."""
    clients = problem(1_000_000, 50, 1000)
    stamps: list[float] = []
    start = time.perf_counter()
    fit = dorfl.train(
        clients, METHOD, solver="sqp", progress=lambda _: stamps.append(time.perf_counter())
    )
    total = time.perf_counter() - start
    each = np.diff(stamps)
    console.print(
        f"1,000 clients, 1,000,000 rows × 50 columns: {fit.status} in {fit.rounds} rounds, "
        f"{total:.1f} s in all; {1e3 * np.median(each):.0f} ms a round (median of rounds 2 on), "
        f"{stamps[0] - start:.1f} s to check and stack the rows and for the first round"
    )


def main() -> None:
    show_rounds()
    title = "One softmax round: against plain ERM by BLAS (float32)"
    show_against_blas("softmax", title, "BLAS ERM", 2, 1.1, 2.0)
    title = "One full Hessian: against BLAS XᵀDX for every two outputs"
    show_against_blas("curvature", title, "BLAS XᵀDX", 1, 3.0, 3.0)
    show_scaling()
    show_large()
    import peers  # noqa: PLC0415 - needs nothing more than dorfl itself until it runs

    peers.main(console)


TASKS = {
    "rounds": measure_rounds,
    "softmax": measure_softmax,
    "curvature": measure_curvature,
    "scaling": measure_scaling,
}

if __name__ == "__main__":
    if len(sys.argv) > 1:  # a process that `in_threads` started
        print(json.dumps(TASKS[sys.argv[1]](int(sys.argv[2]))))
    else:
        main()
