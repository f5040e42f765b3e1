"""Studies of secure sums, in process: the plain model from sums alone, whoever lies or is gone."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

import dorfl
from cases import few
from dorfl.federated import pooled, training
from dorfl.federated import server as serving
from dorfl.federated.secure_sum import threshold
from dorfl.solvers import Sqp
from dorfl.solvers.base import Needs
from dorfl.study import (
    checkpoint,
    coordinator,
    local,
    meaning,
    promises,
    results,
    secure,
    summing,
    table,
    toml,
)
from dorfl.study import serving as computing
from dorfl.study.consent import Refused
from dorfl.study.ledger import mark_of
from dorfl.study.limits import DEFAULT
from dorfl.study.messages import Masked, Refusal, Reply, Shares
from dorfl.support import wire
from study_cases import (
    METHODS,
    ROOMY,
    among,
    conduct,
    key_of,
    make_sites,
    make_study,
    mixed_tables,
    secure_sites,
    split,
    synthetic_tables,
)
from study_cases import run_summed as run

STANDARD = '[columns]\nscaling = "standard"'
BESIDE = {*secure.STEPS} - {"sum masked"}


def clients_of(end, tables):
    rows = {s: {n: v for n, v in t.items() if n != "y"} for s, t in tables.items()}
    return {
        s: (end.transform.apply(r, np.float32).X, np.array(tables[s]["y"]) == "yes")
        for s, r in rows.items()
    }


def trained(end, tables):
    """What `dorfl.train` makes of the same rows by the same method."""
    method = meaning.problem_of(end).method
    return dorfl.train(clients_of(end, tables), method, l2=1.0 / sum(end.rows), tol=1e-4)


def worst_of(end, tables):
    """The worst site's risk at the model found."""
    group = training.prepare(clients_of(end, tables), meaning.problem_of(end).method)
    penalty = 0.5 / sum(end.rows) * np.sum(end.outcome.theta[:-1] ** 2)
    return group.evaluate(end.outcome.theta).values.max() + penalty


@pytest.mark.parametrize("method", ["erm", "wafl"])
def test_a_fixed_mixture_gives_the_plain_model_within_rounding(method):
    tables = synthetic_tables()
    end = run(tables, make_study(tables, method=METHODS[method], extra=STANDARD))
    fit = trained(end, tables)
    assert end.outcome.status == "converged" and end.outcome.rounds == fit.rounds
    assert np.abs(end.outcome.theta - fit.theta).max() < 1e-7
    assert end.outcome.objective == pytest.approx(fit.objective, abs=1e-10)
    plain = make_study(tables, method=METHODS[method], extra=STANDARD)
    told = local.run(coordinator.begin(plain, "run-2"), make_sites(tables))
    for one, other in zip(end.transform.numeric, told.transform.numeric, strict=True):
        assert one.center == pytest.approx(other.center, abs=1e-8)
        assert one.spread == pytest.approx(other.spread, rel=1e-7)


def test_a_tilted_fixed_mixture_gives_the_plain_model():
    tables = synthetic_tables()
    words = 'name = "dorfl"\noutliers = 0\nmixture = "fixed"\nrho = 20\nbeta = 0.05'
    end = run(tables, make_study(tables, method=words, extra=STANDARD))
    assert np.isfinite(meaning.problem_of(end).method.temperature)
    fit = trained(end, tables)
    assert end.outcome.status == "converged"
    assert np.abs(end.outcome.theta - fit.theta).max() < 1e-6
    assert end.outcome.objective == pytest.approx(fit.objective, abs=1e-8)


@pytest.mark.parametrize("method", ["afl", pytest.param("gdrfl", marks=pytest.mark.slow)])
def test_the_worst_mixture_is_found_although_every_site_keeps_its_weight(method):
    tables = synthetic_tables()
    end = run(tables, make_study(tables, method=METHODS[method], extra=STANDARD))
    fit = trained(end, tables)
    assert end.outcome.status == "converged"
    assert 0 <= end.outcome.gap <= 1e-4 * end.outcome.objective
    worst = worst_of(end, tables)  # what is said to be an upper bound is one, and a close one
    assert worst <= end.outcome.objective <= worst * (1 + 1e-4)
    assert end.outcome.objective <= fit.objective * (1 + 2e-4)
    assert end.outcome.lam.shape == (1,) and end.outcome.risks.shape == (1,)


