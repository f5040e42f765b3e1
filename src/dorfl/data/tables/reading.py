"""CSV (also gzipped) and Parquet files as tables whose columns are read when they are asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from dorfl.data.preprocessing.columns import Table
from dorfl.data.tables import dialect
from dorfl.data.tables.dialect import Dialect
from dorfl.data.tables.errors import DataError, need_memory

_MARKS = ["", "?", "NA", "N/A", "n/a", "na", "NaN", "nan", "NULL", "null", "None", "none", "-", "."]
MISSING = [blank + mark for mark in _MARKS for blank in ("", " ")] + ["#N/A"]
_BATCH = 1 << 16


def column_names(path: str | Path) -> list[str]:
    """The columns of the table in a file, without reading it."""
    path = _existing(path)
    return _Parquet.open(path).column_names if _is_parquet(path) else list(dialect.of(path).header)


def read(path: str | Path, wanted: Sequence[str] | None = None) -> Table:
    """The table in a file: Parquet column by column, text at once, of which only `wanted` stays."""
    path = _existing(path)
    table = _Parquet.open(path) if _is_parquet(path) else _text(path, wanted)
    if not table.num_rows:
        raise DataError(f"{path.name}: has column names but no rows")
    return table


def batches(path: str | Path, kinds: Mapping[str, str], rows: int = _BATCH) -> Iterator[pa.Table]:
    """The columns named in `kinds` ("numeric", "category" or "as it is"), some rows at a time."""
    path = Path(path)
    if _is_parquet(path):
        with _parquet_errors(path), pq.ParquetFile(path) as file:
            for batch in file.iter_batches(rows, columns=list(kinds)):
                yield pa.Table.from_batches([batch])
        return
    types = {"numeric": pa.float64(), "category": pa.string()}
    with _text_errors(path, found := dialect.of(path)) as short:
        reader = csv.open_csv(
            _stream(path, found),
            *_options(found, short, block=1 << 24),
            _conversion(
                found, list(kinds), {n: types.get(k, pa.string()) for n, k in kinds.items()}
            ),
        )
        for batch in reader:
            yield pa.Table.from_batches([batch])


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
    """A Parquet file, of which only the columns asked for are ever in memory."""

    path: Path
    metadata: Any
    schema: Any

    @classmethod
    def open(cls, path: Path) -> _Parquet:
        with _parquet_errors(path), pq.ParquetFile(path) as file:
            table = cls(path, file.metadata, file.schema_arrow)
        twice = sorted({n for n in table.column_names if table.column_names.count(n) > 1})
        if twice:
            raise DataError(f"{path.name}: two columns are called {twice[0]!r}; rename one of them")
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
            # One thread: columns are read side by side.
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
    """Arrow's errors about a text in words a person can act on; lists lines of the wrong width."""
    short: list[Any] = []
    try:
        yield short
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            raise DataError(f"{path.name}: has column names but no rows") from None
        which = re.match(r"In CSV column #(\d+): CSV conversion error to double", str(error))
        if which:
            name = found.header[int(which[1])]
            raise DataError(
                f"{path.name}: column {name!r} is used as numbers but holds a value that is none"
            ) from None
        raise DataError(
            f"{path.name}: cannot be read as a table; are quotes closed and the text UTF-8?"
        ) from None
    except (OSError, EOFError):
        raise dialect.damaged(path) from None
    if short:
        raise DataError(
            f"{path.name}: {len(short)} line(s) do not have {len(found.header)} cells, the first "
            f"of them has {short[0].actual_columns}; is the file cut short, or a "
            f"{found.delimiter!r} inside a value without quotes?"
        )


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1" or path.suffix in (".parquet", ".pq")


def _text(path: Path, wanted: Sequence[str] | None) -> Table:
    """A text table, read whole: it has to be parsed to the end in any case."""
    found = dialect.of(path)
    kept = [n for n in found.header if wanted is None or n in wanted] or list(found.header)
    share = len(kept) / len(found.header)
    need_memory(
        path,
        round(path.stat().st_size * (8 if found.compressed else 1.5) * max(share, 0.3)),
        "convert it to Parquet, which is read column by column, or use fewer columns",
    )
    with _text_errors(path, found) as short:
        table: Table = csv.read_csv(
            _stream(path, found), *_options(found, short), _conversion(found, kept)
        )
    return table


def _stream(path: Path, found: Dialect) -> Any:
    return pa.input_stream(str(path), compression="gzip" if found.compressed else None)


def _options(found: Dialect, short: list[Any], block: int | None = None) -> tuple[Any, Any]:
    """How to read and to parse; lines with too few or too many cells are put into `short`."""

    def note(row: Any) -> str:
        short.append(row)
        return "skip"

    read = csv.ReadOptions(
        column_names=found.header, skip_rows=1, encoding=found.encoding, block_size=block
    )
    parse = csv.ParseOptions(
        delimiter=found.delimiter, invalid_row_handler=note, newlines_in_values=True
    )
    return read, parse


def _conversion(found: Dialect, names: list[str], types: dict[str, Any] | None = None) -> Any:
    return csv.ConvertOptions(
        null_values=MISSING,
        strings_can_be_null=True,
        decimal_point=found.decimal,
        include_columns=names,
        column_types=types,
    )
