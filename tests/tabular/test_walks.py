"""The walks of docs/architecture.md: calls enter the listed functions, in the listed order."""

import importlib
import re
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import dorfl
from dorfl.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
LONGEST = {"a": 40, "b": 60}


def walk(letter):
    """The functions of a walk, and its last number; a range refers to hops of walk (a)."""
    text = PAGE.read_text(encoding="utf-8").partition(f"### ({letter})")[2]
    text = re.split(r"\n##", text)[0]
    found, last = [], 0
    for number, name in re.findall(r"^\| ([\d–]+) \| ([^|]+) \|", text, re.MULTILINE):
        ends = [int(n) for n in number.split("–")]
        assert ends[0] == last + 1
        last = ends[-1]
        if len(ends) == 2:
            first, stop = map(int, re.search(r"(\d+)–(\d+)", name).groups())
            assert ends[1] - ends[0] == stop - first
            found += walk("a")[0][first - 1 : stop]
        else:
            found.append(name.strip("` "))
    assert str(last) in text.partition("\n")[0]
    return found, last


def code_of(name):
    """The code object of a function below `dorfl`, by its dotted name."""
    parts = name.split(".")
    for at in range(len(parts), -1, -1):
        try:
            found = importlib.import_module(".".join(["dorfl", *parts[:at]]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[at:]:
            found = getattr(found, attribute)
        found = getattr(found, "py_func", found)
        return getattr(found, "__wrapped__", found).__code__
    raise AssertionError(name)


def entered(call):
    """The code objects that a call enters, in order."""
    found = []

    def note(frame, event, _):
        if event == "call":
            found.append(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def call_a(data, _):
    return lambda: dorfl.train(data.clients)


def call_b(data, folder):
    frames = [
        pd.DataFrame(X, columns=[f"x{k}" for k in range(5)]).assign(label=y, site=name)
        for name, (X, y) in data.clients.items()
    ]
    pd.concat(frames).to_csv(folder / "rows.csv", index=False)
    words = ["train", str(folder / "rows.csv"), "--label", "label", "--client", "site"]
    return lambda: CliRunner().invoke(app, [*words, "--out", str(folder / "model")])


@pytest.mark.parametrize(("letter", "prepare"), [("a", call_a), ("b", call_b)])
def test_a_call_enters_the_functions_of_its_walk_in_order(tmp_path, letter, prepare):
    names, last = walk(letter)
    assert last <= LONGEST[letter]
    call = prepare(dorfl.datasets.synthetic(seed=0), tmp_path)
    left = iter(entered(call))
    for name in names:
        code = code_of(name)
        assert any(code is other for other in left), name
