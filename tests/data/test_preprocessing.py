"""Preprocessing without pooling: the same as on the pooled table, and never a row in a message."""

import json
import math
from fractions import Fraction

import datasketches
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import median_abs_deviation
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from cases import slowly
from dorfl.data import preprocessing as pre
from dorfl.data import sketch
from dorfl.data.preprocessing import ColumnPlan, sums
from dorfl.support import wire

RNG = np.random.default_rng
FINITE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e100, max_value=1e100)


def people(seed, rows=400):
    """A table with everything in it: numbers, gaps, categories, a rare amount, an identifier."""
    rng = RNG(seed)
    age = np.where(rng.random(rows) < 0.1, np.nan, rng.normal(45 + seed, 12, rows))
    job = rng.choice(["clerk", "nurse", "smith", None], rows, p=[0.4, 0.3, 0.2, 0.1])
    gain = np.where(rng.random(rows) < 0.08, rng.lognormal(8, 1, rows), 0.0)
    return pd.DataFrame(
        {
            "id": np.arange(rows) * 3 + seed,
            "age": age,
            "job": job,
            "gain": gain,
            "smokes": rng.integers(0, 2, rows),
            "name": [f"person {seed} {k}" for k in range(rows)],
        }
    )


def federated(tables, plan):
    """Both exchanges as they go over a wire, bytes and all."""

    def carried(told, kind):
        return {name: wire.decode(wire.encode(entry), kind) for name, entry in told.items()}

    first = {name: carried(pre.summarise(t, plan), pre.Column) for name, t in tables.items()}
    transform = pre.agree(first, plan)
    second = {
        name: carried(pre.deviations(t, transform, plan), pre.Deviation)
        for name, t in tables.items()
    }
    return pre.scale(transform, second, plan)


# ── sums ─────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(FINITE, max_size=40))
def test_sums_are_exact(values):
    parts = sums.exact(np.array(values, dtype=float))
    assert sum(map(Fraction, parts)) == sum(map(Fraction, values))


@given(st.lists(st.lists(FINITE, max_size=15), min_size=1, max_size=5))
def test_sums_of_clients_are_the_pooled_sum_to_the_last_bit(clients):
    told = [sums.exact(np.array(values, dtype=float)) for values in clients]
    assert sums.combine(told) == math.fsum(v for values in clients for v in values)


def test_sums_of_subnormal_and_huge_numbers():
    values = np.array([5e-324, 1e300, -1e300, 2e-308, 5e-324])
    assert sums.combine([sums.exact(values)]) == 2e-308 + 1e-323


# ── sketches ─────────────────────────────────────────────────────────────────────────────────────


def rank_range(values, level):
    return np.mean(values < level), np.mean(values <= level)


@slowly(60)
@given(
    st.integers(0, 10_000),
    st.sampled_from(["normal", "lognormal", "integers", "constant", "two"]),
    st.lists(st.integers(5, 3000), min_size=1, max_size=6),
    st.sampled_from([0.1, 0.5, 0.8, 0.9]),
)
def test_quantiles_keep_to_the_stated_rank_error(seed, shape, sizes, share):
    rng = RNG(seed)
    draw = {
        "normal": lambda n: rng.normal(rng.normal(), 1, n),
        "lognormal": lambda n: rng.lognormal(3, 2, n),
        "integers": lambda n: rng.integers(0, 12, n).astype(float),
        "constant": lambda n: np.full(n, 3.25),
        "two": lambda n: rng.integers(0, 2, n).astype(float),
    }[shape]
    columns = [draw(n) for n in sizes]
    sketches = [sketch.of(column, least=5) for column in columns]
    below, at = rank_range(np.concatenate(columns), sketch.quantile(sketches, share))
    error = sketch.rank_error(sketches)
    assert below - error <= share <= at + error


