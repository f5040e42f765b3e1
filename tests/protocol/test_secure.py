"""Studies of secure sums, in process: the plain model from sums alone, whoever lies or is gone."""

from functools import cache

import numpy as np
import pytest
from scipy import stats

import dorfl
from cases import few
from dorfl.federated import pooled, training
from dorfl.federated import server as serving
from dorfl.protocol import checkpoint, coordinator, resolution, sums, toml, transcript
from dorfl.protocol.messages import Masked, Opened, Reply
from dorfl.protocol.state import ALL_SITES
from dorfl.protocol.steps import certify
from dorfl.protocol.transcript import Exchange, Relay, SignedReply, Transcript
from dorfl.site import local
from dorfl.solvers import Sqp
from dorfl.solvers.base import Needs
from dorfl.support import wire
from dorfl.tabular import promises, results, table
from study_cases import (
    METHODS,
    among,
    conduct,
    key_of,
    make_sites,
    make_study,
    mixed_tables,
    refuse,
    secure_sites,
    split,
    synthetic_tables,
)
from study_cases import run_summed as run

STANDARD = '[columns]\nscaling = "standard"'


class Lying:
    """A site that signs other answers than an honest one would: `change(answer, request)`."""

    def __init__(self, site, change):
        self.site, self.change = site, change

    def respond(self, data):
        said, request = (
            wire.decode(self.site.respond(data), SignedReply),
            wire.decode(data, Relay).request,
        )
        if not said.signature:
            return wire.encode(said)
        reply = wire.decode(said.reply, Reply)
        other = wire.encode(reply._replace(answer=self.change(reply.answer, request)))
        head = self.site.replicas[reply.run].head
        return wire.encode(transcript.sign(self.site.key, head, self.site.name, other))


def with_a_liar(tables, study, change):
    sites = secure_sites(tables, study, key_of)
    return {**sites, "site-0": Lying(sites["site-0"], change)}


def clients_of(end, tables):
    rows = {s: {n: v for n, v in t.items() if n != "y"} for s, t in tables.items()}
    return {
        s: (end.agreed.transform.apply(r, np.float32).X, np.array(tables[s]["y"]) == "yes")
        for s, r in rows.items()
    }


def trained(end, tables):
    """What `dorfl.train` makes of the same rows by the same method."""
    method = resolution.problem_of(end.agreed).method
    return dorfl.train(clients_of(end, tables), method, l2=1.0 / sum(end.rows), tol=1e-4)


def worst_of(end, tables):
    """The worst site's risk at the model found."""
    group = training.prepare(clients_of(end, tables), resolution.problem_of(end.agreed).method)
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
    for one, other in zip(end.agreed.transform.numeric, told.agreed.transform.numeric, strict=True):
        assert one.center == pytest.approx(other.center, abs=1e-8)
        assert one.spread == pytest.approx(other.spread, rel=1e-7)


def test_a_tilted_fixed_mixture_gives_the_plain_model():
    tables = synthetic_tables()
    words = 'name = "dorfl"\noutliers = 0\nmixture = "fixed"\nrho = 20\nbeta = 0.05'
    end = run(tables, make_study(tables, method=words, extra=STANDARD))
    assert np.isfinite(resolution.problem_of(end.agreed).method.temperature)
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
    assert end.agreed.transform.names == told.agreed.transform.names
    assert end.agreed.transform.numeric[0].missing == told.agreed.transform.numeric[0].missing
    model = results.model_of(end)
    assert model.fit.clients == (ALL_SITES,) and model.facts.rows == sum(end.rows)
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
    assert all(clients == {ALL_SITES} for clients in seen)
    assert np.abs(ends[0].outcome.theta - ends[1].outcome.theta).max() < 1e-6
    assert len(sums[0]) == len(sums[1])
    for one, other in zip(*sums, strict=True):
        assert np.abs(one - other).max() < 1e-6


def test_what_sites_send_looks_like_noise():
    tables = split(4)
    sent = []

    def watch(state, site, data):
        answer = wire.decode(wire.decode(data, SignedReply).reply, Reply).answer
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


