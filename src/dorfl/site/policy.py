"""A site's policy: which columns, which modes, and the disclosure rules with their numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dorfl.linear.curvature import RESOLUTIONS
from dorfl.protocol.settings import Study

RULES = {
    "least": "Threshold rule: no count, level, class or block of fewer rows leaves this site.",
    "minimum_rows": "Minimum rows: with fewer rows the site takes no part.",
    "parameters_per_row": (
        "Saturation rule (DataSHIELD's nfilter.glm): a model has at most so many columns per row; "
        "of all sites' rows in a summed study, of this site's otherwise."
    ),
    "max_runs": "Repeated use: so many runs of all studies together may use this table.",
    "max_readings": (
        "Differencing rule: all studies read cells and labels (least, missing, classes) in so many "
        "ways."
    ),
}


class Policy(NamedTuple):
    """What a person at a site allows; `site.toml` has one entry for each.

    Attributes
    ----------
    released
        Columns that studies may use.
    approve
        Patterns for the names of studies that are approved in advance.
    least, minimum_rows, parameters_per_row, max_runs, max_readings
        The disclosure rules, see :data:`RULES`. The threshold is that of most statistical offices
        (3 to 10 units); DataSHIELD has 3 and 0.33 by default [1]_.
    allow_open_reports
        Whether the coordinator may see this site's own reports.
    networks
        Whether open studies may train neural networks, which have more parameters than rows.
    release_figures
        Whether the site releases its own accuracy and loss, rounded, at the end of a summed study.
    epsilon, delta
        Limits of differential privacy over all studies; with `epsilon` only private ones are taken.
    curvature
        The finest curvature that is reported.

    References
    ----------
    .. [1] DataSHIELD, "Disclosure checks", nfilter.tab and nfilter.glm. A. Hundepool et al.,
       "Statistical Disclosure Control", Wiley 2012.
    """

    released: tuple[str, ...] = ()
    approve: tuple[str, ...] = ()
    least: int = 5
    minimum_rows: int = 10
    parameters_per_row: float = 0.33
    max_runs: int = 20
    max_readings: int = 1
    allow_open_reports: bool = False
    networks: bool = False
    release_figures: bool = True
    epsilon: float | None = None
    delta: float = 1e-5
    curvature: str = "full"

    @classmethod
    def read(cls, written: Mapping[str, Any], where: Path) -> Policy:
        """Return the policy in a `site.toml`; ValueError names the entry that is wrong."""
        given = dict[str, Any]()
        for name, value in written.items():
            if name == "name":
                continue
            if name not in cls._fields:
                listed = ", ".join(cls._fields)
                raise ValueError(f"{where}: {name!r} is no entry; there are name, {listed}")
            given[name] = _checked(name, value, where)
        return cls(**given)

    def support(self, study: Study) -> int:
        """Return how many rows a class needs; under differential privacy a row needs no others."""
        return 1 if study.privacy.mode == "private" else self.least

    @property
    def written(self) -> str:
        """The policy as the lines of a `site.toml`, each with its reason."""
        rules = "".join(
            f"# {reason}\n{name} = {json.dumps(getattr(self, name))}\n"
            for name, reason in RULES.items()
        )
        return (
            '# Name the columns that studies may use, such as ["age", "pressure"], the label too:\n'
            f"released = {json.dumps(list(self.released))}\n"
            "# A person here approves each study, once: dorfl site approve. In advance, by name\n"
            '# ("heart-*", or "*" for any; studies that sum name keys and always take a person):\n'
            f"approve = {json.dumps(list(self.approve))}\n"
            "\n# Disclosure rules, checked before a study begins:\n"
            f"{rules}"
            "\n# Open reports show this site's own statistics to the coordinator, who could work\n"
            "# rows out of them; allow them for a consortium with a contract:\n"
            f"allow_open_reports = {json.dumps(self.allow_open_reports)}\n"
            "# … and networks, whose updates have more numbers than the rows:\n"
            f"networks = {json.dumps(self.networks)}\n"
            "# This site's own accuracy and loss, rounded, at the end of a summed study:\n"
            f"release_figures = {json.dumps(self.release_figures)}\n"
            "# Take part only with differential privacy, all studies together within this ε:\n"
            "# epsilon = 4.0\n"
            f"delta = {json.dumps(self.delta)}\n"
            "# The finest curvature that is reported: full, blocks, diagonal or none:\n"
            f"curvature = {json.dumps(self.curvature)}\n"
        )


def _checked(name: str, value: Any, where: Path) -> Any:
    default, wrong = Policy._field_defaults[name], None
    if isinstance(default, tuple):
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            return tuple(value)
        wrong = "a list of names"
    elif isinstance(default, bool):
        wrong = None if isinstance(value, bool) else "true or false"
    elif name == "curvature":
        wrong = None if value in RESOLUTIONS else "one of " + ", ".join(RESOLUTIONS)
    elif isinstance(default, int):
        wrong = None if type(value) is int and value >= 1 else "a whole number ≥ 1"
    else:
        number = type(value) in (int, float) and value > 0
        wrong = None if number else "a positive number"
    if wrong is not None:
        raise ValueError(f"{where}: {name} must be {wrong}")
    return value
