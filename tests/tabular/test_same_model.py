"""The same rows and the same words give the same model, to the last bit, whoever trains it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from cases import few
from dorfl import RobustClassifier, RobustRegressor
from dorfl.cli import app
from dorfl.data import tables
from dorfl.protocol import coordinator, settings, toml
from dorfl.site import local
from dorfl.tabular import model, results
from dorfl.tabular import table as engine
from dorfl.tabular.rows import open_split, prepare
from study_cases import METHODS, a_site, mixed_tables, same_service, synthetic_tables

OTHERS = ('name = "dorfl"', 'center = "auto"', 'by = "regret"')
LABELS = {"ill": "two classes", "grade": "three classes", "cost": "a number"}


def train(path, out, *words):
    given = ["train", str(path), "--out", str(out), "--budget", "0", *map(str, words)]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    return model.load(out)


def frame_of(sites, label):
    """All sites' rows in one table, shuffled, with a column that says whose they are."""
    others = [name for name in LABELS if name != label]
    frames = [pd.DataFrame(t).drop(columns=others).assign(site=s) for s, t in sites.items()]
    whole = pd.concat(frames, ignore_index=True)
    return whole.iloc[np.random.default_rng(0).permutation(len(whole))]


def at_sites(folder, frame, study):
    """The study among sites that each have a file of their own, every message made bytes."""
    sites = {}
    for name, part in frame.groupby("site"):
        part.drop(columns="site").to_csv(folder / f"{name}.csv", index=False)
        table = tables.read(folder / f"{name}.csv")
        sites[name] = a_site(name, table)
    asked = toml.read(study).changed(privacy_reports="open")
    asked = settings.among(asked, tuple(sites))
    return results.model_of(local.run(coordinator.begin(asked, "run-1"), sites))


def same(one, two):
    assert one.transform == two.transform
    assert one.classes == two.classes and one.target == two.target
    assert one.fit.clients == two.fit.clients and one.fit.rounds == two.fit.rounds
    for name in ("theta", "lam", "risks", "centers"):
        np.testing.assert_array_equal(getattr(one.fit, name), getattr(two.fit, name), name)
    assert (one.fit.objective, one.fit.gap) == (two.fit.objective, two.fit.gap)
    mine, other = one.fit.problem.method, two.fit.problem.method
    assert (mine.rho, mine.temperature, mine.cost) == (other.rho, other.temperature, other.cost)
    assert one.facts.learnt == two.facts.learnt
    same_service(one, two)
    assert one.facts.choice == two.facts.choice


@pytest.mark.parametrize("label", few(["cost", "ill", "grade"], 2))
@pytest.mark.parametrize("method", [*METHODS.values(), *OTHERS])
def test_a_table_and_a_federation(tmp_path, label, method):
    """With categories, with missing values, and with one file for both."""
    frame = frame_of(mixed_tables(), label)
    frame.to_csv(tmp_path / "all.csv", index=False)
    study = tmp_path / "study.toml"
    study.write_text(
        f'[data]\nfile = "all.csv"\nlabel = "{label}"\nclient = "site"\n[method]\n{method}\n'
    )
    same(train(study, tmp_path / "model"), at_sites(tmp_path, frame, study))


def test_where_one_row_in_four_is_wrong(tmp_path):
    """The nearer half is tried, at sites as in a table and in an estimator."""
    sites = synthetic_tables(contamination=(0.25,) * 3)
    frame = pd.concat([pd.DataFrame(t).assign(site=s) for s, t in sites.items()])
    frame.to_csv(tmp_path / "all.csv", index=False)
    study = tmp_path / "study.toml"
    study.write_text('[data]\nfile = "all.csv"\nlabel = "y"\nclient = "site"\n')
    here = train(study, tmp_path / "model")
    assert "nearest 50 %" in " ".join(here.facts.choice)
    same(here, at_sites(tmp_path, frame, study))
    model_ = RobustClassifier().fit(
        frame[[f"x{k}" for k in range(5)]].to_numpy(), frame["y"], clients=frame["site"]
    )
    assert model_.choice_ == here.facts.choice


@pytest.mark.parametrize("scaling", ["standard", "none"])
def test_in_any_units(tmp_path, scaling):
    frame = frame_of(mixed_tables(), "ill")
    frame.to_csv(tmp_path / "all.csv", index=False)
    study = tmp_path / "study.toml"
    study.write_text(
        f'[data]\nfile = "all.csv"\nlabel = "ill"\nclient = "site"\n'
        f'[columns]\nscaling = "{scaling}"\n[training]\ntol = 1e-10\n'
    )
    same(train(study, tmp_path / "model"), at_sites(tmp_path, frame, study))


def test_many_small_clients(tmp_path):
    frame = frame_of(mixed_tables(sizes=(12, 15, 11, 13, 18, 14)), "ill")
    frame.to_csv(tmp_path / "all.csv", index=False)
    study = tmp_path / "study.toml"
    study.write_text('[data]\nfile = "all.csv"\nlabel = "ill"\nclient = "site"\n')
    made = train(study, tmp_path / "model")
    same(made, at_sites(tmp_path, frame, study))
    assert (made.fit.centers == made.fit.centers[0]).all()  # nobody has rows enough for its own