@pytest.mark.parametrize("step", few([*sums.EXCHANGES][::-1], 2))
@pytest.mark.parametrize("method", few(["erm", "afl"]))
def test_a_site_may_drop_out_at_every_step_of_a_round(step, method):
    tables, study, whole = undisturbed(method)

    def gone(state, site):
        once = not state.absences.get("site-2") and len(state.history) == 2
        return site == "site-2" and state.step == step and once

    study = among(study)
    end = conduct(coordinator.begin(study, "run-1"), secure_sites(tables, study, key_of), gone)
    assert end.outcome.status == "converged"
    assert end.outcome.objective == pytest.approx(whole.outcome.objective, rel=1.1e-4)
    away = [line.round for line in end.history if "site-2" not in line.answered]
    assert away == ([] if step == "sum open" else [3])  # a sum that is not opened is asked again


@pytest.mark.slow
def test_while_the_worst_site_is_away_nothing_is_said_of_the_worst():
    tables = split(5)
    worst = tables["site-2"]
    worst["y"] = ["no" if y == "yes" and k % 3 == 0 else y for k, y in enumerate(worst["y"])]
    study = among(make_study(tables, method=METHODS["afl"], extra=STANDARD))

    def gone(state, site):
        return site == "site-2" and state.step == "sum masked" and len(state.history) in (1, 2, 3)

    end = conduct(coordinator.begin(study, "run-1"), secure_sites(tables, study, key_of), gone)
    assert end.outcome.status == "converged"
    assert all(np.isinf(end.history[k].gap) for k in (1, 2, 3))
    true = worst_of(end, tables)
    assert true <= end.outcome.objective <= true * (1 + 1e-4)


@pytest.mark.parametrize("then", few(["wait", "go on"]))
def test_a_site_that_comes_and_goes_is_waited_for_after_three_absences(then):
    """The difference of two sums shows the reports of a site: so it is left out three times."""
    tables, study, whole = undisturbed("erm")
    study = among(study.changed(absent_then=then, training_tol=1e-9))

    def gone(state, site):
        off = state.step == "sum masked" and state.sum.of == "round"
        return site == "site-2" and off and len(state.history) in range(1, 12, 2)

    sites = secure_sites(tables, study, key_of)
    end = conduct(coordinator.begin(study, "run-1"), sites, gone, patient=True)
    assert end.outcome.status == "converged"
    assert end.outcome.objective == pytest.approx(whole.outcome.objective, rel=1.1e-4)
    away = [line.round for line in end.history if "site-2" not in line.answered]
    assert away[:3] == [2, 4, 6] and (len(away) == 3 or then == "go on")


def test_a_rule_of_a_site_ends_the_study_by_name_before_training():
    tables, study, _ = undisturbed("erm")
    study = among(study)
    sites = secure_sites(tables, study, key_of, parameters_per_row=0.001)
    with pytest.raises(ValueError, match=r"'site-0' does not take part: saturation rule"):
        local.run(coordinator.begin(study, "run-1"), sites)


def test_the_certificate_of_the_sum_is_that_of_single_sites():
    tables, study, _ = undisturbed("erm")
    study = among(study)
    sites = secure_sites(tables, study, key_of)
    end = local.run(coordinator.begin(study, "run-1"), sites)
    told = []
    for name in end.sites:
        agreed = end.for_site(name)
        group = sites[name].group(agreed)
        told += certify.bounds(group, end.outcome.theta, agreed, resolution.grid_stride(end))
    in_the_open = study.changed(privacy_reports="open", privacy_peers=())
    single = end.agree(study=in_the_open)
    single = single._replace(bounds=dict(zip(end.sites, told, strict=True)))
    apart, summed = promises.of_study(single), promises.of_study(end)
    names = [line.name for line in summed.overall]
    assert summed.clients == () and names == ["all clients, by their rows"]
    for one, two in zip(apart.overall[:1], summed.overall, strict=True):
        assert one.loss <= two.loss <= one.loss + 1e-6  # never less: a bound stays one
        assert one.error <= two.error <= one.error + 1e-6
    for one, two in zip(apart.over_drift, summed.over_drift, strict=True):
        assert (one.loss is None) == (two.loss is None)


