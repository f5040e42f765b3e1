"""Step `certify`: sites report bounds of their loss under outliers and drift."""

from __future__ import annotations

from typing import Any

import numpy as np

from dorfl.certificates import bound
from dorfl.certificates.bound import NO_BOUND, CertificateReport, CertificateRequest
from dorfl.linear.group import Group
from dorfl.protocol import labels, resolution
from dorfl.protocol.messages import MAX_ROUNDS, NOT_ASKED, Agreement, Refused, Request
from dorfl.protocol.state import State
from dorfl.protocol.step import NEXT, Answers, LocalSite, Reasons, Sites, Step
from dorfl.protocol.steps.finish import finished_group, unanswered
from dorfl.support.types import Array

_MAX_MEAN = 2.0**19  # largest mean in a sum; larger ones count as unbounded


class Certify(Step):
    """Keep the sites' parts of the certificate."""

    name = "certify"
    answer = CertificateReport
    sends = "bounds of the loss and the error under outliers and drift"
    may_refuse = True
    is_summed = True
    counts_all_rows = True  # as in an open study

    def is_due(self, state: State) -> bool:
        """Return whether the model is certified, and no site was missing at the end."""
        return resolution.certifies(state.study) and not state.withheld

    def ask(self, state: State, site: str) -> dict[str, Any]:
        """Send the model, and the grid of prices."""
        return {"outcome": state.outcome, "stride": resolution.grid_stride(state)}

    def local(self, site: LocalSite, request: Request) -> CertificateReport:
        """Return the site's part."""
        agreement, outcome, stride = request.agreement, request.outcome, request.stride
        if outcome is None or not resolution.certifies(agreement.study):
            raise Refused(NOT_ASKED)
        group = finished_group(site, agreement, outcome)
        if not 1 <= stride <= MAX_ROUNDS:
            raise Refused(NOT_ASKED)
        return bounds(group, outcome.theta, agreement, stride)[0]

    def validate(self, state: State, site: str, answer: CertificateReport) -> str | None:
        """Check that the part is on one of the two grids, and in range."""
        grids = resolution.certificate_grids(state.agreed, resolution.grid_stride(state))
        return check(answer, *grids)

    def waiting(self, state: State, missing: Sites, answered: set[str]) -> Sites:
        """Return no site: the model is trained."""
        return ()

    def combine(self, state: State, answers: Answers[CertificateReport], refused: Reasons) -> State:
        """Keep the parts, and which site withheld its part and why."""
        missing = unanswered(state, answers, refused)
        if state.study.privacy.summed:  # one answer for all sites, or none
            missing = {} if answers else refused
        return state._replace(step=NEXT, bounds=dict(answers), withheld=missing)

    def size(self, state: State) -> int:
        """Return the numbers of both grids."""
        return sum(int(np.prod(shape)) for shape in _shapes(state))

    def encode(self, site: LocalSite, request: Request, answer: CertificateReport) -> Array:
        """Return means weighted by the share of rows, and a large number for unbounded ones."""
        asked, rows = request.sum, site.rows(request.agreement).num_rows
        share = min(rows, asked.most) / max(asked.rows, 1)
        means = np.concatenate([part.ravel() for part in answer])
        return np.where(means < _MAX_MEAN, share * means, _MAX_MEAN)

    def decode(self, state: State, total: Array) -> tuple[State, CertificateReport]:
        """Return the means over all rows; what rounding took away is added."""
        means = np.where(total < _MAX_MEAN, total + 2.0**-32 * len(state.sites), NO_BOUND)
        shapes = _shapes(state)
        parts = np.split(means, np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
        loss, error = (part.reshape(s) for part, s in zip(parts, shapes, strict=True))
        return state, CertificateReport(loss, error)

    def give_up(self, state: State, answers: Answers[Any], refused: Reasons) -> State | None:
        """Leave the model without a certificate unless all sites take part."""
        if len(answers) == len(state.sites):
            return None
        return self.combine(state, {}, unanswered(state, answers, refused))


def bounds(group: Group, theta: Array, agreed: Agreement, stride: int) -> list[CertificateReport]:
    """Return the clients' parts of the certificate, rounded up to four digits.

    A bound stays a bound, and the last digits of many means do not show single rows. A client that
    trains with clipped labels (:func:`labels.for_training`) has no bound.
    """
    units, asked = resolution.certificate_grid(agreed, stride)

    def rounded(mean: Array, unit: float) -> Array:
        up = np.ceil(mean / unit * 1e4) * 1e-4 * unit
        return np.asarray(np.where(mean < NO_BOUND, up, mean))

    found = bound.report(group, theta, units, asked, agreed.study.privacy.least)
    if not group.problem.loss.classifies:
        far = np.maximum.reduceat(np.abs(group.target), group.bounds[:-1]) >= labels.FARTHEST
        found = [
            CertificateReport(*(np.full_like(part, NO_BOUND) for part in own)) if clipped else own
            for own, clipped in zip(found, far, strict=True)
        ]
    return [
        CertificateReport(rounded(loss, asked.loss), rounded(error, asked.error))
        for loss, error in found
    ]


def check(
    answer: CertificateReport, asked: CertificateRequest, less: CertificateRequest
) -> str | None:
    """Return why an answer fits neither of two grids, or None.

    The second has `less` points, for sites that report less.
    """
    if answer.loss.shape == (len(less.points), len(less.shares)):
        asked = less
    shape = (len(asked.points), len(asked.shares))
    if answer.loss.shape != shape or answer.error.shape != shape:
        return "its part of the certificate does not answer what was asked"
    if not all((part >= 0.0).all() and (part <= NO_BOUND).all() for part in answer):
        return "its part of the certificate is out of range"
    return None


def _shapes(state: State) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the shapes of the certificate's arrays."""
    _, asked = resolution.certificate_grid(state.agreed, resolution.grid_stride(state))
    shape = (len(asked.points), len(asked.shares))
    return shape, shape


def describe_withheld(state: State) -> tuple[str, ...]:
    """Return a sentence for every site that withheld its part of the certificate."""
    return tuple(
        f"the model has no certificate, because site {site!r} withheld its part: {reason}"
        for site, reason in state.withheld.items()
    )
