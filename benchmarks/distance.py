"""Time of the unbalanced distance against POT's exact `ot.emd`, same matrix, same process.

python bench_distance.py [points] [repeats]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from ot import emd

from dorfl.certificates.distance import unbalanced_wasserstein


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main(points: int = 500, repeats: int = 5) -> None:
    unbalanced_wasserstein(np.zeros((2, 1)), [[1.0], [2.0]], 1.0)  # compile
    print(f"{points} x {points}, median of {repeats}\ndims  rows times  beta  tol    "
          "UW (ms)  emd (ms)  ratio  relative gap")  # fmt: skip
    for dims in (2, 5):
        for factor in (1.0, -8.0, 1e3):
            random = np.random.default_rng(0)
            x, y = random.normal(size=(points, dims)), random.normal(size=(points, dims)) + 0.3
            y[: points // 10] *= factor
            cost = 0.5 * ((x[:, None] - y) ** 2).sum(axis=-1)
            uniform = np.full(points, 1 / points)
            for beta in (0.1, 1.0, 10.0):
                for tol in (1e-3, 1e-4):
                    ours, exact = [], []
                    for _ in range(repeats):  # in turn, so that a busy machine slows both
                        exact.append(seconds(lambda: emd(uniform, uniform, cost)))  # noqa: B023
                        ours.append(
                            seconds(lambda: unbalanced_wasserstein(x, y, beta, cost=cost, tol=tol))  # noqa: B023
                        )
                    gap = unbalanced_wasserstein(x, y, beta, cost=cost, tol=tol).relative_gap
                    a, b = 1e3 * median(ours), 1e3 * median(exact)
                    print(f"{dims:4d}  {factor:10g}  {beta:4g}  {tol:.0e}  "
                          f"{a:7.0f}  {b:8.0f}  {a / b:5.1f}  {gap:.1e}")  # fmt: skip


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
