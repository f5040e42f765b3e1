"""The model folder: what is written comes back exactly, and nothing damaged is let in."""

import csv
import io
import json
import os
import stat
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dorfl
from dorfl import costs, methods, mixture, scores
from dorfl.data import preprocessing, tables
from dorfl.data.preprocessing import Numeric, cells
from dorfl.networks.layered import layered
from dorfl.objective.serialization import read_method, write_method
from dorfl.support import files
from dorfl.tabular import model
from dorfl.tabular.model import Facts, ModelError, folder, score
from dorfl.tabular.model.facts import ClientStatistics, Estimate, HeldOutScores


def wards(seed=0, rows=300):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "ward": rng.choice(["north", "south"], rows),
            "pulse": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(70, 9, rows)),
            "sex": rng.choice(["f", "m"], rows),
            "drug": rng.choice(["a", "b, c", None], rows),
            "dose": rng.choice([1.5, 2.0, 3.0], rows),
        }
    )
    lean = 0.2 * (frame["pulse"].fillna(70) - 70) + (frame["sex"] == "f") + rng.normal(size=rows)
    frame["ill"] = np.where(lean > 0, "yes", "no")
    frame["stage"] = np.array(["I", "II", "III"])[np.digitize(lean, [-1, 1])]
    frame["days"] = 40.0 + 12.0 * lean
    return frame


def trained(label="ill", loss="logistic", method=None):
    frame = wards()
    dropped = ["ill", "stage", "days", "ward"]
    parts = {ward: part.drop(columns=dropped) for ward, part in frame.groupby("ward")}
    transform = preprocessing.fit(parts)
    target = Numeric("days", 40.0, 12.0, 40.0) if loss == "huber" else None
    classes = () if target else tuple(sorted(set(frame[label])))
    clients = {}
    for ward, part in frame.groupby("ward"):
        y = part[label].to_numpy()
        y = np.searchsorted(classes, y.astype(str)) if classes else (y - 40.0) / 12.0
        clients[ward] = (transform.apply(parts[ward]).X, y)
    cost = costs.squared(frozen=transform.frozen)
    fit = dorfl.train(clients, method or methods.paper(rho=20, cost=cost), loss=loss)
    measured = tuple(ClientStatistics(n, len(y), 0.5, 0.8) for n, (_, y) in clients.items())
    facts = Facts(rows=300, notes=("a note",), clients=measured, choice=("because",))
    return model.Model(fit, transform, label, "ward", classes, target, facts), clients


@pytest.fixture(scope="module")
def ill():
    return trained()


# ── what is written comes back ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("label", "loss"), [("ill", "logistic"), ("stage", "softmax"), ("days", "huber")]
)
def test_a_folder_holds_the_model_exactly(tmp_path, label, loss):
    made, clients = trained(label, loss)
    back = model.load(model.save(made, tmp_path / "m"))
    assert folder.to_json(back) == folder.to_json(made)
    np.testing.assert_array_equal(back.fit.theta, made.fit.theta)
    assert back.transform == made.transform
    frame = wards(1)
    np.testing.assert_array_equal(back.predict(frame), made.predict(frame))
    here, there = (dorfl.certificate.paper(fit, clients) for fit in (made.fit, back.fit))
    assert (here.radius, here.bound) == (there.radius, there.bound)


@pytest.mark.parametrize(
    ("label", "loss"), [("ill", "logistic"), ("stage", "softmax"), ("days", "huber")]
)
def test_the_scorer_beside_the_model_needs_no_dorfl(tmp_path, label, loss):
    made, _ = trained(label, loss)
    home = model.save(made, tmp_path / "m")
    frame = wards(2, 60).drop(columns=["ill", "stage", "days"])
    frame.loc[3, "drug"], frame.loc[4, "pulse"] = "unheard of", np.inf
    frame.to_csv(tmp_path / "new.csv", index=False, sep=";", decimal=",")
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(home / "score.py"), str(tmp_path / "new.csv")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    scored = list(csv.DictReader(io.StringIO(done.stdout)))
    ours = made.predict(tables.read(tmp_path / "new.csv"))
    if not made.classifies:
        np.testing.assert_allclose([float(row["prediction"]) for row in scored], ours, rtol=1e-12)
        return
    assert [row["prediction"] for row in scored] == ours.tolist()
    p = [[float(row[f"probability={c}"]) for c in made.classes] for row in scored]
    np.testing.assert_allclose(p, made.probabilities(frame), rtol=1e-10)


