"""What every carrier must do: the same scenarios in process, in files, by HTTPS and over Flower."""

import re

import pytest
from deployments import (
    KINDS,
    TABLES,
    alone,
    events_of,
    rounds_of,
    same,
)

from dorfl.carriers import envelope, keys, runs
from dorfl.protocol import coordinator
from dorfl.site import local
from dorfl.site.ledger import Ledger, mark_of
from study_cases import METHODS, among, make_study, secure_sites

pytestmark = pytest.mark.xdist_group("carriers")

FEW = "max_rounds = 3"
LONGER = 'solver = "optimistic"\ntol = 1e-12\nmax_rounds = 6'
SHORT = {"method": METHODS["erm"], "training": FEW}


@pytest.fixture(
    scope="module", params=[pytest.param(k, marks=k.marks, id=k.name) for k in KINDS.values()]
)
def deployed(request, tmp_path_factory):
    with request.param(tmp_path_factory.mktemp("d")) as found:
        yield found


@pytest.fixture
def able(deployed):
    """Skip a scenario that the carrier cannot do, with the reason that it declares."""

    def check(scenario):
        if scenario in deployed.cannot:
            pytest.skip(deployed.cannot[scenario])

    return check


def study_for(deployed, **options):
    """Return a study of the right size: an exchange over Flower takes some seconds."""
    short = deployed.has_short_studies
    return make_study(TABLES, **{**(SHORT if short else {"training": LONGER}), **options})


def test_the_model_is_the_one_of_one_process_bit_for_bit(deployed):
    study = study_for(deployed)
    folder = deployed.run(study)
    assert same(deployed.outcome(folder), alone(study))
    assert deployed.record(folder)["rounds"] == rounds_of(folder)
    assert (folder / "model").is_dir()
    for home in deployed.homes.values() if not deployed.in_this_process else ():
        assert (home / "results" / folder.name / "model").is_dir()  # what the site keeps


def test_a_study_that_no_person_approved_is_refused_and_all_sites_that_wait_are_named(deployed):
    study = study_for(deployed)._replace(name="unseen")
    everyone = r"sites 'site-1', 'site-2', 'site-3' do not take part: .* waits for approval"
    with pytest.raises(ValueError, match=everyone):
        deployed.run(study)
    for home in deployed.homes.values():
        assert "unseen" in [seen["name"] for seen in Ledger(home / "ledger.json").studies.values()]


def test_a_site_killed_in_a_round_and_restarted_changes_nothing(deployed):
    def restart():
        deployed.stop_site("site-2")
        deployed.start_site("site-2")

    study = study_for(deployed, absent="answer_within = 600")
    folder = deployed.run(study, {1: restart})
    assert same(deployed.outcome(folder), alone(study))
    assert deployed.record(folder)["extrapolated"] == {}


def test_a_coordinator_killed_in_a_round_resumes_to_the_same_bits(deployed, able):
    able("kill coordinator")
    study = study_for(deployed)
    folder = deployed.kill_coordinator(study, after=2)
    assert "ended" not in deployed.record(folder)
    deployed.resume(folder)
    assert same(deployed.outcome(folder), alone(study))
    with pytest.raises(ValueError, match="is finished"):
        runs.unfinished(deployed.federation, folder.name)


def test_a_server_killed_in_a_round_comes_back_and_the_run_goes_on(deployed, able):
    able("kill server")
    study = study_for(deployed)
    folder = deployed.run(study, {1: deployed.kill_server})
    assert same(deployed.outcome(folder), alone(study))
    if deployed.name == "https":  # Flower's grid tries again without a word
        assert {"server lost", "server back"} <= {*events_of(folder)}


def test_a_site_that_stays_away_is_extrapolated_and_on_record(deployed, able):
    able("absent")
    absent = f'answer_within = {deployed.answer_within}\nstand_in = 1\nthen = "go on"'
    study = study_for(deployed, absent=absent, training=FEW)
    try:
        folder = deployed.run(study, {2: lambda: deployed.pause_site("site-3")})
    finally:
        deployed.go_on_site("site-3")
    record = deployed.record(folder)
    assert record["rounds"] >= 3
    assert record["extrapolated"] == {"site-3": [*range(3, record["rounds"] + 1)]}


def test_a_second_run_is_refused_and_leaves_nothing_behind(deployed):
    before = deployed.federation.runs()
    with (
        deployed.federation.holding("run"),
        pytest.raises(ValueError, match="a run is going on already"),
    ):
        deployed.run(study_for(deployed))
    assert deployed.federation.runs() == before


