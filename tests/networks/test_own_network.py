"""The how-to page on a network of one's own, run as it stands."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "own-network.md"


@pytest.mark.filterwarnings("ignore:on the way of")  # few rows: one in a hundred is soon there
def test_the_page_runs_and_wrong_rows_count_less(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    model, coming, columns = names["model"], names["coming"], names["columns"]
    assert model.score(coming[columns], coming["outcome"]) > 0.75
    assert model.sample_weights_[names["made"].wrong].mean() < 0.3
    assert (tmp_path / "network").exists()