def test_a_sketch_is_as_good_as_a_kept_library_states_its_own():
    """DataSketches' KLL of the same size, whose error holds with 99 %: ours is guaranteed."""
    values = RNG(0).lognormal(0, 2, 200_000)
    ours = [sketch.of(part, least=5) for part in np.array_split(values, 4)]
    kll = datasketches.kll_doubles_sketch(200)
    kll.update(values)
    stated = kll.normalized_rank_error(False)
    assert sketch.rank_error(ours) < stated
    below, at = rank_range(values, sketch.quantile(ours, 0.5))
    assert abs(0.5 * (below + at) - 0.5) < 0.001
    assert abs(kll.get_rank(sketch.quantile(ours, 0.5)) - 0.5) < 2 * stated


@given(st.lists(st.integers(-(10**6), 10**6), min_size=5, max_size=300, unique=True))
def test_no_number_of_a_sketch_is_an_extreme_or_tells_of_fewer_than_five(values):
    told = sketch.of(np.array(values), least=5)
    assert told.sizes.min() >= 5 and told.sizes.sum() == len(values)
    assert min(values) < told.means[0] and told.means[-1] < max(values)
    assert sketch.of(np.array(values[:4]), least=5) == (0, ())


# ── the same as on the pooled table ──────────────────────────────────────────────────────────────


def test_standard_scaling_is_that_of_the_pooled_table_to_the_last_bit():
    tables = {f"site-{k}": people(k, 100 + 50 * k) for k in range(4)}
    plan = ColumnPlan(scaling="standard", kinds={"id": "ignore"})
    pooled = pd.concat(tables.values())
    ours, whole = federated(tables, plan), federated({"all": pooled}, plan)
    assert ours == whole  # every float equal
    numeric = pooled[["age", "gain"]].to_numpy()
    filled = SimpleImputer(strategy="mean").fit_transform(numeric)
    scaler = StandardScaler().fit(numeric)  # ignores gaps, as we do
    for part, mean, deviation in zip(ours.numeric, scaler.mean_, scaler.scale_, strict=True):
        np.testing.assert_allclose([part.center, part.spread], [mean, deviation], rtol=1e-13)
    X, names, _ = ours.apply(pooled)
    expected = (filled - scaler.mean_) / scaler.scale_
    np.testing.assert_allclose(
        X[:, [names.index("age"), names.index("gain")]], expected, atol=1e-12
    )
    np.testing.assert_array_equal(X[:, names.index("age=(missing)")], pooled["age"].isna())


@given(st.data())
@slowly(30)
def test_any_partition_gives_the_same_transform(data):
    values = np.array(data.draw(st.lists(FINITE, min_size=20, max_size=60)))
    cut = data.draw(st.integers(5, len(values) - 5))
    plan = ColumnPlan(scaling="standard", kinds={"x": "numeric"})
    parts = {"a": {"x": values[:cut]}, "b": {"x": values[cut:]}}
    assert federated(parts, plan) == federated({"all": {"x": values}}, plan)


def test_categories_are_those_of_the_pooled_table():
    tables = {f"site-{k}": people(k) for k in range(3)}
    transform = pre.fit(tables)
    pooled = pd.concat(tables.values())
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    hot = encoder.fit_transform(pooled[["job"]].fillna("(missing)").astype(object))
    X, names, frozen = transform.apply(pooled)
    mine = [k for k, source in enumerate(transform.sources) if source == "job"]
    assert [names[k] for k in mine] == [f"job={level}" for level in encoder.categories_[0]]
    np.testing.assert_array_equal(X[:, mine], hot)
    assert set(mine) <= set(frozen)


def test_robust_scaling_is_near_the_pooled_median_and_mad_whatever_a_tenth_says():
    clean = RNG(3).normal(50, 4, 6000)
    spoilt = clean.copy()
    spoilt[::10] *= -8
    for values in (clean, spoilt):
        tables = {k: {"x": part} for k, part in enumerate(np.array_split(values, 5))}
        (part,) = pre.fit(tables).numeric
        assert abs(part.center - np.median(values)) < 0.02 * 4
        deviation = median_abs_deviation(values, scale="normal")
        assert abs(part.spread / deviation - 1) < (0.03 if values is clean else 0.2)
        assert abs(part.center - 50) < 1 and 3.9 < part.spread < 5.2


