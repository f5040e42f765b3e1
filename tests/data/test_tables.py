"""Reading tables: what is read, and errors a person can act on."""

import gzip
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dorfl.data import tables
from dorfl.data.tables import DataError, errors, reading

FRAME = pd.DataFrame(
    {
        "site": ["b", "a", "b", "a"] * 10,
        "age": np.arange(40) * 1.5,
        "job": ["clerk", None, "nurse", "smith, black"] * 10,
        "label": [0, 1, 1, 0] * 10,
    }
)


def columns(table):
    return {name: table.column(name).to_pylist() for name in table.column_names}


@pytest.fixture
def csv(tmp_path):
    def write(text, name="data.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
        return path

    return write


# ── what is read ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("packed", [False, True])
def test_text_in_every_dialect(tmp_path, delimiter, packed):
    path = tmp_path / ("data.csv.gz" if packed else "data.csv")
    FRAME.to_csv(path, sep=delimiter, index=False)
    assert columns(tables.read(path)) == columns(pa.Table.from_pandas(FRAME))


def test_parquet_is_read_column_by_column(tmp_path):
    path = tmp_path / "data.parquet"
    FRAME.to_parquet(path, row_group_size=7)
    table = tables.read(path)
    assert columns(table) == columns(pa.Table.from_pandas(FRAME))
    assert pa.types.is_dictionary(table.column("job").type)  # text costs its levels, not its rows


def test_decimal_commas_blanks_and_marks_for_missing(csv):
    path = csv("n; x ; c\n1;2,5; u\n2;NA; ?\n3;-1,25;v\n")
    assert columns(tables.read(path)) == {
        "n": [1, 2, 3],
        "x": [2.5, None, -1.25],
        "c": [" u", " ?", "v"],  # a level may be called so
    }


def test_quotes_latin_1_and_byte_order_mark(csv):
    assert columns(tables.read(csv('a,b\n"x, ""y""\nz",1\n')))["a"] == ['x, "y"\nz']
    assert columns(tables.read(csv("a,b\nMüller,1\n", encoding="latin-1")))["a"] == ["Müller"]
    assert columns(tables.read(csv("a,b\nMüller,1\n", encoding="utf-8-sig")))["a"] == ["Müller"]


def test_only_wanted_columns_stay(csv):
    assert tables.read(csv("a,b,c\n1,2,3\n"), wanted=["c", "a"]).column_names == ["a", "c"]


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_batches_are_the_table(tmp_path, kind):
    path = tmp_path / f"data.{kind}"
    big = pd.concat([FRAME] * 30, ignore_index=True)
    big.to_parquet(path) if kind == "parquet" else big.to_csv(path, index=False)
    parts = list(tables.batches(path, {"age": "numeric", "job": "category"}, rows=100))
    whole = pa.concat_tables(parts)
    assert whole.column_names == ["age", "job"]
    assert whole.column("age").to_pylist() == big["age"].tolist()
    assert whole.column("job").to_pylist() == pa.Table.from_pandas(big).column("job").to_pylist()


# ── whose rows ───────────────────────────────────────────────────────────────────────────────────


def test_rows_are_put_in_the_clients_order():
    split = tables.by_client(pa.Table.from_pandas(FRAME), "site")
    assert split.names == ("a", "b") and split.bounds.tolist() == [0, 20, 40]
    ordered = FRAME.sort_values("site", kind="stable")
    np.testing.assert_array_equal(split.column("age").to_numpy(), ordered["age"])
    np.testing.assert_array_equal(split.order, ordered.index)
    own = split.clients([n for n in split.column_names if n != "site"])["b"]
    assert own.column_names == ["age", "job", "label"] and own.num_rows == 20
    np.testing.assert_array_equal(own.column("age").to_numpy(), FRAME["age"][FRAME["site"] == "b"])


def test_rows_can_be_left_out_of_a_split():
    split = tables.by_client(pa.Table.from_pandas(FRAME), "site")
    kept = split.keep(np.arange(40) >= 30)
    assert kept.names == ("b",) and kept.num_rows == 10
    np.testing.assert_array_equal(
        kept.column("age").to_numpy(), split.column("age").to_numpy()[30:]
    )


def test_one_client_without_a_column():
    split = tables.by_client(pa.Table.from_pandas(FRAME), None)
    assert split.names == ("all",) and split.num_rows == 40


def test_small_clients_and_rows_of_nobody():
    site = ["big"] * 20 + ["tiny"] * 3 + ["wee"] * 2 + [None] * 4
    table = pa.table({"site": site, "x": range(29)})
    with pytest.raises(DataError, match=r"'tiny' \(and 1 more\) has 3 row\(s\)"):
        tables.by_client(table, "site")
    dropped = tables.by_client(table, "site", small="drop")
    assert dropped.names == ("big",) and dropped.num_rows == 20
    merged = tables.by_client(table, "site", small="merge")
    assert merged.names == ("big", "(other)") and merged.bounds.tolist() == [0, 20, 25]
    assert merged.column("x").to_pylist() == list(range(25))
    assert "4 row(s) without a value" in merged.notes[0]
    with pytest.raises(DataError, match="no client"):
        tables.by_client(table, "site", least=50, small="drop")


def test_a_column_that_names_no_clients():
    table = pa.table({"id": [f"p{k}" for k in range(500)], "empty": [None] * 500})
    with pytest.raises(DataError, match="the site or group of each row"):
        tables.by_client(table, "id")
    with pytest.raises(DataError, match="is empty"):
        tables.by_client(table, "empty")


# ── errors a person can act on ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a,b\n", "no rows"),
        ("a,b,a\n1,2,3\n", "two columns are called 'a'"),
        ("39,State-gov,77516\n50,Private,83311\n", "the first line holds data"),
        ("a,b,c\n1,2,3\n4,5\n", r"1 line\(s\) do not have 3 cells: line 3 has 2"),
        (b"a,b\n1,\0\n", "neither CSV nor Parquet"),
        (b"PK\x03\x04....", "spreadsheet"),
    ],
)
def test_unusable_files(csv, text, message):
    with pytest.raises(DataError, match=message):
        tables.read(csv(text))


