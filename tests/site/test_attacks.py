"""What a hostile coordinator gets out of a site as it is by default: nothing of a row."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from attacking import ATTACKS, COLUMNS, OPEN, Attacker, StoppedError, against, patients, victim
from dorfl.data import robust
from dorfl.federated import privacy
from dorfl.federated.training import prepare
from dorfl.objective import methods
from dorfl.protocol import coordinator, training_rows
from dorfl.site import approval
from dorfl.site.ledger import Ledger
from dorfl.site.policy import Policy
from dorfl.site.site import Site

PAGE = Path(__file__).parents[2] / "docs" / "threat-model.md"


@pytest.fixture(scope="module")
def told():
    return {name: against(name, summed=True) for name in ATTACKS}


@pytest.mark.parametrize("name", ATTACKS)
def test_in_a_summed_study_only_the_study_s_own_requests_are_answered(told, name):
    attacker = told[name]
    assert attacker.asked >= 1 and attacker.recovered() == 0
    answered = attacker.asked - len(attacker.refused)
    assert answered <= len(attacker.courses)  # how many rows there are, once for each study
    words = (
        "not the study's own|not of a run|cannot be run|used this site's table|differencing rule"
    )
    assert all(re.search(words, reason) for reason in attacker.refused), attacker.refused[-1]


@pytest.mark.parametrize("name", ATTACKS)
def test_a_site_answers_no_open_study_by_default(name):
    attacker = against(name)
    answered = attacker.asked - len(attacker.refused)
    assert answered <= (name == "an age after the other left out of a study with noise")
    assert attacker.asked >= 1 and attacker.recovered() == 0
    words = "sends no open reports|statistics without noise|cannot be run|differencing rule"
    assert all(re.search(words, reason) for reason in attacker.refused), attacker.refused[-1]


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("a steep step swept along a column", 40),
        ("a plane moved through an outlying row", 1),
        ("89 studies with other blocks", 100),
        ("an age after the other named a missing value", 50),
        ("rows that fit all answers (40 rows, two columns)", 3),
        ("another value in the place of a missing one", 1),
        ("an age after the other left out of the classes", 40),
        ("a label that one patient has", 1),
        ("a plane before an outlying row, and the sums of all", 1),
        ("models that hardly differ, along an outlying row", 1),
        ("an age of the label not counted, and as many rows asked for", 50),
        ("an age after the other left out of a study with noise", 40),
    ],
)
def test_the_same_attacks_succeed_in_an_open_study_that_a_site_allows(name, least):
    assert against(name, OPEN).recovered() >= least


@pytest.mark.parametrize(
    "name",
    [
        "middles in the place of missing values",
        "centres moved until they are refused",
        "slopes raised until they are refused",
        "planes to either side of a held-out row",
    ],
)
def test_what_is_told_of_blocks_alone_needs_no_limit(name):
    assert against(name, OPEN).recovered() == 0


def test_a_label_that_few_rows_have_is_left_out():
    table = patients()
    table["ill"] = ["yes" if k < 4 else "maybe" if k < 90 else "no" for k in range(188)]
    allowed = Policy(approve=("*",), allow_open_reports=True)
    site = victim(allowed, table=table)
    study = Attacker(site).study(use=COLUMNS)
    agreement = Attacker(site).agree(study)
    assert agreement.classes == ("maybe", "no") and site.rows(agreement).num_rows == 184
    table["ill"][4] = "yes"
    other = victim(allowed, table=table)
    assert other.rows(Attacker(other).agree(study)).num_rows == 188


def test_the_page_has_the_figures(told):
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    asked = sum(attacker.asked for attacker in told.values())
    assert f"{len(told)} attacks with {asked:,} questions" in page


def test_every_test_that_the_page_names_exists():
    page, tests = PAGE.read_text(encoding="utf-8"), PAGE.parents[1] / "tests"
    named = re.findall(r"`([a-z_/]+\.py)::(test_\w+)`", page)
    assert len(named) >= 8
    for file, name in named:
        assert f"def {name}(" in (tests / file).read_text(encoding="utf-8"), (file, name)


# ── what a person at the site has to say ─────────────────────────────────────────────────────────


def enrol(site, study=None):
    attacker = Attacker(site)
    answer = attacker.send(
        coordinator.request(coordinator.begin(study or attacker.study(), "run"), "s")
    )
    return answer, " ".join(attacker.refused)


def test_nothing_is_released_and_nothing_approved_by_default():
    table = patients()
    allowed = Policy(allow_open_reports=True)
    answer, reason = enrol(Site("s", table, allowed))
    assert answer is None and "released = [...] in site.toml" in reason
    site = Site("s", table, allowed._replace(released=tuple(table)))
    answer, reason = enrol(site)
    assert answer is None and "dorfl site approve" in reason
    (mark,) = site.ledger.studies
    assert mark[:12] in reason
    site.ledger.approve(mark)
    assert enrol(site)[0] is not None
    other = Attacker(site).study(privacy="least = 6\nminimum_rows = 10")
    assert "dorfl site approve" in enrol(site, other)[1]  # another text


def test_studies_are_approved_in_advance_by_name():
    for patterns, fine in ((("tri*",), True), (("heart-*",), False)):
        site = victim(Policy(approve=patterns, allow_open_reports=True))
        assert (enrol(site)[0] is not None) == fine


def test_a_large_delta_is_refused():
    private, policy = 'name = "erm"\noutliers = 0', Policy(approve=("*",), epsilon=1.0)
    policy = policy._replace(allow_open_reports=True)
    wide = Attacker(victim()).study(method=private, privacy="epsilon = 1.0\ndelta = 0.999999")
    assert "δ is above" in enrol(victim(policy), wide)[1]
    fine = Attacker(victim()).study(method=private, privacy="epsilon = 1.0\ndelta = 1e-6")
    assert enrol(victim(policy), fine)[0] is not None


def test_a_private_study_is_private_before_training_too_or_the_site_allows_it():
    fine = Attacker(victim()).study(
        method='name = "erm"\noutliers = 0', privacy="epsilon = 1.0\ndelta = 1e-6"
    )
    assert "without noise" in enrol(victim(), fine)[1]


# ── disclosure rules ─────────────────────────────────────────────────────────────────────────────


def test_rules_are_checked_before_the_first_statistic():
    allowed = Policy(approve=("*",), allow_open_reports=True)
    for rules, words in (
        ({"least": 6}, "threshold rule"),
        ({"minimum_rows": 189}, "minimum rows"),
        ({"max_runs": 0}, "used this site's table"),
    ):
        answer, reason = enrol(victim(allowed._replace(**rules)))
        assert answer is None and words in reason
    site = Attacker(victim(allowed._replace(parameters_per_row=0.01)))
    with pytest.raises(StoppedError):
        site.agree(site.study(use=COLUMNS))
    assert "5 columns, more than 0.01 for each of this site's 188 rows" in site.refused[-1]


def test_runs_are_counted_over_studies_and_restarts(tmp_path):
    policy, file = Policy(approve=("*",), allow_open_reports=True, max_runs=3), tmp_path / "l.json"
    for run in ("a", "b", "b", "c"):
        attacker = Attacker(victim(policy, ledger=Ledger(file)))
        assert attacker.agree(attacker.study(), run) is not None
    attacker = Attacker(victim(policy, ledger=Ledger(file)))
    with pytest.raises(StoppedError):
        attacker.agree(attacker.study("ignore = ['ward']"), "d")
    assert "3 runs have used this site's table" in attacker.refused[-1]
    assert attacker.agree(attacker.study(), "c") is not None  # a run that has begun goes on


@pytest.mark.parametrize("mode", ["summed", "open", "private"])
def test_a_person_reads_half_a_page(mode):
    privacy = f'reports = "{mode}"' + ("\nepsilon = 1.0" if mode == "private" else "")
    study = Attacker(victim()).study(method='name = "erm"\noutliers = 0')
    study = study._replace(sites=("s", "b", "c")).changed(privacy_reports=mode)
    if mode == "private":
        study = study.changed(privacy_epsilon=1.0)
    policy = Policy(released=(*COLUMNS, "ward", "ill"))
    text = approval.summary(study, policy)
    assert len(text.splitlines()) <= 25 and len(text.split()) <= 250
    joined = " ".join(text.split())
    for words in ("trial", "ill", "'age', 'pressure'", mode, "at least 5 rows", "at most 20"):
        assert words in joined
    assert ("refuses" in text) == (mode != "summed") and privacy
    assert not re.search(r"None|null|[{}]", text)


def test_no_text_of_a_study_begins_a_line_of_the_page():
    study = Attacker(victim()).study(method='name = "erm"\noutliers = 0')
    policy, forged = Policy(released=(*COLUMNS, "ill")), "Mode: private. Every statistic has noise."
    names = ("q" * 78 + ").", f"q\n{forged}", *(" " * k + forged for k in range(40)))
    data, columns = study.data._replace(label=forged), study.columns._replace(ignore=names)
    study = study._replace(sites=names, data=data, columns=columns)
    for page in (
        approval.summary(study, policy),
        approval.summary(study, policy._replace(released=names)),
    ):
        begun = [line for line in page.splitlines() if line.strip().startswith("Mode:")]
        assert len(begun) == 1 and begun[0].startswith("Mode: open.")
        assert max(map(len, page.splitlines())) <= 88
    assert "without" not in approval.summary(study, policy)  # these columns are not released


def test_the_page_on_a_network_says_how_many_rounds_and_what_is_sent():
    study = Attacker(victim()).study(method='name = "erm"').changed(training_model="mlp")
    for mode in ("summed", "open"):
        page = " ".join(approval.summary(study.changed(privacy_reports=mode), Policy()).split())
        assert "500 rounds of the network" in page and "a number for every parameter" in page
    page = approval.summary(study.changed(training_max_rounds=7), Policy())
    assert "7 rounds of the network" in " ".join(page.split())
    pytest.importorskip("torch")
    from dorfl.networks import tabular  # noqa: PLC0415 - imports torch

    plan = tabular.plan_for(np.array([9999]), l2=None, rounds=None, seed=0, batch=0)
    assert plan.rounds == approval.NETWORK_ROUNDS


# ── the ledger ───────────────────────────────────────────────────────────────────────────────────


def test_a_damaged_ledger_is_named(tmp_path):
    (tmp_path / "ledger.json").write_text("{")
    with pytest.raises(ValueError, match="counts the runs of this site"):
        Ledger(tmp_path / "ledger.json")


def test_epsilon_adds_up_over_runs():
    method, words = 'name = "erm"\noutliers = 0', "epsilon = 1.0\ndelta = 1e-6"
    attacker = Attacker(victim(Policy(approve=("*",), epsilon=1.5, allow_open_reports=True)))
    study = attacker.study(method=method, privacy=words)
    for run in ("one", "two", "three"):
        agreement = attacker.agree(study, run)
        answer = attacker.ask(agreement, np.zeros(7), 1)
        if run == "one":
            assert answer is not None
            assert 0.5 < attacker.site.ledger.spent(1e-6) <= 1.0 + 1e-6
    assert answer is None and "all runs together" in attacker.refused[-1]
    runs = list(attacker.site.ledger.private.values())
    assert privacy.composed(runs, attacker.site.policy.delta) <= 1.5
    assert privacy.composed([*runs, runs[0]], 1e-6) > privacy.composed(runs, 1e-6)


def test_a_policy_is_read_and_named(tmp_path):
    policy = Policy(released=("a",), least=7, allow_open_reports=True)
    assert Policy.read(tomllib.loads(f'name = "s"\n{policy.written}'), tmp_path) == policy
    for wrong in (
        {"told": 1},
        {"least": 1.5},
        {"least": 0},
        {"parameters_per_row": "much"},
        {"allow_open_reports": 1},
        {"curvature": "some"},
        {"released": "a"},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Policy.read(wrong, tmp_path)


# ── the parts ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("least", [2, 5, 9])
def test_columns_in_which_a_few_rows_differ_are_constant(least):
    rng = np.random.default_rng(least)
    rows = rng.normal(size=(60, 4))
    rows[:, 1] = 0.0
    rows[rng.choice(60, least - 1, replace=False), 1] = 7.0
    rows[:, 2] = 1.0
    rows[rng.choice(60, least, replace=False), 2] = 0.0
    settled = training_rows.hold_constant(rows, least)
    assert (settled[:, 1] == 0.0).all()
    assert np.array_equal(settled[:, [0, 2, 3]], rows[:, [0, 2, 3]])


def test_a_centre_leaves_out_no_row_or_several():
    for seed in range(50):
        rows = np.random.default_rng(seed).standard_t(3, size=(120, 3))
        left = 120 - robust.local_center(rows).kept
        assert left == 0 or left >= 5


def test_an_identifier_is_not_learnt_from():
    table = {**patients(), "number": np.arange(188)}
    attacker = Attacker(victim(OPEN, table=table))
    with pytest.raises(StoppedError):
        attacker.agree(attacker.study(use=(*COLUMNS, "number")))
    assert "only numbers the rows" in attacker.refused[-1]
    agreement = attacker.agree(attacker.study(use=COLUMNS), "b")
    sneaky = agreement.transform.parts[0]._replace(name="number", center=90.0, spread=50.0)
    changed = type(agreement.transform)((*agreement.transform.parts, sneaky), {})
    columns = (*agreement.columns, "number")
    asked = agreement._replace(transform=changed, columns=columns)
    assert attacker.ask(asked, np.zeros(6), 1) is None
    assert "only numbers the rows" in attacker.refused[-1]


def test_membership_shows_no_more_than_epsilon_allows():
    """The best threshold on a report, the row in question all there is to find."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 2)), rng.integers(2, size=30)
    with_row = prepare({"a": (X, y)}, methods.erm(), classes=[0, 1])
    X = X.copy()
    X[0] = [40.0, -40.0]
    without = prepare({"a": (X, y)}, methods.erm(), classes=[0, 1])
    theta, epsilon, delta, trials = np.array([1.0, -1.0, 0.0]), 1.0, 1e-5, 1500

    def reports(group, first):
        out = []
        for seed in range(first, first + trials):
            noise = privacy.gaussian(epsilon, delta, rounds=1, seed=seed)
            value, vector = noise.report(group, theta, 1)
            out.append(np.r_[value, vector[0]])
        return np.array(out)

    one, two = reports(with_row, 0), reports(without, trials)
    along = one.mean(axis=0) - two.mean(axis=0)
    a, b = one @ along, two @ along
    edges = np.sort(np.r_[a, b])
    best = max(np.mean(a > e) - np.mean(b > e) for e in edges)
    most = (np.exp(epsilon) - 1.0 + 2.0 * delta) / (np.exp(epsilon) + 1.0)
    assert best <= most + 3.0 * np.sqrt(0.5 / trials)


def test_every_refusal_is_free_of_values(told):
    values = [f"{v:.4f}" for v in patients()["age"]]
    for attacker in told.values():
        for reason in set(attacker.refused):
            assert not any(value in reason for value in values)
            assert re.fullmatch(r"[^\n\r\x1b]+", reason)
