"""A study that is private from end to end: columns are known beforehand, their scale has noise."""

import numpy as np
import pytest

from dorfl.data.preprocessing.columns import table_of
from dorfl.federated import privacy
from dorfl.federated.messages import Broadcast
from dorfl.protocol import coordinator, private_columns, resolution, toml
from dorfl.protocol.messages import Refusal, Reply, Request
from dorfl.site import local
from dorfl.solvers.base import Task
from dorfl.support import wire
from dorfl.tabular import table
from study_cases import make_sites, make_study, mixed_tables

KNOWN = 'known = {x = [-4, 5], ward = ["north", "south", "west"]}'
SCALED = 'classes = ["no", "yes"]\n[columns]\nuse = ["x", "ward"]\nscaling = "standard"'


def a_study(tables, epsilon=4.0, known=KNOWN, extra=SCALED, label="ill", rounds=30):
    words = f"epsilon = {epsilon}\nclip = 2.0\n{known}"
    training = f"max_rounds = {rounds}"
    return make_study(tables, label, extra, 'name = "erm"', training, privacy=words)


def test_a_study_runs_to_its_end_and_tells_nothing_without_noise():
    tables = mixed_tables(sizes=(900, 1400))
    study = a_study(tables)
    assert toml.parse(toml.to_toml(study)) == study
    sites, told = make_sites(tables, secret=b"a"), []
    for site in sites.values():
        site.answered = lambda request, reply: told.append(
            (request.step, wire.decode(reply, Reply).answer)
        )
    end = local.run(coordinator.begin(study, "run"), sites)
    assert end.outcome.status == "spent" and set(end.agreed.classes) == {"no", "yes"}
    assert {step for step, _ in told} == {"enrol", "columns", "scales", "round"}
    x, ward = end.agreed.transform.parts
    plain = np.concatenate([np.array(t["x"], float) for t in tables.values()])
    assert x.center == 0.5 and 0.7 < x.spread / np.nanstd(plain) < 1.4
    assert ward.levels == ("north", "south", "west")
    again = local.run(coordinator.begin(study, "run"), make_sites(tables, secret=b"a"))
    assert np.array_equal(again.outcome.theta, end.outcome.theta)
    other = local.run(coordinator.begin(study, "run"), make_sites(tables, secret=b"b"))
    assert other.agreed.transform != end.agreed.transform  # the unit itself has noise
    theta = end.outcome.theta
    right = [
        np.mean((end.agreed.transform.apply(t).X @ theta[:-1] + theta[-1] > 0)
                == (np.array(t["ill"]) == "yes"))
        for t in tables.values()
    ]  # fmt: skip
    assert min(right) > 0.8


def test_a_number_is_predicted_in_private_too():
    tables = mixed_tables(sizes=(900, 1400))
    known = 'known = {x = [-4, 5], ward = ["north", "south", "west"], cost = [0, 120]}'
    extra = 'task = "regression"\n[columns]\nuse = ["x", "ward"]\nscaling = "standard"'
    end = local.run(
        coordinator.begin(a_study(tables, 8.0, known, extra, "cost"), "run"), make_sites(tables)
    )
    assert end.outcome.status == "spent" and end.agreed.scatter is None
    assert end.agreed.target.center == 60.0 and 3 < end.agreed.target.spread < 40


