"""A site waits for most of its life: what it must not hold in memory then."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("cryptography")

HEAVY = (
    "numba",
    "llvmlite",
    "clarabel",
    "sklearn",
    "pandas",
    "flwr",
    "grpc",
    "uvicorn",
    "torch",
    "matplotlib",
    "plotly",
    "scipy.optimize",
    "scipy.stats",
    "dp_accounting",
)
WAITING = f"""
import json, sys
from pathlib import Path
import dorfl.cli
import dorfl.tabular.results
from dorfl.cli import site
from dorfl.carriers import flower, https, keys
from dorfl.carriers.folders import SiteFolder
home = Path(sys.argv[1])
(home / "keys").mkdir()
keys.create_authority(home / "keys", "localhost")
folder = SiteFolder.create(home / "site", "s")
(home / "rows.csv").write_text("a,y\\n" + "".join(f"{{k}}.5,{{k % 2}}\\n" for k in range(50)))
opened = site._open(folder, home / "rows.csv", home / "keys/ca.crt")
line = https.Connection("localhost:9", home / "keys/ca.crt", folder)
used = Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]
print(json.dumps([int(used) / 1024, [name for name in {HEAVY!r} if name in sys.modules]]))
"""


def test_a_waiting_site_has_loaded_nothing_to_compute_with(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WAITING, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    megabytes, loaded = json.loads(done.stdout)
    assert loaded == []
    assert megabytes < 150
