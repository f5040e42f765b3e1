"""A site's policy: which columns, which modes, and the disclosure rules with their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, NamedTuple

from dorfl.linear.curvature import RESOLUTIONS
from dorfl.protocol import toml
from dorfl.protocol.settings import POSITIVE, Names, OneOf, Study, Within, check_values, settings_of

_ONE = Within(least=1)


class Policy(NamedTuple):
    """What a person at a site allows; `site.toml` has one entry for each.

    The disclosure rules have the numbers of most statistical offices (3 to 10 units behind a
    count); DataSHIELD has 3 and 0.33 by default [1]_.

    References
    ----------
    .. [1] DataSHIELD, "Disclosure checks", nfilter.tab and nfilter.glm. A. Hundepool et al.,
       "Statistical Disclosure Control", Wiley 2012.
    """

    released: Annotated[
        Names, 'Columns that studies may use, such as ["age", "pressure"], the label too.'
    ] = ()
    approve: Annotated[
        Names,
        "Studies that are approved in advance, by patterns of their names. Others wait for a "
        "person here (dorfl site approve), and so do all summed studies, which name keys.",
    ] = ()
    least: Annotated[
        int,
        "Threshold rule: no count, level, class or block of fewer rows leaves this site.",
        _ONE,
    ] = 5
    minimum_rows: Annotated[int, "Minimum rows: with fewer rows the site takes no part.", _ONE] = 10
    parameters_per_row: Annotated[
        float,
        "Saturation rule (DataSHIELD's nfilter.glm): a model has at most so many columns per row, "
        "of all sites' rows in a summed study, of this site's otherwise.",
        POSITIVE,
    ] = 0.33
    max_runs: Annotated[
        int, "Repeated use: so many runs of all studies together may use this table.", Within()
    ] = 20
    max_readings: Annotated[
        int,
        "Differencing rule: all studies read cells and labels (least, missing, classes) in so many "
        "ways.",
        _ONE,
    ] = 1
    allow_open_reports: Annotated[
        bool,
        "Open reports show this site's own statistics to the coordinator, who could work rows out "
        "of them; allow them for a consortium with a contract.",
    ] = False
    networks: Annotated[bool, "Neural networks, whose updates have more numbers than the rows."] = (
        False
    )
    release_figures: Annotated[
        bool, "This site's own accuracy and loss, rounded, at the end of a summed study."
    ] = True
    epsilon: Annotated[
        float | None,
        "Take part only with differential privacy, all studies together within this ε.",
        POSITIVE,
    ] = None
    delta: Annotated[float, "The δ that goes with ε.", POSITIVE] = 1e-5
    curvature: Annotated[str, "The finest curvature that is reported", OneOf(RESOLUTIONS)] = "full"

    @classmethod
    def read(cls, written: Mapping[str, Any], where: Path) -> Policy:
        """Return the policy in a `site.toml`; ValueError names the entry that is wrong."""
        given = {name: value for name, value in written.items() if name != "name"}
        policy: Policy = toml.read_record(cls, given, f"{where}:")
        check_values(policy, f"{where}: ")
        return policy

    def support(self, study: Study) -> int:
        """Return how many rows a class needs; under differential privacy a row needs no others."""
        return 1 if study.privacy.mode == "private" else self.least

    @property
    def written(self) -> str:
        """The policy as the lines of a `site.toml`, each with its reason."""
        lines = []
        for name, setting in settings_of(Policy).items():
            about = fill(setting.text, 88, initial_indent="# ", subsequent_indent="# ")
            lines.append(f"{about}\n{toml.entry(name, getattr(self, name))}\n")
        return "".join(lines)
