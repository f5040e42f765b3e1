"""What a site gives away at most, and how much one row may show: `[limits]` of `site.toml`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from dorfl.study.settings import Study


class Limits(NamedTuple):
    """What a site gives away at most; `site.toml` may say otherwise, name by name.

    `told` is a share: the numbers in all reports over those in the rows, as the model sees them. Of
    columns that are numbers, below one the rows have more unknowns than there are equations.
    """

    delta: float = 1e-5  # the largest δ that a study may ask for
    told: float = 0.5
    versions: int = 1  # of a column's statistics
    middles: int = 3  # from which a column's distances are told
    judged: int = 5  # trials on rows held back, by other models or another edge of the bulk
    steepest: float = 50.0  # median output of a model
    alone: float = 0.9  # the most that one row may be of a number
    behind: int = (
        5  # rows that a difference rests on, of reports or of a trial; 0: any class is told
    )
    networks: bool = False  # whether networks are trained, whose updates are not counted
    changes: int = 6  # in a run, of the sites that secure sums of rounds are over

    @classmethod
    def read(cls, told: Any, where: Path) -> Limits:
        """From a table of `site.toml`; ValueError names what is wrong."""
        known = cls._field_defaults
        for name, value in told.items() if isinstance(told, dict) else [("", told)]:
            default = type(known.get(name))
            kinds = (int, float) if default is float else (default,)
            if name not in known or type(value) not in kinds or not value >= 0:
                raise ValueError(
                    f"{where}: [limits] takes numbers, and networks true or false, by these names: "
                    f"{list(known)}"
                )
        return cls(**told)

    def support(self, study: Study) -> int:
        """How many rows have to have a class for it to be told of; with noise any number."""
        any_number = study.privacy.epsilon is not None or not self.behind
        return 1 if any_number else study.privacy.least

    @property
    def written(self) -> str:
        """As lines of `site.toml`, each left to be made one."""
        return "".join(
            f"# {name} = {json.dumps(value)}\n" for name, value in self._asdict().items()
        )


DEFAULT = Limits()
