"""Parallel passes over rows on Python threads, bit-identical for any number of threads.

Numba's own threads abort the process if two Python threads use them at once. Kernels release the
GIL instead, and Python threads process chunks of fixed size.
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
_WORTH_A_THREAD = 200_000  # numbers read; for fewer, starting a thread costs more than it saves
_pool: ThreadPoolExecutor | None = None
_blas_lock, _blas_users = Lock(), 0
_blas_before: list[int] = []


def share(work: Callable[[slice], object], count: int, numbers: int, *, blas: bool = False) -> None:
    """Run `work` on slices that cover range(count), as :func:`together` does."""
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
    """Run `work` on every core if that is faster; `work` takes one of `pieces` until none is left.

    Threads are worth their start if many `numbers` are read. With `blas`, BLAS has one thread each.

    >>> left = ["a", "b", "c"]
    >>> together(left.clear, 3, 10**6)
    >>> left
    []
    """
    global _pool
    limited = one_blas_thread if blas else nullcontext
    if THREADS == 1 or pieces < 2 or numbers < _WORTH_A_THREAD:
        with limited():
            work()
        return
    if _pool is None:
        _pool = ThreadPoolExecutor(THREADS, thread_name_prefix="dorfl")

    def help_out() -> None:
        with limited():
            work()

    with limited():
        helpers = [_pool.submit(help_out) for _ in range(min(THREADS, pieces) - 1)]
        work()  # this thread works too, rather than wait
        for helper in helpers:
            helper.result()


def each(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Map `work` over items on all cores, in order; for long tasks.

    >>> each(abs, [-1, 2])
    [1, 2]
    """
    if THREADS == 1:
        return list(map(work, items))
    with ThreadPoolExecutor(THREADS, thread_name_prefix="dorfl-each") as pool:
        return list(pool.map(work, items))


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread while any caller is inside this context.

    How BLAS rounds a product depends on the number of its threads, and its idle threads spin on
    cores that ours need. Most BLAS libraries have one setting per process: the first caller saves
    it and the last restores it. Others have one per thread, so every caller sets it.
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
        # threadpoolctl ties the setting to the first thread that set it, until it is cleared.
        release = getattr(library, "clear_controlling_thread", nullcontext)
        release(True)
        library.set_num_threads(count)
        release(True)


@cache
def _blas() -> list[Any]:
    """Return the BLAS of NumPy and that of SciPy, which Numba calls."""
    import scipy.linalg.cython_blas  # noqa: F401, PLC0415 - threadpoolctl sees loaded libraries only

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


def _forget_threads() -> None:
    """Reset the pool and the BLAS state in a forked child, which has none of the threads."""
    global _pool, _blas_lock, _blas_users
    _pool = None
    _blas_lock = Lock()
    if _blas_users > 0:
        _blas_users = 0
        _set_blas(_blas_before)


os.register_at_fork(after_in_child=_forget_threads)