class Hostile:
    """Answer honestly until the second round, then with one bad message after the other."""

    def __init__(self, deployed, name):
        endpoint, other = deployed.endpoint(name), keys.new_key()
        self.honest = endpoint.respond
        self.forger = envelope.SiteEndpoint(endpoint.site, other, deployed.ca)
        self.rounds, self.sent = 0, []

    def __call__(self, request):
        honest = self.honest(request)
        self.rounds += b'"step":"round"' in request
        if self.rounds < 2:
            self.sent.append(honest)
            return honest
        bad = {
            "malformed": b"\xff" * 9,
            "empty": b"",
            "altered": honest.replace(b'"rows":', b'"rows":9'),
            "replayed": self.sent[-1],
            "forged": self.forger.respond(request),
        }
        return list(bad.values())[self.rounds % len(bad)]


def test_forged_replayed_and_malformed_replies_are_refused_and_survived(deployed):
    training = FEW if deployed.has_short_studies else LONGER
    study = study_for(deployed, training=training, absent="stand_in = 99")
    with deployed.hosting("site-2", Hostile(deployed, "site-2")):
        folder = deployed.run(study)
    state = deployed.state(folder)
    refused = [line.refused.get("site-2") for line in state.history]
    assert refused[0] is None and all(refused[1:]), refused
    assert all("signed" in reason for reason in refused[1:])
    assert "reply refused" in events_of(folder)
    assert all("site-1" in line.answered for line in state.history)


def test_a_reply_that_is_too_long_is_not_taken(deployed, able):
    able("absent")
    absent = f'answer_within = {deployed.answer_within}\nthen = "go on"'
    study = study_for(deployed, absent=absent, training=FEW)
    hostile = Hostile(deployed, "site-2")

    def flood(request):
        honest = hostile.honest(request)
        hostile.rounds += b'"step":"round"' in request
        return honest if hostile.rounds < 2 else bytes(20 * 2**20)

    with deployed.hosting("site-2", flood), deployed.sent_away("site-2"):
        folder = deployed.run(study)
    reasons = [line["reason"] for line in runs.read_log(folder) if "reason" in line]
    assert any(re.search(r"\d+ (bytes )?allowed", reason) for reason in reasons)
    record = deployed.record(folder)
    assert record["rounds"] >= 3
    assert record["extrapolated"] == {"site-2": [*range(2, record["rounds"] + 1)]}


def test_words_of_a_site_forge_no_lines_of_the_log(deployed, able):
    able("absent")
    forged = "no\\r\\nround   9  gap 0.0\\u001b[2J"
    site = deployed.endpoint("site-2")
    inner = site.site.respond

    def loud(payload):
        inner(payload)
        run = payload.partition(b'"run":"')[2].partition(b'"')[0].decode()
        answer = f'{{"behind":null,"reason":"{forged}","type":"Refusal"}}'
        text = f'{{"answer":{answer},"run":"{run}","site":"site-2","step":"enrol"}}'
        return text.encode()

    site.site.respond = loud
    with (
        deployed.hosting("site-2", site.respond),
        pytest.raises(ValueError, match=r"no round 9 gap 0.0 \[2J"),
    ):
        deployed.run(study_for(deployed))


@pytest.mark.parametrize("method", ["erm", "afl"])
def test_secure_sums_give_the_model_of_one_process_bit_for_bit(deployed, able, method):
    able("secure sums")

    def key_of(name):
        return keys.read_private(deployed.homes[name] / f"{name}.key")

    plain = make_study(TABLES, method=METHODS[method], extra='[columns]\nscaling = "standard"')
    study = among(plain, key_of)
    for home in deployed.homes.values():
        Ledger(home / "ledger.json").approve(mark_of(study))
    for name in deployed.homes if deployed.in_this_process else ():
        deployed.start_site(name)  # reads its ledger again
    read = {name: {**t, "y": list(t["y"])} for name, t in TABLES.items()}
    here = local.run(coordinator.begin(study, "alone"), secure_sites(read, study, key_of)).outcome
    folder = deployed.run(plain.changed(privacy_reports="summed"))
    assert same(deployed.outcome(folder), here) and here.status == "converged"
    if deployed.in_this_process:
        folder = deployed.kill_coordinator(plain.changed(privacy_reports="summed"), after=2)
        (folder / "checkpoint.json").unlink()  # the one before is older than the transcript
        deployed.start_site("site-1")  # replays the transcript from its first step
        deployed.resume(folder)
        assert same(deployed.outcome(folder), here)


def test_a_network_is_the_one_of_one_process_bit_for_bit(deployed, able):
    able("network")
    pytest.importorskip("torch")
    study = make_study(TABLES, training='model = "mlp"\nbatch = 0\nmax_rounds = 3')
    folder = deployed.run(study)
    assert deployed.outcome(folder).rounds == 3
    assert (folder / "model").is_dir()
