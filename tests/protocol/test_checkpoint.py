"""A coordinator's state in a file: the same to the bit, never a damaged one, nothing lost."""

import errno
import os

import numpy as np
import pytest

from cases import few
from dorfl.protocol import checkpoint, coordinator
from dorfl.site import local
from study_cases import make_sites, make_study, mixed_tables, synthetic_tables

TABLES = synthetic_tables()


def states_of(study):
    found = [coordinator.begin(study, "run-1")]
    local.run(found[0], make_sites(TABLES), found.append)
    return found


@pytest.fixture(scope="module")
def states():
    return states_of(make_study(TABLES))


def same(one, two):
    return (
        np.array_equal(one.outcome.theta, two.outcome.theta)
        and np.array_equal(one.outcome.lam, two.outcome.lam)
        and one.outcome.rounds == two.outcome.rounds
    )


@pytest.mark.slow
def test_every_state_comes_back_and_goes_on_to_the_same_end(states, tmp_path):
    path = tmp_path / "checkpoint.json"
    for state in states[:-1]:
        checkpoint.save(path, state)
        again = local.run(checkpoint.load(path), make_sites(TABLES))
        assert same(again, states[-1]), state.step


def test_a_regression_comes_back_while_candidates_are_trained_and_compared(tmp_path):
    tables = mixed_tables()
    study = make_study(tables, "cost", '[columns]\nuse = ["x", "ward"]', 'name = "dorfl"')
    found = [coordinator.begin(study, "run-1")]
    sites = make_sites(tables)
    local.run(found[0], sites, found.append)
    steps = [state.step for state in found]
    asked = steps.index("compare")
    assert "select" in steps[:asked] and "round" in steps[asked:] and found[-1].agreed.scatter < 1
    for state in (found[asked - 1], found[asked], found[asked + 1], found[-3]):
        checkpoint.save(tmp_path / "checkpoint.json", state)
        again = local.run(checkpoint.load(tmp_path / "checkpoint.json"), sites)
        assert same(again, found[-1]), state.step


def test_the_other_solver_comes_back_too(tmp_path):
    found = states_of(make_study(TABLES, training='solver = "optimistic"\nmax_rounds = 30'))
    path = tmp_path / "checkpoint.json"
    for state in (found[8], found[20]):
        checkpoint.save(path, state)
        assert same(local.run(checkpoint.load(path), make_sites(TABLES)), found[-1])


def test_a_file_cut_short_or_changed_is_never_loaded(states, tmp_path):
    path = tmp_path / "checkpoint.json"
    checkpoint.save(path, states[8])
    whole = path.read_bytes()
    for length in [0, 1, 50, 120, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="no checkpoint can be read"):
            checkpoint.load(path)
    for place in (5, 200, len(whole) // 2):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match="no checkpoint can be read"):
            checkpoint.load(path)


def test_the_one_before_steps_in_for_a_damaged_one(states, tmp_path):
    path = tmp_path / "checkpoint.json"
    checkpoint.save(path, states[7])
    checkpoint.save(path, states[8])
    path.write_bytes(path.read_bytes()[:-9])
    back = checkpoint.load(path)
    assert back.server.round == states[7].server.round
    assert same(local.run(back, make_sites(TABLES)), states[-1])


def test_a_full_disk_leaves_what_was_there(states, tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.json"
    checkpoint.save(path, states[7])

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("dorfl.support.files.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(path, states[8])
    assert checkpoint.load(path).server.round == states[7].server.round
    assert not list(tmp_path.glob(".*"))


def test_there_is_nothing_to_run_in_it(states, tmp_path):
    checkpoint.save(tmp_path / "c", states[-2])
    head, _, body = (tmp_path / "c").read_bytes().partition(b"\n")
    assert head.startswith(b'{"format"')
    assert body.decode("ascii").startswith('{"server":')


@pytest.mark.parametrize("finest", few(["full", "diagonal", "none"]))
def test_curvature_comes_back_to_the_last_bit(finest, tmp_path):
    found = states_of(make_study(TABLES, training=f'curvature = "{finest}"'))
    path, rounds = tmp_path / "checkpoint.json", [s for s in found if s.step == "round"]
    for state in rounds[1:4]:
        told = {None if r.curvature is None else r.curvature.size
                for _, r in state.server.last.values()}  # fmt: skip
        assert told == {{"full": 21, "diagonal": 6, "none": None}[finest]}
        checkpoint.save(path, state)
        back = checkpoint.load(path)
        one, two = (s.server.solving.curvature for s in (back, state))
        assert np.array_equal(one, two) and one.dtype == two.dtype
        assert same(local.run(back, make_sites(TABLES)), found[-1])