def test_columns_with_gaps_and_categories_and_a_number_to_predict():
    tables = mixed_tables(sizes=(90, 140, 70))
    extra = 'task = "regression"\n[columns]\nuse = ["x", "ward"]\nscaling = "standard"'
    study = make_study(tables, "cost", extra, METHODS["erm"])
    end = run(tables, study)
    told = local.run(coordinator.begin(study, "run-2"), make_sites(tables))
    assert end.transform.names == told.transform.names
    assert end.transform.numeric[0].missing == told.transform.numeric[0].missing
    model = results.model_of(end)
    assert model.fit.clients == (summing.ALL,) and model.facts.rows == sum(end.rows)
    guess = np.concatenate([model.predict(t) for t in tables.values()])
    true = np.concatenate([np.array(t["cost"], dtype=float) for t in tables.values()])
    assert np.nanmean(np.abs(guess - true)) < 0.7 * np.nanmean(np.abs(true - np.nanmedian(true)))


def test_only_sums_reach_the_solver_and_how_rows_are_split_makes_no_difference(monkeypatch):
    seen, totals = [], []
    receive, decode = serving.receive, pooled.combine

    def spy(server, reports, **rest):
        seen.append({report.client for report in reports})
        return receive(server, reports, **rest)

    def note(total, *rest):
        totals.append(total)
        return decode(total, *rest)

    monkeypatch.setattr(serving, "receive", spy)
    monkeypatch.setattr(pooled, "combine", note)
    ends, sums = [], []
    for seed in (1, 2):
        tables, totals[:] = split(4, seed), []
        ends.append(run(tables, make_study(tables, method=METHODS["erm"], extra=STANDARD)))
        sums.append([total.copy() for total in totals])
    assert all(clients == {summing.ALL} for clients in seen)
    assert np.abs(ends[0].outcome.theta - ends[1].outcome.theta).max() < 1e-6
    assert len(sums[0]) == len(sums[1])
    for one, other in zip(*sums, strict=True):
        assert np.abs(one - other).max() < 1e-6


