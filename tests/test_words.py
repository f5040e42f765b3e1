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
    *sorted({*pages.ROOT.glob("*.md"), *pages.ROOT.glob("benchmarks/*.md")} - {*pages.PAGES}),
    *sorted(pages.ROOT.glob("docs/gallery/*")),
)
BANNED = (  # term by term what the glossary rules out, if a pattern can tell it from a good use
    "who was asked", "who is away", "whose like", "of who", "everybody", "everyone", "nobody",
    "party that lies",  # client, site, coordinator
    "told", "heard", "is no question", "word for word", "of nothing", "nothing was found",
    "right row", "right one", "wrong row", "suspicious", "suspected row", "set aside", "sets aside",
    "setting aside", "held for wrong", "the bulk", "lies? far out",  # inlier, outlier
    "rows held back", "row held back",  # held-out rows
    "own middle", "agreed middle", "what stands for",  # location, imputation value
    "kink", "cut that bends",  # non-smooth point, secant
    "promised fall", "promised decrease",  # predicted decrease
    "stands in", "stood in",  # extrapolated report
    "worst served", "served worst", "served worse", "who is served", "serves? the worst",
    "roster",
)  # fmt: skip
WORDS = re.compile(r"\b(" + "|".join(BANNED) + r")s?\b", re.IGNORECASE)


def texts(tree):
    """Docstrings, and the other strings of a module: messages among them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@pytest.mark.parametrize("place", [*FINISHED, "experiments", "examples"])
def test_docstrings_and_messages_use_plain_words(place):
    found = []
    root = (SOURCE if place in FINISHED else pages.ROOT) / place
    for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
        for line, text in texts(ast.parse(path.read_text(encoding="utf-8"))):
            found += [f"{path.name}:{line}: {hit[0]!r}" for hit in WORDS.finditer(text)]
    assert not found, "\n".join(found)


def test_the_list_is_seen_where_it_is_used():
    assert WORDS.search("What a client told of its rows") and not WORDS.search("a client reported")
    assert WORDS.search("how a site\nwas told") and WORDS.search("rows that the tilt sets aside")


@pytest.mark.parametrize("page", READ, ids=pages.name)
def test_pages_use_plain_words(page):
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"<!-- table: .*?<!-- /table -->", "", text, flags=re.DOTALL)  # of a study
    lines = text.splitlines()
    found = [f"{hit[0]!r} in {line}" for line in lines for hit in WORDS.finditer(line)]
    assert not found, "\n".join(found)
