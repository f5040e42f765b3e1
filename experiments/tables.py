"""Read a table with clients in a column as `dorfl train` does, and hold out test rows.

>>> import pandas as pd
>>> frame = pd.DataFrame({"x": [1.5, 2, 7, 3], "site": list("abab"), "ill": list("nyny")})
>>> table = numbers(pd.concat([frame] * 20), "ill", "site")
>>> {client: X.shape for client, (X, _) in table.clients.items()}, table.classes
({'a': (32, 1), 'b': (32, 1)}, 2)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from dorfl.data import tables
from dorfl.objective.base import Loss
from dorfl.protocol import resolution
from dorfl.protocol.settings import Data, Study, Used
from dorfl.support.types import Array
from dorfl.tabular.rows import prepare
from experiments.rows import hold_out

if TYPE_CHECKING:
    import pandas as pd

HELD_OUT = 0.2


@dataclass(frozen=True, eq=False)
class Table:
    """Rows to train on and rows held out, by client, as numbers."""

    clients: dict[str, tuple[Array, Array]]
    test: dict[str, tuple[Array, Array]]
    classes: int  # 0: a regression
    loss: Loss
    frozen: tuple[int, ...]  # columns of categories


def numbers(
    frame: pd.DataFrame,
    label: str,
    client: str,
    *,
    category: tuple[str, ...] = (),
    task: str = "auto",
    seed: int = 0,
) -> Table:
    """Return rows by client, scaled, imputed and one-hot, classes numbered; one in five held out.

    `category` names numeric columns that are categories. Clients with too few rows are left out.
    """
    data = Data(label, client=client, task=task, small="drop")
    study = Study(data, columns=Used(category=category))
    arrow = pa.Table.from_pandas(frame, preserve_index=False)
    split = tables.by_client(arrow, client, least=study.privacy.minimum_rows, small=data.small)
    prepared = prepare(study, split)
    state, everyone = prepared.state, prepared.rows.clients
    kept, held = hold_out(everyone, HELD_OUT, seed)
    return Table(
        {c: (X[k], y[k]) for (c, (X, y)), k in zip(everyone.items(), kept, strict=True)},
        {c: (X[h], y[h]) for (c, (X, y)), h in zip(everyone.items(), held, strict=True)},
        len(state.agreed.classes),
        resolution.loss_of(state.study, len(state.agreed.classes)),
        state.agreed.transform.frozen,
    )
