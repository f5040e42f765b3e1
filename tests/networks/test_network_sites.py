"""Networks among sites: the same as in one process, by permission, and checked on both sides."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv
from typer.testing import CliRunner

from dorfl.carriers.folders import Federation, SiteFolder
from dorfl.cli import app
from dorfl.federated.messages import Broadcast, Report
from dorfl.protocol import checkpoint, coordinator, settings, toml
from dorfl.protocol.messages import Refusal, Reply
from dorfl.site import local
from dorfl.site.policy import Policy
from dorfl.support import wire
from dorfl.tabular import model, results, table
from study_cases import (
    METHODS,
    ROOMY,
    among,
    conduct,
    key_of,
    make_sites,
    make_study,
    mixed_tables,
    run_summed,
    same_service,
    secure_sites,
    split,
    synthetic_tables,
)

ALLOWED = ROOMY._replace(networks=True)
TRAINING = 'model = "mlp"\nmax_rounds = 12'
TABLES = synthetic_tables()


def by_table(study, tables, home):
    """The model that `dorfl train` makes of the same rows and words."""
    parts = [
        pa.table({**rows, "site": [name] * len(next(iter(rows.values())))})
        for name, rows in tables.items()
    ]
    csv.write_csv(pa.concat_tables(parts), home / "rows.csv")
    data = study.data._replace(file=str(home / "rows.csv"), client="site")
    return table.run(study._replace(data=data))[0]


def by_sites(study, tables, **options):
    sites = make_sites(tables, **{"policy": ALLOWED, **options})
    return local.run(coordinator.begin(study, "run"), sites)


def until_rounds(study, sites, number=0):
    """The state in which the network's round `number` + 1 is asked."""
    states = []

    class Enough(Exception):  # noqa: N818
        pass

    def keep(state):
        states.append(state)
        if state.step == "network" and len(state.history) == number:
            raise Enough

    with pytest.raises(Enough):
        local.run(coordinator.begin(study, "run"), sites, keep)
    return states[-1]


def refusal(site, request):
    answer = wire.decode(site.respond(wire.encode(request)), Reply).answer
    return answer.reason if isinstance(answer, Refusal) else ""


def same(one, other):
    np.testing.assert_array_equal(one.fit.theta, other.fit.theta)
    np.testing.assert_array_equal(one.fit.lam, other.fit.lam)
    np.testing.assert_array_equal(one.fit.risks, other.fit.risks)
    assert one.fit.objective == other.fit.objective
    assert [(r.round, r.objective, r.bytes_up) for r in one.fit.history] == [
        (r.round, r.objective, r.bytes_up) for r in other.fit.history
    ]
    same_service(one, other)
    assert one.facts.choice == other.facts.choice
    assert one.network and other.network


@pytest.mark.parametrize("method", METHODS)
def test_sites_train_the_network_that_one_process_does(method, tmp_path):
    study = make_study(TABLES, method=METHODS[method], training=TRAINING)
    same(results.model_of(by_sites(study, TABLES)), by_table(study, TABLES, tmp_path))


@pytest.mark.parametrize("label", ["ill", "grade", "cost"])
def test_so_for_gaps_and_levels_classes_and_numbers(label, tmp_path):
    ignored = sorted({"ill", "grade", "cost"} - {label})
    tables = {
        name: {column: values for column, values in rows.items() if column not in ignored}
        for name, rows in mixed_tables().items()
    }
    extra = 'classes = ["0", "1", "2"]' if label == "grade" else ""
    words = 'name = "dorfl"\noutliers = 0.05'
    study = make_study(tables, label, extra=extra, method=words, training=TRAINING)
    same(results.model_of(by_sites(study, tables)), by_table(study, tables, tmp_path))


def test_what_a_trial_decides_is_decided_before(tmp_path):
    study = make_study(TABLES, method='name = "dorfl"', training=TRAINING)
    end = by_sites(study, TABLES)
    assert end.agreed.decision is not None and end.spent > 0 and len(end.history) == 12
    same(results.model_of(end), by_table(study, TABLES, tmp_path))


