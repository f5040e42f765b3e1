"""Reader of CSV (also gzipped) and Parquet files, one column at a time.

A large CSV file is first converted to a temporary Parquet file, block by block, so that only one
column is in memory.

Arrow parses the text. DuckDB and Polars were tried: DuckDB reads yes and no as booleans and leaves
decimal commas as text, Polars needs to be given the delimiter.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from dorfl.data.preprocessing import cells
from dorfl.data.preprocessing.columns import ColumnTable
from dorfl.data.tables import dialect
from dorfl.data.tables.dialect import Dialect
from dorfl.data.tables.errors import DataError, check_distinct, need_memory

_BLANK = ["", " "]
_MISSING = [blank + mark for mark in cells.MARKS for blank in _BLANK]
_BATCH = 1 << 16
LARGE = 64_000_000  # bytes of text beyond which a file is converted first
_BLOCK = 1 << 22  # bytes of text parsed at once; Arrow reads dozens of blocks ahead
_CONVERSION_ERROR = re.compile(r"In CSV column #(\d+):.* CSV conversion error to (\w+)")


def column_names(path: str | Path) -> list[str]:
    """Return the columns of a file without reading its rows."""
    path = _existing(path)
    return _Parquet.open(path).column_names if _is_parquet(path) else list(dialect.of(path).header)


def read(
    path: str | Path,
    wanted: Sequence[str] | None = None,
    *,
    text: Sequence[str] = (),
    missing: Sequence[str] = (),
) -> FileTable:
    """Read a CSV, gzipped CSV or Parquet file; raise a DataError if it is no table.

    Of a text only the columns `wanted` are kept. Those in `text` stay text even if their cells are
    numbers or dates. Cells in `missing` and empty ones are missing values; NA and the like are so
    only in columns of numbers.
    """
    path = _existing(path)
    if _is_parquet(path):
        table: ColumnTable = _Parquet.open(path)
        decimal = "."
    else:
        found = dialect.of(path)
        table, decimal = _text(path, found, wanted, text), found.decimal
    if not table.num_rows:
        raise DataError(f"{path.name}: has column names but no rows")
    return FileTable(table, decimal, frozenset(text), tuple(missing))


@dataclass(frozen=True)
class FileTable:
    """Table of a file, whose columns are read on access."""

    table: ColumnTable  # the stored columns
    decimal: str = "."  # decimal sign of the file
    text: frozenset[str] = frozenset()  # columns that stay text
    missing: tuple[str, ...] = ()  # cells that mean a missing value
    # for columns read so far that are not used as they are stored: how they are used
    remarks: dict[str, str] = field(default_factory=dict)

    @property
    def column_names(self) -> list[str]:
        """Return the columns in the order of the file."""
        return self.table.column_names

    @property
    def num_rows(self) -> int:
        """Return the number of rows."""
        return self.table.num_rows

    def column(self, name: str) -> Any:
        """Return a column as an Arrow array."""
        column = cells.without(self.table.column(name), self.missing)
        if name in self.text:
            return column
        column, remark = cells.read(column, self.decimal)
        if remark:
            self.remarks[name] = remark
        return column


def batches(
    path: str | Path, kinds: Mapping[str, str], rows: int = _BATCH, missing: Sequence[str] = ()
) -> Iterator[pa.Table]:
    """Yield tables of the columns `kinds`, of at most `rows` rows from a Parquet file.

    `kinds` says how each column is read: "numeric", "category" or "as it is". Cells in `missing`
    become null.
    """
    path = Path(path)
    decimal = "."
    if _is_parquet(path):
        parts = _parquet_batches(path, list(kinds), rows)
    else:
        found = dialect.of(path)
        parts, decimal = _text_batches(path, found, list(kinds)), found.decimal
    for batch in parts:
        columns = {}
        for name, kind in kinds.items():
            column = cells.without(batch.column(name), missing)
            if kind == "numeric" and cells.is_text(column):
                column = _numbers(path, name, column, decimal)
            columns[name] = column
        yield pa.table(columns)


def _numbers(path: Path, name: str, column: Any, decimal: str) -> Any:
    found = cells.dates(column)
    if found is None or found.null_count == len(found):
        turned = column if decimal == "." else cells.swap_signs(column)
        found = cells.numbers(turned)
    if found is None:
        raise DataError(
            f"{path.name}: column {name!r} is used as numbers but holds a value that is none, "
            f"such as {cells.look(column)}"
        )
    return found


def _parquet_batches(path: Path, names: list[str], rows: int) -> Iterator[Any]:
    with _parquet_errors(path), pq.ParquetFile(path) as file:
        yield from file.iter_batches(rows, columns=names)


def _text_batches(path: Path, found: Dialect, names: list[str]) -> Iterator[Any]:
    with _text_errors(path, found) as short:
        yield from csv.open_csv(
            _stream(path, found),
            *_options(found, short, block=1 << 24),
            _conversion(found, names, text=names),
        )


def _existing(given: str | Path) -> Path:
    path = Path(given)
    if not path.exists():
        raise DataError(f"{path}: there is no such file")
    if path.is_dir():
        raise DataError(f"{path}: is a folder, not a table")
    if not path.stat().st_size:
        raise DataError(f"{path.name}: is empty")
    return path


@dataclass(frozen=True)
class _Parquet:
    """Parquet file, whose columns are read on access."""

    path: Path
    metadata: Any
    schema: Any

    @classmethod
    def open(cls, path: Path) -> _Parquet:
        with _parquet_errors(path), pq.ParquetFile(path) as file:
            table = cls(path, file.metadata, file.schema_arrow)
        check_distinct(path, table.column_names)
        return table

    @property
    def column_names(self) -> list[str]:
        return list(self.schema.names)

    @property
    def num_rows(self) -> int:
        return int(self.metadata.num_rows)

    def column(self, name: str) -> Any:
        kind = self.schema.field(name).type
        as_levels = [name] if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None
        with (
            _parquet_errors(self.path),
            # One thread: callers read several columns in parallel.
            pq.ParquetFile(self.path, metadata=self.metadata, read_dictionary=as_levels) as file,
        ):
            return file.read(columns=[name], use_threads=False).column(0)


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError):
        raise dialect.damaged(path) from None


@contextmanager
def _text_errors(path: Path, found: Dialect) -> Iterator[list[Any]]:
    """Translate Arrow's errors about a text; yield a list for lines of the wrong width."""
    short: list[Any] = []
    try:
        yield short
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            raise DataError(f"{path.name}: has column names but no rows") from None
        raise DataError(
            f"{path.name}: cannot be read as a table; are quotes closed and the text UTF-8?"
        ) from None
    except (OSError, EOFError):
        raise dialect.damaged(path) from None
    if short:
        raise DataError(
            f"{path.name}: {len(short)} line(s) do not have {len(found.header)} cells: "
            f"{dialect.ragged(path, found)}; is the file cut short, or a "
            f"{found.delimiter!r} inside a value without quotes?"
        )


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1" or path.suffix in (".parquet", ".pq")


