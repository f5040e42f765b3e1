"""What a step of a study is: one object with its request, its local computation and its result.

A study is a sequence of steps (:mod:`dorfl.protocol.steps`). In every step the coordinator sends
one request to each site, and each site replies once. The members of :class:`Step` are in the order
in which they are called.

To add a step, write a subclass with `name`, `answer`, `sends`, `local` and `combine`, and import
and list it in `protocol/steps/__init__.py`. `is_due` says which studies need it, and `validate`
protects the coordinator from impossible answers. For summed studies set `is_summed` and write
`size`, `encode` and `decode`. A result that no other step needs is kept in `State.results`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from dorfl.federated.privacy import Gaussian
from dorfl.linear.group import Group
from dorfl.protocol.messages import Agreement, Answer, Outcome, Refused, Request
from dorfl.protocol.state import State
from dorfl.support.types import Array

NEXT = ""  # as `State.step`: the next step that the study needs

T = TypeVar("T")
Answers = Mapping[str, T]  # by site
Reasons = dict[str, str]  # by site, why there is no answer
Sites = tuple[str, ...]


class Rules(Protocol):
    """Entries of a site's policy that local computations go by."""

    @property
    def least(self) -> int:
        """Fewest rows behind a count, a level, a class or a block."""

    @property
    def curvature(self) -> str:
        """Finest curvature that the site reports."""

    @property
    def release_figures(self) -> bool:
        """Return whether the site releases its own loss and score in a summed study."""


class LocalSite(Protocol):
    """What a local computation may use of a site; :class:`dorfl.site.site.Site` has it all."""

    name: str
    secret: bytes
    cache: dict[str, Any]  # what a step keeps from one request to the next

    @property
    def policy(self) -> Rules:
        """The site's policy."""

    def column_names(self, agreement: Agreement) -> list[str]:
        """Return the columns that take part, without the label."""

    def rows(self, agreement: Agreement) -> pa.Table:
        """Return the rows that take part."""

    def features(self, agreement: Agreement) -> tuple[Array, Array]:
        """Return (n, d) standardised rows and (n,) labels as they are trained on."""

    def center(self, agreement: Agreement, X: Array, y: Array) -> Array:
        """Return ξ̄ of the site, or of its classes."""

    def group(self, agreement: Agreement) -> Group:
        """Return the rows with the model's problem."""

    def noise(self, agreement: Agreement) -> Gaussian | None:
        """Return the noise of a private study, or None."""

    def keep(self, agreement: Agreement, group: Group, outcome: Outcome) -> None:
        """Write the finished model and the site's results at the site."""

    def local(self, step: Step, request: Request) -> Answer:
        """Return the site's own answer to a step, within its rules."""


class Step:
    """One step of a study. Subclasses override what differs from these defaults.

    Attributes
    ----------
    name
        Name of the step, as requests and logs have it.
    answer
        Type of a site's answer: a NamedTuple of numbers, texts, arrays and such records. Its class
        name is in messages, and no two steps may have classes of the same name.
    sends
        What a site sends, for its log.
    needs_columns
        Whether the step comes after the columns are agreed on.
    may_refuse
        Whether a site that refuses counts as absent; otherwise its refusal ends the study.
    is_summed
        Whether answers are added up by a secure sum in a summed study: then `size`, `encode` and
        `decode` are needed.
    is_open
        Whether a summed study sends the answers without masks. A site refuses a step that is
        neither summed nor open.
    sum_only
        Whether the step exists in summed studies only.
    in_private
        Whether private studies have the step: no row is in its answer, or noise hides every row.
    bits
        Fractional bits of numbers in a sum.
    sums_without
        Whether a sum may go on without sites that do not reply.
    counts_all_rows
        Whether a site with very many rows has its full weight in a sum.
    """

    name: str
    answer: type | tuple[type, ...]
    sends: str = "statistics of the rows"
    needs_columns = True
    may_refuse = False
    is_summed = False
    is_open = False
    sum_only = False
    in_private = False
    bits = 32
    sums_without = False
    counts_all_rows = False

    def is_due(self, state: State) -> bool:
        """Return whether the study needs this step after the steps before it."""
        return True

    def begin(self, state: State) -> State:
        """Return the state in which the step is asked, or with another step to go on with."""
        return state

    def ask(self, state: State, site: str) -> dict[str, Any]:
        """Return the fields of the request beside what is agreed on so far."""
        return {}

    def local(self, site: LocalSite, request: Request) -> Any:
        """Compute the answer of a site from its rows. Raise :class:`Refused` to refuse.

        The step itself applies the site's rules, such as `site.policy.least` for counts. The
        coordinator gets the reason of a :class:`Refused`. It gets a fixed text for any other
        exception, which is passed to the site's `note` for its log.
        """
        raise NotImplementedError

    def validate(self, state: State, site: str, answer: Any) -> str | None:
        """Return why an answer cannot be true, or None. Its types are known to be right."""
        return None

    def waiting(self, state: State, missing: Sites, answered: set[str]) -> Sites:
        """Return the sites among `missing` without which the step cannot end when time is up."""
        return missing

    def limit_rows(self, answer: Any, rows: int, most: float) -> Any:
        """Return the answer of a site with `rows` rows as if it had `most`, which are fewer."""
        return answer

    def combine(self, state: State, answers: Answers[Any], refused: Reasons) -> State:
        """Return the next state: at :data:`NEXT`, at a named step, or at this one to ask again.

        In a summed study `answers` has one entry, the decoded sum.
        """
        raise NotImplementedError

    # ── sums ────────────────────────────────────────────────────────────────────────────────────

    def sum_settings(self, state: State) -> dict[str, Any]:
        """Return the fields of :class:`~dorfl.protocol.messages.Summing` that `encode` needs."""
        return {}

    def size(self, state: State) -> int:
        """Return how many numbers a site adds to the sum."""
        raise NotImplementedError

    def encode(self, site: LocalSite, request: Request, answer: Any) -> Array:
        """Return the numbers of an answer, whose sum over sites :meth:`decode` reads."""
        raise NotImplementedError

    def out_of_range(self, site: LocalSite, request: Request) -> Array:
        """Return the numbers to add if some are too large for a sum, or raise Refused."""
        raise Refused(
            "a number is too large for a secure sum: give the column in a larger unit"
        ) from None

    def decode(self, state: State, total: Array) -> tuple[State, Any]:
        """Return the state, and the sum as the answer of one site with all rows.

        None as the answer means that the step in the state is to be summed next.
        """
        raise NotImplementedError

    def validate_sum(self, state: State, answer: Any) -> str | None:
        """Return why a decoded sum cannot be true, or None."""
        return None

    def give_up(self, state: State, answers: Answers[Any], refused: Reasons) -> State | None:
        """Return the state if a sum is not taken because of missing sites, or None to take it."""
        return None


def unless(reason: str | None) -> None:
    """Raise Refused if there is a reason."""
    if reason is not None:
        raise Refused(reason)


def impossible_sum(reason: str) -> ValueError:
    """Return the error for a sum that cannot be one of what sites were asked for."""
    return ValueError(
        f"secure sum: {reason}. Some site adds other numbers than requested, and a sum does not "
        "show which: leave sites out in turn, or run the study in the open"
    )
