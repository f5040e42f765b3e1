"""One site lies, and the study says nothing of defence: what is on by default has to do."""

from functools import cache

import numpy as np
import pytest

import dorfl
from cases import few
from dorfl.certificates.certificate import Part
from dorfl.data.preprocessing import Column, Deviation
from dorfl.data.robust import LocationReport
from dorfl.data.sketch import Sketch
from dorfl.federated.messages import Report
from dorfl.protocol import coordinator, labels
from dorfl.protocol.messages import Columns, Enrolled, Finished, Refusal, Reply, Reports, Scales
from dorfl.protocol.state import limit_rows
from dorfl.protocol.steps import finish, location
from dorfl.support import wire
from study_cases import METHODS, make_sites, make_study, split, synthetic_tables

TABLES = synthetic_tables()
LIAR = "site-1"  # an eighth of the rows


def with_lies(study, tamper, tables=TABLES):
    """The study with every answer of one site passed through `tamper(state, answer)`."""
    state, sites = coordinator.begin(study, "run-1"), make_sites(tables)
    while state.step != "done":
        answers, refused = {}, {}
        for name in state.sites:
            asked = wire.encode(coordinator.request(state, name))
            data = sites[name].respond(asked)
            if name == LIAR:
                reply = wire.decode(data, Reply)
                data = wire.encode(reply._replace(answer=tamper(state, reply.answer)))
            try:
                answers[name] = coordinator.read(state, name, data)
            except ValueError as error:
                refused[name] = str(error)
        state = coordinator.receive(state, answers, refused)
    return state


def accuracy(end):
    """On the honest sites' test rows."""
    data = dorfl.datasets.synthetic(seed=0)
    X = np.concatenate([data.test[c][0] for c in ("client-2", "client-3")])
    y = np.concatenate([data.test[c][1] for c in ("client-2", "client-3")])
    table = {f"x{k}": X[:, k] for k in range(5)}
    rows = end.agreed.transform.apply(table).X
    theta = end.outcome.theta
    return float(((rows @ theta[:-1] + theta[-1] > 0) == (y > 0)).mean())


def changed(report, changes):
    return report._replace(**{k: f(report) for k, f in changes.items()})


def lying(changes, when):
    """Change reports, also those on candidates, if `when` says so."""

    def lie(_, answer):
        if isinstance(answer, Reports):
            told = {k: changed(r, changes) if when(r) else r for k, r in answer.reports.items()}
            return Reports(told)
        return changed(answer, changes) if isinstance(answer, Report) and when(answer) else answer

    return lie


def once(**changes):
    return lying(changes, lambda report: report.round == 1)


def always(**changes):
    return lying(changes, lambda _: True)


LIES = {
    "curvature of 1e20 once": once(curvature=lambda r: np.full_like(r.curvature, 1e20)),
    "risk of 1e20 once": once(value=lambda _: 1e20),
    "risk of 1e3": always(value=lambda _: 1e3),
    "gradient times -20": always(vector=lambda r: -20.0 * r.vector),
    "risk of -1e20": always(value=lambda _: -1e20),
}


@cache
def unharmed(words):
    return accuracy(with_lies(make_study(TABLES, method=words), lambda _, a: a))


@pytest.mark.parametrize("words", few(['name = "dorfl"', METHODS["erm"]]))
@pytest.mark.parametrize("lie", LIES)
def test_a_site_with_an_eighth_of_the_rows_does_little_harm(lie, words):
    lied = with_lies(make_study(TABLES, method=words), LIES[lie])
    assert accuracy(lied) > unharmed(words) - 0.02
    said = [line.clipped.get(LIAR, "") + line.refused.get(LIAR, "") for line in lied.history]
    assert any(said)


def four_tables(seed=0, wrong=()):
    """The three clients' tables and a fourth; sites in `wrong` have every label flipped."""
    other = synthetic_tables(seed + 1000)["site-2"]
    tables = {**synthetic_tables(seed), "site-4": other}
    flip = {"yes": "no", "no": "yes"}
    for name in wrong:
        tables[name] = {**tables[name], "y": [flip[y] for y in tables[name]["y"]]}
    return tables


def test_converged_is_not_said_of_a_model_that_the_other_sites_contradict():
    study = make_study(four_tables(), method='name = "dorfl"')
    honest = with_lies(study, lambda _, a: a, four_tables())
    assert honest.outcome.status == "converged"
    end = with_lies(study, lambda _, a: a, four_tables(wrong=[LIAR]))
    assert end.outcome.status == "contested"
    assert "'site-1' has a gradient" in end.outcome.message
    assert not any("site-2" in part for part in end.outcome.message.split(";")[1:])


def test_a_site_with_all_labels_wrong_is_set_aside_if_the_study_says_that_some_may_lie():
    study = make_study(four_tables(), method='name = "dorfl"')
    wary = study._replace(defence=study.defence._replace(liars=0.25))
    honest = with_lies(study, lambda _, a: a, four_tables())
    end = with_lies(wary, lambda _, a: a, four_tables(wrong=[LIAR]))
    assert end.outcome.status == "converged"
    assert "left out: gradient" in end.history[-1].clipped[LIAR]
    assert "'site-1' left out" in end.outcome.message
    assert accuracy(end) > accuracy(honest) - 0.02