def test_a_site_that_does_not_certify_leaves_the_model_without():
    tables, study, whole = undisturbed("erm")
    study = among(study)
    sites = secure_sites(tables, study, key_of)
    refuse(sites["site-2"], "not this", lambda step, _: step == "certify")
    end = local.run(coordinator.begin(study, "run-1"), sites)
    assert end.step == "done" and not end.bounds and promises.of_study(end) is None
    assert end.withheld == {"site-2": "not this"}
    (note,) = [n for n in results.model_of(end).facts.notes if "certificate" in n]
    assert "site 'site-2' withheld its part: not this" in note
    assert np.array_equal(end.outcome.theta, whole.outcome.theta)


def test_before_training_nobody_may_be_missing_and_with_three_sites_never():
    tables = split(5)
    study = among(make_study(tables, method=METHODS["erm"], extra=STANDARD))
    state = coordinator.begin(study, "run-1")
    state = state._replace(step="sum masked", sum=state.sum._replace(of="columns"), rows=(160,) * 5)
    assert coordinator.waiting(state, set(state.sites[1:])) == state.sites[:1]
    few = state._replace(sites=state.sites[:3], sum=state.sum._replace(of="round"))
    assert coordinator.waiting(few, set(few.sites[1:])) == few.sites[:1]


def summed_with_a_lie(method, about, change):
    """How a study ends in which one of three sites adds other numbers to the sums of a step."""
    tables = split(3)
    study = among(make_study(tables, method=METHODS.get(method, method), extra=STANDARD))

    def lie(answer, request):
        if isinstance(answer, Masked) and request.summing.of == about:
            return answer._replace(numbers=change(answer.numbers.copy()))
        return answer

    return conduct(coordinator.begin(study, "run-1"), with_a_liar(tables, study, lie))


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
        ("scales", added(2**50, 0), "more or fewer values"),
        # A weight that it has not, and a flag that only says yes or no.
        ("round", added(2**38, 2), "what sites weigh does not add up"),
        ("round", added(-(2**39), 2), "what sites weigh does not add up"),
        ("round", added(1, 0), "too large to be added up"),
    ],
)
def test_a_part_of_a_sum_that_cannot_be_is_an_error_and_no_sum(about, change, words):
    with pytest.raises(ValueError, match=words):
        summed_with_a_lie("erm", about, change)


def test_a_negative_weight_of_tilted_risks_is_an_error_and_no_level():
    with pytest.raises(ValueError, match=r"what sites weigh is negative.*leave sites out in turn"):
        summed_with_a_lie(
            'name = "gdrfl"\nmixture = "fixed"\nrho = 20\nbeta = 0.1',
            "round",
            added(-3 * 2**40, 2),
        )


def test_a_request_that_cannot_be_read_is_refused_with_a_reason():
    tables = split(3)
    study = among(make_study(tables, method=METHODS["erm"], extra=STANDARD))
    site = secure_sites(tables, study, key_of)["site-0"]
    now = Exchange(coordinator.begin(study, "run-1"), Transcript())
    asked = now.payload("site-0").replace(b'"number":0', b'"number":null')
    with pytest.raises(ValueError, match="does not fit this site"):
        now.read("site-0", site.respond(asked))


@pytest.mark.parametrize("step", sums.EXCHANGES)
def test_an_answer_of_another_size_is_no_part_of_a_sum(step):
    """Numbers and openings: the answer is refused with a reason, never added."""
    tables = split(3)
    study = among(make_study(tables, method=METHODS["erm"], extra=STANDARD))
    odd = {
        "sum masked": (
            lambda answer: answer._replace(numbers=answer.numbers[:-1]),
            lambda answer: answer._replace(numbers=np.full(answer.numbers.size, np.nan)),
            lambda answer: answer._replace(promise=b""),
        ),
        "sum open": (
            lambda answer: answer._replace(seed=bytes(32)),
            lambda answer: answer._replace(pairs={"site-1": bytes(32)}),
        ),
    }[step]
    for change in odd:
        sites = with_a_liar(
            tables,
            study,
            lambda answer, asked, c=change: c(answer) if asked.step == step else answer,
        )
        state, log = coordinator.begin(study, "run-1"), Transcript()
        while state.step != step:
            state = asked_of_all(state, sites, log)
        now = Exchange(state, log)
        words = r"another count|number|not the one that it promised|not part of"
        with pytest.raises(ValueError, match=words):
            now.read("site-0", sites["site-0"].respond(now.payload("site-0")))


