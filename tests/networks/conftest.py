"""These tests need PyTorch, and say so where it is missing."""

import importlib.util

import pytest

HERE = importlib.util.find_spec("torch") is not None
collect_ignore_glob = [] if HERE else ["test_[!i]*.py"]  # all but the one on imports


@pytest.fixture(autouse=True)
def one_thread():
    """The machine is shared, and sums do not depend on its cores."""
    if HERE:
        import torch  # noqa: PLC0415

        torch.set_num_threads(1)