def test_clients_of_very_different_sizes(tmp_path):
    """Of sites elsewhere nobody counts the rows: what is believed of them is told, or named."""
    frame = frame_of(mixed_tables(sizes=(30, 90, 900)), "ill")
    frame.to_csv(tmp_path / "all.csv", index=False)
    study = tmp_path / "study.toml"
    study.write_text('[data]\nfile = "all.csv"\nlabel = "ill"\nclient = "site"\n')
    there = at_sites(tmp_path, frame, study)
    (note,) = [note for note in there.facts.notes if "most_rows" in note]
    assert "'site-3' counts as 360 of the 900 rows" in note
    study.write_text(study.read_text() + "[defence]\nmost_rows = 1000\n")
    here, there = train(study, tmp_path / "model"), at_sites(tmp_path, frame, study)
    same(here, there)
    assert not [note for m in (here, there) for note in m.facts.notes if "most_rows" in note]


@pytest.mark.parametrize("noise", ["", "[privacy]\nepsilon = 4.0\n"])
def test_columns_that_few_rows_differ_in(tmp_path, noise):
    """Held constant, at a site as in a table; but with noise no row may change others."""
    frame = frame_of(mixed_tables(), "ill").reset_index(drop=True)
    frame["rare"] = np.where(frame.index < 4, frame.index + 1.0, 0.0)
    frame.to_csv(tmp_path / "all.csv", index=False)
    study = toml.parse(
        f'[data]\nfile = "{tmp_path}/all.csv"\nlabel = "ill"\nclient = "site"\n'
        f'[columns]\nnumeric = ["rare"]\n{noise}'
    )
    prepared = prepare(study, open_split(study))
    column = prepared.rows.X[:, prepared.state.agreed.transform.names.index("rare")]
    assert len(np.unique(column)) == (5 if noise else 1)


def test_methods_that_share_rows_ask_once_where_they_lie(tmp_path, monkeypatch):
    """And each trains as it does alone: what one method was told is not another's answer."""
    frame_of(mixed_tables(), "ill").to_csv(tmp_path / "all.csv", index=False)
    study = toml.parse(f'[data]\nfile = "{tmp_path}/all.csv"\nlabel = "ill"\nclient = "site"\n')
    asked, place = [], engine.location.report
    monkeypatch.setattr(engine.location, "report", lambda *of: asked.append(of) or place(*of))
    prepared = prepare(study, open_split(study))
    for name in ("wafl", "dorfl", "gdrfl"):
        words = study.changed(method_name=name)
        together = engine.fit(words, prepared)[0].outcome
        alone = engine.fit(words, prepare(study, open_split(study)))[0].outcome
        np.testing.assert_array_equal(together.theta, alone.theta)
        if name == "wafl":
            once = len(asked) // 2
    assert len(prepared.locations) == 2 * once  # dorfl asks where each class lies
    assert len(asked) == 5 * once


def test_levels_that_hardly_any_row_has_are_told_of(tmp_path):
    frame = frame_of(mixed_tables(), "ill").reset_index(drop=True)
    common = ("high", "mill")
    frame["street"] = [f"s{k}" if k % 2 else common[k % 4 // 2] for k in range(len(frame))]
    frame["town"] = np.where(frame.index < 4, "far", "near")
    frame.to_csv(tmp_path / "all.csv", index=False)
    study = toml.parse(f'[data]\nfile = "{tmp_path}/all.csv"\nlabel = "ill"\nclient = "site"\n')
    notes = prepare(study, open_split(study)).rows.notes
    (note,) = [note for note in notes if "too few rows" in note]
    assert note.startswith("column 'street': 50 % of rows have a level")


@pytest.mark.parametrize("method", ["erm", "afl", "wafl", "gdrfl", "dorfl"])
@pytest.mark.parametrize("kind", ["classes", "number"])
@pytest.mark.parametrize("given", ["array", "frame"])
def test_an_estimator_and_a_table(tmp_path, method, kind, given):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 3)) * [1.0, 50.0, 0.01] + [0.0, 300.0, 0.0]
    X[:15] *= -8
    X = np.column_stack([X, rng.random(300) < 0.4])  # a yes and a no
    signal = X[:, 0] + (X[:, 1] - 300) / 50 - X[:, 3] + 0.5 * rng.normal(size=300)
    y = np.where(signal > 0, "yes", "no") if kind == "classes" else 5 + 2 * signal
    who = np.where(rng.random(300) < 0.6, "north", "south")
    frame = pd.DataFrame(X, columns=["x0", "x1", "x2", "x3"])
    frame.assign(y=y, site=who).to_parquet(tmp_path / "all.parquet")
    words = ("--label", "y", "--client", "site", "--method", method)
    made = train(tmp_path / "all.parquet", tmp_path / "model", *words)
    estimator = RobustClassifier(method) if kind == "classes" else RobustRegressor(method)
    estimator.fit(frame if given == "frame" else X, y, clients=who)
    fit, transform = estimator._trained
    assert transform == made.transform
    np.testing.assert_array_equal(fit.theta, made.fit.theta)
    np.testing.assert_array_equal(fit.lam, made.fit.lam)
    if kind == "classes":
        np.testing.assert_array_equal(estimator.predict(X if given == "array" else frame),
                                      made.predict(frame))  # fmt: skip
    else:
        out = estimator.predict(X if given == "array" else frame)
        np.testing.assert_allclose(out, made.predict(frame), rtol=1e-10)