def _text(
    path: Path, found: Dialect, wanted: Sequence[str] | None, text: Sequence[str]
) -> ColumnTable:
    """Parse a text table: into memory, or to the disk if it is large and fits."""
    kept = [n for n in found.header if wanted is None or n in wanted] or list(found.header)
    size = path.stat().st_size * (5 if found.compressed else 1)
    if size > LARGE and shutil.disk_usage(tempfile.gettempdir()).free > 2 * size:
        return _on_disk(path, found, kept, text)
    share = len(kept) / len(found.header)
    need_memory(
        path,
        round(path.stat().st_size * (8 if found.compressed else 1.5) * max(share, 0.3)),
        "convert it to Parquet, which is read column by column, or use fewer columns",
    )
    table: Any = _parsed(path, found, kept, text)
    # Every cell of these is empty or a mark like NA, which may be the name of a category.
    open_ = [n for n in kept if pa.types.is_null(table.schema.field(n).type)]
    if open_:
        again = _parsed(path, found, open_, open_, _BLANK)
        for name in open_:
            table = table.set_column(kept.index(name), name, again.column(name))
    whole: ColumnTable = table
    return whole


def _on_disk(path: Path, found: Dialect, names: list[str], text: Sequence[str]) -> _Parquet:
    """Convert a text to a temporary Parquet file, block by block.

    Arrow infers the type of a column from the first block. If a later cell has another type, the
    column gets a wider one (integers become floats, floats become text) and reading starts again.
    """
    wider = dict.fromkeys((name for name in text if name in names), pa.string())
    handle, name = tempfile.mkstemp(prefix="dorfl-", suffix=".parquet")
    os.close(handle)
    made = Path(name)
    try:
        while True:
            convert = _conversion(found, names)
            convert.column_types = wider
            with _text_errors(path, found) as short:
                try:
                    empty = _copied(path, found, made, _options(found, short, _BLOCK), convert)
                except pa.ArrowInvalid as error:
                    failed = _CONVERSION_ERROR.search(str(error))
                    if failed is None:
                        raise
                    short.clear()
                    number = failed[2] in ("int64", "null")
                    wider[found.header[int(failed[1])]] = pa.float64() if number else pa.string()
                    continue
            if not empty:
                break
            wider |= dict.fromkeys(empty, pa.string())
        table = _Parquet.open(made)
    except BaseException:
        made.unlink()
        raise
    weakref.finalize(table, made.unlink, missing_ok=True)
    return table


