r"""Tables in files: read column by column, and split by client.

>>> import tempfile, pathlib
>>> path = pathlib.Path(tempfile.mkdtemp()) / "wards.csv"
>>> _ = path.write_text("ward;pulse\nnorth;61,5\nsouth;70,0\nnorth;66,5\n")
>>> table = read(path)
>>> table.column_names, table.num_rows
(['ward', 'pulse'], 3)
>>> split = by_client(table, "ward", least=1)
>>> split.names, split.column("pulse").to_pylist()
(('north', 'south'), [61.5, 66.5, 70.0])
"""

from dorfl.data.tables.errors import DataError, find_column
from dorfl.data.tables.reading import FileTable, batches, column_names, read
from dorfl.data.tables.split import Split, by_client

__all__ = [
    "DataError",
    "FileTable",
    "Split",
    "batches",
    "by_client",
    "column_names",
    "find_column",
    "read",
]
