"""What is released is whole: a source archive that can be tested, a wheel that trains by itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import dorfl

ROOT = Path(__file__).parent.parent
BUILD = "import sys, setuptools.build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"

pytestmark = pytest.mark.slow


def build(what: str, source: Path, out: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what, out],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> tuple[Path, Path]:
    """The source archive, made from what git has, and the wheel made from it."""
    folder = tmp_path_factory.mktemp("release")
    clone = folder / "clone"
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    for name in files.stdout.splitlines() or pytest.skip("not a git checkout"):
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).write_bytes((ROOT / name).read_bytes())
    archive = build("build_sdist", clone, folder)
    with tarfile.open(archive) as whole:
        whole.extractall(folder / "unpacked", filter="data")
    source = next((folder / "unpacked").iterdir())
    return archive, build("build_wheel", source, folder)


def test_one_version_is_named_everywhere():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[([\d.]+)\]", changes, re.MULTILINE)[0] == dorfl.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {dorfl.__version__}\n" in citation


def test_what_the_notice_and_the_changelog_name_is_there():
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert all((ROOT / path).exists() for path in re.findall(r"src/[\w/]+", notice))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = [line for line in changes.splitlines()[4:] if line and line[0] != "#"]
    assert all(line.startswith("- ") for line in entries)  # one line for each change


def test_every_package_that_is_imported_is_a_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    listed = [*project["dependencies"], *(line for lines in extras.values() for line in lines)]
    declared = {re.match(r"[\w-]+", line)[0].lower() for line in listed}
    found = {
        name.partition(".")[0]
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    }  # fmt: skip
    ours = {"dorfl", "dorflapp", *sys.stdlib_module_names}
    known = {"ot": "pot", "sklearn": "scikit-learn"}  # other names on the index
    known |= {"llvmlite": "numba", "markupsafe": "jinja2"}  # required by these at any version
    packages = {known.get(name, name.lower().replace("_", "-")) for name in found - ours}
    assert packages <= declared, packages - declared


def test_the_archive_has_what_its_users_and_packagers_need(released):
    with tarfile.open(released[0]) as whole:
        names = {name.partition("/")[2] for name in whole.getnames()}
    for wanted in (
        "tests/test_release.py", "tests/conftest.py", "conftest.py", "docs/start.md",
        "docs/gallery/plot_wrong_rows.py", "docs/figures/weights.png", "CHANGELOG.md",
        "CITATION.cff", "SECURITY.md", "LICENSE", "NOTICE", "constraints.txt", "Makefile",
        "benchmarks/public_tables.py", "experiments/__main__.py", "src/dorfl/py.typed",
    ):  # fmt: skip
        assert wanted in names, wanted
    assert not [name for name in names if "__pycache__" in name or "_build" in name]


def test_the_wheel_has_all_of_the_package(released):
    with zipfile.ZipFile(released[1]) as wheel:
        names = set(wheel.namelist())
    source = ROOT / "src"
    for path in source.rglob("*"):
        if path.is_file() and not {"__pycache__"} & set(path.parts) and "egg-info" not in str(path):
            assert str(path.relative_to(source)) in names
    assert not [name for name in names if name.startswith("experiments")]


def test_an_empty_environment_trains_with_the_wheel(released, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    bin_ = tmp_path / "env" / "bin"

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout + done.stderr

    run(bin_ / "pip", "install", "-q", "-c", ROOT / "constraints.txt", released[1])
    assert dorfl.__version__ in run(bin_ / "dorfl", "--version")
    run(bin_ / "dorfl", "demo", "table", "--out", "records.csv")
    words = ("--label", "outcome", "--client", "clinic", "--out", "model")
    said = run(bin_ / "dorfl", "train", "records.csv", *words)
    assert "accuracy" in said and (tmp_path / "model" / "model.json").is_file()
    assert "harbour" in run(bin_ / "dorfl", "evaluate", "model", "records-new.csv")
    elsewhere = (["reproduce"], "python -m experiments reproduce")
    for command, named in ((["demo", "federation"], "aiohttp>="), elsewhere):
        missing = subprocess.run(
            [bin_ / "dorfl", *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert missing.returncode != 0 and named in missing.stderr  # says what to install
        assert "Traceback" not in missing.stderr
