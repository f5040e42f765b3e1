"""Commands as people start them."""

import os
import subprocess
import sys


def dorfl_(*arguments, cwd, **environment):
    """As a process of its own: what it printed must never be a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "dorfl", *map(str, arguments)],
        capture_output=True, text=True, check=False, cwd=cwd, env={**os.environ, **environment},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done
