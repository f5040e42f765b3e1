"""All cores for one pass over the rows, without Numba's own threads.

Those abort the process when two Python threads use them at once. Kernels release the interpreter's
lock instead, and plain threads share out pieces of fixed size, so that the answer is the same
whatever their number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import numpy as np

T = TypeVar("T")
R = TypeVar("R")

THREADS = int(os.environ.get("DORFL_NUM_THREADS", "0")) or os.cpu_count() or 1
if hasattr(os, "sched_getaffinity") and "DORFL_NUM_THREADS" not in os.environ:
    THREADS = len(os.sched_getaffinity(0))
_WORTH_A_THREAD = 200_000  # numbers read; below that starting a task costs more than it saves
_pool: ThreadPoolExecutor | None = None


def share(work: Callable[[slice], object], count: int, numbers: int) -> None:
    """Run `work` on slices that cover range(count), on all cores where that pays."""
    global _pool
    pieces = min(THREADS * 4, count)
    if THREADS == 1 or pieces < 2 or numbers < _WORTH_A_THREAD:
        work(slice(0, count))
        return
    if _pool is None:
        _pool = ThreadPoolExecutor(THREADS, thread_name_prefix="dorfl")
    edges = np.linspace(0, count, pieces + 1).astype(int).tolist()
    waiting = [slice(first, stop) for first, stop in pairwise(edges)]

    def drain() -> None:
        while True:
            try:
                part = waiting.pop()  # atomic, so no piece is taken twice
            except IndexError:
                return
            work(part)

    helpers = [_pool.submit(drain) for _ in range(THREADS - 1)]
    drain()  # this thread works too, rather than wait
    for helper in helpers:
        helper.result()


def each(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """`work` of every item, in their order, on all cores: for long work that shares out nothing.

    >>> each(abs, [-1, 2])
    [1, 2]
    """
    with ThreadPoolExecutor(THREADS, thread_name_prefix="dorfl-each") as pool:
        return list(pool.map(work, items))


def _forget_pool() -> None:
    """A forked child inherits the pool's name but none of its threads."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)
