"""The same examples in every run, a fifth of them in `make test-fast`.

`HYPOTHESIS_PROFILE=explore make test` looks at fresh ones.
"""

import os

import pytest
from hypothesis import settings

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
