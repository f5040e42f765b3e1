"""Docstrings and messages use the field's words: terms that a newcomer cannot know are banned."""

import ast
import re
from pathlib import Path

import pytest

import pages

SOURCE = Path(__file__).parents[1] / "src" / "dorfl"
FINISHED = (
    "__init__.py",
    "carriers",
    "certificates",
    "cli",
    "federated",
    "flower",
    "linear",
    "networks",
    "objective",
    "data",
    "plot.py",
    "protocol",
    "report",
    "selection",
    "site",
    "sklearn.py",
    "solvers",
    "support",
    "tabular",
)  # in src/dorfl
READ = (
    *pages.PAGES,
    *(pages.ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")),
    *sorted(pages.ROOT.glob("docs/gallery/*")),
)
BANNED = (
    "told", "heard", "whose like", "of who", "stands in", "stood in", "held for wrong", "nobody",
    "worst served", "served worse", "lie far out", "lies far out", "is no question", "set aside",
    "rows held back", "right row", "wrong row", "roster", "kink", "party that lies",
    "of nothing", "nothing was found", "who was asked", "who is away",
)  # fmt: skip
WORDS = re.compile(r"\b(" + "|".join(BANNED) + r")s?\b", re.IGNORECASE)


def texts(tree):
    """Docstrings, and the other strings of a module: messages among them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@pytest.mark.parametrize("place", FINISHED)
def test_docstrings_and_messages_use_plain_words(place):
    found = []
    root = SOURCE / place
    for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
        for line, text in texts(ast.parse(path.read_text(encoding="utf-8"))):
            found += [f"{path.name}:{line}: {hit[0]!r}" for hit in WORDS.finditer(text)]
    assert not found, "\n".join(found)


def test_the_list_is_seen_where_it_is_used():
    assert WORDS.search("What a client told of its rows") and not WORDS.search("a client reported")


@pytest.mark.parametrize("page", READ, ids=pages.name)
def test_pages_use_plain_words(page):
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"<!-- table: .*?<!-- /table -->", "", text, flags=re.DOTALL)  # of a study
    lines = text.splitlines()
    found = [f"{hit[0]!r} in {line}" for line in lines for hit in WORDS.finditer(line)]
    assert not found, "\n".join(found)
