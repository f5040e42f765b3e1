"""Public tables through the commands: none of them ends without what it is for, or words."""

import pytest

import commands
from experiments.data.packages import UnavailableError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["breast", "german", "cut", "stays"])
def test_no_command_fails_silently(tmp_path, name):
    try:
        endings = list(commands.run(name, 400, tmp_path, budget=0.0))
    except UnavailableError as error:
        pytest.skip(str(error))
    assert not [end for end in endings if end.wrong]
    assert [end.command for end in endings] == list(commands.COMMANDS)