def test_replacing_a_row_moves_what_is_told_by_no_more_than_the_noise_is_made_for():
    """Without noise, in units of the noise: √K at most for any pair of tables, and attained."""
    rng = np.random.default_rng(0)
    study = toml.parse(
        '[data]\nlabel = "y"\nclasses = ["0", "1"]\n[columns]\nuse = ["a", "b"]\n'
        'scaling = "standard"\n[method]\nname = "erm"\n'
        "[privacy]\nepsilon = 1.0\nknown = {a = [0, 2], b = [-10, 30]}\n"
    )

    class Unit:
        """Takes the place of the noise: what is told in its units."""

        def before_training(self, _, sums, units):
            self.seen = sums / units
            return sums

    state = coordinator.begin(study._replace(sites=("s",)), "run")
    agreement = coordinator.request(state, "s").agreement._replace(columns=("a", "b"))
    farthest = 0.0
    for trial in range(300):
        rows = {"a": rng.uniform(-1, 3, 30), "b": rng.uniform(-30, 60, 30), "y": ["0", "1"] * 15}
        other = {name: list(values) for name, values in rows.items()}
        other["a"][7], other["b"][7] = (1.0, 10.0) if trial % 2 else (None, -1e9)
        if trial % 3 == 0:
            rows["a"][7], rows["b"][7] = 1e9, -1e9
        seen = []
        for one in (rows, other):
            unit = Unit()
            private_columns.scales(table_of(one), agreement, unit)
            seen.append(unit.seen)
            levels = private_columns.columns(table_of(one), agreement)
            assert levels == private_columns.columns(table_of(rows), agreement)  # no row is in it
        farthest = max(farthest, float(np.linalg.norm(seen[0] - seen[1])))
    assert 1.4 < farthest <= np.sqrt(2.0) * (1.0 + 1e-12)


def test_columns_and_rounds_together_cost_what_the_study_says():
    tables = mixed_tables(sizes=(90, 140))
    study = a_study(tables, epsilon=1.0)
    noise, plain = resolution.mechanism_of(study), resolution.mechanism_of(a_study(tables, 1.0, ""))
    assert noise.before == resolution.BEFORE and plain.before == 0.0
    unit = noise.before_training("s", np.zeros(100_000), np.ones(100_000)).std()
    before = 100_000 / unit**2  # 1/z² of what is told before training, as it is drawn
    rounds = noise.rounds / noise.multiplier**2
    assert privacy.composed([{"multiplier": (before + rounds) ** -0.5}], 1e-5) == pytest.approx(
        1.0, rel=1e-3
    )
    sites = make_sites(tables)
    state = coordinator.begin(study, "run")
    for step in ("enrol", "columns", "scales"):
        assert state.step == step
        replies = {s: sites[s].respond(wire.encode(coordinator.request(state, s))) for s in sites}
        state = coordinator.receive(
            state, {s: coordinator.read(state, s, r) for s, r in replies.items()}
        )
        spent = sites["site-1"].ledger.spent(1e-5)
        assert spent == pytest.approx(0.0 if step == "enrol" else 1.0, rel=1e-4)  # once for the run
    refused = make_sites(tables, epsilon=0.5)["site-1"].respond(
        wire.encode(coordinator.request(coordinator.begin(study, "run"), "site-1"))
    )
    assert "ε ≤ 0.5" in wire.decode(refused, Reply).answer.reason


@pytest.mark.slow
def test_membership_shows_no_more_than_epsilon_allows_before_training_and_after():
    """The best threshold on all that is told, for a row at the end of its range or the other."""
    epsilon, delta, trials = 1.0, 1e-5, 1500
    rng = np.random.default_rng(0)
    base = {"x": rng.normal(size=30), "ward": ["north", "south", "west"] * 10}
    base["ill"] = np.where(rng.integers(2, size=30), "yes", "no").tolist()
    study = a_study({"s": base}, epsilon, rounds=1)

    def told(row, seed):
        table = {name: list(values) for name, values in base.items()}
        table["x"][0] = row
        sites = make_sites({"s": table}, secret=seed.to_bytes(8))
        state, numbers = coordinator.begin(study, "run"), []
        while state.step != "done":
            reply = sites["s"].respond(wire.encode(coordinator.request(state, "s")))
            answer = coordinator.read(state, "s", reply)
            if state.step == "scales":
                numbers += answer.columns["x"].squares
            if state.step == "round":
                numbers += [answer.value, *answer.vector]
                return numbers
            state = coordinator.receive(state, {"s": answer})
        return None

    one = np.array([told(5.0, k) for k in range(trials)])
    two = np.array([told(-4.0, k + trials) for k in range(trials)])
    scale = np.concatenate([one, two]).std(axis=0)
    along = (one.mean(axis=0) - two.mean(axis=0)) / scale**2
    a, b = one @ along, two @ along
    best = max(np.mean(a > e) - np.mean(b > e) for e in np.sort(np.r_[a, b]))
    most = (np.exp(epsilon) - 1.0 + 2.0 * delta) / (np.exp(epsilon) + 1.0)
    assert 0.05 < best <= most + 3.0 * np.sqrt(0.5 / trials)


