"""Fashion-MNIST, one class per client: the problem agnostic federated learning was introduced with.

70,000 pictures of 28 × 28 grey pixels in ten classes (Xiao, Rasul and Vollgraf, 2017). They are not
ours to ship: Debian and Ubuntu have them as the package `dataset-fashion-mnist`.
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from dorfl.data.datasets.base import Dataset
from dorfl.support.types import Array
from experiments.data.packages import UnavailableError

CLASSES = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot",
)  # fmt: skip
PARTS, KINDS = ("train", "t10k"), ("images-idx3", "labels-idx1")
FOLDER = Path("/usr/share/datasets/fashion-mnist")  # where the Debian package puts them


def fashion_mnist(
    classes: Sequence[int] = (0, 2, 6), *, folder: str | Path | None = None
) -> Dataset:
    """Which piece of clothing is it? Every client has the pictures of one class, and no other.

    `classes` are numbers from 0 to 9: the three of Mohri, Sivek and Suresh (T-shirt, pullover,
    shirt) by default, all ten with `range(10)`. Labels are these numbers, columns are
    pixels from 0 to 1; test sets are by client, too. The idx files, gzipped or not, are looked for
    in `folder`, in $DORFL_FASHION_MNIST, or where Debian's package puts them.
    """
    if len(set(classes)) != len(classes) or not set(classes) <= set(range(len(CLASSES))):
        raise ValueError(f"fashion_mnist(classes={classes!r}): choose different ones from 0 to 9")
    if len(classes) < 2:
        raise ValueError("fashion_mnist: a classifier needs at least two classes")
    place = find_folder(folder)
    clients, test = (_by_class(place, part, classes) for part in PARTS)
    outliers = {name: np.zeros(len(y), dtype=bool) for name, (_, y) in clients.items()}
    columns = next(iter(clients.values()))[0].shape[1]
    return Dataset(clients, test, outliers, tuple(f"pixel {k}" for k in range(columns)))


def find_folder(folder: str | Path | None = None) -> Path:
    """Return the folder with the four files, or raise an error that says what to install."""
    place = Path(folder or os.environ.get("DORFL_FASHION_MNIST") or FOLDER)
    for part, kind in product(PARTS, KINDS):
        _file(place, part, kind)
    return place


def _by_class(folder: Path, part: str, classes: Sequence[int]) -> dict[str, tuple[Array, Array]]:
    """Return pictures as rows of pixels from 0 to 1, one client for every class."""
    pictures, labels = (read_idx(_file(folder, part, kind)) for kind in KINDS)
    if pictures.ndim != 3 or labels.shape != pictures.shape[:1]:
        raise ValueError(f"the files of {folder}, {part!r} do not belong together")
    rows, kinds = pictures.reshape(len(pictures), -1), labels.astype(np.int64)
    return {
        CLASSES[k]: (rows[kinds == k].astype(np.float32) / 255, kinds[kinds == k]) for k in classes
    }


def _file(folder: Path, part: str, kind: str) -> Path:
    name = f"{part}-{kind}-ubyte"
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise UnavailableError(
        f"Fashion-MNIST: there is no {name}.gz in {folder}. Install the Debian package "
        "dataset-fashion-mnist (apt install dataset-fashion-mnist), or set DORFL_FASHION_MNIST to "
        "a folder with its four files."
    )


def read_idx(path: Path) -> Array:
    """Return the array of unsigned bytes in an idx file, gzipped or not.

    The file has two zero bytes, the type 8, the number of dimensions, their sizes and the values.
    """
    content, name = path.read_bytes(), path.name
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise ValueError(f"{name}: is cut short or damaged") from None
    dims = content[3] if len(content) >= 4 else 0
    start = 4 + 4 * dims
    if content[:3] != b"\0\0\x08" or len(content) < start:
        raise ValueError(f"{name}: is no idx file of unsigned bytes")
    shape = np.frombuffer(content, ">u4", dims, offset=4).tolist()
    if len(content) != start + math.prod(shape):
        raise ValueError(f"{name}: holds another number of values than it says")
    array: Array = np.frombuffer(content, np.uint8, offset=start).reshape(shape)
    return array