def test_the_same_from_any_checkpoint_and_from_sites_that_start_again(tmp_path):
    study = make_study(TABLES, training=TRAINING)
    kept = []

    def keep(state):
        if state.step in ("network", "finish"):
            kept.append(tmp_path / f"{len(kept)}.json")
            checkpoint.save(kept[-1], state)

    whole = local.run(coordinator.begin(study, "run"), make_sites(TABLES, policy=ALLOWED), keep)
    assert len(kept) == 14  # before the first round, after each, and after the last question
    for file in (kept[0], kept[7], kept[12], kept[13]):
        sites = make_sites(TABLES, policy=ALLOWED)  # as after a restart: a site keeps nothing
        state = checkpoint.load(file)
        if file == kept[13]:  # the question before, which says what the model is
            local.run(checkpoint.load(kept[12]), sites)
        again = local.run(state, sites)
        same(results.model_of(again), results.model_of(whole))


def test_a_network_needs_a_persons_word():
    study = make_study(TABLES, training=TRAINING)
    with pytest.raises(ValueError, match=r"networks = true in site.toml"):
        by_sites(study, TABLES, policy=ROOMY)
    assert not Policy().networks


def test_without_torch_site_and_coordinator_say_what_to_install(monkeypatch, tmp_path):
    def missing():
        raise ModuleNotFoundError("networks need PyTorch; install it with: pip install 'torch'")

    monkeypatch.setattr("dorfl.networks.require", missing)
    with pytest.raises(ValueError, match=r"'site-1' does not take part: .* pip install 'torch'"):
        by_sites(make_study(TABLES, training=TRAINING), TABLES)
    federation = Federation.create(tmp_path / "fed", "127.0.0.1", 443)
    SiteFolder.create(tmp_path / "site-1", "site-1")
    federation.add_site((tmp_path / "site-1" / "site-1.crt").read_bytes())
    (tmp_path / "study.toml").write_text(
        '[data]\nlabel = "y"\n[training]\nmodel = "mlp"\n[privacy]\nreports = "open"\n'
    )
    words = ["run", str(tmp_path / "fed"), str(tmp_path / "study.toml")]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 2 and "pip install 'torch'" in told.stderr
    assert not federation.runs()


def test_steps_are_on_all_rows_and_the_study_says_so():
    text = '[data]\nlabel = "y"\n[privacy]\nreports = "open"\n[training]\nmodel = "mlp"\n'
    assert settings.among(toml.parse(text), ("a", "b")).training.batch == 0
    with pytest.raises(ValueError, match="set batch = 0"):
        settings.among(toml.parse(f"{text}batch = 64\n"), ("a", "b"))
    with pytest.raises(ValueError, match="is for networks"):
        toml.parse('[data]\nlabel = "y"\n[training]\nbatch = 0\n')
    with pytest.raises(ValueError, match="more rounds than 10000"):
        by_sites(make_study(TABLES, training='model = "mlp"\nmax_rounds = 10001'), TABLES)
    study = make_study(TABLES, training=TRAINING).changed(training_batch=64)
    with pytest.raises(ValueError, match=r"\[training\] batch = 0"):
        by_sites(study, TABLES)


def test_a_site_answers_only_what_the_study_implies():
    study, sites = make_study(TABLES, training=TRAINING), make_sites(TABLES, policy=ALLOWED)
    state = until_rounds(study, sites)
    asked, site = coordinator.request(state, "site-1"), sites["site-1"]
    sent = asked.broadcast
    theta = sent.task.theta

    def but(**changed):
        return asked._replace(broadcast=sent._replace(task=sent.task._replace(**changed)))

    one_step = "none that the study implies: one step on all rows"
    for request, reason in (
        (but(batch=5), one_step),
        (but(steps=3), one_step),
        (but(rate=10.0), one_step),
        (but(kind="evaluate"), one_step),
        (but(curvature="full"), one_step),
        (but(theta=theta[:-1]), "another shape"),
        (but(theta=theta.astype(float)), "another shape"),
        (but(theta=theta + np.float32(1e-3)), "further from where it began"),
        (asked._replace(broadcast=Broadcast(0, sent.task)), "out of range"),
        (asked._replace(broadcast=Broadcast(14, sent.task)), "out of range"),
        (asked._replace(broadcast=Broadcast(13, sent.task)), one_step),
        (asked._replace(step="round"), "not a request of this protocol"),
        (asked._replace(step="certify"), "not a request of this protocol"),
    ):
        assert reason in refusal(site, request)
    assert not refusal(site, asked) and not refusal(site, asked)  # the same again is no other
    linear = study.changed(training_model="linear")._replace(name="linear")
    linear = linear._replace(training=linear.training._replace(batch=None))
    asked = asked._replace(agreement=asked.agreement._replace(study=linear, run="other"))
    assert "not what the study trains now" in refusal(site, asked)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"vector": np.zeros(3, np.float32)}, "wrong shape"),
        ({"vector": np.zeros(4673)}, "wrong shape"),
        ({"round": 2}, "does not answer round 1"),
        ({"rows": 7}, "another number of rows"),
        ({"value": 1e30}, "too large"),
        ({"curvature": np.zeros(3)}, "not requested"),
        ({"client": "site-2"}, "reports for another site"),
    ],
)
def test_an_update_is_checked_before_it_is_used(change, reason):
    study, sites = make_study(TABLES, training=TRAINING), make_sites(TABLES, policy=ALLOWED)
    state = until_rounds(study, sites)
    size = coordinator.request(state, "site-1").broadcast.task.theta.size
    rows = len(TABLES["site-1"]["y"])
    good = Report("site-1", 1, rows, 0.7, np.zeros(size, np.float32))

    def told(report):
        return wire.encode(Reply("run", "site-1", "network", report))

    assert coordinator.read(state, "site-1", told(good)) is not None
    with pytest.raises(ValueError, match=reason):
        coordinator.read(state, "site-1", told(good._replace(**change)))
    nothing = told(good._replace(vector=np.full(size, np.nan, np.float32)))
    with pytest.raises(ValueError, match="finite"):
        coordinator.read(state, "site-1", nothing)