def asked_of_all(state, sites, log):
    step = Exchange(state, log)
    for name in coordinator.recipients(state):
        assert step.read(name, sites[name].respond(step.payload(name)))
    return step.close()


@pytest.mark.slow
def test_a_lie_within_range_is_not_seen_in_a_sum():
    """What the page says: a site that adds 0.2 to an entry of the gradient moves the model."""
    _, _, honest = undisturbed("erm")
    fooled = summed_with_a_lie("erm", "round", added(int(0.2 * 2**40), 12))
    assert fooled.outcome.status in ("converged", "stalled", "budget")
    assert np.abs(fooled.outcome.theta - honest.outcome.theta).max() > 0.1
    assert not any(line.refused for line in fooled.history)


def test_a_sum_that_cannot_be_opened_is_tried_again_and_then_an_error():
    tables = split(4)
    study = among(make_study(tables, method=METHODS["erm"], extra=STANDARD))

    def lie(answer, request):
        if (
            isinstance(answer, Opened)
            and request.broadcast is not None
            and request.broadcast.round > 1
        ):
            return answer._replace(seed=bytes(32))
        return answer

    with pytest.raises(ValueError, match="'site-0' is in the sum and does not open it; tried 4"):
        conduct(coordinator.begin(study, "run-1"), with_a_liar(tables, study, lie))


@pytest.mark.parametrize("step", ["sum masked", pytest.param("sum open", marks=pytest.mark.slow)])
def test_a_checkpoint_in_the_middle_of_a_sum_goes_on_to_the_same_bits(step, tmp_path):
    method, rounds = ("afl", 6) if step == "sum open" else ("erm", 2)
    tables = split(4)
    study = among(make_study(tables, method=METHODS[method], extra=STANDARD))
    sites, log = secure_sites(tables, study, key_of), Transcript(tmp_path / "log")
    state = coordinator.begin(study, "run-1")
    while not (state.step == step and state.sum.of == "round" and len(state.history) == rounds):
        state = asked_of_all(state, sites, log)
    checkpoint.save(tmp_path / "state.json", state)
    whole = local.run(state, sites, transcript=log)
    back = checkpoint.load(tmp_path / "state.json")
    log = Transcript(tmp_path / "log")  # has more steps than the checkpoint
    followed = log.follow(back)
    assert followed.step == "done" and np.array_equal(followed.outcome.theta, whole.outcome.theta)
    restarted = secure_sites(tables, study, key_of)
    log.steps = log.steps[: back.number]
    for name, site in restarted.items():  # sites keep their secret and replay the rest
        site.secret = sites[name].secret
    end = local.run(back, restarted, transcript=log)
    assert np.array_equal(end.outcome.theta, whole.outcome.theta)
    assert end.outcome.rounds == whole.outcome.rounds and end.head == whole.head


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
    parts = ['[privacy]\nreports = "summed"', '[data]\nlabel = "y"']
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
            f'[data]\nlabel = "y"\n[method]\nname = "erm"\n'
            f'[privacy]\nreports = "summed"\n{STANDARD}'
        )


def test_a_table_has_nothing_to_hide(tmp_path):
    study = among(make_study(split(3), method=METHODS["erm"], extra=STANDARD))
    with pytest.raises(ValueError, match="of one table nothing is hidden"):
        table.run(study.changed(data_file=str(tmp_path / "all.csv"), data_client="site"))


def test_epsilon_is_refused_beside_sums():
    with pytest.raises(ValueError, match="epsilon"):
        toml.parse(
            '[data]\nlabel = "y"\n[method]\nname = "erm"\n'
            f'[privacy]\nreports = "summed"\nepsilon = 1.0\n{STANDARD}'
        )
