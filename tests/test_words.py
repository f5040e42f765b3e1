"""Docstrings and messages use the field's words: terms that a newcomer cannot know are banned."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "dorfl"
FINISHED = (
    "__init__.py",
    "carriers",
    "certificates",
    "cli/__init__.py",
    "cli/info.py",
    "cli/init.py",
    "cli/options.py",
    "cli/screen.py",
    "federated",
    "objective",
    "data",
    "plot.py",
    "report",
    "selection",
    "sklearn.py",
    "solvers",
    "support",
    "tabular",
)  # in src/dorfl
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
