"""The benchmark's rows, and every method on a few of them."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from dorfl.cli import app
from dorfl.networks import benchmark as bench


@pytest.fixture
def clients():
    rng = np.random.default_rng(0)
    return {
        str(k): (rng.random((40, 6), dtype=np.float32) + k * np.eye(6, dtype=np.float32)[k],
                 np.full(40, k))
        for k in range(3)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "share"), [("clean", 0), ("outliers", 0.1), ("noise", 0.2), ("labels", 0.2)]
)
def test_as_many_rows_are_wrong_as_said(clients, kind, share):
    made, wrong = bench.spoil(clients, kind, 0)
    for name, (X, y) in made.items():
        before = clients[name]
        changed = (before[0] != X).any(1) | (before[1] != y)
        assert np.array_equal(changed, wrong[name])
        assert changed.mean() == pytest.approx(share)
    again, _ = bench.spoil(clients, kind, 0)
    assert all(np.array_equal(made[n][0], again[n][0]) for n in made)


def test_a_liar_lies_about_labels_alone(clients):
    made, wrong = bench.spoil(clients, "liar", 0)
    assert [bad.mean() for bad in wrong.values()] == pytest.approx([0.45, 0, 0])
    assert all(np.array_equal(made[n][0], clients[n][0]) for n in made)


def test_dirichlet_clients_have_all_rows_once(clients):
    spread = bench._spread(clients, 0, count=5)
    assert sum(len(y) for _, y in spread.values()) == 120
    assert len({tuple(row) for X, _ in spread.values() for row in X}) == 120


@pytest.mark.filterwarnings("ignore:on the way of")
@pytest.mark.parametrize("name", bench.ENTRIES)
def test_every_method_runs(clients, name):
    made, wrong = bench.spoil(clients, "outliers", 0)
    rows = bench.Task(made, clients, wrong)
    found = bench.measure(bench.ENTRIES[name], rows, 0, rounds=10, hidden=(4,))
    assert 0 <= found["worst"] <= found["mean"] <= 1
    assert found["bytes"] > 0
    assert sum(found["lam"]) == pytest.approx(1.0)
    if name == "DOR-FL":
        assert found["weight_of_wrong_rows"] < 0.01


def test_the_command_fills_a_table_and_runs_nothing_twice(clients, monkeypatch, tmp_path):
    made, wrong = bench.spoil(clients, "clean", 0)
    monkeypatch.setattr(bench, "task", lambda *_: bench.Task(made, clients, wrong))
    words = ["benchmark", "--wrong", "clean", "--method", "FedAvg", "--method", "AFL"]
    words += ["--rounds", "3", "--seeds", "2", "--out", str(tmp_path / "results.json")]
    first = CliRunner().invoke(app, [*words, "--json"])
    assert first.exit_code == 0, first.output
    assert len(json.loads(first.stdout)) == 4
    monkeypatch.setattr(bench, "task", None)
    again = CliRunner().invoke(app, [*words, "--json"])
    assert json.loads(again.stdout) == json.loads(first.stdout)
    unknown = CliRunner().invoke(app, [*words, "--method", "FedProx"])
    assert unknown.exit_code == 2
