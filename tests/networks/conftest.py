"""These tests need PyTorch, and say so where it is missing."""

import importlib.util

import pytest

HERE = importlib.util.find_spec("torch") is not None
collect_ignore_glob = [] if HERE else ["test_[!i]*.py"]  # all but the one on imports
BRIEF = ("ignore:the network is no better", "ignore:the network is wrong")


def pytest_collection_modifyitems(items):
    """Let tests train for a few rounds without the warning that little was learnt."""
    for item in items:
        if item.path.parent.name == "networks" and item.path.name != "test_network_defaults.py":
            for line in BRIEF:
                item.add_marker(pytest.mark.filterwarnings(line), append=False)


@pytest.fixture(autouse=True)
def one_thread():
    """The machine is shared, and sums do not depend on its cores."""
    if HERE:
        import torch  # noqa: PLC0415

        torch.set_num_threads(1)
