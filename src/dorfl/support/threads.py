"""All cores for one pass over the rows, without Numba's own threads.

Those abort the process when two Python threads use them at once. Kernels release the interpreter's
lock instead, and plain threads share out pieces of fixed size, so that the answer is the same
whatever their number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from itertools import pairwise
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

T = TypeVar("T")
R = TypeVar("R")

THREADS = int(os.environ.get("DORFL_NUM_THREADS", "0")) or os.cpu_count() or 1
if hasattr(os, "sched_getaffinity") and "DORFL_NUM_THREADS" not in os.environ:
    THREADS = len(os.sched_getaffinity(0))
_WORTH_A_THREAD = 200_000  # numbers read; below that starting a task costs more than it saves
_pool: ThreadPoolExecutor | None = None
_blas_lock, _blas_users = Lock(), 0
_blas_before: list[int] = []


def share(work: Callable[[slice], object], count: int, numbers: int, *, blas: bool = False) -> None:
    """Run `work` on slices that cover range(count), on all cores where that pays.

    Work that calls `blas` does so with one thread each time.
    """
    pieces = min(THREADS * 4, count)
    edges = np.linspace(0, count, pieces + 1).astype(int).tolist()
    waiting = [slice(first, stop) for first, stop in pairwise(edges)]

    def drain() -> None:
        while True:
            try:
                part = waiting.pop()  # atomic, so no piece is taken twice
            except IndexError:
                return
            work(part)

    together(drain, pieces, numbers, blas=blas)


def together(work: Callable[[], object], pieces: int, numbers: int, *, blas: bool = False) -> None:
    """Run `work` once on every core where that pays: each time it takes of the pieces what is left.

    >>> left = ["a", "b", "c"]
    >>> together(left.clear, 3, 10**6)
    >>> left
    []
    """
    global _pool
    alone = one_blas_thread if blas else nullcontext
    if THREADS == 1 or pieces < 2 or numbers < _WORTH_A_THREAD:
        with alone():
            work()
        return
    if _pool is None:
        _pool = ThreadPoolExecutor(THREADS, thread_name_prefix="dorfl")

    def help_out() -> None:
        with alone():
            work()

    with alone():
        helpers = [_pool.submit(help_out) for _ in range(min(THREADS, pieces) - 1)]
        work()  # this thread works too, rather than wait
        for helper in helpers:
            helper.result()


def each(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """`work` of every item, in their order, on all cores: for long work that shares out nothing.

    >>> each(abs, [-1, 2])
    [1, 2]
    """
    if THREADS == 1:
        return list(map(work, items))
    with ThreadPoolExecutor(THREADS, thread_name_prefix="dorfl-each") as pool:
        return list(pool.map(work, items))


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """BLAS keeps to the thread that calls it, for as long as anyone is in here.

    Its own threads would share out a product by their number, and so round it differently; and they
    spin while they wait for work, which our own threads have better use for. With most libraries
    the setting is one for the whole process: who comes first notes it, who leaves last restores it.
    With some it is each thread's own, so everyone makes it.
    """
    global _blas_users, _blas_before
    with _blas_lock:
        if _blas_users == 0:
            _blas_before = [library.get_num_threads() for library in _blas()]
        _blas_users += 1
        _set_blas([1] * len(_blas_before))
    try:
        yield
    finally:
        with _blas_lock:
            _blas_users -= 1
            if _blas_users == 0:
                _set_blas(_blas_before)


def _set_blas(threads: list[int]) -> None:
    for library, count in zip(_blas(), threads, strict=True):
        # threadpoolctl lets nobody but the first thread that asked set anything, until it lets go.
        let_go = getattr(library, "clear_controlling_thread", nullcontext)
        let_go(True)
        library.set_num_threads(count)
        let_go(True)


@cache
def _blas() -> list[Any]:
    """NumPy's BLAS and SciPy's, which Numba calls."""
    import scipy.linalg.cython_blas  # noqa: F401, PLC0415 - loaded, or it would not be found

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


def _forget_threads() -> None:
    """A forked child inherits the pool's name but none of its threads, nor who is with BLAS."""
    global _pool, _blas_lock, _blas_users
    _pool = None
    _blas_lock = Lock()
    if _blas_users > 0:
        _blas_users = 0
        _set_blas(_blas_before)


os.register_at_fork(after_in_child=_forget_threads)
