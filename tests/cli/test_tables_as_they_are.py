"""Tables as people have them, and what is said of them: every case a small file and a process."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from dorfl.tabular import model
from processes import dorfl_

WORDS = ("--label", "rich", "--client", "site", "--budget", 0)
pytestmark = pytest.mark.slow  # every test is a process or several


def incomes(rows=240, seed=0):
    """Two sites; the income decides, the shade does not."""
    rng = np.random.default_rng(seed)
    income = rng.lognormal(10.5, 0.5, rows)
    rich = 4 * (np.log(income) - 10.5) + rng.normal(size=rows) > 0
    return pd.DataFrame(
        {
            "site": rng.choice(["north", "south"], rows),
            "income": income.round(2),
            "shade": rng.choice(["red", "blue", "green"], rows),
            "rich": np.where(rich, "yes", "no"),
        }
    )


def train(home, frame, *extra, name="t.csv", out="m", code=0):
    """Train on a frame as a file, in a process of its own; the process and the model."""
    path = home / name
    frame.to_parquet(path) if name.endswith("parquet") else frame.to_csv(path, index=False)
    words = ("--label", "rich", "--client", "site", "--out", out, "--budget", 0, *extra)
    done = dorfl_("train", name, *words, cwd=home)
    assert done.returncode == code, done.stderr
    return done, model.load(home / out) if code == 0 else None


# ── what is missing, and what is called so ───────────────────────────────────────────────────────


def test_classes_clients_and_levels_may_be_called_none_in_any_file(tmp_path):
    frame = incomes().replace({"north": "NA", "yes": "None", "red": "-", "blue": "none"})
    frame.loc[::7, "shade"] = None
    names = ("t.csv", "t.parquet")
    both = [train(tmp_path, frame, name=name, out=f"m-{name}")[1] for name in names]
    for made in both:
        assert made.facts.rows == len(frame)
        assert made.classes == ("None", "no") and made.fit.clients == ("NA", "south")
        assert set(made.transform.parts[1].levels) == {"(missing)", "-", "green", "none"}
        assert not made.facts.warnings
    np.testing.assert_array_equal(both[0].fit.theta, both[1].fit.theta)
    assert both[0].transform == both[1].transform


def test_a_column_of_marks_alone_is_a_column_of_levels(tmp_path):
    frame = incomes().assign(drinks=lambda f: np.where(f["rich"] == "yes", "none", "NA"))
    _, made = train(tmp_path, frame)
    assert made.transform.parts[-1].levels == ("NA", "none")


def test_what_is_named_as_missing_is_so_in_every_column(tmp_path):
    frame = incomes()
    frame.loc[:39, "rich"], frame.loc[40:59, "shade"] = "refused", "refused"
    frame.loc[60:79, "income"] = -999
    words = ("--missing", "refused", "--missing", "-999")
    done, made = train(tmp_path, frame, *words)
    assert made.classes == ("no", "yes") and made.facts.rows == 200
    assert made.transform.parts[0].missing == made.transform.parts[1].missing == 0.1
    # A sixth of the rows is gone: said at the end, with whose they are.
    last = done.stderr.splitlines()[-1]
    assert "40 of 240 rows (17 %) are not used" in last and "by client:" in last
    assert "40 of 240" in (tmp_path / "m" / "card.md").read_text()
    assert model.load(tmp_path / "m").transform.missing == ("refused", "-999")
    scored = dorfl_("evaluate", "m", "t.csv", "--json", cwd=tmp_path)
    assert sum(c["rows"] for c in json.loads(scored.stdout)["clients"]) == 200
    new = frame.drop(columns="rich")
    new.to_csv(tmp_path / "new.csv", index=False)
    assert dorfl_("predict", "m", "new.csv", "-o", "out.csv", cwd=tmp_path).returncode == 0
    alone = subprocess.run(
        [sys.executable, "-I", "m/score.py", "new.csv"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    said = pd.read_csv(tmp_path / "out.csv")["prediction"].tolist()
    assert [line.split(",")[0] for line in alone.stdout.splitlines()[1:]] == said


# ── numbers and dates as people write them ───────────────────────────────────────────────────────


def dressed(frame):
    return frame.assign(
        income=[f"${value:,.2f}" for value in frame["income"]],
        share=[f"{k % 90} %" for k in range(len(frame))],
        seen=[f"{k % 28 + 1:02d}.{k % 12 + 1:02d}.2024" for k in range(len(frame))],
        born=pd.date_range("1990-01-01", periods=len(frame)).strftime("%Y-%m-%d"),
        since=[f"{k % 12 + 1:02d}/{k % 28 + 1:02d}/2024" for k in range(len(frame))],
    )


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_dressed_numbers_and_dates_are_read_and_what_is_not_is_said(tmp_path, name):
    frame = dressed(incomes())
    frame.loc[::10, "income"] = "NA"
    done, made = train(tmp_path, frame, name=name)
    parts = {part.name: part for part in made.transform.parts}
    assert 30_000 < parts["income"].center < 45_000 and parts["income"].missing == 0.1
    assert parts["seen"].date and parts["born"].date and not parts["share"].date
    assert 19_722 < parts["seen"].center < 20_088  # days since 1970: in 2024
    said = done.stderr
    assert "column 'income' is text read as numbers" in said
    assert "dates are used as days since 1970: column 'seen', 'born'" in said
    assert "column 'since' is not used" in said and "'99/99/9999'" in said
    dorfl_("predict", "m", name, "-o", "out.csv", cwd=tmp_path)
    scored = pd.read_csv(tmp_path / "out.csv")
    assert (scored["prediction"] == frame["rich"]).mean() > 0.8
    if name == "t.csv":
        alone = subprocess.run(
            [sys.executable, "-I", "m/score.py", name],
            capture_output=True, text=True, check=True, cwd=tmp_path,
        )  # fmt: skip
        lines = [line.split(",") for line in alone.stdout.splitlines()[1:]]
        np.testing.assert_allclose([float(x[2]) for x in lines], scored["probability=yes"])


def test_numeric_works_on_text_or_says_what_stands_there(tmp_path):
    frame = incomes()
    train(tmp_path, dressed(frame), "--numeric", "income")
    frame["income"] = [f"{value:.0f} crowns" for value in frame["income"]]
    done, _ = train(tmp_path, frame, "--numeric", "income", out="n", code=3)
    assert "value(s) that are not, such as '99999 aaaaaa'" in " ".join(done.stderr.split())
    assert "--missing" in done.stderr and "--category" in done.stderr


def test_decimal_commas_with_signs(tmp_path):
    frame = incomes()
    frame["income"] = [
        f"{value:,.2f} €".translate(str.maketrans(",.", ".,")) for value in frame["income"]
    ]
    frame["share"] = [f"{k / 7:.2f}".replace(".", ",") for k in range(len(frame))]
    frame.to_csv(tmp_path / "t.csv", index=False, sep=";")
    words = ("--label", "rich", "--client", "site", "--budget", 0)
    assert dorfl_("train", "t.csv", *words, cwd=tmp_path).returncode == 0
    income = model.load(tmp_path / "model").transform.parts[0]
    assert 30_000 < income.center < 45_000


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def test_a_header_of_more_than_64_kilobytes(tmp_path):
    names = [f"measurement_{k:0100d}" for k in range(700)]
    frame = incomes(60)
    wide = np.random.default_rng(0).normal(size=(60, 700)).round(2)
    frame = pd.concat([frame, pd.DataFrame(wide, columns=names)], axis=1)
    _, made = train(tmp_path, frame, "--method", "erm", "--l2", 10)
    assert len(made.transform.parts) == 702


def test_a_large_text_says_how_it_is_read_and_leaves_nothing_behind(tmp_path):
    frame = incomes(2000)
    frame["note"] = ["x" * 50_000 + str(k % 3) for k in range(2000)]  # 100 MB
    frame.to_csv(tmp_path / "t.csv", index=False)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = dorfl_(
        "train", "t.csv", "--label", "rich", "--budget", 0, cwd=tmp_path, TMPDIR=str(scratch)
    )
    assert done.returncode == 0, done.stderr
    assert "MB of text is read once, into a temporary Parquet file" in done.stderr
    assert not list(scratch.glob("dorfl-*"))


def test_ragged_lines_are_named_by_number(tmp_path):
    lines = incomes().to_csv(index=False).splitlines()
    lines[7] += ",1"
    lines[90] = "north"
    (tmp_path / "t.csv").write_text("\n".join(lines))
    done = dorfl_("train", "t.csv", "--label", "rich", cwd=tmp_path)
    assert done.returncode == 3
    assert "2 line(s) do not have 4 cells: line 8 has 5, line 91 has 1" in done.stderr


def test_names_are_shown_as_they_are_whatever_is_in_them(tmp_path):
    """A name of two lines is one column, and what looks like markup is a name."""
    odd = {"income": 'income\n"in $"', "site": "[b]site[/b]", "rich": "rich[red]"}
    frame = incomes().rename(columns=odd)
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = ("--label", odd["rich"], "--client", odd["site"], "--budget", 0, "--out", "m")
    done = dorfl_("train", "t.csv", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert odd["income"] in model.load(tmp_path / "m").transform.sources
    done = dorfl_("evaluate", "m", "t.csv", cwd=tmp_path)
    assert done.returncode == 0 and "rich[red] in t.csv" in done.stdout
    done = dorfl_("outliers", "m", "t.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_text_in_sixteen_bits_is_named(tmp_path):
    incomes().to_csv(tmp_path / "t.csv", index=False, encoding="utf-16")
    done = dorfl_("train", "t.csv", "--label", "rich", cwd=tmp_path)
    assert done.returncode == 3 and "UTF-16" in done.stderr


def test_values_beyond_all_measure_are_counted_not_lost_in_silence(tmp_path):
    frame = incomes()
    frame["far"] = np.where(np.arange(len(frame)) % 50 == 0, np.inf, frame["income"])
    frame.loc[1, "far"] = -1e308
    done, _ = train(tmp_path, frame)
    many = 6  # of 240 rows, every fiftieth and one more
    said = " ".join(done.stderr.split())
    assert f"column 'far' has {many} value(s) that are infinite or beyond 1e100" in said
    assert "'income' has" not in said


@pytest.mark.parametrize(
    ("label", "words"),
    [("2024-01-01", "holds dates, which are not predicted"), (1e300, "no number that is finite")],
)
def test_labels_that_cannot_be_predicted_are_told_in_words(tmp_path, label, words):
    done, _ = train(tmp_path, incomes().assign(rich=label), code=3)
    assert words in " ".join(done.stderr.split()) and "date32" not in done.stderr


# ── files as other programs write them ───────────────────────────────────────────────────────────


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return dorfl_("train", path.name, *WORDS, "--force", cwd=path.parent)


def test_excels_first_line_names_the_separator(tmp_path):
    frame = incomes()
    train(tmp_path, frame)
    text = "sep=;\n" + frame.to_csv(index=False, sep=";", decimal=",")
    done = written(tmp_path / "excel.csv", text)
    assert done.returncode == 0, done.stderr
    here, there = (model.load(tmp_path / name).fit.theta for name in ("m", "model"))
    np.testing.assert_array_equal(here, there)
    alone = subprocess.run(
        [sys.executable, "-I", "model/score.py", "excel.csv"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert len(alone.stdout.splitlines()) == len(frame) + 1
    cut = text.rstrip().rpartition(";")[0]
    done = written(tmp_path / "cut.csv", cut + "\n")
    assert f"line {len(frame) + 2} has" in done.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: "Exported on Monday\n" + f.to_csv(index=False), "is it a title?"),
        (lambda f: f.to_json(orient="records"), "is JSON or HTML, not CSV"),
        (lambda f: f.to_html(index=False), "is JSON or HTML, not CSV"),
        (lambda _: "sep=;\n", "names its separator, and nothing else"),
    ],
)
def test_what_is_no_table_is_named_as_what_it_is(tmp_path, change, words):
    done = written(tmp_path / "t.csv", change(incomes()))
    assert done.returncode == 3 and words in done.stderr


def test_a_few_words_among_numbers_do_not_lose_a_column_in_silence(tmp_path):
    frame = incomes()
    frame["income"] = frame["income"].astype(str)
    frame.loc[len(frame), "income"] = "Total"  # and nobody's
    done = written(tmp_path / "t.csv", frame.to_csv(index=False))
    said = " ".join(done.stderr.split())
    assert "all but 1 of its cells are numbers" in said and "'aaaaa'" in said


def test_words_among_many_numbers_are_named(tmp_path):
    frame = incomes()
    frame["income"] = frame["income"].astype(object).where(frame.index % 4 > 0, "unknown")
    done = written(tmp_path / "t.csv", frame.to_csv(index=False))
    said = " ".join(done.stderr.split())
    assert "all but 60 of its cells are numbers" in said and "(--missing)" in said


def test_spellings_of_one_class_and_columns_that_give_it_away_are_told(tmp_path):
    frame = incomes()
    frame["copy"] = frame["rich"].map({"yes": "y", "no": "n"})
    frame.loc[frame.index % 3 == 0, "rich"] = frame["rich"].str.upper()
    frame["serial"] = 2**60 + np.arange(len(frame)) * 7 % 19
    done, _ = train(tmp_path, frame)
    assert "'NO' and 'no' count as two classes" in done.stderr
    assert "column 'serial' has whole numbers beyond 2^53" in done.stderr
    frame["rich"] = frame["rich"].str.lower()
    done, _ = train(tmp_path, frame, "--force")
    assert "column 'copy' gives the class away" in done.stderr


def test_numbers_with_blanks_minus_signs_and_brackets(tmp_path):
    frame = incomes()
    marked = [f"−{v:,.2f}".replace(",", "\u00a0") if v else "0" for v in frame["income"]]
    bracketed = [f"({v:,.2f})" for v in frame["income"]]
    made = [
        train(tmp_path, frame.assign(income=income), "--force")[1]
        for income in (marked, bracketed, -frame["income"])
    ]
    for one in made[:2]:
        np.testing.assert_array_equal(one.fit.theta, made[2].fit.theta)


def test_a_client_that_is_a_list_is_refused_as_data(tmp_path):
    incomes().assign(site=[[1, 2]] * len(incomes())).to_parquet(tmp_path / "t.parquet")
    done = dorfl_("train", "t.parquet", *WORDS, cwd=tmp_path)
    assert done.returncode == 3 and "name a column of names" in done.stderr


def test_classes_that_are_numbers_are_in_their_order(tmp_path):
    frame = incomes()
    frame["rich"] = np.resize([2, 10, 1], len(frame))
    done, made = train(tmp_path, frame, "--task", "classification")
    assert made.classes == ("1", "2", "10"), done.stderr
    shown = dorfl_("evaluate", "m", "t.csv", "--verbose", cwd=tmp_path).stdout
    assert shown.index("predicted 2") < shown.index("predicted 10")
    kept = json.loads((tmp_path / "m" / "model.json").read_text())
    for order in (["1", "10", "2"], ["10", "2", "1"]):
        kept["classes"] = order
        (tmp_path / "m" / "model.json").write_text(json.dumps(kept))
        with pytest.raises(model.ModelError, match="in order"):
            model.load(tmp_path / "m")


def test_a_study_saved_with_a_byte_order_mark_is_read(tmp_path):
    incomes().to_csv(tmp_path / "t.csv", index=False)
    text = '\ufeff[data]\nfile = "t.csv"\nlabel = "rich"\nclient = "site"\n'
    (tmp_path / "s.toml").write_text(text, encoding="utf-8")
    done = dorfl_("train", "s.toml", "--budget", "0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_whole_numbers_that_may_be_classes_are_named(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=240), "grade": np.arange(240) % 12, "site": "a"})
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = ("train", "t.csv", "--label", "grade", "--client", "site", "--budget", 0, "--force")
    hint = "has 12 whole values and is learnt as a number; --task classification"
    assert hint in dorfl_(*words, cwd=tmp_path).stderr
    assert hint not in dorfl_(*words, "--task", "regression", cwd=tmp_path).stderr
