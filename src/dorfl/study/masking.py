"""A site's side of a secure sum: whom it sums with, and what it never says twice.

The site checks every key it agrees a mask with: it has to be signed, for this very sum, by the key
that the study's text names for that site, and the text is what a person here has approved. Of one
sum it answers one question, and opens it once: for every other site either the share of its seed or
that of its mask key, never both.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dorfl.federated import pooled
from dorfl.federated.messages import Advert, Report
from dorfl.study import counted
from dorfl.study import summing as summed
from dorfl.study.messages import (
    Agreement,
    Answer,
    Columns,
    Dealt,
    Masked,
    Request,
    Shares,
    Summing,
)
from dorfl.study.settings import Study
from dorfl.study.summing import STEPS
from dorfl.support.types import Array

if TYPE_CHECKING:
    from dorfl.study.site import Site


class Unsafe(ValueError):  # noqa: N818 - a decision, not an error
    """Why a step of a secure sum is not answered; the text holds no value and may be sent."""


def objection(study: Study, name: str, key: Any) -> str | None:
    """Why a site of this name and key does not sum with those that the study names, or nothing."""
    if key is None:
        return "this site has no key to sign with, which a secure sum needs"
    try:
        peers = summed.peers_of(study.privacy.peers)
    except ValueError as error:
        return str(error)
    if sorted(peers) != sorted(study.sites):
        return "the study does not name the keys of the sites that take part"
    if len({line.rpartition(" ")[2] for line in study.privacy.peers}) < len(peers):
        return "the study names one key for two sites"
    if name not in peers or summed.peer(name, key.public_key()) not in study.privacy.peers:
        return "the study names another key for this site than its own"
    return None


def _names(site: Site, request: Request) -> Columns:
    """Of what kind columns are, and which levels occur: what cannot be summed, and no count."""
    told = site.plainly(request._replace(step="columns"))
    assert isinstance(told, Columns)
    return summed.names_of(told, site.rows(request.agreement).num_rows)


def answer(site: Site, request: Request) -> Answer:
    """The answer to a step of a secure sum; Unsafe says why there is none."""
    from dorfl.federated import secure_sum  # noqa: PLC0415

    agreement, summing = request.agreement, request.summing
    if request.step == "levels":
        return _names(site, request)
    if request.step not in STEPS:
        raise Unsafe("the study is one of secure sums: what one site tells is not sent")
    if summing is None or summing.of not in summed.BITS or not 1 <= summing.number < 2**31:
        raise Unsafe("is no question of this protocol")
    me, context = site.name, summed.context_of(agreement, summing)
    own = secure_sum.secrets_of(site.secret, context)
    if request.step == "sum keys":
        return _signed(site, secure_sum.advertise(own), context)
    _check(site, agreement.study, summing, context)
    least = secure_sum.threshold(len(agreement.study.sites))
    if request.step == "sum shares":
        return Dealt(secure_sum.deal(own, me, summing.adverts, least, context))
    about = summed.Asked(request.broadcast, request.models, request.outcome, request.thin)
    question = summed.question_of(agreement, summing, about)
    asked = {f"sum {summing.number}": question.hex()}
    if request.step == "sum masked":
        if site.memory.same(agreement.run, asked) is not None:
            raise Unsafe("this sum was asked before, with another question")
        numbers = _numbers(site, request, summing)
        masked = secure_sum.mask(numbers, own, me, summing.adverts, question)
        return Masked(masked.view(np.int64))
    if not site.memory.has(agreement.run, asked):
        raise Unsafe("the sum to open is none that this site added to")
    _open_once(site, request, summing, least)
    told = secure_sum.reveal(own, me, summing.adverts, summing.boxes, summing.alive, context)
    return Shares(told)


def _signed(site: Site, advert: Advert, context: bytes) -> Advert:
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    from dorfl.federated import secure_sum  # noqa: PLC0415

    text = secure_sum.signed(advert, site.name, context)
    return advert._replace(signature=site.key.sign(text, ec.ECDSA(hashes.SHA256())))


def _check(site: Site, study: Study, summing: Summing, context: bytes) -> None:
    """Raise unless all keys are signed by who the study says, and they are enough."""
    from dorfl.federated import secure_sum  # noqa: PLC0415

    listed = study.privacy.peers
    peers = summed.peers_of(listed)
    if site.name not in summing.adverts or not set(summing.adverts) <= set(peers):
        raise Unsafe("the sum is not among the sites that the study names")
    if len(summing.adverts) < secure_sum.threshold(len(peers)):
        raise Unsafe("the sum is of too few sites")
    for name, advert in summing.adverts.items():
        text = secure_sum.signed(advert, name, context)
        if not _verifies(listed, name, advert.signature, text):
            raise Unsafe(f"the key of site {name[:60]!r} is not signed by that site")


@lru_cache(maxsize=4096)
def _verifies(listed: tuple[str, ...], name: str, signature: bytes, text: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    try:
        summed.peers_of(listed)[name].verify(signature, text, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def _open_once(site: Site, request: Request, summing: Summing, least: int) -> None:
    alive, dealers = set(summing.alive), set(summing.adverts)
    if not (site.name in alive and alive <= dealers and len(alive) >= least):
        raise Unsafe("the sum to open is of too few sites, or not of this one")
    if set(summing.boxes) != dealers:
        raise Unsafe("not all shares of the sum are here")
    listed = ",".join(sorted(alive))
    marks = {f"sum {summing.number} among": listed}
    if request.broadcast is not None:  # two sums over different sites show those between
        run, number = request.agreement.run, request.broadcast.round
        marks[f"round {number} among"] = listed
        if site.memory.changes(run, number, listed) > site.limits.changes:
            raise Unsafe(
                f"the sites in the sums of this run have changed {site.limits.changes} times; more "
                "differences would show one site's reports (`changes` in site.toml)"
            )
    if site.memory.same(request.agreement.run, marks) is not None:
        raise Unsafe("this sum was opened before, for other sites")


def _numbers(site: Site, request: Request, summing: Summing) -> Array:
    """What the site adds: what it would answer, by the same rules, as integers."""
    from dorfl.federated import secure_sum  # noqa: PLC0415

    agreement, of = request.agreement, summing.of
    told = site.plainly(request._replace(step=counted.PLAINLY.get(of, of), summing=None))
    rows = site.rows(agreement)
    if isinstance(told, Report):
        assert request.broadcast is not None
        shape = site.group(agreement).problem.layout
        weight = _log_weight(site, agreement, rows.num_rows, summing)
        numbers: Array = summed.report(told, weight, request.broadcast, summing, shape)
        return numbers
    plain = counted.numbers(told, agreement, summing, rows)
    if plain is None:
        raise Unsafe("the sum is of other columns than those agreed on")
    try:
        return secure_sum.encode(plain, summed.BITS[of], len(summing.adverts))
    except ValueError:
        raise Unsafe(
            "a number is too large for a secure sum: give the column in a larger unit"
        ) from None


def _log_weight(site: Site, agreement: Agreement, rows: int, summing: Summing) -> float:
    """log of what the site weighs: its own business, from its own rows and risks.

    By its share of the rows; where the worst mixture is looked for, equal at first and then by the
    multipliers, whose θ have to be some that were asked about.
    """
    study, tilt = agreement.study, summing.tilt
    method = site.group(agreement).problem.method
    if not method.mixture.adversarial:
        own = np.inf if np.isinf(method.temperature) else method.temperature
        if (np.inf if tilt.tau is None else tilt.tau) != own or tilt.stages:
            raise Unsafe("the sum weighs sites otherwise than the study says")
        return float(np.log(min(rows, summing.most) / summing.rows))
    risks = []
    for stage in tilt.stages:
        if not site.memory.knows(agreement.run, stage.theta):
            raise Unsafe("the sum weighs sites by a model that was never asked about")
        risks.append(float(site.group(agreement).evaluate(stage.theta).values[0]))
    return pooled.multiplier(1.0 / len(study.sites), risks, tilt.stages)