def test_files_cut_short(tmp_path, csv):
    whole = gzip.compress(("a,b\n" + "1,2\n" * 100_000).encode())
    for data in (whole[:-20], whole[:30]):
        with pytest.raises(DataError, match="cut short"):
            tables.read(csv(data, "data.csv.gz"))
    FRAME.to_parquet(tmp_path / "data.parquet")
    data = (tmp_path / "data.parquet").read_bytes()
    for part in (data[:-7], data[:100], data[:4]):
        with pytest.raises(DataError, match="cut short"):
            tables.read(csv(part, "cut.parquet"))


def test_a_damaged_page_is_noticed_when_its_column_is_read(tmp_path, csv):
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"x": np.arange(10_000.0)}), path, write_page_checksum=False)
    data = bytearray(path.read_bytes())
    data[4:60] = b"\xff" * 56
    with pytest.raises(DataError, match="cut short or damaged"):
        tables.read(csv(bytes(data), "bad.parquet")).column("x")


def test_no_such_file_and_folders(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        tables.read(tmp_path / "nothing.csv")
    with pytest.raises(DataError, match="is a folder"):
        tables.read(tmp_path)


def test_a_wrong_column_is_answered_with_the_nearest():
    names = ["income", "Race", "age"]
    with pytest.raises(DataError, match="did you mean 'Race'"):
        tables.find_column(names, "race", "client")
    with pytest.raises(DataError, match="the table has 'income', 'Race', 'age'"):
        tables.find_column(names, "zzz", "client")


def test_a_file_that_does_not_fit_says_what_it_needs(csv, monkeypatch):
    monkeypatch.setattr(errors, "_available", lambda: 10_000_000)
    path = csv("a,b\n" + "123456,654321\n" * 1_000_000)
    with pytest.raises(DataError, match=r"needs about 21 MB of memory, 10 MB is .* Parquet"):
        tables.read(path)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_large_text_is_read_from_the_disk_and_the_same(csv, tmp_path, monkeypatch, compressed):
    rows = [["whole", "late", "odd", "level", "day", "none", "NA", "text"]]
    for k in range(3000):
        late, odd = ("NA" if k < 2000 else str(k)), ("1.5" if k > 2500 else str(k))
        if k == 2999:
            odd = "n/a?"
        level = ["north", "NA", "", "none"][k % 4]
        rows.append([str(k), late, odd, level, f"2024-01-{k % 28 + 1:02d}", "", "NA", str(k % 7)])
    path = csv("\n".join(",".join(row) for row in rows) + "\n")
    if compressed:
        path = tmp_path / "packed.csv.gz"
        path.write_bytes(gzip.compress((tmp_path / "data.csv").read_bytes()))
    at_once = tables.read(path, text=["text"])
    monkeypatch.setattr(reading, "LARGE", 0)
    monkeypatch.setattr(reading, "_BLOCK", 4096)
    found = tables.read(path, text=["text"])
    place = found.table.path
    assert place.exists() and found.num_rows == at_once.num_rows == 3000
    for name in rows[0]:
        own, whole = found.column(name), at_once.column(name)
        assert own.cast(pa.string()).to_pylist() == whole.cast(pa.string()).to_pylist(), name
    few = tables.read(path, ["late", "day"])
    assert few.column_names == ["late", "day"]
    del found
    assert not place.exists()
    monkeypatch.setattr(reading.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    assert isinstance(tables.read(path).table, pa.Table)


def test_a_large_text_with_ragged_lines_is_refused(csv, monkeypatch):
    monkeypatch.setattr(reading, "LARGE", 0)
    monkeypatch.setattr(reading, "_BLOCK", 256)
    path = csv("a,b\n" + "1,2\n" * 500 + "1.5,2\n3\n" + "4,5,6\n" + "x,2\n" * 500)
    with pytest.raises(DataError, match=r"2 line\(s\) do not have 2 cells: line 503 .*line 504"):
        tables.read(path)


def test_memory_is_known_here():
    free = errors._available()
    assert free is None or free > 10_000_000


def test_errors_show_no_value_of_a_row(csv):
    path = csv("a,b\n1,2\n3,4,canary\n")
    with pytest.raises(DataError) as caught:
        tables.read(path)
    assert "canary" not in str(caught.value)
    path = csv("a,b\n1,2\n3,canary\n")
    with pytest.raises(DataError, match="column 'b' is used as numbers") as caught:
        list(tables.batches(path, {"b": "numeric"}))
    assert "canary" not in str(caught.value)


def test_a_header_may_be_long(csv):
    names = [f"column_{k:05d}_with_a_long_name" for k in range(6000)]
    header = ",".join(names)
    assert len(header) > 131_072  # more than `csv` takes for one cell by default
    found = tables.read(csv(f"{header}\n" + ",".join(["1"] * 6000) + "\n"), wanted=names[-1:])
    assert found.column(names[-1]).to_pylist() == [1]