def test_what_sites_send_looks_like_noise():
    tables = split(4)
    sent = []

    def watch(state, site, data):
        answer = wire.decode(data, Reply).answer
        if isinstance(answer, Masked):
            sent.append(answer.numbers)
        return data

    study = among(make_study(tables, method=METHODS["erm"], extra=STANDARD))
    conduct(coordinator.begin(study, "run-1"), secure_sites(tables, study, key_of), tamper=watch)
    counts = np.bincount(np.concatenate(sent).view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4


@cache
def undisturbed(method):
    tables = split(5)
    study = make_study(tables, method=METHODS[method], extra=STANDARD)
    return tables, study, run(tables, study)


@pytest.mark.parametrize("step", few(secure.STEPS[::-1], 2))
@pytest.mark.parametrize("method", few(["erm", "afl"]))
def test_a_site_may_drop_out_at_every_step_of_a_round(step, method):
    tables, study, whole = undisturbed(method)

    def gone(state, site):
        return site == "site-2" and state.step == step and len(state.history) == 2

    study = among(study)
    end = conduct(coordinator.begin(study, "run-1"), secure_sites(tables, study, key_of), gone)
    assert end.outcome.status == "converged"
    assert end.outcome.objective == pytest.approx(whole.outcome.objective, rel=1.1e-4)
    away = [line.round for line in end.history if "site-2" not in line.answered]
    assert away == ([] if step == "sum open" else [3])


@pytest.mark.slow
def test_while_the_worst_site_is_away_nothing_is_said_of_the_worst():
    tables = split(5)
    worst = tables["site-2"]
    worst["y"] = ["no" if y == "yes" and k % 3 == 0 else y for k, y in enumerate(worst["y"])]
    study = among(make_study(tables, method=METHODS["afl"], extra=STANDARD))

    def gone(state, site):
        return site == "site-2" and state.step == "sum keys" and len(state.history) in (1, 2, 3)

    end = conduct(coordinator.begin(study, "run-1"), secure_sites(tables, study, key_of), gone)
    assert end.outcome.status == "converged"
    assert all(np.isinf(end.history[k].gap) for k in (1, 2, 3))
    true = worst_of(end, tables)
    assert true <= end.outcome.objective <= true * (1 + 1e-4)


@pytest.mark.parametrize("then", few(["wait", "go on"]))
def test_a_site_that_comes_and_goes_is_waited_for_once_sites_would_refuse(then):
    """Every second round, at most three times: sites let those in their sums change six times."""
    tables, study, whole = undisturbed("erm")
    study = among(study.changed(absent_then=then, training_tol=1e-9))

    def gone(state, site):
        return site == "site-2" and state.sum.of == "round" and len(state.history) % 2 == 1

    sites = secure_sites(tables, study, key_of)
    end = conduct(coordinator.begin(study, "run-1"), sites, gone, patient=True)
    assert end.outcome.status == "converged" and end.sum.changes == DEFAULT.changes
    assert end.outcome.objective == pytest.approx(whole.outcome.objective, rel=1.1e-4)
    away = [line.round for line in end.history if "site-2" not in line.answered]
    assert away[:3] == [2, 4, 6] and len(away) == 3


@pytest.mark.slow
def test_a_site_may_drop_out_between_two_levels_of_one_round():
    tables, study, whole = undisturbed("afl")
    study, dropped = among(study), []

    def gone(state, site):
        again = state.sum.of == "round" and len(state.history) == 2 and state.sum.tried.times > 0
        off = again and site == "site-2" and state.step == "sum keys"
        if off:
            dropped.append(state.server.round)
        return off

    def bend(state):
        """A level far too low for the third round: it has to be asked for anew."""
        first = state.step == "sum keys" and len(state.history) == 2 and not state.sum.tried.times
        if first and state.sum.tilt.tau is not None and not dropped:
            low = state.sum.tilt._replace(level=state.sum.tilt.level - 40 * state.sum.tilt.tau)
            return state._replace(sum=state.sum._replace(tilt=low))
        return state

    state, sites = coordinator.begin(study, "run-1"), secure_sites(tables, study, key_of)
    while state.step != "done":
        state = bend(state)
        answers = {
            name: coordinator.read(
                state, name, sites[name].respond(wire.encode(coordinator.request(state, name)))
            )
            for name in coordinator.asked(state)
            if not gone(state, name)
        }
        assert not any(isinstance(told, Refusal) for told in answers.values()) or (
            state.step == "finish"
        )
        state = coordinator.receive(state, answers)
    assert set(dropped) == {3, 4}
    away = [line.round for line in state.history if "site-2" not in line.answered]
    assert away == [4]  # the third was opened among all, at another level
    assert state.outcome.status == "converged"
    assert state.outcome.objective == pytest.approx(whole.outcome.objective, rel=1.1e-4)


def test_why_sites_refuse_a_sum_is_said_at_its_end():
    tables, study, _ = undisturbed("erm")
    study = among(study)
    sites = secure_sites(tables, study, key_of, limits=ROOMY._replace(told=0.001))
    with pytest.raises(ValueError, match=r"tried 4 times.*'site-1': this site has told"):
        local.run(coordinator.begin(study, "run-1"), sites)


def test_the_certificate_of_the_sum_is_that_of_single_sites():
    tables, study, _ = undisturbed("erm")
    study = among(study)
    sites = secure_sites(tables, study, key_of)
    end = local.run(coordinator.begin(study, "run-1"), sites)
    told = []
    for name in end.roster:
        agreed = meaning.agreed(end, name)
        group = sites[name].group(agreed)
        told += computing.certify(group, end.outcome.theta, agreed, meaning.thin(end))
    single = end._replace(
        told=dict(zip(end.roster, told, strict=True)),
        study=study.changed(privacy_secure_sum=False, privacy_peers=()),
    )
    apart, summed = promises.of_study(single), promises.of_study(end)
    names = [line.name for line in summed.overall]
    assert summed.clients == () and names == ["all clients, by their rows"]
    for one, two in zip(apart.overall[:1], summed.overall, strict=True):
        assert one.loss <= two.loss <= one.loss + 1e-6  # never less: a bound stays one
        assert one.error <= two.error <= one.error + 1e-6
    for one, two in zip(apart.over_drift, summed.over_drift, strict=True):
        assert (one.loss is None) == (two.loss is None)


def test_a_site_that_does_not_certify_leaves_the_model_without():
    def silent(*_):
        raise Refused("not this")

    tables, study, whole = undisturbed("erm")
    study = among(study)
    sites = secure_sites(tables, study, key_of)
    sites["site-2"]._certify = silent
    end = local.run(coordinator.begin(study, "run-1"), sites)
    assert end.step == "done" and not end.told and promises.of_study(end) is None
    assert end.withheld == {"site-2": "not this"}
    (note,) = [n for n in results.model_of(end).facts.notes if "certificate" in n]
    assert "site 'site-2' withheld its part: not this" in note
    assert np.array_equal(end.outcome.theta, whole.outcome.theta)


def test_before_training_nobody_may_be_missing_and_with_three_sites_never():
    tables = split(5)
    study = among(make_study(tables, method=METHODS["erm"], extra=STANDARD))
    state = coordinator.begin(study, "run-1")
    state = state._replace(
        step="sum keys", sum=state.sum._replace(of="columns", number=1), rows=(160,) * 5
    )
    assert coordinator.waiting(state, set(state.roster[1:])) == state.roster[:1]
    assert threshold(3) == 3


def test_a_liar_among_the_shares_is_named_and_does_no_harm():
    tables, study, honest = undisturbed("erm")

    def lie(state, site, data):
        reply = wire.decode(data, Reply)
        if site == "site-0" and isinstance(reply.answer, Shares):
            false = {name: bytes(32) for name in reply.answer.shares}
            data = wire.encode(reply._replace(answer=Shares(false)))
        return data

    study = among(study)
    end = conduct(
        coordinator.begin(study, "run-1"), secure_sites(tables, study, key_of), tamper=lie
    )
    assert np.array_equal(end.outcome.theta, honest.outcome.theta)  # to the last bit
    assert all("shares" in line.refused["site-0"] for line in end.history)


def summed_with_a_lie(method, about, change):
    """How a study ends in which one of three sites adds other numbers to the sums of a step."""
    tables = split(3)
    study = among(make_study(tables, method=METHODS[method], extra=STANDARD))

    def lie(state, site, data):
        reply = wire.decode(data, Reply)
        if site == "site-0" and isinstance(reply.answer, Masked) and state.sum.of == about:
            numbers = change(reply.answer.numbers.copy())
            data = wire.encode(reply._replace(answer=Masked(numbers)))
        return data

    sites = secure_sites(tables, study, key_of)
    return conduct(coordinator.begin(study, "run-1"), sites, tamper=lie)


def added(amount, place=slice(None)):
    def change(numbers):
        numbers[place] += np.int64(amount)
        return numbers

    return change


@pytest.mark.parametrize(
    ("about", "change", "words"),
    [
        # The sum goes round 2⁶⁴, or is noise: a part out of range, or without its mask.
        ("columns", added(2**62), "larger than sites may make it"),
        ("round", added(-(2**62)), "larger than sites may make it"),
        ("round", np.zeros_like, "larger than sites may make it"),
        ("round", lambda n: n ^ np.int64(0x5555555555555555), "larger than sites may make it"),
        # Counts that there are not.
        ("columns", added(2**50), "more or fewer values"),
        ("columns", added(-(2**30)), "more or fewer values"),
        ("spreads", added(2**50, 0), "more or fewer values"),
        # A weight that it has not, and a flag that only says yes or no.
        ("round", added(2**38, 2), "what sites weigh does not add up"),
        ("round", added(-(2**39), 2), "what sites weigh does not add up"),
        ("round", added(1, 0), "too large to be added up"),
    ],
)
def test_a_part_of_a_sum_that_cannot_be_is_an_error_and_no_sum(about, change, words):
    with pytest.raises(ValueError, match=words):
        summed_with_a_lie("erm", about, change)


@pytest.mark.parametrize("step", secure.STEPS)
def test_an_answer_of_another_size_is_no_part_of_a_sum(step):
    """Keys, shares, numbers and openings: the answer is refused with a reason, never added."""
    tables = split(3)
    study = among(make_study(tables, method=METHODS["erm"], extra=STANDARD))
    sites, state = secure_sites(tables, study, key_of), coordinator.begin(study, "run-1")
    while state.step != step:
        replies = {s: sites[s].respond(wire.encode(coordinator.request(state, s))) for s in sites}
        state = coordinator.receive(
            state, {s: coordinator.read(state, s, data) for s, data in replies.items()}
        )
    reply = wire.decode(
        sites["site-0"].respond(wire.encode(coordinator.request(state, "site-0"))), Reply
    )
    answer = reply.answer
    odd = {
        "sum keys": lambda: answer._replace(mask=answer.mask[:-1]),
        "sum shares": lambda: answer._replace(boxes={**answer.boxes, "site-9": bytes(80)}),
        "sum masked": lambda: answer._replace(numbers=answer.numbers[:-1]),
        "sum open": lambda: answer._replace(shares={"site-1": bytes(31)}),
    }[step]()
    data = wire.encode(reply._replace(answer=odd))
    assert isinstance(coordinator.read(state, "site-0", wire.encode(reply)), type(answer))
    with pytest.raises(ValueError, match=r"wrong size|not for those|another count|not part of"):
        coordinator.read(state, "site-0", data)
    if step == "sum masked":  # a number that is none, in place of integers
        data = wire.encode(reply._replace(answer=Masked(np.full(answer.numbers.size, np.nan))))
        with pytest.raises(ValueError, match=r"another count|number"):
            coordinator.read(state, "site-0", data)


@pytest.mark.slow
def test_a_lie_within_range_is_not_seen_in_a_sum():
    """What the page says: a site that adds 0.2 to an entry of the gradient moves the model."""
    _, _, honest = undisturbed("erm")
    fooled = summed_with_a_lie("erm", "round", added(int(0.2 * 2**40), 12))
    assert fooled.outcome.status in ("converged", "stalled", "budget")
    assert np.abs(fooled.outcome.theta - honest.outcome.theta).max() > 0.1
    assert not any(line.refused for line in fooled.history)


def test_a_sum_that_cannot_be_opened_is_tried_again_and_then_an_error():
    tables = split(3)
    study = among(make_study(tables, method=METHODS["erm"], extra=STANDARD))

    def lie(state, site, data):
        reply = wire.decode(data, Reply)
        if site == "site-0" and isinstance(reply.answer, Shares):
            return wire.encode(reply._replace(answer=Shares(dict.fromkeys(tables, bytes(32)))))
        return data

    with pytest.raises(ValueError, match="do not fit what it promised; tried 4 times"):
        conduct(coordinator.begin(study, "run-1"), secure_sites(tables, study, key_of), tamper=lie)


def at_step(step, sites=4, method="erm", rounds=1):
    """A study stopped at a step of a round's sum, and its sites."""
    tables = split(sites)
    study = among(make_study(tables, method=METHODS[method], extra=STANDARD))
    homes, state = secure_sites(tables, study, key_of), coordinator.begin(study, "run-1")
    while not (state.step == step and state.sum.of == "round" and len(state.history) == rounds):
        state = asked_of_all(state, homes)
    return state, homes


def asked_of_all(state, sites):
    answers = {}
    for name in coordinator.asked(state):
        reply = sites[name].respond(wire.encode(coordinator.request(state, name)))
        answers[name] = coordinator.read(state, name, reply)
    return coordinator.receive(state, answers)


def reason(site, request):
    answer = wire.decode(site.respond(wire.encode(request)), Reply).answer
    return answer.reason if isinstance(answer, Refusal) else None


def changed(request, **fields):
    return request._replace(summing=request.summing._replace(**fields))


def test_a_site_never_gives_both_shares_of_another():
    state, sites = at_step("sum open")
    asked = coordinator.request(state, "site-0")
    assert reason(sites["site-0"], asked) is None
    without = changed(asked, alive=("site-0", "site-1", "site-2"))
    assert "opened before" in reason(sites["site-0"], without)
    assert reason(sites["site-0"], asked) is None  # the same again tells nothing new


def test_two_sums_of_one_round_are_opened_among_the_same_sites():
    state, sites = at_step("sum open")
    assert reason(sites["site-0"], coordinator.request(state, "site-0")) is None
    state = secure.begin(state._replace(step="round"))  # the same round, in another sum
    while state.step != "sum open":
        state = asked_of_all(state, sites)
    asked = coordinator.request(state, "site-0")
    without = changed(asked, alive=("site-0", "site-1", "site-2"))
    assert "opened before" in reason(sites["site-0"], without)
    assert reason(sites["site-0"], asked) is None


def test_a_site_opens_nothing_that_it_did_not_add_to_or_of_too_few():
    state, sites = at_step("sum open")
    asked = coordinator.request(state, "site-0")
    assert "too few" in reason(sites["site-0"], changed(asked, alive=("site-0", "site-1")))
    others = ("site-1", "site-2", "site-3")
    assert "not of this one" in reason(sites["site-0"], changed(asked, alive=others))
    assert "not all shares" in reason(sites["site-0"], changed(asked, boxes={}))
    task = asked.broadcast.task
    other = asked.broadcast._replace(task=task._replace(theta=task.theta + 0.1))
    assert "none that this site added to" in reason(
        sites["site-0"], asked._replace(broadcast=other)
    )


def test_one_sum_is_one_question_and_among_enough_sites():
    state, sites = at_step("sum masked")
    asked = coordinator.request(state, "site-0")
    assert reason(sites["site-0"], asked) is None
    again = changed(asked, rows=asked.summing.rows + 1)
    assert "another question" in reason(sites["site-0"], again)
    two = {name: asked.summing.adverts[name] for name in ("site-0", "site-1")}
    assert "too few sites" in reason(sites["site-0"], changed(asked, adverts=two))
    tilt = asked.summing.tilt._replace(tau=1e-6)
    later = changed(asked, number=asked.summing.number + 9, tilt=tilt)
    assert reason(sites["site-0"], later) is not None


def test_keys_that_a_site_did_not_sign_are_refused():
    state, sites = at_step("sum shares")
    asked = coordinator.request(state, "site-0")
    adverts = asked.summing.adverts
    forged = {**adverts, "site-1": adverts["site-1"]._replace(mask=adverts["site-2"].mask)}
    assert "not signed" in reason(sites["site-0"], changed(asked, adverts=forged))
    swapped = {**adverts, "site-1": adverts["site-2"]}
    assert "not signed" in reason(sites["site-0"], changed(asked, adverts=swapped))
    stranger = {**adverts, "site-9": adverts["site-2"]}
    assert "study names" in reason(sites["site-0"], changed(asked, adverts=stranger))


def test_a_site_tells_nothing_in_the_open_and_sums_with_whom_a_person_approved():
    state, sites = at_step("sum masked")
    asked = coordinator.request(state, "site-0")
    plain = asked._replace(step="round", summing=None)
    assert "one site tells is not sent" in reason(sites["site-0"], plain)
    tables = split(4)
    study = among(make_study(tables, method=METHODS["erm"], extra=STANDARD))
    first = coordinator.begin(study, "run-1")
    (site,) = make_sites({"site-0": tables["site-0"]}).values()
    hello = coordinator.request(first, "site-0")
    assert "no key to sign with" in reason(site, hello)
    site.key = key_of("site-0")
    assert "waits for approval" in reason(site, hello)  # although a rule approves of any name
    site.ledger.approve(mark_of(study))
    assert reason(site, hello) is None
    fake = among(study, lambda name: key_of(name if name == "site-0" else f"fake {name}"))
    assert "waits for approval" in reason(
        site, coordinator.request(coordinator.begin(fake, "run-2"), "site-0")
    )
    others = among(study, lambda name: key_of("one for all"))
    assert "one key for two" in reason(
        site, coordinator.request(coordinator.begin(others, "run-3"), "site-0")
    )
    wrong = among(study, lambda name: key_of(f"fake {name}"))
    assert "another key for this site" in reason(
        site, coordinator.request(coordinator.begin(wrong, "run-4"), "site-0")
    )


def test_weights_are_the_sites_own_business():
    state, sites = at_step("sum masked", method="afl")
    asked = coordinator.request(state, "site-0")
    tilt, theta = asked.summing.tilt, asked.broadcast.task.theta
    stage = pooled.Stage(theta + 1.0, 0.5, 0.1)
    strange = changed(asked, tilt=tilt._replace(stages=(stage,)))
    assert "never asked about" in reason(sites["site-0"], strange)


@pytest.mark.parametrize(
    "step",
    ["sum masked", *(pytest.param(s, marks=pytest.mark.slow) for s in sorted(BESIDE))],
)
def test_a_checkpoint_in_the_middle_of_a_sum_goes_on_to_the_same_bits(step, tmp_path):
    method, rounds = ("afl", 6) if step == "sum open" else ("erm", 2)
    state, sites = at_step(step, method=method, rounds=rounds)
    whole = local.run(state, sites)
    checkpoint.save(tmp_path / "state.json", state)
    back = checkpoint.load(tmp_path / "state.json")
    end = local.run(back, sites)
    assert np.array_equal(end.outcome.theta, whole.outcome.theta)
    assert end.outcome.rounds == whole.outcome.rounds


def test_a_number_out_of_range_is_an_error_that_says_what_to_do():
    tables = split(3)
    for rows in tables.values():
        rows["x0"] = [v * 1e13 for v in rows["x0"]]
    study = make_study(tables, method=METHODS["erm"], extra=STANDARD)
    with pytest.raises(ValueError, match="too large for a secure sum: give the column"):
        run(tables, study)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('sites = ["a", "b"]', "three sites"),
        ('[method]\nname = "afl"\ncap = 0.5', "cap"),
        ("[defence]\nrow = 9.0", "no single report is seen"),
        ("[defence]\nliars = 0.25", "no single report is seen"),
        ("[defence]\ntrim = 0.2\n[training]\nsolver = 'optimistic'", "no single report is seen"),
    ],
)
def test_what_needs_more_than_sums_is_refused(text, words):
    parts = ["[privacy]\nsecure_sum = true", '[data]\nlabel = "y"']
    if "[columns]" not in text:
        parts.append(STANDARD)
    if "[method]" not in text:
        parts.append('[method]\nname = "erm"')
    head, rest = (text, "") if text.startswith("sites") else ("", text)
    with pytest.raises(ValueError, match=words):
        toml.parse("\n".join([head, *parts, rest]))


