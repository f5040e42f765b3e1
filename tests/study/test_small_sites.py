"""Sites with few rows and the limits that sites have by default: who runs, and what others read."""

import re

import numpy as np
import pytest
from sklearn.datasets import load_wine

from dorfl.certificates import bound
from dorfl.data.preprocessing.columns import table_of
from dorfl.linear.group import Group
from dorfl.study import coordinator, local, meaning, promises
from dorfl.study.ledger import mark_of
from dorfl.study.limits import DEFAULT
from dorfl.study.messages import Refusal
from dorfl.study.site import Site
from dorfl.support import wire
from study_cases import among, key_of, make_study, secure_sites


def table(rows, columns, seed, wild=False):
    """Numbers, one or two categories of three levels, and a label that depends on both."""
    rng = np.random.default_rng([seed, rows])
    X = rng.normal(size=(rows, columns))
    found = {f"x{k}": X[:, k].copy() for k in range(columns - columns // 5)}
    signal = X[:, :3].sum(axis=1)
    for k in range(columns // 5):
        ward = rng.choice(["north", "south", "west"], rows)
        found[f"ward-{k}"] = ward.tolist()
        signal = signal + (ward == "north")
    if wild:
        found["x0"][0] = 400.0
    ill = signal + rng.normal(size=rows) > 0.3
    return {**found, "ill": np.where(ill, "yes", "no").tolist()}


def sites_of(tables, limits=DEFAULT):
    return {
        name: Site(name, t, tuple(table_of(t).column_names), approve=("*",), limits=limits)
        for name, t in tables.items()
    }


def run(rows, columns, method='name = "dorfl"', wild=False, limits=DEFAULT):
    """How a study of three such sites ends, and the first refusal of each."""
    tables = {f"s{k}": table(rows, columns, k, wild and k == 0) for k in range(3)}
    sites = sites_of(tables, limits)
    state, refused = coordinator.begin(make_study(tables, "ill", method=method), "run-1"), {}
    while state.step != "done":
        answers = {}
        for name, site in sites.items():
            data = site.respond(wire.encode(coordinator.request(state, name)))
            answers[name] = coordinator.read(state, name, data)
            if isinstance(answers[name], Refusal):
                step = "candidates" if state.spare else state.step
                refused.setdefault(name, (step, answers[name].reason))
        left = state.step == "round" and state.candidate is None
        if left and any(isinstance(a, Refusal) for a in answers.values()):
            return state, refused
        state = coordinator.receive(state, answers)
    return state, refused


@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(45, 5), (45, 10), (60, 5), (60, 10)])
def test_a_study_of_small_sites_runs_with_the_limits_as_they_are(rows, columns, wild):
    state, refused = run(rows, columns, wild=wild)
    assert state.outcome is not None and state.outcome.status == "converged"
    assert {step for step, _ in refused.values()} <= {"candidates", "finish", "certify"}


def test_a_site_too_small_says_what_to_set_and_then_it_does():
    state, refused = run(16, 10)
    assert state.outcome is None
    assert all("[limits]" in reason for step, reason in refused.values() if step == "round")
    _, refused = run(16, 10, limits=DEFAULT._replace(behind=0))
    reasons = [reason for step, reason in refused.values() if step == "round"]
    told = max(
        float(re.search(r"\[limits\] told = ([\d.]+) in", r)[1]) for r in reasons if "told =" in r
    )
    state, _ = run(16, 10, limits=DEFAULT._replace(told=2.0 * told, behind=0))
    assert state.outcome is not None and state.outcome.status == "converged"


def test_a_wild_row_and_no_score_is_refused_with_what_would_help():
    _, refused = run(30, 5, 'name = "erm"', wild=True)
    assert "method dorfl" in refused["s0"][1] and "alone = 1" in refused["s0"][1]


def test_a_training_that_sites_leave_says_who_refused_and_what_to_set():
    """Its solver can only say that more rounds, or other units, might help: they would not."""
    wine = load_wine()
    names = np.array(["red", "rose", "white"])[wine.target].tolist()
    tables = {
        f"s{k}": {
            **{f"x{j}": wine.data[k::3, j] for j in range(wine.data.shape[1])},
            "ill": names[k::3],
        }
        for k in range(3)
    }
    study = make_study(tables, "ill", method='name = "erm"')
    last = local.run(coordinator.begin(study, "run-1"), sites_of(tables))
    end, lines = last.outcome, last.history
    assert end.status == "refused" and end.rounds < 40  # nobody is asked in vain for long
    assert not any(line.answered for line in lines[-5:]) and lines[-6].answered
    assert end.objective == lines[-6].objective  # nor is what stood in for them a model's cost
    assert re.match(r"'s0' refused \d+ of \d+ rounds, the last time because: ", end.message)
    assert "[limits]" in end.message and "not converged" in end.message


@pytest.mark.slow
def test_a_site_of_150_rows_takes_part_in_three_studies_and_each_again_for_nothing():
    tables = {f"s{k}": table(165, 6, k) for k in range(3)}
    sites, told = sites_of(tables), [0.0]
    for words in ("", "shift = 0.5", "outliers = 0.05"):
        study = make_study(tables, "ill", method=f'name = "dorfl"\n{words}')
        ends = [local.run(coordinator.begin(study, f"{run}{words[:5]}"), sites) for run in "ab"]
        assert {end.outcome.status for end in ends} == {"converged"}
        assert len(ends[0].finished) == 3
        assert np.array_equal(ends[0].outcome.theta, ends[1].outcome.theta)  # to the bit
        told.append(sites["s0"].ledger.told)
    cost = np.diff(told)
    assert (cost > 0.0).all() and told[-1] <= DEFAULT.told
    assert cost[1] < cost[0]  # how far rows lie from their middle had been told
    before: dict[str, object] = {}

    def more():
        for shift in (0.1, 0.2, 0.3, 0.4):
            before.update(sites["s0"].ledger.questions)
            study = make_study(tables, "ill", method=f'name = "wafl"\nshift = {shift}')
            local.run(coordinator.begin(study, f"more-{shift}"), sites)

    with pytest.raises(ValueError, match="does not take part: this site has told what it"):
        more()
    assert sites["s0"].ledger.questions == before  # refused before it began


@pytest.mark.parametrize(("number", "rows"), [(False, 200), (True, 600)])
def test_a_site_takes_part_in_three_studies_of_other_labels(number, rows):
    """It keeps enough for them and knows beforehand what each needs.

    A regression also compares label weights and estimates a scale, which takes more rounds.
    """
    tables = {f"s{k}": table(rows, 4, k) for k in range(3)}
    labels = ("one", "two", "three")
    for rows in tables.values():
        for k, label in enumerate(labels):
            out = np.asarray(rows["x0"]) + (k - 1.0) * np.asarray(rows["x1"])
            out = out + 0.3 * np.sin(37.0 * np.asarray(rows["x2"]))
            rows[label] = out.tolist() if number else np.where(out > 0, "yes", "no").tolist()
    sites = sites_of(tables)
    use = '[columns]\nuse = ["x0", "x1", "x2", "x3"]'
    for label in labels:
        study = make_study(tables, label, use, method='name = "dorfl"')
        end = local.run(coordinator.begin(study, label), sites)
        assert end.outcome.status == "converged"
        book, mark = sites["s0"].ledger, mark_of(study)
        told = sum(q["share"] for q in book.questions.values() if q["run"] == label)
        if not number:
            assert told < 2.0 * book.studies[mark]["needs"] + 0.05  # beside where rows lie
        words = book.foreseen(mark, DEFAULT.told)
        assert re.fullmatch(r"needs about [\d.]+ % of .*; [\d.]+ % are left", words)


def test_the_worst_mixture_by_sums_is_not_begun_where_it_does_not_fit():
    tables = {f"s{k}": table(90, 4, k) for k in range(3)}
    study = among(make_study(tables, "ill", method='name = "afl"'))
    sites = secure_sites(tables, study, key_of, limits=DEFAULT)
    with pytest.raises(
        ValueError, match=r"has told what it tells; .* the rounds after it at least"
    ):
        local.run(coordinator.begin(study, "run-1"), sites)
    assert all(site.ledger.told < 0.1 for site in sites.values())
    assert sites["s0"].ledger.studies[mark_of(study)]["needs"] > DEFAULT.told


def test_a_small_site_tells_a_shorter_certificate_that_is_as_sharp():
    tables = {f"s{k}": table(165, 6, k) for k in range(3)}
    end, free = (
        local.run(
            coordinator.begin(make_study(tables, "ill"), "run"),
            sites_of(tables, DEFAULT._replace(told=told)),
        )
        for told in (DEFAULT.told, 100.0)
    )
    assert {part.loss.size for part in end.told.values()} == {15}
    assert len(promises.of_study(end).over_outliers) == 1
    asked = meaning.certificates(free, meaning.thin(free))
    first = bound.shortened(free.told["s0"], *asked)  # one site alone, and all go by that
    short, whole = (
        promises.of_study(free._replace(told=told))
        for told in (free.told | {"s0": first}, free.told)
    )
    assert len(short.over_outliers) == 1 and len(whole.over_outliers) == 6
    for one, other in zip(short.over_drift, whole.over_drift, strict=True):
        assert one.accuracy == other.accuracy


def test_a_site_answers_a_round_in_one_pass_over_its_rows(monkeypatch):
    tables = {f"s{k}": table(60, 5, k) for k in range(2)}
    sites, passes = sites_of(tables), []
    plain = Group._pass
    monkeypatch.setattr(
        Group, "_pass", lambda group, *a, **b: passes.append(group.names) or plain(group, *a, **b)
    )
    states = [coordinator.begin(make_study(tables, "ill", method='name = "erm"'), "run-1")]
    local.run(states[0], sites, states.append)
    steps = [state.step for state in states]
    first, last = steps.index("round"), steps.index("finish")
    assert last - first > 3
    passes.clear()
    fresh = sites_of(tables)
    for state in states[:last]:
        for name, site in fresh.items():
            site.respond(wire.encode(coordinator.request(state, name)))
    assert len(passes) == 2 * (last - first)
