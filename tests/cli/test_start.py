"""The page a newcomer follows is followed literally."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/start.md", "README.md"])
def test_commands_as_the_page_has_them(tmp_path, page):
    text = (ROOT / page).read_text(encoding="utf-8")
    if page == "README.md":  # those for one table; the others need a server
        text = text.split("## Your own table")[1].split("\nIn Python")[0]
    commands = re.findall(r"^dorfl ([^#\n]+)", text, re.MULTILINE)
    assert [words.split()[0] for words in commands][:2] == ["demo", "train"]
    for words in commands:
        done = subprocess.run(
            [sys.executable, "-m", "dorfl", *shlex.split(words)],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stderr)
    assert (tmp_path / "model" / "report.html").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/start.md", "docs/tutorial-research.md"])
def test_python_on_a_page_runs_as_it_stands(page, tmp_path, monkeypatch):
    """One block after the other, with the arrays that a reader is taken to have."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X, noise = rng.normal(size=(120, 3)), rng.normal(size=120)
    names = {
        "X": X, "y": np.where(X[:, 0] + noise > 0, "ill", "well"),
        "hospital": np.arange(120) % 3, "X_new": X[:5],
        "P": rng.normal(size=(8, 2)), "Q": rng.normal(size=(9, 2)),
        "clients": {f"site-{k}": (X[k::3], np.sign((X[:, 0] + noise)[k::3])) for k in range(3)},
    }  # fmt: skip
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL
    )
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), names)