def test_a_solver_that_does_not_pool_is_refused(monkeypatch):
    monkeypatch.setattr(Sqp, "needs", Needs(True, True))
    with pytest.raises(ValueError, match="solver 'auto' needs single reports"):
        toml.parse(
            f'[data]\nlabel = "y"\n[method]\nname = "erm"\n[privacy]\nsecure_sum = true\n{STANDARD}'
        )


def test_a_table_has_nothing_to_hide(tmp_path):
    study = among(make_study(split(3), method=METHODS["erm"], extra=STANDARD))
    with pytest.raises(ValueError, match="of one table nothing is hidden"):
        table.run(study.changed(data_file=str(tmp_path / "all.csv"), data_client="site"))


def test_epsilon_is_refused_beside_sums():
    with pytest.raises(ValueError, match="epsilon"):
        toml.parse(
            '[data]\nlabel = "y"\n[method]\nname = "erm"\n'
            f"[privacy]\nsecure_sum = true\nepsilon = 1.0\n{STANDARD}"
        )


# ── a hostile coordinator ───────────────────────────────────────────────────────────────────────


def opened(state, sites, without=()):
    """The numbers of one whole sum, some sites said to be gone; None where it cannot be opened."""
    state = secure.begin(state._replace(step="round"))
    for step in secure.STEPS:
        answers = {}
        for name in coordinator.asked(state):
            reply = sites[name].respond(wire.encode(coordinator.request(state, name)))
            answers[name] = coordinator.read(state, name, reply)
        if step == "sum masked":
            answers = {name: told for name, told in answers.items() if name not in without}
        if any(isinstance(told, Refusal) for told in answers.values()):
            return state, None
        state, total, _ = secure.receive(state, answers)
    return state, total


