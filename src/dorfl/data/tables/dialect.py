"""Dialect of a text table, guessed from its first lines: delimiter, decimal sign, encoding."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import zlib
from pathlib import Path
from typing import NamedTuple

from dorfl.data.tables.errors import DataError, check_distinct

_DELIMITERS = ",;\t|"
_SAMPLE = 1 << 16  # bytes read, more if the first line is longer
_MAX_LINE = 1 << 28  # bytes of a first line
_NAMED_LINES = 3  # lines of the wrong width that an error names
_MAX_ROWS = 200  # rows of the sample that are parsed
_DECIMAL_COMMA = re.compile(r"^\s*[-+]?\d+,\d+\s*$")
_SEPARATOR = re.compile(r'"?sep=([,;\t|])"?\s*')  # first line of a file from Excel
_MARKUP = re.compile(r'\s*(\[\s*\{|\{\s*"|<(!|\?xml|html|table))', re.IGNORECASE)
_DECIMAL_POINT = re.compile(r"^\s*[-+]?\d*\.\d+\s*$")
# By a wrong delimiter a header is one cell; csv refuses cells beyond 131,072 characters by default.
csv.field_size_limit(_MAX_LINE)


class Dialect(NamedTuple):
    """Dialect of a text table."""

    delimiter: str
    decimal: str  # character before decimals
    encoding: str  # "utf-8" or "latin-1"
    header: tuple[str, ...]  # names of the columns
    compressed: bool  # whether the file is gzipped
    skip: int = 0  # lines before the header


def of(path: Path) -> Dialect:
    """Guess the dialect of a file from its first lines."""
    with path.open("rb") as file:
        start = file.read(4)
    compressed = start[:2] == b"\x1f\x8b"
    try:
        with gzip.open(path) if compressed else path.open("rb") as file:
            sample = file.read(_SAMPLE)
            while b"\n" not in sample.rstrip(b"\n") and len(sample) < _MAX_LINE:
                more = file.read(len(sample))
                if not more:
                    break
                sample += more
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise damaged(path) from None
    if start == b"PK\x03\x04":
        raise DataError(f"{path.name}: is a spreadsheet or an archive; save the table as CSV")
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise DataError(f"{path.name}: is a text in UTF-16; save it as CSV in UTF-8")
    if b"\0" in sample:
        raise DataError(f"{path.name}: is neither CSV nor Parquet; save the table as one of them")
    text, encoding = _decode(sample)
    # The last line of the sample may be incomplete.
    lines = text.splitlines()
    lines = lines[: -1 if len(sample) >= _SAMPLE and len(lines) > 1 else None][:_MAX_ROWS]
    if not any(line.strip() for line in lines):
        raise DataError(f"{path.name}: is empty")
    if _MARKUP.match(text):
        raise DataError(f"{path.name}: is JSON or HTML, not CSV; save the table as CSV")
    separator = _SEPARATOR.fullmatch(lines[0])
    lines = lines[1:] if separator else lines
    if not lines:
        raise DataError(f"{path.name}: has a line that names its separator, and nothing else")
    delimiter = separator[1] if separator else _delimiter(lines)
    rows = list(csv.reader(io.StringIO("\n".join(lines)), delimiter=delimiter))
    header = tuple(cell.strip() for cell in rows[0])
    _check_header(path, header)
    if len(header) == 1 and (width := _width(lines[1:])) > 1:
        raise DataError(
            f"{path.name}: the first line has 1 cell and the others have {width}; is it a title? "
            "Delete it: the first line names the columns"
        )
    cells = [cell for row in rows[1:] for cell in row]
    commas = sum(bool(_DECIMAL_COMMA.match(cell)) for cell in cells)
    points = sum(bool(_DECIMAL_POINT.match(cell)) for cell in cells)
    decimal = "," if delimiter != "," and commas > points else "."
    return Dialect(delimiter, decimal, encoding, header, compressed, int(separator is not None))


def ragged(path: Path, found: Dialect) -> str:
    """Name the first lines with too few or too many cells, and how many they have."""
    wrong = []
    with (
        gzip.open(path, "rt", encoding=found.encoding, newline="")
        if found.compressed
        else path.open(encoding=found.encoding, newline="") as file
    ):
        for _ in range(found.skip):
            file.readline()
        rows = csv.reader(file, delimiter=found.delimiter)
        for row in rows:
            if row and len(row) != len(found.header):
                wrong.append(f"line {found.skip + rows.line_num} has {len(row)}")
                if len(wrong) > _NAMED_LINES:
                    return ", ".join(wrong[:-1]) + ", …"
    return ", ".join(wrong)


def damaged(path: Path) -> DataError:
    """Return the error for a file that ends too early."""
    return DataError(f"{path.name}: is cut short or damaged; copy or export it again")


def _decode(sample: bytes) -> tuple[str, str]:
    if sample[:3] == b"\xef\xbb\xbf":
        return sample[3:].decode("utf-8", errors="replace"), "utf-8"
    try:
        return sample.decode("utf-8"), "utf-8"
    except UnicodeDecodeError as error:
        if error.start > len(sample) - 4:  # the sample ends within a character
            return sample[: error.start].decode("utf-8"), "utf-8"
    return sample.decode("latin-1"), "latin-1"


def _delimiter(lines: list[str]) -> str:
    """Return the delimiter that gives the most cells, the same number in nearly all lines."""
    best, most = ",", 1.0
    for candidate in _DELIMITERS:
        widths = [len(row) for row in csv.reader(lines, delimiter=candidate) if row]
        agreeing = sum(width == widths[0] for width in widths) / len(widths)
        if agreeing * widths[0] > most:
            best, most = candidate, agreeing * widths[0]
    return best


def _width(lines: list[str]) -> int:
    """Return the number of cells in every line, or 1 if lines differ."""
    if not lines:
        return 1
    widths = {len(row) for row in csv.reader(lines, delimiter=_delimiter(lines)) if row}
    return widths.pop() if len(widths) == 1 else 1


def _check_header(path: Path, header: tuple[str, ...]) -> None:
    numbers = [name for name in header if re.fullmatch(r"[-+]?\d+(\.\d+)?", name)]
    counted = [str(k) for k in range(len(header))]
    if numbers and list(header) != counted:
        raise DataError(
            f"{path.name}: the first line holds data where the columns' names should be; "
            "add a line with one name per column"
        )
    check_distinct(path, header)
