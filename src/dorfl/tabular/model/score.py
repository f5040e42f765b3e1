"""Score a CSV file with the model.json beside this script. Python 3.10+ and nothing else.

A network's numbers are in the model.safetensors beside it, and NumPy is needed as well.

python score.py new.csv > scored.csv
python score.py new.csv --model other/model.json
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import os
import re
import sys
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

MARKS = {"", "?", "NA", "N/A", "#N/A", "n/a", "na", "NaN", "nan", "NULL", "null", "None", "none",
         "-", "."}  # fmt: skip
_DAY = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})(.*)")
_ZONE = re.compile(r"(:\d\d(\.\d+)?)(Z|[-+]\d{2}:?\d{2})$")
_GROUPED = re.compile(r"\d{1,3}([,'’]\d{3})+(\.\d*)?")
_SEPARATOR = re.compile(r'"?sep=([,;\t|])"?')
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_LARGEST = 1e100


def number(cell: str, comma: bool) -> float | None:
    """Read a cell as a number ($1,234.50 or 12 % too); None if it is missing."""
    cell = cell.strip()
    if cell in MARKS:
        return None
    if comma:
        cell = cell.translate(str.maketrans(",.", ".,"))
    bare = re.sub(r"[$€£¥%)\s]", "", cell).replace("(", "-").replace("−", "-")
    if _GROUPED.fullmatch(bare.lstrip("+-")):
        bare = re.sub("[,'’]", "", bare)
    value = float(bare)
    return value if abs(value) <= _LARGEST else None


def days(cell: str) -> float | None:
    """Read a date as days since 1970; None if it is missing."""
    cell = cell.strip()
    if cell in MARKS:
        return None
    found = _DAY.fullmatch(cell)
    if found:
        day, month, year, rest = found.groups()
        cell = f"{year}-{month:0>2}-{day:0>2}{rest}"
    since = datetime.fromisoformat(_ZONE.sub(r"\1", cell)) - datetime(1970, 1, 1)
    return since / timedelta(days=1)


def level(cell: str) -> str | None:
    """Read a cell as the level of a category; None if it is missing."""
    cell = cell.strip()
    if not cell:
        return None
    if cell.lower() in ("true", "false"):
        return cell.lower()
    if NUMBER.fullmatch(cell):
        value = float(cell)
        if not math.isfinite(value):
            return None
        return str(int(value)) if value == int(value) else repr(value)
    return cell


def features(model: Any, row: dict[str, Any], comma: bool) -> list[float]:
    """Return the features of a row, a mapping of column to cell."""
    out: list[float] = []
    missing = model["transform"]["missing"]
    numbers = [float(mark) for mark in missing if NUMBER.fullmatch(mark)]
    for column in model["transform"]["parts"]:
        cell = row[column["name"]] or ""
        cell = "" if cell.strip() in missing else cell
        if column["type"] == "Numeric":
            value = days(cell) if column["date"] else number(cell, comma)
            value = None if value in numbers else value
            filled = column["fill"] if value is None else value
            out.append((filled - column["center"]) / column["spread"])
            if column["flagged"]:
                out.append(float(value is None))
        else:
            found = level(cell)
            found = "(missing)" if found is None else found
            out += [float(found == name) for name in column["levels"]]
    return out


def outputs(model: Any, x: list[float]) -> list[float]:
    """Return the outputs of a model: one number, or one for every class."""
    if "network" in model:
        return through(model["layers"], x)
    inputs = [*x, 1.0] if model["intercept"] else x
    return [math.fsum(w * v for w, v in zip(row, inputs, strict=True)) for row in model["theta"]]


def through(layers: list[Any], x: Any) -> list[float]:
    """Return the outputs of a network's layers with ReLU between them."""
    for k, (weight, bias) in enumerate(layers):
        x = weight @ (x.clip(min=0.0) if k else x) + bias
    return [float(t) for t in x]


