"""Doctests of what needs PyTorch wait until it is there."""

import importlib.util

TORCH = importlib.util.find_spec("torch") is not None
NEEDING = [
    "src/dorfl/networks/*",
    "src/dorfl/flower/client.py",
    "src/dorfl/flower/strategy.py",
    "experiments/baselines.py",
    "experiments/benchmark.py",
    "experiments/candidates.py",
    "experiments/pages/benchmark.py",
]
collect_ignore_glob = [] if TORCH else NEEDING


def pytest_report_header() -> str:
    """Say what is left out, and why."""
    return "" if TORCH else "networks are not tested: PyTorch is missing (dorfl[torch])"
