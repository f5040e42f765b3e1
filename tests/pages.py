"""Code blocks of Markdown pages: which there are, and how they are run."""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    ROOT / "examples/flower-app/README.md",
)
FENCED = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]*) -->\n)?^```(?P<language>[^\n]*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """One fenced block: its language, its code, and why it is not run, if it is not."""

    language: str
    code: str
    reason: str | None


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    found = FENCED.finditer(page.read_text(encoding="utf-8"))
    return [Block(one["language"], one["code"], one["reason"]) for one in found]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def needs_torch(page: Path) -> bool:
    """Return whether a Python block of a page trains a network."""
    needs = re.compile(r"import torch|from torch|networks|model=")
    return any(needs.search(one.code) for one in blocks(page) if one.language == "python")


def run_python(page: Path) -> dict:
    """Run the Python blocks of a page one after the other and compare what they print.

    A block ```text after a Python block has its output. White space may differ, so that long
    lines can be wrapped on the page.
    """
    names, printed = {"__name__": "page"}, ""
    for one in blocks(page):
        if one.language == "python" and one.reason is None:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(one.code, page.name, "exec"), names)
            printed = out.getvalue()
        elif one.language == "text" and one.reason is None:
            assert printed.split() == one.code.split(), printed
        else:
            printed = ""
    return names


def run_shell(page: Path, folder: Path) -> None:
    """Run the shell blocks of a page in a folder that has the examples, with this Python."""
    (folder / "examples").symlink_to(ROOT / "examples")
    python = f'python() {{ "{sys.executable}" "$@"; }}'
    start = f'set -eo pipefail; {python}; dorfl() {{ python -m dorfl "$@"; }}\n'
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    for one in blocks(page):
        if one.language == "sh" and one.reason is None:
            done = subprocess.run(
                ["bash", "-c", start + one.code], cwd=folder, env=os.environ | {"PYTHONPATH": path},
                capture_output=True, text=True, check=False, timeout=300,
            )  # fmt: skip
            assert done.returncode == 0, (one.code, done.stdout[-1000:], done.stderr[-3000:])