def test_a_row_changes_no_other_where_there_is_noise():
    """Columns that few rows differ in are not held constant: that would be five rows' doing."""
    rows = {"x": np.arange(60.0) % 7, "ward": ["north"] * 56 + ["west"] * 4}
    rows["ill"] = ["yes", "no"] * 30
    site = make_sites({"s": rows})["s"]
    study = a_study({"s": rows})
    state = coordinator.begin(study, "run")
    while state.step != "round":
        reply = site.respond(wire.encode(coordinator.request(state, "s")))
        state = coordinator.receive(state, {"s": coordinator.read(state, "s", reply)})
    X = site.group(coordinator.request(state, "s").agreement).rows
    assert X[:, state.agreed.transform.names.index("ward=west")].sum() == 4.0


def test_a_hostile_coordinator_gets_no_other_reading_of_columns():
    rows = mixed_tables()["site-1"]
    rows["ill"][3] = "perhaps"  # a row with a class that nobody named is left out, unsaid
    site = make_sites({"s": rows})["s"]
    state = coordinator.begin(a_study({"s": rows}), "run")
    while state.step != "round":
        reply = site.respond(wire.encode(coordinator.request(state, "s")))
        state = coordinator.receive(state, {"s": coordinator.read(state, "s", reply)})
    assert state.rows == (89,)
    agreement = coordinator.request(state, "s").agreement._replace(run="other")
    parts = agreement.transform.parts
    for changed in (
        agreement._replace(classes=("no", "perhaps")),
        agreement._replace(
            transform=type(agreement.transform)((parts[0]._replace(spread=-1.0), parts[1]), {})
        ),
        agreement._replace(
            transform=type(agreement.transform)((parts[0], parts[1]._replace(levels=("x",))), {})
        ),
    ):
        size = sum(len(part.features) for part in changed.transform.parts) + 1
        sent = Request(changed, "round", Broadcast(1, Task(np.zeros(size), np.ones(1))))
        answer = wire.decode(site.respond(wire.encode(sent)), Reply).answer
        assert isinstance(answer, Refusal), changed


@pytest.mark.parametrize(
    ("known", "extra", "words"),
    [
        ("known = {x = [-4, 5]}", SCALED, "nothing is known of column 'ward'"),
        (KNOWN.replace("[-4, 5]", "[5, -4]"), SCALED, "two numbers, the less one first"),
        (KNOWN.replace("[-4, 5]", '["a", "a"]'), SCALED, "two levels or more"),
        (KNOWN.replace("}", ", z = [0, 1]}"), SCALED, "none of the columns in use"),
        (KNOWN, SCALED.replace('classes = ["no", "yes"]', ""), "data.classes"),
        (KNOWN, SCALED.replace("standard", "robust"), 'columns.scaling = "standard"'),
        (KNOWN, SCALED.replace('use = ["x", "ward"]', ""), "columns.use"),
        ("known = {x = 3}", SCALED, "must say of each column"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_named(known, extra, words):
    with pytest.raises(ValueError, match=words):
        a_study(mixed_tables(), known=known, extra=extra)


def test_known_without_epsilon_and_one_table_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"privacy\.epsilon"):
        make_study(mixed_tables(), "ill", SCALED, 'name = "erm"', privacy=KNOWN)
    study = a_study(mixed_tables()).changed(data_file=str(tmp_path / "all.csv"))
    with pytest.raises(ValueError, match="is for sites elsewhere"):
        table.run(study)
