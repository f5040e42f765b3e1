"""A step of one's own is a class in a file, and a line that registers it."""

from typing import NamedTuple

import numpy as np
import pytest

import dorfl
from dorfl.protocol import checkpoint, coordinator, messages, steps
from dorfl.protocol.messages import Refused, Reply
from dorfl.protocol.step import NEXT, Step
from dorfl.site import local
from dorfl.support import wire
from dorfl.support.types import Array
from study_cases import METHODS, make_sites, make_study, refuse, run_summed, synthetic_tables

TABLES = synthetic_tables()
COUNTS = np.sum([[t["y"].count(c) for c in ("no", "yes")] for t in TABLES.values()], axis=0)


class Histogram(NamedTuple):
    """Rows by class."""

    counts: Array


class LabelHistogram(Step):
    """Count the rows of every class."""

    name = "label histogram"
    answer = Histogram
    sends = "the number of rows of every class"
    is_summed = True

    def is_due(self, state):
        return len(state.agreed.classes) > 0

    def local(self, site, request):
        agreement = request.agreement
        _, y = site.features(agreement)
        return Histogram(np.bincount(y, minlength=len(agreement.classes)).astype(float))

    def validate(self, state, site, answer):
        rows = state.rows[state.sites.index(site)]
        fits = answer.counts.shape == (len(state.agreed.classes),) and (answer.counts >= 0).all()
        return None if fits and answer.counts.sum() == rows else "its histogram is not of its rows"

    def combine(self, state, answers, refused):
        total = np.sum([answer.counts for answer in answers.values()], axis=0)
        return state._replace(step=NEXT, results={**state.results, self.name: total})

    # For summed studies: the numbers that sites add, and what their sum is.

    def size(self, state):
        return len(state.agreed.classes)

    def encode(self, site, request, answer):
        return answer.counts

    def decode(self, state, total):
        return state, Histogram(total)


@pytest.fixture(autouse=True)
def histogram(monkeypatch):
    monkeypatch.setattr(steps, "ORDER", [*steps.ORDER])
    monkeypatch.setattr(messages, "ANSWERS", [*messages.ANSWERS])
    steps.register(LabelHistogram(), before="location")


def study(**given):
    return make_study(TABLES, method=METHODS["erm"], **given)


def test_it_runs_in_an_open_study(tmp_path):
    states = []
    end = local.run(coordinator.begin(study(), "run"), make_sites(TABLES), states.append)
    assert [s.step for s in states][:3] == ["columns", "scales", "label histogram"]
    assert end.outcome.status == "converged"
    np.testing.assert_array_equal(end.results["label histogram"], COUNTS)
    checkpoint.save(tmp_path / "state", end)
    back = checkpoint.load(tmp_path / "state").results
    np.testing.assert_array_equal(back["label histogram"], COUNTS)


def test_it_runs_in_a_summed_study():
    end = run_summed(TABLES, study())
    assert end.outcome.status == "converged"
    np.testing.assert_array_equal(end.results["label histogram"], COUNTS)


def test_a_summed_study_does_not_send_it_without_a_mask(monkeypatch):
    monkeypatch.setattr(LabelHistogram, "is_summed", False)
    with pytest.raises(ValueError, match="does not take part: is not a request"):
        run_summed(TABLES, study())


def test_it_is_skipped_where_it_is_not_due():
    tables = {name: {**t, "y": np.arange(len(t["y"])) / 7.0} for name, t in TABLES.items()}
    end = local.run(coordinator.begin(study(), "run"), make_sites(tables))
    assert not end.results and end.step == "done"


def test_training_in_one_process_goes_on_without_it():
    fit = dorfl.train(dorfl.datasets.synthetic(seed=0).clients)
    assert fit.status == "converged"


def test_its_answer_is_checked_and_a_site_may_refuse():
    state = coordinator.begin(study(), "run")
    sites = make_sites(TABLES)
    while state.step != "label histogram":
        answers = {s: sites[s].answer(coordinator.request(state, s)) for s in state.sites}
        state = coordinator.receive(state, answers)
    odd = Reply("run", "site-1", state.step, Histogram(np.array([1e6, 0.0])))
    with pytest.raises(ValueError, match="its histogram is not of its rows"):
        coordinator.read(state, "site-1", wire.encode(odd))
    refuse(sites["site-1"], "not this", lambda step, _: step == "label histogram")
    with pytest.raises(Refused, match="not this"):
        sites["site-1"].answer(coordinator.request(state, "site-1"))


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match="this name is taken"):
        steps.register(LabelHistogram())


def test_a_class_of_answers_has_a_name_of_its_own():
    class Histogram(NamedTuple):
        counts: Array

    class Other(LabelHistogram):
        name = "other"
        answer = Histogram

    with pytest.raises(ValueError, match="Histogram is taken"):
        steps.register(Other())
    assert steps.find("other") is None