def test_the_scorer_knows_the_same_marks_for_missing():
    assert set(cells.MARKS) == score.MARKS


METHODS = [
    methods.erm(),
    methods.afl(),
    methods.wafl(5.0, cost=costs.squared([1.0, np.inf, 2.0], frozen=[0])),
    methods.paper(20, 0.5, scores.quadratic(0.25, [1.0, 2.0], [[2.0, 0.5], [0.5, 1.0]])),
    methods.paper(
        score=scores.quadratic(1.0, {"a": [1.0], "b": [2.0]}), mixture=mixture.capped(0.6)
    ),
    methods.paper(
        score=scores.threshold(1.0, 2, 5.0, 0.1, "yes"), mixture=mixture.agnostic("loss")
    ),
    methods.method(radius=0.5, beta=2.0),
    methods.method(temperature=3.0, mixture=mixture.fixed({"a": 1.0, "b": 3.0})),
    methods.wafl(3.0, cost=costs.squared(label_price=2.5)),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_methods_come_back(method):
    written = json.loads(json.dumps(write_method(method), allow_nan=False))
    back = read_method(written)
    assert write_method(back) == written
    assert (back.rho, back.temperature, back.radius) == (
        method.rho,
        method.temperature,
        method.radius,
    )
    assert back.cost == method.cost


def test_a_score_of_your_own_cannot_be_written():
    with pytest.raises(ValueError, match="of your own"):
        write_method(methods.paper(score=scores.custom(lambda x, y: x[:, 0])))


def test_the_card_says_what_matters(ill, tmp_path):
    card = (model.save(ill[0], tmp_path / "m") / "card.md").read_text()
    for words in ("yes", "north", "λ", "a note", "because", "ρ = 20", "score.py"):
        assert words in card


# ── nothing damaged is let in ────────────────────────────────────────────────────────────────────


def change(written, path, value):
    copy = json.loads(json.dumps(written))
    at = copy
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return copy


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["format"], "pickle"),
        (["version"], 99),
        (["theta"], [[1.0]]),
        (["theta", 0, 0], "1.0"),
        (["theta", 0, 0], 1e999),
        (["classes"], ["no"]),
        (["classes"], ["yes", "no"]),
        (["classes"], ["no", "no"]),
        (["lambda"], [0.5, 0.6]),
        (["lambda"], [1.5, -0.5]),
        (["clients"], ["north", "north"]),
        (["centers"], [[1.0]]),
        (["method", "rho"], -1.0),
        (["method", "cost", "frozen"], [99]),
        (["method", "score", "kind"], "exec"),
        (["method", "mixture"], None),
        (["loss", "name"], "poisson"),
        (["loss", "name"], "softmax"),
        (["intercept"], 1),
        (["transform", "parts"], []),
        (["transform", "version"], 3),
        (["rounds"], 1.5),
        (["label"], None),
        (["facts"], []),
        (["target"], {"name": "x", "center": 0.0, "spread": 0.0, "fill": 0.0}),
    ],
    ids=str,
)
def test_a_changed_field_is_refused_by_name(ill, tmp_path, path, value):
    spoilt = change(folder.to_json(ill[0]), path, value)
    (tmp_path / "model.json").write_text(json.dumps(spoilt))
    with pytest.raises(ModelError, match=r"model\.json"):
        model.load(tmp_path)


@given(st.data())
def test_a_folder_cut_or_garbled_anywhere_never_loads_as_another_model(data):
    text = json.dumps({"format": "dorfl.model", "version": 2, "theta": [[1.0, 2.0]]})
    junk = data.draw(st.text(max_size=20))
    cut = data.draw(st.integers(0, len(text)))
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        folder.from_json(json.loads(text[:cut] + junk))


def test_every_field_is_needed(ill):
    written = folder.to_json(ill[0])
    for name in set(written) - {"dorfl", "features"}:
        with pytest.raises((ValueError, KeyError, TypeError)):
            folder.from_json({k: v for k, v in written.items() if k != name})


