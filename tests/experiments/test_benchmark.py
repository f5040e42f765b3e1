"""The benchmark's rows, its tuning, and every method on a few rows."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from dorfl.federated import registry
from experiments import benchmark as cells
from experiments import candidates as bench
from experiments import corruption as rows
from experiments.__main__ import app
from experiments.candidates import CLEAN, CONSTANT, NAMES, Setup
from experiments.cells import Cell, fingerprint

SMALL = Setup(hidden=(4,))


def pictures(count, seed):
    """Three clients with one class each: 4 × 4 pixels, one of them bright."""
    rng = np.random.default_rng(seed)
    eye = np.eye(16, dtype=np.float32)
    return {
        str(k): (0.3 * rng.random((count, 16), dtype=np.float32) + 0.7 * eye[15 - k],
                 np.full(count, k))
        for k in range(3)
    }  # fmt: skip


@pytest.fixture
def clients():
    return pictures(40, 0)


@pytest.mark.parametrize("kind", rows.SHARES)
def test_as_many_rows_are_wrong_as_said(clients, kind):
    made, wrong = rows.spoil(clients, kind, 0)
    for i, (name, (X, y)) in enumerate(made.items()):
        before = clients[name]
        changed = (before[0] != X).any(1) | (before[1] != y)
        share = rows.SHARES[kind] if kind != "liar" or i == 0 else 0.0
        assert np.array_equal(changed, wrong[name])
        assert changed.mean() == pytest.approx(share)
    again, _ = rows.spoil(clients, kind, 0)
    assert all(np.array_equal(made[n][0], again[n][0]) for n in made)


def test_a_liar_lies_about_labels_alone(clients):
    made, _ = rows.spoil(clients, "liar", 0)
    assert all(np.array_equal(made[n][0], clients[n][0]) for n in made)


def test_all_methods_have_as_many_candidates_and_no_two_alike():
    for name in (*NAMES, CLEAN):
        tried = bench.candidates(name, SMALL)
        assert len(tried) == bench.TRIES
    words = [c.words for c in bench.candidates("DOR-FL", SMALL)]
    assert len(set(words)) == bench.TRIES
    with pytest.raises(ValueError, match="FedNova"):
        bench.candidates("FedNova", SMALL)


@pytest.mark.filterwarnings("ignore:on the way of")
@pytest.mark.parametrize("name", [*NAMES, CLEAN])
def test_every_method_is_tuned_and_trained(clients, name):
    task = rows.make(clients, pictures(30, 1), "negate", 0)
    found = bench.tune(name, task, SMALL, 0, 5)
    assert len(found["scores"]) == bench.TRIES
    if not name.startswith("DOR-FL"):
        assert found["scores"][found["chosen"]] == max(found["scores"])
    best = bench.candidates(name, SMALL)[found["chosen"]]
    run = bench.measure(best, task, SMALL, 0, 10, clean=name == CLEAN)
    assert 0 <= run["worst"] <= run["mean"] <= 1
    assert run["bytes"] > 0
    assert sum(run["lam"]) == pytest.approx(1.0)
    if name == "DOR-FL" and not best.trusts:
        assert run["weight_of_wrong_rows"] < 0.01
    if name == "FedAvg":
        assert run["weight_of_wrong_rows"] == pytest.approx(1.0)


def test_tuning_never_sees_a_test_row(clients):
    seen = rows.make(clients, pictures(30, 1), "labels", 0)
    other = rows.make(clients, pictures(30, 2), "labels", 0)
    assert bench.tune("AFL", seen, SMALL, 0, 3) == bench.tune("AFL", other, SMALL, 0, 3)


def test_rows_far_out_do_not_count_when_tuning(clients):
    """A model that is right about outliers alone must not win by them."""

    class Judge:
        classes = np.arange(3)

        def __init__(self, of_outliers):
            self.of_outliers = of_outliers

        def score(self, X, y):
            return float(np.mean((X.min(1) < 0) == self.of_outliers))

    made, wrong = rows.spoil(clients, "negate", 0)
    held = rows.Task(made, made, wrong)
    judges = bench.bulk(held)
    assert bench.held_out_score(Judge(True), judges) == 0.0
    assert bench.held_out_score(Judge(False), judges) == 1.0


@pytest.mark.filterwarnings("ignore:on the way of")
@pytest.mark.parametrize("factor", [0.0, 8.0])
def test_rows_are_set_aside_only_where_the_bulk_is_better_served(factor):
    """One row in ten is eight times one of another client, under the label of its own."""
    clients, setup = pictures(60, 0), Setup((4,), (0.01,) * 3 + (0.03,) * 3)
    if factor:
        for i in range(3):
            clients[str(i)][0][::10] = factor * clients[str((i + 1) % 3)][0][1::10]
    none = {name: np.zeros(60, dtype=bool) for name in clients}
    found = bench.tune("DOR-FL", rows.Task(clients, clients, none), setup, 0, 40)
    assert bench.candidates("DOR-FL", setup)[found["chosen"]].trusts == (factor == 0.0)


def test_trusting_all_rows_dorfl_is_afl(clients):
    task = rows.make(clients, clients, "labels", 0)
    ours = next(c for c in bench.candidates("DOR-FL", SMALL) if c.trusts)
    theirs = next(
        c for c in bench.candidates("AFL", SMALL)
        if c.words == ours.words.replace("all rows trusted", "rate of λ 0.1")
    )  # fmt: skip
    one, two = (bench.fitted(c, task, SMALL, 0, 5).theta for c in (ours, theirs))
    assert np.array_equal(one, two)


def test_columns_of_categories_stay_where_they_are():
    columns = rows.Columns((0, 1), (2, 3))
    for name in ("WAFL", "GDRFL", "DOR-FL"):
        for candidate in bench.candidates(name, SMALL, columns):
            frozen = candidate.method.cost.weights(4)[[2, 3]]
            assert np.isinf(frozen).all() or np.isinf(candidate.method.rho)
    assert bench.candidates("DOR-FL", SMALL, rows.Columns((), (0,)))[0].score is None


@pytest.fixture
def small_set(monkeypatch):
    """A data set of a few pictures in place of the three classes, run in this process."""
    of = cells.SETS["three"]._replace(
        load=lambda seed: cells.Loaded(pictures(40, seed), pictures(30, seed + 9)), setup=SMALL
    )
    monkeypatch.setitem(cells.SETS, "three", of)
    cells._loaded.cache_clear()
    ran = []

    def here(todo, folder, tick=None, workers=None):
        del workers
        found = []
        for cell in todo:
            kept = cells.cells._read(cell, folder)
            if kept is None:
                ran.append(cell.name)
                kept = {"result": cells.cells.compute(cell, folder)}
            found.append(kept["result"])
            if tick:
                tick(cell, True)
        return found

    monkeypatch.setattr(cells.cells, "run", here)
    yield ran
    cells._loaded.cache_clear()


def test_the_command_fills_tables_and_runs_nothing_twice(small_set, tmp_path):
    words = ["benchmark", "--wrong", "negate", "--wrong", "clean", "--seeds", "2"]
    words += ["--method", "FedAvg", "--method", "DOR-FL", "--method", CLEAN]
    words += ["--rounds", "6", "--out", str(tmp_path)]
    first = CliRunner().invoke(app, [*words, "--json"])
    assert first.exit_code == 0, first.output
    runs = json.loads(first.stdout)
    assert len(runs) == 10  # clean rows have no outliers to leave out
    assert len(small_set) == 5 * 3
    small_set.clear()
    again = CliRunner().invoke(app, [*words, "--json"])
    assert json.loads(again.stdout) == runs
    assert small_set == []
    shown = CliRunner().invoke(app, words)
    assert "worst client" in shown.output
    worst = (tmp_path / "tables" / "benchmark-three-worst.md").read_text().splitlines()
    assert worst[0] == "| method | negate | clean |"
    assert worst[2].startswith("| FedAvg |")
    page = (tmp_path / "benchmark-three.html").read_text()
    assert "Jiao et al., 2023" in page
    assert "Zhai" not in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--method", "FedNova"], "FedNova"),
        (["--data", "four"], "three, compas"),
        (["--wrong", "typos"], "negate"),
    ],
)
def test_a_word_that_is_unknown_is_told(words, said):
    done = CliRunner().invoke(app, ["benchmark", *words])
    assert done.exit_code == 2
    assert said in done.output


REGISTERS = """
import numpy as np
import dorfl