def play(state, sites, lie=lambda site, report: report, away=()):
    """One round; some sites lie, some are away."""
    answers = {
        site: lie(site, coordinator.read(state, site, sites[site].respond(
            wire.encode(coordinator.request(state, site)))))
        for site in state.sites
        if site not in away
    }  # fmt: skip
    return coordinator.receive(state, answers)


def test_an_absurd_update_is_left_out_and_named():
    study, sites = make_study(TABLES, training=TRAINING), make_sites(TABLES, policy=ALLOWED)
    state = until_rounds(study, sites, 2)

    def lie(site, report):
        return report._replace(vector=1e4 * report.vector) if site == "site-2" else report

    after = play(state, sites, lie)
    line = after.history[-1]
    assert line.answered == ("site-1", "site-3") and "absurd" in line.refused["site-2"]
    honest = play(state, sites).network_training.theta
    assert np.abs(after.network_training.theta - state.network_training.theta).max() < 0.02
    assert not np.array_equal(after.network_training.theta, honest)


def test_others_stand_in_for_a_site_that_is_away_and_then_it_is_waited_for():
    study = make_study(TABLES, training=TRAINING, absent="stand_in = 2")
    sites = make_sites(TABLES, policy=ALLOWED)
    state = until_rounds(study, sites)
    there = {"site-1", "site-3"}
    assert coordinator.waiting(state, there) == ("site-2",)  # nobody can stand in before
    state = play(state, sites)
    for _ in range(2):
        assert coordinator.waiting(state, there) == ()
        state = play(state, sites, away=("site-2",))
    assert coordinator.waiting(state, there) == ("site-2",)
    assert coordinator.waiting(state, set()) == state.sites
    goes_on = state.agree(study=study._replace(absent=study.absent._replace(then="go on")))
    assert coordinator.waiting(goes_on, there) == ()
    made = results.model_of(local.run(state, sites))
    assert "2 rounds were without a site that did not reply" in made.facts.notes


def test_how_old_the_risk_of_a_site_is_that_was_away_at_the_end():
    study, sites = make_study(TABLES, training=TRAINING), make_sites(TABLES, policy=ALLOWED)
    state = until_rounds(study, sites, 12)
    after = play(state, sites, away=("site-2",))
    said = "site-2 did not reply at the end: its risk is that of round 12"
    assert after.outcome.message.endswith(said)
    assert after.outcome.risks[1] == state.network_training.risks[1]
    assert play(state, sites).outcome.message.endswith("is unknown)")


def test_a_site_that_refuses_in_a_later_round_is_one_that_is_away():
    study, sites = make_study(TABLES, training=TRAINING), make_sites(TABLES, policy=ALLOWED)
    state = until_rounds(study, sites, 1)
    told = {site: Refusal("no more") for site in ("site-2",)}
    for site in ("site-1", "site-3"):
        request = wire.encode(coordinator.request(state, site))
        told[site] = coordinator.read(state, site, sites[site].respond(request))
    assert coordinator.receive(state, told).history[-1].refused == {"site-2": "no more"}
    state = until_rounds(study, make_sites(TABLES, policy=ALLOWED))
    with pytest.raises(ValueError, match="'site-2' does not take part: no more"):
        coordinator.receive(state, told)


