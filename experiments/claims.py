"""A claim, and whether it holds: by paired differences over seeds, beyond two standard errors.

>>> Claim.paired("A beats B", "ours", [1.0, 1.2, 0.9]).verdict
'holds'
>>> Claim.paired("A beats B", "ours", [1.0, -1.2, 0.9]).verdict
'tie'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from dorfl.report.content import Finding, Measured, Table, Values, measured

Verdict = Literal["fails", "tie", "holds"]
VERDICTS: tuple[Verdict, ...] = ("fails", "tie", "holds")
ERRORS = 2.0  # standard errors of a paired difference: some 95 % of a normal distribution
SMALL = 1.0  # points: with larger errors a tie does not show that a method does nothing
EFFECTS = (
    "A method helps or hurts beyond two standard errors. Within, it does nothing if two standard "
    "errors are at most a point, and otherwise it is undecided."
)
RULE = (
    "A claim holds if its difference, paired by seed, is above zero by more than two standard "
    "errors, fails if it is below by as much, and is a tie within. A claim about one run has no "
    "standard error and holds or fails as it stands."
)


class Claim(NamedTuple):
    """What is claimed, whose claim it is, what was found, and the verdict."""

    text: str
    whose: str
    found: str
    verdict: Verdict

    @classmethod
    def paired(
        cls, text: str, whose: str, differences: Values, found: str = "", unit: str = "points"
    ) -> Claim:
        """Judge a claim by differences, one a seed, that should be positive."""
        difference = measured(differences)
        return cls(text, whose, found or signed(difference, unit), verdict(difference))

    @classmethod
    def every(
        cls, text: str, whose: str, leads: Mapping[str, Values], unit: str = "points",
        digits: int = 2, margin: float = 0.0,
    ) -> Claim:  # fmt: skip
        """Judge a claim that several leads are above a margin by the weakest of them.

        A lead that fails is weaker than one that ties, and otherwise the smaller mean is.

        >>> Claim.every("A beats all", "ours", {"over B": [1.0, 1.1], "over C": [3.0, 3.1]}).text
        'A beats all (smallest lead: over B)'
        """

        def strength(name: str) -> tuple[int, float]:
            lead = measured(np.subtract(leads[name], margin))
            return VERDICTS.index(verdict(lead)), lead.mean

        least = min(leads, key=strength)
        found = signed(measured(leads[least]), unit, digits)
        text = f"{text} (smallest lead: {least})"
        return cls.paired(text, whose, np.subtract(leads[least], margin), found)

    @classmethod
    def single(cls, text: str, whose: str, found: str, holds: bool) -> Claim:
        """Judge a claim about one run."""
        return cls(text, whose, found, "holds" if holds else "fails")

    @property
    def finding(self) -> Finding:
        """The claim as a card of the page; a tie is said in words and carries no mark."""
        holds = {"holds": True, "fails": False, "tie": None}[self.verdict]
        text = f"{self.text} (a tie: within two standard errors)" if holds is None else self.text
        return Finding(text, self.found, holds, self.whose)


def verdict(difference: Measured) -> Verdict:
    """Return the verdict on a paired difference.

    >>> [verdict(Measured(mean, 0.5)) for mean in (1.1, 0.9, -0.9, -1.1)]
    ['holds', 'tie', 'tie', 'fails']
    """
    margin = ERRORS * difference.error if difference.error == difference.error else 0.0
    if abs(difference.mean) <= margin:
        return "tie"
    return "holds" if difference.mean > 0.0 else "fails"


def signed(difference: Measured, unit: str = "points", digits: int = 2) -> str:
    """Return a difference in words.

    >>> signed(Measured(-0.5, 0.25))
    '−0.50 ± 0.25 points'
    """
    words = f"{difference.mean:+.{digits}f}"
    if difference.error == difference.error:
        words += f" ± {difference.error:.{digits}f}"
    return f"{words} {unit}".replace("-", "−").strip()


def counted(claims: Sequence[Claim]) -> dict[Verdict, int]:
    """Return how many claims there are of each verdict, failures first."""
    return {name: sum(claim.verdict == name for claim in claims) for name in VERDICTS}


def tables(claims: Sequence[Claim]) -> tuple[Table, Table]:
    """Return the counts of the three verdicts, and every claim, failures first."""
    count = counted(claims)
    title = f"{count['fails']} claims fail, {count['tie']} tie, {count['holds']} hold"
    numbers = Table("verdicts", title, tuple(VERDICTS), [tuple(count.values())])
    ranked = sorted(claims, key=lambda claim: VERDICTS.index(claim.verdict))
    rows = [(claim.verdict, claim.text, claim.whose, claim.found) for claim in ranked]
    columns = ("verdict", "claim", "whose", "found")
    note = f"{RULE} A claim of the paper is one it makes; ours are what this project set out to do."
    return numbers, Table("claims", "Every claim", columns, rows, note=note)


class Situation(NamedTuple):
    """Where a method was compared with ERM: differences in accuracy, in points, one a seed."""

    words: str
    defaults: Values
    paper: Values


def summary(situations: Sequence[Situation]) -> Table:
    """Return when dorfl helps, does nothing and hurts, by the same rule as claims."""
    ranked = sorted(situations, key=lambda one: -measured(one.defaults).mean)
    rows = [(one.words, effect(one.defaults), effect(one.paper)) for one in ranked]
    columns = ("accuracy on clean rows against ERM", "dorfl's defaults", "DOR-FL, the paper's form")
    note = f"Paired differences in points ± standard error. {EFFECTS}"
    return Table("summary", "When it helps, does nothing, and hurts", columns, rows, note=note)


def effect(differences: Values) -> str:
    """Return whether a method helps, by differences in points, one a seed.

    >>> effect([1.0, 1.2, 0.9]), effect([0.1, -0.1, 0.1]), effect([9.0, -9.0, 3.0])
    ('helps: +1.0 ± 0.1', 'nothing: +0.0 ± 0.1', 'undecided: +1.0 ± 5.3')
    """
    difference = measured(differences)
    word = {"holds": "helps", "tie": "nothing", "fails": "hurts"}[verdict(difference)]
    if word == "nothing" and ERRORS * difference.error > SMALL:
        word = "undecided"
    return f"{word}: {signed(difference, '', 1)}"
