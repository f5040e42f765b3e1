"""The same examples in every run, a fifth of them in `make test-fast`.

`HYPOTHESIS_PROFILE=explore make test` looks at fresh ones. Tests of networks need PyTorch, train
for a few rounds only, and are left out if it is missing, but for the one on imports.
"""

import importlib.util
import os

import pytest
from hypothesis import settings

TORCH = importlib.util.find_spec("torch") is not None
NETWORKS = ("networks/test_[!i]*.py", "experiments/test_benchmark*.py")
collect_ignore_glob = [] if TORCH else list(NETWORKS)

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("fast", settings.get_profile("repeatable"), max_examples=20)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture
def cardio_records():
    """The table of medical records, where this machine can have it."""
    # Not above: what SciPy tells Python's warnings when first imported must reach the tests.
    from experiments.data.cardio import cardio_table  # noqa: PLC0415
    from experiments.data.packages import UnavailableError  # noqa: PLC0415

    try:
        return cardio_table()
    except UnavailableError as error:
        pytest.skip(str(error))


def pytest_collection_modifyitems(items):
    """Let networks train for a few rounds without the warning that little was learnt."""
    for item in items:
        brief = any(item.path.match(pattern) for pattern in NETWORKS)
        if brief and item.path.name != "test_network_defaults.py":
            for line in ("ignore:the network is no better", "ignore:the network is wrong"):
                item.add_marker(pytest.mark.filterwarnings(line), append=False)


@pytest.fixture(autouse=True)
def one_thread():
    """Train on one thread: the machine is shared, and sums do not depend on its cores."""
    if TORCH:
        import torch  # noqa: PLC0415

        torch.set_num_threads(1)