@pytest.mark.parametrize("lie", few(LIES, 2))
def test_no_lie_ends_in_converged_far_from_where_the_others_are(lie):
    study = make_study(four_tables(), method=METHODS["erm"])
    honest = with_lies(study, lambda _, a: a, four_tables())
    lied = with_lies(study, LIES[lie], four_tables())
    worse = accuracy(honest) - accuracy(lied)
    assert lied.outcome.status != "converged" or worse < 0.02


def test_rows_that_nobody_counted_weigh_at_most_four_times_the_median():
    def lie(_, answer):
        claims = isinstance(answer, Enrolled | Report)
        return answer._replace(rows=2**40) if claims else answer

    end = with_lies(make_study(TABLES, method=METHODS["erm"]), lie)
    assert end.counted_rows == (2000, 200, 500)
    assert end.outcome.lam.tolist() == pytest.approx([20 / 27, 2 / 27, 5 / 27])
    assert limit_rows((2**40, 200, 500), 300, sites=True) == (300, 200, 300)
    assert limit_rows((2**40, 200, 500), None, sites=False) == (2**40, 200, 500)


def test_rows_that_nobody_counted_do_not_choose_everybodys_units():
    """One of eight claims 2⁴⁰ rows, a thousand units away and a thousandth of a unit apart."""
    many, tables = 2**40, split(8)

    def lie(_, answer):
        if isinstance(answer, Enrolled):
            return answer._replace(rows=many)
        if isinstance(answer, Columns):
            away, label = Sketch(many, (1e3,) * 50), answer.label
            levels = dict.fromkeys(label.levels, many // 2)
            columns = {
                name: one._replace(rows=many, values=away) for name, one in answer.columns.items()
            }
            return Columns(columns, label._replace(rows=many, levels=levels))
        if isinstance(answer, Scales):
            near = Deviation(many, distances=Sketch(many, (1e-3,) * 50))
            return answer._replace(columns=dict.fromkeys(answer.columns, near))
        return answer._replace(rows=many) if isinstance(answer, Report) else answer

    study = make_study(tables, method=METHODS["erm"])
    honest, end = with_lies(study, lambda _, answer: answer, tables), with_lies(study, lie, tables)
    for one, two in zip(honest.agreed.transform.numeric, end.agreed.transform.numeric, strict=True):
        assert abs(one.center - two.center) < one.spread and 0.5 < two.spread / one.spread < 2.0
    assert end.outcome.status == "converged"
    assert end.outcome.objective < 1.1 * honest.outcome.objective


def test_a_class_that_one_site_alone_has_is_named_not_learnt():
    told = {name: Column("category", 100, levels={"no": 50, "yes": 50}) for name in TABLES}
    state = coordinator.begin(make_study(TABLES), "run-1")
    assert labels.settle_label(state, told).agreed.classes == ("no", "yes")
    told[LIAR] = Column("category", 100, levels={"no": 40, "yes": 40, "maybe": 20})
    with pytest.raises(ValueError, match=r"1 class.* at site 'site-1' alone"):
        labels.settle_label(state, told)
    told[LIAR] = Column("category", 2000, levels={f"class {k}": 2 for k in range(990)})
    with pytest.raises(ValueError, match=r"990 class.* at site 'site-1' alone"):
        labels.settle_label(state, told)
    named = make_study(TABLES, extra='classes = ["no", "yes", "maybe"]')
    assert len(labels.settle_label(state.agree(study=named), told).agreed.classes) == 3


def test_a_centre_of_integers_and_a_certificate_of_nothing_are_refused():
    place = LocationReport(100, 100.0, np.array([np.iinfo(np.int64).min]), np.zeros((20, 1)))
    assert "real numbers" in location.check(place, 100, 1, 1, 0)
    honest = place._replace(mean=np.zeros(1), means=np.zeros((0, 1)))
    assert location.check(honest, 100, 1, 1, 0) is None
    two = honest._replace(by=np.array([40.0, 60.0]), means=np.zeros((2, 1)))
    assert location.check(two, 100, 1, 1, 2) is None
    assert "classes" in location.check(two, 100, 1, 1, 3)
    assert "add up" in location.check(two._replace(by=np.array([40.0, 70.0])), 100, 1, 1, 2)
    assert "range" in location.check(two._replace(means=np.full((2, 1), 1e7)), 100, 1, 1, 2)

    def lie(_, answer):
        if not isinstance(answer, Finished):
            return answer
        return answer._replace(part=Part(-1e20, 0.0, -1e20, 0.0))

    end = with_lies(make_study(TABLES), lie)
    assert LIAR not in end.finished and finish.certificate_of(end) is None


def test_what_a_site_says_is_one_printable_line():
    state = coordinator.begin(make_study(TABLES), "run-1")
    words = "no\nround 9: converged\x1b[2J\r"
    reply = Reply("run-1", LIAR, "enrol", Refusal(words))
    assert coordinator.read(state, LIAR, wire.encode(reply)).reason == "no round 9: converged [2J"