@pytest.mark.parametrize("scaling", ["robust", "standard", "none"])
def test_fit_in_process_equals_the_exchange_over_a_wire(scaling):
    tables = {f"site-{k}": people(k) for k in range(3)}
    plan = ColumnPlan(scaling=scaling)
    backwards = dict(reversed(tables.items()))
    assert pre.fit(tables, plan) == pre.fit(backwards, plan)
    if scaling != "none":
        assert federated(tables, plan) == pre.fit(tables, plan)


# ── kinds, gaps, rare things ─────────────────────────────────────────────────────────────────────


def test_what_is_inferred_and_why():
    transform = pre.fit({"a": people(0), "b": people(1)})
    assert [part.name for part in transform.numeric] == ["age", "gain"]
    assert "smokes=0" in transform.names and "job=(missing)" in transform.names
    assert "numbers the rows" in transform.ignored["id"]
    assert "held by 5 rows" in transform.ignored["name"]
    assert transform.frozen == tuple(
        k for k, name in enumerate(transform.names) if name not in ("age", "gain")
    )


def test_kinds_can_be_set():
    kinds = {"smokes": "numeric", "age": "ignore", "id": "numeric"}
    transform = pre.fit({"a": people(0), "b": people(1)}, ColumnPlan(kinds=kinds))
    assert [part.name for part in transform.numeric] == ["id", "gain", "smokes"]
    assert transform.ignored["age"] == "as the study says"


def test_a_column_that_is_mostly_one_value_still_has_a_spread():
    gain = people(0)["gain"].to_numpy()
    (part,) = pre.fit({"a": {"gain": gain}}).numeric
    others = gain[gain > 0]
    assert part.center == 0.0
    assert np.quantile(others, 0.15) < part.spread < np.quantile(others, 0.7)
    for values in (np.full(50, 7.0), np.r_[np.full(50, 7.0), 8.0, 9.0]):
        transform = pre.fit({"a": {"x": values}}, ColumnPlan(kinds={"x": "numeric"}))
        assert transform.numeric[0].spread > 0
        assert np.isfinite(transform.apply({"x": values}).X).all()


@pytest.mark.parametrize("share", [0.3, 0.22, 0.19, 0.1, 0.02])
def test_the_rows_that_differ_set_the_spread_of_a_rare_amount(share):
    values = np.where(RNG(1).random(5000) < share, RNG(2).lognormal(8, 1, 5000), 0.0)
    (part,) = pre.fit({"a": {"x": values}}).numeric
    assert 0.2 < part.spread / np.median(values[values > 0]) < 1.2


def test_as_many_wrong_rows_as_rare_ones_leave_a_column_its_unit():
    values = np.where(RNG(1).random(5000) < 0.08, RNG(2).lognormal(8, 1, 5000), 0.0)
    median, wrong = np.median(values[values > 0]), RNG(3).random(5000) < 0.1
    (part,) = pre.fit({"a": {"x": np.where(wrong, 100.0 * median, values)}}).numeric
    assert 0.2 < part.spread / median < 3.0


@pytest.mark.parametrize("zeros", [0.45, 0.5, 0.505, 0.55])
def test_near_half_of_one_value_does_not_blow_the_column_up(zeros):
    rng = RNG(0)
    values = np.where(rng.random(4000) < zeros, 0.0, rng.lognormal(3, 0.5, 4000))
    (part,) = pre.fit({"a": {"x": values}}).numeric
    assert part.spread > 0.1 * np.median(values[values > 0])