def rows(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(2, 2, 60, 3))
    parts = [{n: (x, np.where(x[:, 0] > 0, 1, -1)) for n, x in zip("ab", xs)} for xs in X]
    return parts

dorfl.register_dataset("own-rows", rows)
dorfl.register_method("all on a", lambda reports: [float(r.client == "a") for r in reports])
dorfl.register_method("worst", dorfl.methods.method(mixture="agnostic"))
"""


@pytest.mark.slow
def test_registered_methods_and_data_sets_are_benchmarked_in_any_process(tmp_path, monkeypatch):
    for name in ("_methods", "_datasets"):
        monkeypatch.setattr(registry, name, {})
    file = tmp_path / "own.py"
    file.write_text(REGISTERS, encoding="utf-8")
    words = ["benchmark", "--data", "own-rows", "--wrong", "clean", "--method", "all on a"]
    words += ["--method", "worst", "--method", CONSTANT, "--method", "FedAvg", "--seeds", "1"]
    words += ["--rounds", "30", "--workers", "1", "--load", str(file), "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    runs = json.loads(done.stdout)
    assert set(runs) == {f"clean/{n}/0" for n in ("all on a", "worst", CONSTANT, "FedAvg")}
    assert runs["clean/FedAvg/0"]["by_client"] != runs["clean/constant/0"]["by_client"]
    page = (tmp_path / "benchmark-own-rows.html").read_text(encoding="utf-8")
    assert "all on a" in page
    file.write_text(REGISTERS + "# changed\n", encoding="utf-8")
    cell = Cell("benchmark", "tune", {}, (str(file),))
    assert fingerprint(cell.part, cell.load) != fingerprint(cell.part)


def test_a_rule_for_weights_is_followed_in_every_round(clients, monkeypatch):
    monkeypatch.setattr(registry, "_methods", {})
    registry.register_method("all on 0", lambda reports: [float(r.client == "0") for r in reports])
    registry.register_method("by rows", lambda reports: [float(r.rows) for r in reports])
    task = rows.make(clients, clients, "clean", 0)
    one, sized = (
        bench.fitted(bench.candidates(name, SMALL)[-1], task, SMALL, 0, 80)
        for name in ("all on 0", "by rows")
    )
    erm = bench.fitted(bench.candidates("FedAvg", SMALL)[-1], task, SMALL, 0, 80)
    assert one.score(*clients["0"]) == 1.0
    assert one.score(*clients["1"]) == 0.0
    assert np.allclose(sized.theta, erm.theta, atol=1e-5)


def test_a_constant_is_the_commonest_label_of_the_training_rows(clients):
    train = {**clients, "2": (clients["2"][0][:9], clients["2"][1][:9])}
    train["1"] = (train["1"][0][:9], train["1"][1][:9])
    found = bench.constant(rows.make(train, clients, "clean", 0))
    assert found["by_client"] == {"0": 1.0, "1": 0.0, "2": 0.0}
    assert found["worst"] == 0.0


def test_results_of_other_parts_do_not_hang_on_networks():
    assert fingerprint("benchmark") != fingerprint()


def test_pictures_that_are_missing_are_told_without_blame(monkeypatch, tmp_path):
    monkeypatch.setenv("DORFL_FASHION_MNIST", str(tmp_path))
    cells._loaded.cache_clear()
    done = CliRunner().invoke(app, ["benchmark"])
    assert done.exit_code == 3
    assert "dataset-fashion-mnist" in done.output
    assert "fault of dorfl" not in done.output
