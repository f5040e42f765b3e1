"""Step `enrol`: sites report how many rows take part, and which columns they have."""

from __future__ import annotations

from collections.abc import Mapping

import dorfl
from dorfl.data import robust
from dorfl.protocol import site_keys
from dorfl.protocol.messages import Enrolled, Request
from dorfl.protocol.state import State
from dorfl.protocol.step import NEXT, Answers, LocalSite, Reasons, Step

_MAX_ROWS = 2**40
_KEY_BYTES = 32


class Enrol(Step):
    """Note the sites' numbers of rows, and the columns that all of them have."""

    name = "enrol"
    answer = Enrolled
    sends = "the number of rows, and the names of the columns"
    needs_columns = False
    is_open = True
    in_private = True

    def local(self, site: LocalSite, request: Request) -> Enrolled:
        """Return the number of rows, the columns, and the site's public key for sums."""
        agreement = request.agreement
        enrolled = Enrolled(
            site.rows(agreement).num_rows, tuple(site.column_names(agreement)), dorfl.__version__
        )
        if not agreement.study.privacy.summed:
            return enrolled
        return enrolled._replace(key=site_keys.public_run_key(site.secret, agreement))

    def validate(self, state: State, site: str, answer: Enrolled) -> str | None:
        """Check the number of rows."""
        return None if 1 <= answer.rows <= _MAX_ROWS else "enrols with an impossible number of rows"

    def combine(self, state: State, answers: Answers[Enrolled], refused: Reasons) -> State:
        """Keep rows, columns and keys; raise ValueError if sites have different columns."""
        for site in state.sites:
            if site not in answers:
                reason = refused.get(site, "it did not reply")
                raise ValueError(f"site {site!r} does not take part: {reason}")
        first = state.sites[0]
        columns = state.study.columns.use or answers[first].columns
        for site, answer in answers.items():
            odd = set(answer.columns) ^ set(columns)
            if odd:
                raise ValueError(
                    f"column {min(odd)!r}: site {site!r} and site {first!r} do not agree on it; "
                    "name the columns that all have: [columns] use = [...]"
                )
            if answer.rows < state.study.privacy.minimum_rows:
                raise ValueError(f"site {site!r}: enrols with fewer rows than the study's minimum")
        rows = tuple(answers[site].rows for site in state.sites)
        if state.study.privacy.summed:
            _check_sites(answers)
            keys = {site: answers[site].key for site in state.sites}
            state = state._replace(keys=keys)
        own_centers = robust.have_own_centers(rows)
        state = state.agree(columns=columns, own_centers=own_centers)
        return state._replace(step=NEXT, rows=rows)


def _check_sites(answers: Mapping[str, Enrolled]) -> None:
    """Raise if sites could not compute the same requests, or not sum."""
    for site, answer in answers.items():
        if answer.version != dorfl.__version__:
            raise ValueError(
                f"site {site!r} runs dorfl {answer.version[:20]} and another party "
                f"{dorfl.__version__}; in a summed study all need the same version, because each "
                "computes the coordinator's requests itself"
            )
        if len(answer.key) != _KEY_BYTES:
            raise ValueError(f"site {site!r}: enrols without a key to sum with")