@pytest.mark.parametrize(
    ("changes", "shown"), [(6, 6), pytest.param(99, 19, marks=pytest.mark.slow)]
)
def test_a_site_left_out_again_and_again_shows_few_of_its_reports(changes, shown):
    """The same θ in one round after another, with a site and without: the difference is its own."""
    state, sites = at_step("sum keys")
    for site in sites.values():
        site.limits = site.limits._replace(changes=changes)
    first, totals = state.server.round, []
    for k in range(20):
        state = state._replace(server=state.server._replace(round=first + k))
        state, total = opened(state, sites, without=("site-3",) if k % 2 else ())
        totals.append(total)
    single = [one - two for one, two in pairwise(totals) if one is not None and two is not None]
    assert len(single) == shown
    asked = coordinator.request(state, "site-3").agreement
    theta = serving.broadcast(state.server).task.theta
    (own,) = sites["site-3"].group(asked).evaluate(theta).gradients
    found = single[0][11 : 11 + len(own)] / single[0][2]
    assert np.abs(found - own).max() < 1e-9  # the attack is real: this is why they are few


def test_a_site_whose_memory_is_put_back_stays_masked():
    state, sites = at_step("sum open")
    assert all(reason(sites[n], coordinator.request(state, n)) is None for n in sites)
    sites["site-3"].memory = type(sites["site-3"].memory)()
    asked = coordinator.request(state._replace(step="sum masked"), "site-3")
    other = asked.broadcast._replace(
        task=asked.broadcast.task._replace(theta=asked.broadcast.task.theta + 0.1)
    )
    assert reason(sites["site-3"], asked._replace(broadcast=other)) is None  # it does not know
    others = ("site-0", "site-1", "site-2")
    for name in others:  # what masks it still is its mask key, which nobody opens beside its seed
        without = changed(coordinator.request(state, name), alive=others)
        assert "opened before" in reason(sites[name], without)


def test_whoever_is_asked_something_else_adds_noise():
    state, _ = at_step("sum masked")
    asked = coordinator.request(state, "site-0")
    about = summing.Asked(asked.broadcast)
    seen = {
        summing.question_of(agreement, question, what)
        for agreement, question, what in (
            (asked.agreement, asked.summing, about),
            (asked.agreement._replace(center=np.ones(5)), asked.summing, about),
            (asked.agreement._replace(cutoffs=((0.1, 2.0),)), asked.summing, about),
            (asked.agreement, asked.summing._replace(middles={"x0": 1.0}), about),
            (asked.agreement, asked.summing._replace(most=7), about),
            (asked.agreement, asked.summing, about._replace(models=np.zeros((2, 6)))),
        )
    }
    assert len(seen) == 6
    same = asked.agreement._replace(site="site-1")
    assert summing.question_of(same, asked.summing, about) in seen