def test_rows_that_nobody_counted_weigh_as_for_linear_models(tmp_path):
    tables = synthetic_tables()
    tables["site-1"] = {name: np.tile(values, 60) for name, values in tables["site-1"].items()}
    study = make_study(tables, method=METHODS["erm"], training='model = "mlp"\nmax_rounds = 2')
    made = results.model_of(by_sites(study, tables))
    rows = [len(tables["site-2"]["y"]), len(tables["site-3"]["y"])]
    np.testing.assert_allclose(made.fit.lam[0], 4 * max(rows) / (4 * max(rows) + sum(rows)))
    assert any("most_rows" in note for note in made.facts.notes)
    study = study.changed(defence_most_rows=10**6)
    made = results.model_of(by_sites(study, tables))
    assert made.fit.lam[0] > 0.8
    with pytest.raises(ValueError, match="is for sites elsewhere"):
        by_table(study, tables, tmp_path)


def test_a_row_that_weighs_too_much_is_not_told_of():
    words = 'name = "dorfl"\noutliers = 0.1\nrho = 20\nbeta = 0.0005'
    study = make_study(TABLES, method=words, training=TRAINING)
    with pytest.raises(ValueError, match="fewer than 5 rows stand behind"):
        by_sites(study, TABLES, policy=ALLOWED._replace(least=5))


def test_a_site_keeps_the_network_and_its_rows_by_weight(tmp_path):
    study = make_study(TABLES, training=TRAINING)
    sites = make_sites(TABLES, policy=ALLOWED)
    for name, site in sites.items():
        site.done = lambda *told, name=name: results.write_site(tmp_path / name, *told)
    made = results.model_of(local.run(coordinator.begin(study, "run"), sites))
    own = model.load(tmp_path / "site-1" / "model")
    assert own.network
    np.testing.assert_array_equal(own.fit.theta, made.fit.theta)
    listed = (tmp_path / "site-1" / "audit.csv").read_text().splitlines()
    assert len(listed) == 1 + len(TABLES["site-1"]["y"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("[privacy]\nepsilon = 4.0\n", "no noise is known to hide it"),
        (
            '[method]\nmixture = "agnostic"\n[privacy]\nreports = "summed"\n',
            'needs method.mixture = "fixed" for a network',
        ),
        ("[defence]\ntrim = 0.1\n", "left out where absurd"),
    ],
)
def test_what_a_networks_study_cannot_have_says_why_and_what_to_do(words, said):
    study = f'[data]\nlabel = "y"\n[training]\nmodel = "mlp"\n{words}'
    with pytest.raises(ValueError, match=said) as raised:
        toml.parse(study)
    ways = ('Leave it out, or set training.model = "linear"', 'else set reports = "open"')
    assert any(way in str(raised.value) for way in ways)


@pytest.mark.parametrize("words", ['name = "erm"', 'name = "dorfl"\noutliers = 0.1'])
def test_sums_train_the_network_that_open_updates_do(words):
    study = make_study(TABLES, method=words, training=TRAINING)
    study = study.changed(columns_scaling="standard")  # medians are estimates in a summed study
    open_end, end = by_sites(study, TABLES), run_summed(TABLES, study, policy=ALLOWED)
    ours, theirs = end.outcome, open_end.outcome
    assert np.linalg.norm(ours.theta - theirs.theta) < 1e-3 * np.linalg.norm(theirs.theta)
    assert ours.objective == pytest.approx(theirs.objective, rel=1e-3)
    assert [line.answered for line in end.history] == [tuple(TABLES)] * 12
    assert all(len(line.risks) == 1 for line in end.history)
    assert results.model_of(end).network


def test_a_summed_network_goes_on_without_a_site_that_is_gone():
    tables = split(5)
    study = make_study(tables, method=METHODS["erm"], training=TRAINING, absent="stand_in = 9")
    study = among(study)
    sites = secure_sites(tables, study, key_of, policy=ALLOWED)
    gone = lambda state, site: site == "site-3" and 4 <= len(state.history) < 8  # noqa: E731
    end = conduct(coordinator.begin(study, "run"), sites, gone)
    away = ["site-3" not in line.answered for line in end.history]
    assert away == [4 <= k < 8 for k in range(12)]
    assert np.isfinite(end.outcome.theta).all()
