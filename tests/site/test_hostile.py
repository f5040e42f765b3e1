"""What a hostile coordinator or site may send beside the attacks on rows: other steps and types."""

import numpy as np
import pytest

from dorfl.data.robust import ColumnScales
from dorfl.federated.messages import Broadcast
from dorfl.protocol import coordinator
from dorfl.protocol.messages import Refusal, Reply, Request
from dorfl.selection import outliers
from dorfl.selection.outliers import Decision, default_candidates
from dorfl.solvers.base import Task
from dorfl.support import wire
from study_cases import make_sites, make_study, mixed_tables

KNOWN = 'known = {x = [-4, 5], ward = ["north", "south", "west"]}'
CLASSES = 'classes = ["no", "yes"]\n[columns]\nuse = ["x", "ward"]\nscaling = "standard"'
WORDS = {"erm": 'name = "erm"', "dorfl": 'name = "dorfl"\nrho = 5\ncenter = "auto"'}


def private(method="erm", rows=None):
    """A private study of one site, before its first round: the site and what is agreed on."""
    rows = rows or mixed_tables()["site-1"]
    privacy = f"epsilon = 4.0\nclip = 2.0\n{KNOWN}"
    study = make_study(
        {"s": rows}, "ill", CLASSES, WORDS[method], "max_rounds = 9", privacy=privacy
    )
    site = make_sites({"s": rows}, allow_open_reports=False)["s"]
    state = coordinator.begin(study, "run")
    while state.step != "round":
        reply = site.respond(wire.encode(coordinator.request(state, "s")))
        state = coordinator.receive(state, {"s": coordinator.read(state, "s", reply)})
    return site, coordinator.request(state, "s").agreement


def answer_of(site, request):
    return wire.decode(site.respond(wire.encode(request)), Reply).answer


def broadcast(number, theta):
    return Broadcast(number, Task(np.asarray(theta, float), np.ones(1)))


@pytest.mark.parametrize("method", WORDS)
def test_a_private_study_has_no_step_without_noise(method):
    """Distances, losses of held-out rows, and reports beyond the rounds that the noise is for."""
    site, agreement = private(method)
    size, candidates = len(agreement.transform.names) + 1, default_candidates()
    scales, limit = ColumnScales(np.ones(size - 1)), outliers.row_limit(1)
    models = np.random.default_rng(0).normal(size=(len(candidates), size))
    asked = {str(k): broadcast(1, model) for k, model in enumerate(models)}
    spent, count = site.ledger.spent(1e-5), 0
    for changed in (
        {"scales": scales},
        {"scales": scales, "center": np.zeros(size - 1)},
        {"row_limit": limit},
        {},
    ):
        other = agreement._replace(**changed)
        for request in (
            Request(other, "location"),
            Request(other, "cutoff"),
            Request(other, "cutoff", broadcast(3, models[0])),
            Request(other, "compare", candidates=candidates, models=models),
            Request(other, "select", candidates=candidates, broadcasts=asked),
            Request(other, "network", broadcast(1, models[0])),
            Request(other, "certify"),
        ):
            count += 1  # in a run of its own, since one place of a run is asked once
            request = request._replace(agreement=other._replace(run=f"run-{count}"))
            answer = answer_of(site, request)
            assert isinstance(answer, Refusal), (request.step, answer)
    assert site.ledger.spent(1e-5) == spent


def test_in_a_private_study_no_row_is_chosen_or_weighted():
    site, agreement = private()
    size, (candidate, *_) = len(agreement.transform.names) + 1, default_candidates()
    for k, changed in enumerate(
        (
            {"row_limit": outliers.row_limit(1), "candidate": candidate},
            {"candidate": candidate},
            {"reference": np.append(np.zeros(size), 1e-9)},
            {"decision": Decision(0.25), "cutoffs": ((0.25, 1e-3),)},
            {"scales": ColumnScales(np.ones(size - 1))},
            {"center": np.zeros(size - 1)},
            {"scatter": 1e-6},
            {"decay": 0.1},
        )
    ):
        other = agreement._replace(run=f"other-{k}", **changed)
        answer = answer_of(site, Request(other, "round", broadcast(1, np.zeros(size))))
        assert isinstance(answer, Refusal), changed
    fine = Request(agreement._replace(run="last"), "round", broadcast(1, np.zeros(size)))
    assert not isinstance(answer_of(site, fine), Refusal)


@pytest.mark.filterwarnings("ignore")  # as at a site, where they are no errors
def test_in_a_private_study_no_row_is_shown_by_an_overflow():
    """The same kind of answer, whatever is in a row: an error or a NaN has no noise."""
    honest, extreme = mixed_tables()["site-1"], mixed_tables()["site-1"]
    extreme["x"] = [1e300, None, *extreme["x"][2:]]
    agreements, kinds = {}, {}
    for which, rows in (("honest", honest), ("extreme", extreme)):
        site, agreement = private(rows=rows)
        agreements[which] = agreement
        x, ward = agreement.transform.parts
        own = len(agreement.transform.names)
        kinds[which] = []
        for k, (part, theta) in enumerate(
            (
                (x, np.zeros(own + 1)),
                (x, np.full(own + 1, 1e9)),
                (x, np.r_[1e306, -1e306, np.zeros(own - 1)]),
                (x, np.r_[1e308, -1e308, np.zeros(own - 1)]),
                (x._replace(spread=1e-39), np.zeros(own + 1)),
                (x._replace(spread=1e-300), np.ones(own + 1)),
                (x._replace(fill=1e300), np.ones(own + 1)),
                (x._replace(fill=1e300, spread=1e-300), np.ones(own + 1)),
                (x._replace(center=1e300), np.ones(own + 1)),
            )
        ):
            transform = type(agreement.transform)((part, ward), {})
            changed = agreement._replace(run=f"run-{k}", transform=transform)
            reply = site.respond(wire.encode(Request(changed, "round", broadcast(1, theta))))
            answer = wire.decode(reply, Reply).answer  # refuses NaN
            assert k > 1 or not isinstance(answer, Refusal), (which, k)
            kinds[which].append(getattr(answer, "reason", type(answer)))
    assert kinds["honest"] == kinds["extreme"]