def layers(path: str, expected: str) -> list[Any]:
    """Read (weight, bias) of every layer from a file in the safetensors format."""
    try:
        import numpy as np  # noqa: PLC0415 - a linear model does without
    except ImportError:
        sys.exit("score.py: this model is a network, for which NumPy is needed: pip install numpy")
    with open(path, "rb") as file:
        data = file.read()
    if hashlib.sha256(data).hexdigest() != expected:
        sys.exit(f"score.py: {path} is not the file that the model was saved with")
    size = int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            first, last = (8 + size + end for end in entry["data_offsets"])
            numbers = np.frombuffer(data[first:last], "<f4").astype(np.float64)
            found[name] = numbers.reshape(entry["shape"])
    order = range(0, len(found), 2)
    return [(found[f"{k}.weight"], found[f"{k}.bias"]) for k in order]


def probabilities(model: Any, x: list[float]) -> list[float]:
    """Return the probability of every class."""
    out = outputs(model, x)
    if len(out) == 1:
        out = [0.0, out[0]]
    top = max(out)
    weights = [math.exp(t - top) for t in out]
    return [w / sum(weights) for w in weights]


def value(model: Any, x: list[float]) -> float:
    """Return the prediction of a regression in the unit of the label."""
    target = model["target"]
    return float(target["center"] + target["spread"] * outputs(model, x)[0])


def dialect(lines: list[str], named: str = "") -> tuple[str, bool]:
    """Return the delimiter, unless the file names it, and whether a comma is the decimal sign."""

    def cells(mark: str) -> float:
        rows = [row for row in csv.reader(lines, delimiter=mark) if row]
        return len(rows[0]) * sum(len(row) == len(rows[0]) for row in rows) / len(rows)

    best = named or max(",;\t|", key=cells)
    found = [cell.strip() for row in csv.reader(lines[1:], delimiter=best) for cell in row]
    commas = sum(bool(re.fullmatch(r"[-+]?\d+,\d+", cell)) for cell in found)
    points = sum(bool(re.fullmatch(r"[-+]?\d*\.\d+", cell)) for cell in found)
    return best, best != "," and commas > points


def main() -> None:
    """Read rows and write predictions."""
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description="Score a CSV file with a dorfl model.")
    parser.add_argument("table", help="the CSV file")
    parser.add_argument("--model", default=os.path.join(here, "model.json"))
    given = parser.parse_args()
    with open(given.model, encoding="utf-8") as file:
        model = json.load(file)
    if model.get("format") != "dorfl.model" or model.get("version") != 2:
        sys.exit("score.py: this model is of another version than the script beside it")
    if "network" in model:
        beside = os.path.join(os.path.dirname(given.model), model["network"]["numbers"])
        model["layers"] = layers(beside, model["network"]["sha256"])
    with open(given.table, encoding="utf-8-sig", newline="") as file:
        lines = list(islice(file, 200))
        named = _SEPARATOR.fullmatch(lines[0].rstrip()) if lines else None  # as Excel writes
        mark, comma = dialect(lines[1:] if named else lines, named[1] if named else "")
        file.seek(0)
        if named:
            file.readline()
        rows = csv.DictReader(file, delimiter=mark)
        rows.fieldnames = [name.strip() for name in rows.fieldnames or []]
        for column in model["transform"]["parts"]:
            if column["name"] not in rows.fieldnames:
                sys.exit(f"score.py: the table has no column {column['name']!r}")
        writer = csv.writer(sys.stdout, lineterminator="\n")
        classes = model["classes"]
        writer.writerow(["prediction", *("probability=" + c for c in classes)])
        for row in rows:
            x = features(model, row, comma)
            if classes:
                p = probabilities(model, x)
                writer.writerow([classes[p.index(max(p))], *map(repr, p)])
            else:
                writer.writerow([repr(value(model, x))])


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        sys.exit(f"score.py: {error.filename}: {error.strerror}")
    except UnicodeDecodeError:
        sys.exit("score.py: the table is not a CSV file in UTF-8")
    except (ValueError, csv.Error, ZeroDivisionError, IndexError) as error:
        sys.exit(f"score.py: the table cannot be scored: {error}")
