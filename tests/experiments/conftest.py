"""Tests of the network benchmark need PyTorch, and train for a few rounds only."""

import importlib.util

import pytest

TORCH = importlib.util.find_spec("torch") is not None
NETWORKS = "test_benchmark*.py"
collect_ignore_glob = [] if TORCH else [NETWORKS]


def pytest_collection_modifyitems(items):
    """Let the benchmark's tests train without the warning that little was learnt."""
    for item in items:
        if item.path.match(f"experiments/{NETWORKS}"):
            for line in ("ignore:the network is no better", "ignore:the network is wrong"):
                item.add_marker(pytest.mark.filterwarnings(line), append=False)


@pytest.fixture(autouse=True)
def one_thread():
    """Train on one thread: the machine is shared, and sums do not depend on its cores."""
    if TORCH:
        import torch  # noqa: PLC0415

        torch.set_num_threads(1)
