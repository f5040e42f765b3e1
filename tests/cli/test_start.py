"""The page a newcomer follows is followed literally."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "start.md"


@pytest.mark.slow
def test_five_minutes_as_the_page_has_them(tmp_path):
    commands = re.findall(r"^dorfl ([^#\n]+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [words.split()[0] for words in commands][:2] == ["demo", "train"]
    for words in commands:
        done = subprocess.run(
            [sys.executable, "-m", "dorfl", *shlex.split(words)],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stderr)
    assert (tmp_path / "model" / "report.html").stat().st_size > 10_000