def test_gaps_are_filled_and_flagged_and_one_client_may_have_none_at_all():
    full, empty = people(0), people(1)
    empty["age"] = np.nan
    transform = pre.fit({"full": full, "empty": empty})
    (age,) = [part for part in transform.numeric if part.name == "age"]
    alone = next(p for p in pre.fit({"full": full}).numeric if p.name == "age")
    assert age == alone._replace(missing=(full["age"].isna().sum() + 400) / 800)
    X, names, _ = transform.apply(empty)
    np.testing.assert_array_equal(X[:, names.index("age")], 0.0)
    np.testing.assert_array_equal(X[:, names.index("age=(missing)")], 1.0)
    both = {"a": {"x": [None] * 9, "y": range(9)}, "b": {"x": [np.nan] * 9, "y": range(9)}}
    assert "no client has" in pre.fit(both).ignored["x"]


def test_unseen_and_rare_levels_are_nought_in_all_columns():
    table = {"job": ["clerk"] * 20 + ["nurse"] * 20 + ["spy"] * 4}
    transform = pre.fit({"a": table})
    assert transform.names == ("job=clerk", "job=nurse")
    X = transform.apply({"job": ["clerk", "spy", "astronaut", None, " nurse "]}).X
    np.testing.assert_array_equal(X, [[1, 0], [0, 0], [0, 0], [0, 0], [0, 1]])


def test_many_levels_keep_the_most_frequent():
    rows = [f"l{k:03}" for k in range(150) for _ in range(5 + k)]
    (part,) = pre.fit({"a": {"x": rows}}, ColumnPlan(most_levels=10)).parts
    assert part.levels == tuple(f"l{k:03}" for k in range(140, 150))


def test_whole_numbers_and_floats_that_are_whole_are_the_same_level():
    train = {"code": pa.array([1, 2] * 20), "x": np.arange(40.0) ** 2}
    transform = pre.fit({"a": train}, ColumnPlan(kinds={"code": "category"}))
    X = transform.apply({"code": [1.0, 2.0, None], "x": [0.0, 0.0, 0.0]}).X
    np.testing.assert_array_equal(X[:, :2], [[1, 0], [0, 1], [0, 0]])
    as_text = {"code": ["1", "2.0", "one"], "x": [0.0, 0.0, 0.0]}
    np.testing.assert_array_equal(transform.apply(as_text).X, X)


def test_infinite_values_count_as_missing():
    x = np.r_[np.arange(50.0) ** 1.5, [np.inf, -np.inf, 1e300] * 5]
    transform = pre.fit({"a": {"x": x}})
    assert transform.names == ("x", "x=(missing)")
    assert np.isfinite(transform.apply({"x": x}).X).all()


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["u", "v", None] * 10).dictionary_encode(),
        pa.array(["u", "v", None] * 10, pa.large_string()),
        pa.array([True, False, None] * 10),
        pa.chunked_array([["u", "v"] * 8, [None, "v"] * 7]),
    ],
    ids=["dictionary", "large", "bool", "chunks"],
)
def test_types_of_categories(column):
    (part,) = pre.fit({"a": pa.table({"x": column})}).parts
    assert len(part.levels) == 3 and part.levels[0] == "(missing)"


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.5, 2.5, None, 7.0] * 10, pa.float32()),
        pa.array([1, 2, None, 7] * 10, pa.int8()),
        pa.array([1, 2, None, 7] * 10).dictionary_encode(),
        pa.array([1, 2, None, 7] * 10, pa.decimal128(10, 2)),
    ],
    ids=["float32", "int8", "dictionary", "decimal"],
)
def test_types_of_numbers(column):
    transform = pre.fit({"a": pa.table({"x": column})})
    assert transform.names == ("x", "x=(missing)")
    assert transform.apply(pa.table({"x": column}), np.float32).X.dtype == np.float32


def test_dates_are_days():
    days = pd.date_range("2020-01-01", periods=30)
    frame = pd.DataFrame({"d": days, "x": np.arange(30) ** 0.5, "l": [[1]] * 30})
    found = pre.fit({"a": frame})
    assert "neither" in found.ignored["l"]
    date, other = found.numeric
    assert date.date and not other.date
    values = np.arange(30) + 18_262.0  # from 1970 to 2020
    assert abs(date.center - np.median(values)) <= 2
    scaled = found.apply(frame).X[:, 0]
    np.testing.assert_allclose(scaled * date.spread + date.center, values)
    text = frame.assign(d=days.strftime("%d.%m.%Y"))
    np.testing.assert_array_equal(found.apply(text).X, found.apply(frame).X)