@pytest.mark.parametrize("label", LABELS)
def test_an_estimator_given_words_dates_and_gaps_and_a_table(tmp_path, label):
    frame = frame_of(mixed_tables(), label).dropna(subset=[label]).reset_index(drop=True)
    days = pd.to_datetime("2024-01-01") + pd.to_timedelta(np.arange(len(frame)) % 90, unit="D")
    frame = frame.assign(seen=days, insured=np.arange(len(frame)) % 3 == 0)
    frame.to_csv(tmp_path / "all.csv", index=False)
    made = train(tmp_path / "all.csv", tmp_path / "model", "--label", label, "--client", "site")
    estimator = RobustRegressor() if label == "cost" else RobustClassifier()
    X = frame.drop(columns=[label, "site"])
    estimator.fit(X.astype({"ward": "category"}), frame[label], clients=frame["site"])
    fit, transform = estimator._trained
    assert transform.parts == made.transform.parts
    assert list(estimator.features_) == list(made.transform.names)
    np.testing.assert_array_equal(fit.theta, made.fit.theta)
    out, expected = estimator.predict(X), made.predict(frame)
    if label == "cost":
        np.testing.assert_allclose(out, expected, rtol=1e-6)
    else:
        np.testing.assert_array_equal(out.astype(str), expected)


def test_the_study_of_the_documentation_runs_on_a_table_too(tmp_path):
    docs = Path(__file__).parents[2] / "docs" / "federation.md"
    section = docs.read_text().split("## A study")[1].split("\n## ")[0]
    (tmp_path / "study.toml").write_text(section.split("```toml\n")[1].split("```")[0])
    rng = np.random.default_rng(0)
    age = rng.normal(60, 9, 400)
    frame = pd.DataFrame(
        {
            "age": age,
            "pressure": rng.normal(130, 15, 400),
            "sex": rng.choice(["f", "m"], 400),
            "stroke": np.where(age + 5 * rng.normal(size=400) > 65, "yes", "no"),
            "site": rng.choice(["site-1", "site-2"], 400),
        }
    )
    frame.to_csv(tmp_path / "all.csv", index=False)
    words = ("--table", tmp_path / "all.csv", "--client", "site")
    made = train(tmp_path / "study.toml", tmp_path / "model", *words)
    same(made, at_sites(tmp_path, frame, tmp_path / "study.toml"))
    done = CliRunner().invoke(app, ["train", str(tmp_path / "study.toml")])
    assert done.exit_code == 2 and "--table" in done.stderr


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[training]\ntolerance = 1e-3", "it is now tol"),
        ("[training]\nrounds = 7", "it is now max_rounds"),
        ("[method]\nrho2 = 2.0", "it is now score_weight"),
        ("[privacy]\nsecure_sum = true", 'it is now reports = "summed"'),
    ],
)
def test_names_of_before_are_refused_with_the_new_ones(old, new):
    with pytest.raises(ValueError, match=new):
        toml.parse(f'[data]\nlabel = "y"\n{old}\n')


def test_tables_as_people_have_them(tmp_path):
    """Dressed numbers, dates, levels called NA and cells named as missing: alike at every site."""
    rng = np.random.default_rng(0)
    rows = 240
    income = rng.lognormal(10.5, 0.5, rows)
    frame = pd.DataFrame(
        {
            "site": rng.choice(["a", "b"], rows),
            "income": [f"${v:,.2f}" for v in income],
            "seen": pd.date_range("2024-01-01", periods=rows).strftime("%d.%m.%Y"),
            "drug": rng.choice(["NA", "none", "", "aspirin"], rows),
            "ill": np.where(np.log(income) + 0.3 * rng.normal(size=rows) > 10.5, "None", "yes"),
        }
    )
    frame.loc[::9, "income"], frame.loc[::11, "ill"] = "?", "refused"
    frame.to_csv(tmp_path / "all.csv", index=False)
    study = tmp_path / "study.toml"
    study.write_text(
        '[data]\nfile = "all.csv"\nlabel = "ill"\nclient = "site"\n'
        '[columns]\nmissing = ["refused", "aspirin"]\n'
    )
    here = train(study, tmp_path / "m")
    assert here.classes == ("None", "yes") and here.facts.rows == 240 - 22
    assert {part.name for part in here.transform.parts} == {"income", "seen", "drug"}
    assert here.transform.parts[1].date
    assert here.transform.parts[2].levels == ("(missing)", "NA", "none")
    there = at_sites(tmp_path, frame, study)
    same(here, there)
    assert any("days since 1970" in note for note in there.facts.notes)
