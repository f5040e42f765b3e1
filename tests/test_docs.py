"""The documents are true: their code runs, links lead somewhere, imports point one way."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest

import pages

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "dorfl"
TORCH = importlib.util.find_spec("torch") is not None
LINKED = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
ELSEWHERE = {  # pages that another test follows literally, with servers and sites
    "docs/tutorial-sites.md": "carriers/test_tutorial.py",
    "docs/federation.md": "carriers/test_https_page.py",
    "docs/federation-https.md": "carriers/test_https_page.py",
    "docs/federation-flower.md": "carriers/test_flower_page.py",
}
LANGUAGES = {"python", "sh", "text", "toml", "bibtex", "diff", "nginx", "none", "ini"}
REASONS = {  # why a block is not run, and in how many blocks
    "docs/architecture.md": {"a part of a test": 2},
    "docs/benchmark.md": {"takes hours": 1},
    "docs/deployment.md": {"needs root": 1},
    "docs/federation.md": {"needs MLflow, tensorboardX and a run": 1},
    "docs/index.md": {"installs": 1},
    "docs/networks.md": {"needs PyTorch and a table": 1, "needs PyTorch and a study": 1},
    "docs/own-method.md": {"needs PyTorch": 1},
    "docs/start.md": {"installs": 1},
    "docs/tutorial-research.md": {"takes minutes": 1},
    "examples/flower-app/README.md": {"installs": 1, "several terminals": 1},
}


WORDS = {  # pages that a busy reader has to get through: words, tables and code included
    "README.md": 1100,
    "docs/benchmark.md": 1200,
    "docs/privacy.md": 1000,
    "docs/threat-model.md": 1500,
}
README_LINES = 110
BENCHMARK_WORDS = 900  # of benchmarks/README.md outside its tables


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


def pages_with(language):
    """The pages that have such blocks to run, and are not run by another test."""
    return [
        page
        for page in pages.PAGES
        if pages.name(page) not in ELSEWHERE
        and any(one.language == language and one.reason is None for one in pages.blocks(page))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("python"), ids=pages.name)
def test_python_on_a_page_runs_as_it_stands(page, tmp_path, monkeypatch):
    if pages.needs_torch(page) and not TORCH:
        pytest.skip("needs PyTorch; tests/networks/test_pages.py runs it")
    monkeypatch.chdir(tmp_path)
    pages.compare(pages.run_python(page)[1])


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("sh"), ids=pages.name)
def test_commands_on_a_page_run_as_they_stand(page, tmp_path):
    pages.compare(pages.run_shell(page, tmp_path))


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_what_is_not_run_is_listed(page):
    reasons = [one.reason for one in pages.blocks(page) if one.reason is not None]
    assert {reason: reasons.count(reason) for reason in reasons} == REASONS.get(
        pages.name(page), {}
    )


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_every_block_has_a_language_that_a_test_knows(page):
    languages = {one.language for one in pages.blocks(page) if one.language[:1] != "{"}
    assert languages <= LANGUAGES
    text = pages.FENCED.sub("", page.read_text(encoding="utf-8"))
    commands = re.findall(r"^ {4}(?:\$ |dorfl |python |pip |make |import ).*", text, re.MULTILINE)
    assert not commands  # an indented block has no language


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_a_page_left_out_here_is_followed_by_another_test(page, test):
    assert Path(page).name in (ROOT / "tests" / test).read_text(encoding="utf-8")


def test_a_block_that_fails_and_an_output_that_differs_are_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError):
        pages.compare(pages.run_python(page)[1])
    pages.rewrite(page)
    pages.compare(pages.run_python(page)[1])
    page.write_text("```sh\ndorfl no-such-command\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError):
        pages.run_shell(page, tmp_path)


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not broken


@pytest.mark.parametrize(("page", "most"), WORDS.items())
def test_a_page_is_short(page, most):
    assert len((ROOT / page).read_text(encoding="utf-8").split()) <= most


def test_the_readme_and_the_list_of_benchmarks_are_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) <= BENCHMARK_WORDS


def test_every_folder_is_listed():
    there = {p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert set(folders()) == there
    picture = (ROOT / "docs" / "figures" / "architecture.svg").read_text(encoding="utf-8")
    assert re.findall(r">(\w+)/</text>", picture) == folders()[::-1]


def test_files_that_the_page_of_the_architecture_names_exist():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+(?:/\w+)+\.py)`", text))
    assert "protocol/coordinator.py" in named
    assert not {name for name in named if not (SOURCE / name).exists()}


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


def test_short_tables_are_those_of_the_full_ones(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), *sys.path])
    import refresh  # noqa: PLC0415 - it is beside the pages, not in a package

    full = dict(refresh.MARKED.findall((ROOT / "docs/results.md").read_text(encoding="utf-8")))
    short = dict(refresh.MARKED.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    assert set(short) == set(refresh.SHORT)
    table = refresh.find(full.__getitem__)
    assert all(text == table(name) for name, text in short.items())
    assert all(line.startswith("|") for text in full.values() for line in text.splitlines())
    sys.modules.pop("refresh")


def test_a_finished_study_is_put_into_both_pages(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), *sys.path])
    import refresh  # noqa: PLC0415

    (tmp_path / "tables").mkdir()
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    (tmp_path / "figures").mkdir()
    copies = []
    for page in refresh.PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"figures/([\w-]+\.png)", text):
            (tmp_path / "figures" / name).write_bytes(name.encode())
        for name, table in refresh.MARKED.findall(text):
            changed = table.replace("±", "+-")
            (tmp_path / "tables" / f"{name}.md").write_text(changed + "\n", encoding="utf-8")
        copies.append(tmp_path / page.name)
        copies[-1].write_text(text, encoding="utf-8")
    monkeypatch.setattr(refresh, "PAGES", copies)
    monkeypatch.setattr(refresh, "DOCS", tmp_path / "docs")
    refresh.main(tmp_path)
    assert "+-" in copies[0].read_text(encoding="utf-8")
    assert (tmp_path / "docs/figures/accuracy-kept.png").read_bytes() == b"accuracy-kept.png"
    sys.modules.pop("refresh")