def test_clients_must_agree_on_what_is_a_date():
    one, two = {"d": pd.date_range("2020-01-01", periods=30)}, {"d": np.arange(30) ** 0.5}
    with pytest.raises(ValueError, match="is date at client 'a' and numeric at client 'b'"):
        pre.fit({"a": one, "b": two})


# ── errors a person can act on ───────────────────────────────────────────────────────────────────


def test_errors_name_column_and_client():
    with pytest.raises(
        ValueError, match=r"'age' is numeric at client 'a' and category at client 'b"
    ):
        pre.fit({"a": {"age": range(1, 30)}, "b": {"age": ["unknown"] * 30}})
    with pytest.raises(ValueError, match=r"'y': client 'a' has it, client 'b' does not"):
        pre.fit({"a": {"x": [1.0] * 9, "y": [1.0] * 9}, "b": {"x": [1.0] * 9}})
    with pytest.raises(ValueError, match=r"'age' is used as numbers but holds 3 value\(s\)"):
        pre.fit({"a": {"age": ["31", "4e1", "n.k."] * 3}}, ColumnPlan(kinds={"age": "numeric"}))
    with pytest.raises(ValueError, match="no column 'job'"):
        pre.fit({"a": people(0)}).apply({"age": [1.0]})
    with pytest.raises(ValueError, match="no clients"):
        pre.fit({})
    with pytest.raises(ValueError, match="choose one of robust"):
        ColumnPlan(scaling="minmax")
    with pytest.raises(ValueError, match="'x': 'text' is none of"):
        ColumnPlan(kinds={"x": "text"})


# ── written down and sent ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scaling", ["robust", "standard", "none"])
def test_a_transform_comes_back_from_json_exactly(scaling):
    transform = pre.fit({"a": people(0), "b": people(1)}, ColumnPlan(scaling=scaling))
    back = pre.Transform.from_json(json.loads(json.dumps(transform.to_json())))
    assert back == transform
    np.testing.assert_array_equal(back.apply(people(2)).X, transform.apply(people(2)).X)


def test_a_damaged_transform_is_refused():
    good = pre.fit({"a": people(0)}).to_json()
    first = good["parts"][0]
    for change in (
        {"format": "other"},
        {"scaling": 3},
        {"parts": None},
        {"parts": [{"type": "Numeric", "name": "x"}]},
        {"parts": [first | {"type": "Other"}]},
        {"parts": [first | {"spread": 0.0}]},
        {"parts": [first | {"center": float("nan")}]},
        {"parts": [first | {"center": True}]},
        {"parts": [first | {"missing": 1.5}]},
        {"parts": [first] * 2},
        {"parts": [{"type": "Category", "name": "x", "levels": [1], "missing": 0.0}]},
    ):
        with pytest.raises(ValueError, match="transform"):
            pre.Transform.from_json(good | change)
    with pytest.raises(ValueError, match="transform"):
        pre.Transform.from_json([])


def test_no_row_is_in_a_message():
    """Planted values of one row each, the extremes among them, are in nothing that is sent."""
    table = people(0)
    planted = {"age": 117.123456, "gain": 987654.25, "job": "canary", "name": "canary"}
    for name, value in planted.items():
        table.loc[17, name] = value
    plan = ColumnPlan()
    first = pre.summarise(table, plan)
    transform = pre.agree({"a": first}, plan)
    second = pre.deviations(table, transform, plan)
    sent = wire.encode([first, second]).decode() + json.dumps(transform.to_json())
    assert "canary" not in sent and "person" not in sent
    assert "117.123456" not in sent and "987654.25" not in sent
    known = set(table["age"].dropna())
    assert not known & set(first["age"].values.means)