@pytest.fixture
def network(ill, tmp_path):
    """Return the folder of a small network."""
    problem = replace(layered(ill[0].fit.problem), hidden=(3,))
    theta = np.linspace(-1, 1, problem.size).astype(np.float32).astype(float)
    return model.save(
        replace(ill[0], fit=replace(ill[0].fit, problem=problem, theta=theta)), tmp_path
    )


def test_layers_of_another_size_are_refused_before_they_are_allocated(network):
    file = network / "model.json"
    written = json.loads(file.read_text())
    assert model.load(network).network
    file.write_text(json.dumps(change(written, ["network", "hidden"], [100_000, 100_000])))
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=r"not those of `network\.hidden`"):
            model.load(network)
        file.write_text(json.dumps(change(written, ["network", "hidden"], [100_000])))
        with pytest.raises(ModelError, match=r"0\.weight .* `network\.hidden`"):
            model.load(network)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
def test_pipes_and_devices_are_not_read(network, name):
    file = network / name
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ModelError, match=name):
        model.load(network)
    file.unlink()
    file.symlink_to(os.devnull)
    with pytest.raises(ModelError, match=name):
        model.load(network)


def test_a_file_above_the_limit_is_not_read(tmp_path):
    file = tmp_path / "model.json"
    file.write_bytes(b"12345")
    assert files.read_limited(file, 5) == b"12345"
    with pytest.raises(ValueError, match=r"model\.json is too large"):
        files.read_limited(file, 4)


def test_what_is_no_model_folder(tmp_path):
    with pytest.raises(ModelError, match="dorfl train"):
        model.load(tmp_path)
    (tmp_path / "model.json").write_text('{"format": "dorfl.model", ')
    with pytest.raises(ModelError, match="cut short"):
        model.load(tmp_path)
    (tmp_path / "model.json").write_text('{"theta": NaN}')
    with pytest.raises(ModelError, match="cut short"):
        model.load(tmp_path)
    (tmp_path / "model.json").write_text("[" * 100_000)
    with pytest.raises(ModelError, match="cut short"):
        model.load(tmp_path)


def test_other_things_are_not_written_over(ill, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ModelError, match="other things"):
        model.save(ill[0], tmp_path)
    with pytest.raises(ModelError, match="is a file"):
        model.save(ill[0], tmp_path / "thesis.txt")
    assert model.save(ill[0], model.save(ill[0], tmp_path / "new")) == tmp_path / "new"


# ── whole or not at all ──────────────────────────────────────────────────────────────────────────


def test_a_failure_half_way_leaves_what_was_there(ill, tmp_path, monkeypatch):
    home = model.save(ill[0], tmp_path / "m")
    before = (home / "model.json").read_bytes()
    real = os.replace

    def fails(source, target):
        if str(target).endswith("model.json"):
            raise OSError(28, "No space left on device")
        return real(source, target)

    monkeypatch.setattr("pathlib.Path.replace", fails)
    with pytest.raises(OSError, match="No space left"):
        model.save(ill[0], home)
    assert (home / "model.json").read_bytes() == before
    assert sorted(p.name for p in home.iterdir()) == ["card.md", "model.json", "score.py"]


def test_replacing_leaves_nothing_behind_on_failure(tmp_path):
    path = tmp_path / "out.txt"

    def stop_half_way():
        with files.replacing(path) as draft:
            draft.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stop_half_way()
    assert list(tmp_path.iterdir()) == []
    files.write_whole(path, b"whole")
    assert path.read_text() == "whole"
    assert stat.S_IMODE(path.stat().st_mode) & 0o600 == 0o600


# ── a model that is no better than a constant ───────────────────────────────────────────────────


@pytest.mark.parametrize(("brier", "warns"), [(0.10, False), (0.13, True)])
def test_a_rare_class_is_judged_by_brier_scores_and_not_by_accuracy(ill, brier, warns):
    """Accuracy ties with the majority class, as for a ranking with AUC 0.87 and 6 % positives."""
    made, _ = ill
    level = Estimate(0.94, 0.01, 500)
    own = HeldOutScores("dorfl", level, {}, Estimate(brier, 0.01, 500))
    constant = HeldOutScores("majority class", level, {}, Estimate(0.113, 0.01, 500))
    judged = replace(made, facts=made.facts._replace(held_out=(own, constant)))
    assert bool(judged.idle) == warns
