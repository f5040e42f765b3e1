"""The numerical tests under other instruction sets: `make test-portable`.

OpenBLAS, Numba and NumPy each choose their code by what the processor can do, and each choice
rounds differently. Here they are told to take the processor for an older one, in a few
combinations, so that what rounding decides shows on any machine. `make test` runs on the processor
as it is. Arguments are handed on to pytest, in the place of all files with such tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

ROOT = Path(__file__).parents[1]
NEEDS = {"Nehalem": "SSE42", "Haswell": "AVX2", "SkylakeX": "AVX512F", "haswell": "AVX2"}

# What OpenBLAS, Numba and NumPy each take the processor for; "host": what it is.
COMBINATIONS = (
    ("Nehalem", "generic", "baseline"),  # nothing newer than 2008
    ("Haswell", "haswell", "AVX2"),  # most laptops
    ("SkylakeX", "haswell", "host"),  # wide products, narrower loops
    ("Nehalem", "host", "host"),
)


def runs(core: str, cpu: str) -> bool:
    """Whether this processor can do what it is to be taken for."""
    return all(__cpu_features__.get(NEEDS[name]) for name in (core, cpu) if name in NEEDS)


def environment(core: str, cpu: str, level: str) -> dict[str, str]:
    """What tells the three libraries; compiled code is kept apart by what it was compiled for."""
    found = dict(os.environ)
    if core != "host":
        found["OPENBLAS_CORETYPE"] = core
    if cpu != "host":  # by its name alone Numba would still use all that the host can do
        found |= {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": ""}
        found["NUMBA_CACHE_DIR"] = str(ROOT / ".venv" / "portable" / cpu)
    present = [name for name in __cpu_dispatch__ if __cpu_features__.get(name)]
    wide = [name for name in present if name.startswith(("AVX512", "X86_V4"))]
    off = {"baseline": present, "AVX2": wide, "host": []}[level]
    return found | {"NPY_DISABLE_CPU_FEATURES": " ".join(off)}


def run(combination: tuple[str, str, str]) -> bool:
    """One combination's tests; what they print comes out in one piece."""
    began = time.monotonic()
    options = ["-p", "no:xdist", "-p", "no:cacheprovider", "-m", "portable and not slow"]
    files = [p for p in sorted(ROOT.glob("tests/**/test_*.py")) if "mark.portable" in p.read_text()]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(sys.argv[1:] or files)],
        cwd=ROOT,
        env=environment(*combination),
        capture_output=True,
        text=True,
        check=False,
    )
    words = "OpenBLAS for {}, Numba for {}, NumPy for {}".format(*combination)
    verdict = "passed" if done.returncode == 0 else "FAILED"
    shown = "" if done.returncode == 0 else done.stdout + done.stderr
    print(f"{words}: {verdict} in {time.monotonic() - began:.0f} s\n{shown}", end="", flush=True)
    return done.returncode == 0


def main() -> int:
    """Every combination this processor can run, as many at once as there are cores."""
    chosen = [each for each in COMBINATIONS if runs(*each[:2])] or [("host", "generic", "baseline")]
    for core, cpu, _ in set(COMBINATIONS) - set(chosen):
        print(f"OpenBLAS for {core}, Numba for {cpu}: not on this processor")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return 0 if all(list(pool.map(run, chosen))) else 1


if __name__ == "__main__":
    sys.exit(main())
