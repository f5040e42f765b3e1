"""`dorfl train` on a large table, beside reading it with pandas and fitting scikit-learn.

Both on one core, in processes of their own, in turns: python benchmarks/table.py [rows] [columns]
[csv | parquet]. `dorfl train` is as it comes, with the selection of an outlier share, scores on
held-out rows and the certificate. Seconds are of the clock and of the processor.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

PEER = """
import json, sys, time
import pandas as pd
from sklearn.linear_model import LogisticRegression
start, before = time.perf_counter(), time.process_time()
frame = (pd.read_csv if sys.argv[1].endswith("csv") else pd.read_parquet)(sys.argv[1])
read = time.perf_counter()
X, y = frame.drop(columns=["site", "label"]), frame["label"]
model = LogisticRegression(max_iter=1000).fit(X, y)
done = time.perf_counter()
cores = time.process_time()
print(json.dumps({"read": read - start, "fit": done - read, "cores": cores - before,
    "iterations": int(model.n_iter_[0]),
    "accuracy": float(model.score(X.iloc[:100_000], y.iloc[:100_000]))}))
"""
IMPORTS = "import dorfl.cli, dorfl.tabular.model, dorfl.tabular.table"


def write_table(path: Path, rows: int, columns: int) -> None:
    rng = np.random.default_rng(0)
    theta = rng.normal(size=columns) / np.sqrt(columns)
    table, lean = {}, np.zeros(rows)
    for k in range(columns):
        x = rng.normal(size=rows)
        lean += 2 * theta[k] * x
        table[f"x{k}"] = x
    table["site"] = np.array(["a", "b", "c", "d", "e"])[rng.integers(0, 5, rows)]
    table["label"] = (rng.random(rows) < 1 / (1 + np.exp(-lean))).astype(np.int64)
    if path.suffix == ".csv":
        pa.csv.write_csv(pa.table(table), path)
    else:
        pa.parquet.write_table(pa.table(table), path)


def run(*command: str) -> tuple[float, float, float, str]:
    """Seconds, of all cores together, peak memory in MB, and what it printed."""
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen([sys.executable, *command], stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        out.seek(0)
        if status:
            sys.exit(f"{command[0]} failed")
        cores = usage.ru_utime + usage.ru_stime
        return seconds, cores, usage.ru_maxrss / 1024, out.read()


def main() -> None:
    if sys.argv[1:2] == ["write"]:
        write_table(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
        return
    given = sys.argv[1:] + ["1000000", "50", "parquet"][len(sys.argv) - 1 :]
    rows, columns, kind = int(given[0]), int(given[1]), given[2]
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"table.{kind}"
        # In a process of its own: a child's peak memory begins with its parent's.
        run(__file__, "write", str(path), str(rows), str(columns))
        train = [
            "-m", "dorfl", "train", str(path), "--label", "label", "--client", "site",
            "--out", str(Path(folder) / "model"), "--json", "--force",
        ]  # fmt: skip
        subprocess.run([sys.executable, *train], check=True, stdout=subprocess.DEVNULL)  # compiles
        starting, _, before, _ = run("-c", IMPORTS)
        ours, results = [], []
        for _ in range(3):  # in turns, so that both meet the same machine
            results.append(json.loads(run("-c", PEER, str(path))[3]))
            ours.append(run(*train))
        peer = min(results, key=lambda r: r["read"] + r["fit"])
        seconds, cores, memory, printed = min(ours)
        answer = json.loads(printed)
    size = rows * columns * 4 / 2**20
    theirs = peer["read"] + peer["fit"]
    right = sum(c["score"] * c["rows"] for c in answer["clients"]) / rows
    print(f"{rows:,} rows × {columns} columns, {size:.0f} MB in float32; best of three, in turns")
    print(f"pandas read {peer['read']:.2f} s + scikit-learn fit {peer['fit']:.2f} s "
          f"= {theirs:.2f} s, {peer['cores']:.2f} s of all cores "
          f"({peer['iterations']} iterations, accuracy {peer['accuracy']:.4f})")  # fmt: skip
    print(f"dorfl train {seconds:.2f} s, {cores:.2f} s of all cores, of which {starting:.2f} s to "
          f"start ({answer['rounds']} rounds, accuracy {right:.4f})")  # fmt: skip
    print(f"processor time: {cores / peer['cores']:.2f} × read and fit")
    print(f"memory: {memory - before:.0f} MB above imports = {(memory - before) / size:.2f} × the "
          "table in float32 (allowed: 3)")  # fmt: skip


if __name__ == "__main__":
    main()
