"""Score rows with the network in this folder: Python, NumPy and nothing else.

`python -c "from score import predict; print(predict([[5.1, 3.5]]))"` in this folder scores one row.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

_TYPES = {"F32": "<f4", "F64": "<f8"}


def outputs(rows: Any, folder: str | Path | None = None) -> Any:
    """What the network puts out for rows (n, columns): (n, outputs)."""
    about, arrays = _read(folder)
    if not about["layers"]:
        raise ValueError("this network is not made of Linear and ReLU alone; use PyTorch")
    x = np.asarray(rows, dtype=np.float32)
    for layer in about["layers"]:
        if layer == "relu":
            x = np.maximum(x, 0.0)
        else:
            x = x @ arrays[f"{layer}.weight"].T + arrays[f"{layer}.bias"]
    return x


def predict(rows: Any, folder: str | Path | None = None) -> Any:
    """Labels, or values for a regression."""
    about, _ = _read(folder)
    out = outputs(rows, folder)
    if not about["classes"]:
        return out[:, 0]
    best = out.argmax(1) if out.shape[1] > 1 else (out[:, 0] > 0).astype(int)
    return np.asarray(about["classes"])[best]


def _read(folder: str | Path | None) -> tuple[dict[str, Any], dict[str, Any]]:
    place = Path(__file__).parent if folder is None else Path(folder)
    about = json.loads((place / "model.json").read_text(encoding="utf-8"))
    data = (place / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    arrays = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = (8 + size + end for end in entry["data_offsets"])
            numbers = np.frombuffer(data[first:last], _TYPES[entry["dtype"]])
            arrays[name] = numbers.reshape(entry["shape"])
    return about, arrays
