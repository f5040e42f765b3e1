"""What does the first training on a machine cost? Compilation of the kernels, in processor time.

Two processes, one after the other, share an empty cache folder. Each trains small models in turn;
"compiled" lists the kernels that took longest in the first process.

    python benchmarks/cold_start.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

CASES = (  # outputs, precision of the rows
    ("two classes", "float32"),
    ("two classes", "float64"),
    ("four classes", "float32"),
    ("four classes", "float64"),
)
LEAST = 0.5  # seconds from which on a kernel is listed


def measure() -> None:
    """Print what importing dorfl and each training take in this process."""
    start = time.process_time()
    import numpy as np  # noqa: PLC0415 - the import is measured
    from numba.core import event  # noqa: PLC0415

    import dorfl  # noqa: PLC0415

    running, compiled = [], {}

    class Timer(event.Listener):
        """Add up the time of kernels that no other kernel's compilation contains."""

        def on_start(self, told: event.Event) -> None:
            running.append((told.data["dispatcher"].py_func.__name__, time.process_time()))

        def on_end(self, _: event.Event) -> None:
            name, began = running.pop()
            if not running:
                compiled[name] = compiled.get(name, 0.0) + time.process_time() - began

    event.register("numba:compile", Timer())
    print(f"| import dorfl | {time.process_time() - start:.1f} | |")
    X = np.random.default_rng(0).normal(size=(600, 20))
    for what, precision in CASES:
        y = (X[:, 0] > 0).astype(int) if what == "two classes" else X[:, :4].argmax(axis=1)
        clients = [(X[k::3].astype(precision), y[k::3]) for k in range(3)]
        compiled.clear()
        start = time.process_time()
        dorfl.train(clients, dorfl.methods.paper(20, 1), l2=1e-3)
        taken = time.process_time() - start
        longest = sorted(((t, name) for name, t in compiled.items() if t >= LEAST), reverse=True)
        names = ", ".join(f"`{name}` {t:.1f}" for t, name in longest)
        print(f"| {what}, {precision} | {taken:.1f} | {names} |", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"NUMBA_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"}
        for process in ("first", "second"):
            print(f"| {process} process | seconds | compiled |\n| --- | --- | --- |", flush=True)
            subprocess.run([sys.executable, __file__, "measure"], env=env, check=True)


if __name__ == "__main__":
    measure() if len(sys.argv) > 1 else main()
