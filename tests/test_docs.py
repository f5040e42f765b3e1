"""What the documents say of the source is true: links lead somewhere, and imports point one way."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "dorfl"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])


def folders():
    """The rows of the table in docs/architecture.md, in its order."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE)


def imported(path):
    """The folders of dorfl that a module imports from, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dorfl":
            inner = node.module.split(".")[1:2]
            yield from inner or [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            yield from (name[1] for name in names if name[0] == "dorfl" and len(name) > 1)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    here = [link for link in links if "://" not in link and not link.startswith("auto_examples/")]
    broken = [link for link in here if not (page.parent / link).exists()]  # the gallery is made
    assert not broken


def test_every_folder_is_listed():
    there = {p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert set(folders()) == there
    picture = (ROOT / "docs" / "figures" / "architecture.svg").read_text(encoding="utf-8")
    assert re.findall(r">(\w+)/</text>", picture) == folders()[::-1]


def test_modules_import_only_from_the_folders_before_their_own():
    order = folders()
    wrong = [
        f"{path.relative_to(SOURCE)} imports {other}"
        for path in sorted(SOURCE.rglob("*.py"))
        if (own := path.relative_to(SOURCE).parts[0]) in order
        for other in imported(path)
        if other not in order or order.index(other) > order.index(own)
    ]
    assert not wrong
