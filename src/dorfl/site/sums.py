"""A site's part in a summed study: what it adds to a sum, how it opens it, what it releases."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from dorfl.federated import pooled, secure_sum
from dorfl.federated.messages import Report
from dorfl.protocol import additive_statistics
from dorfl.protocol import summing as summed
from dorfl.protocol.messages import (
    Agreement,
    Answer,
    Columns,
    Enrolled,
    Masked,
    Opened,
    Released,
    Request,
    Summing,
)
from dorfl.protocol.settings import Study
from dorfl.site.consent import Refused
from dorfl.support import wire
from dorfl.support.types import Array

if TYPE_CHECKING:
    from dorfl.site.site import Site

_PERCENT = 0.01  # unit that a released accuracy is rounded to, if so many rows are `least` or more
_DIGITS = 2  # significant digits of a released loss or error


def objection(study: Study, name: str, key: Any) -> str | None:
    """Return why a site of this name and key does not sum with those that the study names."""
    if key is None:
        return "this site has no key to sign with, which a summed study needs"
    try:
        peers = summed.peers_of(study.privacy.peers)
    except ValueError as error:
        return str(error)
    if sorted(peers) != sorted(study.sites):
        return "the study does not name the keys of the sites that take part"
    if len({line.rpartition(" ")[2] for line in study.privacy.peers}) < len(peers):
        return "the study names one key for two sites"
    if summed.peer(name, key.public_key()) not in study.privacy.peers:
        return "the study names another key for this site than its own"
    return None


def answer(site: Site, request: Request) -> Answer:
    """Return the answer to a request that the site has computed itself."""
    agreement, summing = request.agreement, request.summing
    private = secure_sum.private_key(site.secret, _run(agreement))
    if request.step == "enrol":
        enrolled = site.plainly(request)
        assert isinstance(enrolled, Enrolled)
        return enrolled._replace(key=secure_sum.public_key(private))
    if request.step == "levels":
        return _names(site, request)
    if request.step == "finish" and request.outcome is not None:
        return _released(site, request)
    if summing is None:
        raise Refused("is no question of this protocol")
    own, me = secure_sum.seed(site.secret, summing.label), site.name
    if request.step == "sum masked":
        numbers = _numbers(site, request, summing)
        masked = secure_sum.mask(numbers, own, private, me, summing.keys, summing.label)
        return Masked(masked.view(np.int64), secure_sum.promise(own))
    gone = {name: key for name, key in summing.keys.items() if name not in summing.alive}
    pairs = {
        name: secure_sum.pair_seed(private, me, name, key, summing.label)
        for name, key in gone.items()
    }
    return Opened(own, pairs)


def _run(agreement: Agreement) -> bytes:
    return hashlib.sha256(wire.encode((agreement.run, agreement.study))).digest()


def _names(site: Site, request: Request) -> Columns:
    """Return of what kind columns are and which levels occur: what cannot be summed, no count."""
    told = site.plainly(request._replace(step="columns"))
    assert isinstance(told, Columns)
    return summed.names_of(told, site.rows(request.agreement).num_rows)


def _released(site: Site, request: Request) -> Released:
    """Return how the model serves the site, rounded so that fewer than `least` rows show little."""
    agreement, outcome = request.agreement, request.outcome
    assert outcome is not None
    told = site.served(agreement, outcome)
    if not site.policy.release_figures:
        return Released(None, None)
    score = _significant(told.score)
    if agreement.classes:
        unit = max(_PERCENT, site.policy.least / site.rows(agreement).num_rows)
        score = min(round(told.score / unit) * unit, 1.0)
    return Released(_significant(told.loss), score)


def _significant(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def _numbers(site: Site, request: Request, summing: Summing) -> Array:
    """Return what the site adds: the integers that stand for its answer in the open."""
    agreement, of = request.agreement, summing.of
    told = site.plainly(request._replace(step=additive_statistics.PLAINLY.get(of, of)))
    rows = site.rows(agreement)
    if isinstance(told, Report):
        assert request.broadcast is not None
        shape = site.group(agreement).problem.layout
        weight = _log_weight(site, agreement, rows.num_rows, summing)
        return np.asarray(summed.report(told, weight, request.broadcast, summing, shape))
    plain = additive_statistics.numbers(told, agreement, summing, rows)
    if plain is None:
        raise Refused("the sum is of other columns than those agreed on")
    try:
        return secure_sum.encode(plain, summed.BITS[of], len(summing.keys))
    except ValueError:
        raise Refused(
            "a number is too large for a secure sum: give the column in a larger unit"
        ) from None


def _log_weight(site: Site, agreement: Agreement, rows: int, summing: Summing) -> float:
    """Return log of the site's weight: its share of the rows or, for the worst mixture, λ_i."""
    group = site.group(agreement)
    if not group.problem.method.mixture.adversarial:
        return float(np.log(min(rows, summing.most) / summing.rows))
    stages = summing.tilt.stages
    risks = [float(group.evaluate(stage.theta).values[0]) for stage in stages]
    return pooled.multiplier(1.0 / len(agreement.study.sites), risks, stages)