def _copied(path: Path, found: Dialect, made: Path, options: Any, convert: Any) -> list[str]:
    """Write a text to a Parquet file; return the columns without any value."""
    with csv.open_csv(_stream(path, found), *options, convert) as reader:
        first = {column.name: column.type for column in reader.schema}
    numeric = {n: k for n, k in first.items() if pa.types.is_integer(k) or pa.types.is_floating(k)}
    convert.column_types = {**numeric, **convert.column_types}  # a third faster than inference
    with csv.open_csv(_stream(path, found), *options, convert) as reader:
        kinds = {column.name: column.type for column in reader.schema}
        levels = [column for column, kind in kinds.items() if pa.types.is_string(kind)]
        with pq.ParquetWriter(
            made, reader.schema, compression="none", use_dictionary=levels
        ) as out:
            for batch in reader:  # a row group each, which Arrow writes at once
                out.write_table(pa.Table.from_batches([batch]))
    return [column for column, kind in kinds.items() if pa.types.is_null(kind)]


def _parsed(
    path: Path, found: Dialect, names: list[str], text: Sequence[str], missing: list[str] = _MISSING
) -> pa.Table:
    with _text_errors(path, found) as short:
        return csv.read_csv(
            _stream(path, found), *_options(found, short), _conversion(found, names, text, missing)
        )


def _stream(path: Path, found: Dialect) -> Any:
    return pa.input_stream(str(path), compression="gzip" if found.compressed else None)


def _options(found: Dialect, short: list[Any], block: int | None = None) -> tuple[Any, Any]:
    """Return the options of reading and parsing; lines of the wrong width go to `short`."""

    def note(row: Any) -> str:
        short.append(row)
        return "skip"

    read = csv.ReadOptions(
        column_names=found.header,
        skip_rows=found.skip,
        skip_rows_after_names=1,  # counts rows: a quoted name may span two lines
        encoding=found.encoding,
        block_size=block,
    )
    parse = csv.ParseOptions(
        delimiter=found.delimiter, invalid_row_handler=note, newlines_in_values=True
    )
    return read, parse


def _conversion(
    found: Dialect, names: list[str], text: Sequence[str] = (), missing: list[str] = _MISSING
) -> Any:
    return csv.ConvertOptions(
        null_values=missing,
        strings_can_be_null=missing is _BLANK,
        true_values=[],  # booleans stay text: there may be a third value such as "none"
        false_values=[],
        decimal_point=found.decimal,
        include_columns=names,
        column_types={name: pa.string() for name in text if name in names},
    )
