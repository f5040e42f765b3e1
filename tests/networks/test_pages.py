"""The pages that need PyTorch, run as they stand."""

import pytest

import pages


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:on the way of")  # few rows: one in a hundred is soon there
@pytest.mark.parametrize("page", [*filter(pages.needs_torch, pages.PAGES)], ids=pages.name)
def test_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, printed = pages.run_python(page)
    pages.compare(printed)
    if page.name == "own-network.md":
        model, coming, columns = names["model"], names["coming"], names["columns"]
        assert model.score(coming[columns], coming["outcome"]) > 0.75
        assert model.sample_weights_[names["made"].wrong].mean() < 0.3
        assert (tmp_path / "network").exists()
