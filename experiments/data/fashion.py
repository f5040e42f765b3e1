"""Fashion-MNIST, one class per client: the problem agnostic federated learning was introduced with.

70,000 pictures of 28 × 28 grey pixels in ten classes (Xiao, Rasul and Vollgraf, 2017). They are not
ours to ship: Debian and Ubuntu have them as the package `dataset-fashion-mnist`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from dorfl.data.datasets.base import Dataset
from dorfl.support.types import Array
from experiments.data.idx import read_idx
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
    pictures, labels = (read_idx(_file(folder, part, kind)) for kind in KINDS)
    return by_label(pictures, labels, {k: CLASSES[k] for k in classes}, f"{folder}, {part!r}")


def by_label(
    pictures: Array, labels: Array, names: Mapping[int, str], where: str
) -> dict[str, tuple[Array, Array]]:
    """Return pictures as rows of pixels from 0 to 1, one client for every named label."""
    if pictures.ndim != 3 or labels.shape != pictures.shape[:1]:
        raise ValueError(f"the files of {where} do not belong together")
    rows, kinds = pictures.reshape(len(pictures), -1), labels.astype(np.int64)
    return {
        name: (rows[kinds == k].astype(np.float32) / 255, kinds[kinds == k])
        for k, name in names.items()
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
