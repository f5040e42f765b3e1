"""Code blocks of Markdown pages: which there are, how they are run, and what they print.

`python tests/pages.py README.md docs/start.md` runs pages and writes what their blocks print.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    ROOT / "examples/flower-app/README.md",
)
FENCED = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]*) -->\n)?^```(?P<language>[^\n]*)\n(?P<code>.*?)^```$"
    r"(?:\n\n```text\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """One fenced block: its language, its code, why it is not run, and what it prints.

    A block ```text right after a block has its output.
    """

    language: str
    code: str
    reason: str | None
    output: str | None


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    found = FENCED.finditer(page.read_text(encoding="utf-8"))
    return [Block(one["language"], one["code"], one["reason"], one["output"]) for one in found]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def needs_torch(page: Path) -> bool:
    """Return whether a Python block of a page trains a network."""
    needs = re.compile(r"import torch|from torch|networks|model=")
    return any(needs.search(one.code) for one in blocks(page) if one.language == "python")


def run_python(page: Path) -> tuple[dict, list[tuple[Block, str]]]:
    """Run the Python blocks of a page one after the other; return names, and what was printed."""
    names: dict = {"__name__": "page"}
    printed = []
    for one in blocks(page):
        if one.language == "python" and one.reason is None:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(one.code, page.name, "exec"), names)
            printed.append((one, out.getvalue()))
    return names, printed


def run_shell(page: Path, folder: Path) -> list[tuple[Block, str]]:
    """Run the shell blocks of a page in a folder that has the examples, with this Python."""
    (folder / "examples").symlink_to(ROOT / "examples")
    python = f'python() {{ "{sys.executable}" "$@"; }}'
    start = f'set -eo pipefail; {python}; dorfl() {{ python -m dorfl "$@"; }}\n'
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    printed = []
    for one in blocks(page):
        if one.language == "sh" and one.reason is None:
            done = subprocess.run(
                ["bash", "-c", start + one.code], cwd=folder, env=os.environ | {"PYTHONPATH": path},
                capture_output=True, text=True, check=False, timeout=300,
            )  # fmt: skip
            assert done.returncode == 0, (one.code, done.stdout[-1000:], done.stderr[-3000:])
            printed.append((one, done.stdout))
    return printed


def compare(printed: list[tuple[Block, str]]) -> None:
    """Compare what blocks printed with the page; white space may differ, to wrap long lines."""
    for one, text in printed:
        assert one.output is None or one.output.split() == text.split(), text


def rewrite(page: Path) -> None:
    """Run a page and write what its blocks print; lines that were wrapped have to be again."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        printed = run_python(page)[1] + run_shell(page, Path(folder))
    text = page.read_text(encoding="utf-8")
    for one, new in printed:
        if one.output is not None and one.output.split() != new.split():
            text = text.replace(f"```text\n{one.output}```", f"```text\n{new}```", 1)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        rewrite(ROOT / argument)
