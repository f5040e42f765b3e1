"""Secure sums: what comes out is the sum, whoever drops out; what goes in looks like noise."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cases import slowly
from dorfl.federated import secure_sum as sums

BITS = 40


class Run:
    """Sites that add up numbers, step by step, with a secret of its own each."""

    def __init__(self, numbers, seed=0, context=b"run 1, sum 1"):
        self.numbers, self.context = numbers, context
        self.names = sorted(numbers)
        self.least = sums.threshold(len(numbers))
        self.own = {
            name: sums.secrets_of(hashlib.sha256(f"{seed} {name}".encode()).digest(), context)
            for name in self.names
        }
        self.adverts = {name: sums.advertise(own) for name, own in self.own.items()}

    def deal(self, names):
        adverts = {name: self.adverts[name] for name in names}
        return {n: sums.deal(self.own[n], n, adverts, self.least, self.context) for n in names}

    def mask(self, name, among, question=b"q"):
        numbers = sums.encode(self.numbers[name], BITS, len(self.names))
        adverts = {n: self.adverts[n] for n in among}
        return sums.mask(numbers, self.own[name], name, adverts, question)

    def open(self, name, dealt, alive):
        boxes = {dealer: dealt[dealer][name] for dealer in dealt}
        return sums.reveal(self.own[name], name, self.adverts, boxes, alive, self.context)

    def total(self, masked, dealt, told, question=b"q"):
        adverts = {name: self.adverts[name] for name in dealt}
        among = sorted(next(iter(dealt.values())))
        return sums.total(masked, adverts, told, self.least, question, among)


def numbers_of(sites, size=5, seed=0):
    rng = np.random.default_rng(seed)
    return {f"site-{i}": rng.normal(scale=100.0, size=size) for i in range(sites)}


@slowly(20)
@given(st.integers(3, 7), st.data())
def test_the_sum_is_that_of_those_whose_numbers_arrive_whoever_drops_out_when(sites, data):
    run = Run(numbers_of(sites))
    most = sites - run.least
    gone = data.draw(st.lists(st.sampled_from(run.names), max_size=most, unique=True))
    steps = ["keys", "shares", "masked", "open"]
    when = {name: data.draw(st.sampled_from(steps)) for name in gone}
    dealt = run.deal([n for n in run.names if when.get(n) != "keys"])
    dealt = {n: boxes for n, boxes in dealt.items() if when.get(n) != "shares"}
    shared = list(dealt)
    sent = [n for n in shared if when.get(n) != "masked"]
    masked = {n: run.mask(n, shared) for n in sent}
    told = {n: run.open(n, dealt, sent) for n in sent if when.get(n) != "open"}
    total, liars = run.total(masked, dealt, told)
    exact = sum(run.numbers[n] for n in sent)
    assert np.abs(sums.decode(total, BITS) - exact).max() <= sums.rounding(BITS, sites) + 1e-13
    assert liars == ()


def test_sums_repeat_bit_for_bit_in_any_order_and_whatever_the_masks():
    totals = []
    for seed in (1, 2):
        run = Run(numbers_of(5), seed)
        dealt = run.deal(run.names)
        for order in (run.names, run.names[::-1]):
            masked = {n: run.mask(n, order) for n in order}
            told = {n: run.open(n, dealt, masked) for n in order}
            totals.append(run.total(masked, dealt, told)[0].tobytes())
    assert len(set(totals)) == 1


def test_too_few_who_open_are_an_error():
    run = Run(numbers_of(6))
    dealt = run.deal(run.names)
    masked = {n: run.mask(n, run.names) for n in run.names}
    told = {n: run.open(n, dealt, masked) for n in run.names[: run.least - 1]}
    with pytest.raises(ValueError, match="too few shares"):
        run.total(masked, dealt, told)


@pytest.mark.parametrize("gone", [(), ("site-0",)])
def test_a_liar_among_the_shares_is_found_and_the_sum_is_right(gone):
    run = Run(numbers_of(7))
    dealt = run.deal(run.names)
    masked = {n: run.mask(n, run.names) for n in run.names if n not in gone}
    told = {n: run.open(n, dealt, masked) for n in masked}
    told["site-3"] = {n: bytes(len(share)) for n, share in told["site-3"].items()}
    total, liars = run.total(masked, dealt, told)
    assert np.allclose(sums.decode(total, BITS), sum(run.numbers[n] for n in masked), atol=1e-10)
    assert liars == ("site-3",)


def test_where_no_set_of_shares_fits_there_is_an_error_and_no_sum():
    run = Run(numbers_of(3))
    dealt = run.deal(run.names)
    masked = {n: run.mask(n, run.names) for n in run.names}
    told = {n: run.open(n, dealt, masked) for n in masked}
    told["site-1"] = {n: bytes(len(share)) for n, share in told["site-1"].items()}
    with pytest.raises(ValueError, match="do not fit what it promised"):
        run.total(masked, dealt, told)


def test_who_deals_shares_of_something_else_is_named():
    run = Run(numbers_of(4))
    dealt = run.deal(run.names)
    other = run.own["site-2"]._replace(seed=bytes(32))
    dealt["site-2"] = sums.deal(other, "site-2", run.adverts, run.least, run.context)
    masked = {n: run.mask(n, run.names) for n in run.names}
    told = {n: run.open(n, dealt, masked) for n in masked}
    with pytest.raises(ValueError, match="'site-2'"):
        run.total(masked, dealt, told)


def test_sites_that_are_asked_different_questions_give_noise():
    run = Run(numbers_of(4))
    dealt = run.deal(run.names)
    masked = {n: run.mask(n, run.names, b"other" if n == "site-0" else b"q") for n in run.names}
    told = {n: run.open(n, dealt, masked) for n in masked}
    total = sums.decode(run.total(masked, dealt, told)[0], BITS)
    assert np.abs(total - sum(run.numbers.values())).min() > 1.0


def test_a_share_gives_one_secret_and_seals_open_for_one_site():
    run = Run(numbers_of(4))
    dealt = run.deal(run.names)
    alive = run.open("site-1", dealt, run.names)
    dead = run.open("site-1", dealt, [n for n in run.names if n != "site-0"])
    assert alive["site-0"] != dead["site-0"] and alive["site-2"] == dead["site-2"]
    swapped = {n: {"site-1": dealt[n]["site-2"]} for n in dealt}
    assert run.open("site-1", swapped, run.names) == {}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**20, -(2.0**21)])
def test_numbers_out_of_range_are_errors(bad):
    with pytest.raises(ValueError, match="too large"):
        sums.encode(np.array([0.0, bad]), BITS, 5)


def test_the_largest_numbers_of_all_sites_add_up():
    most = 2.0**22 / 5 * (1 - 1e-9)
    total = sum(sums.encode(np.array([most]), BITS, 5) for _ in range(5))
    assert sums.decode(total, BITS)[0] == pytest.approx(5 * most, rel=1e-12)


def view(split, seed, gone=()):
    """All that the server sees of a sum, as bytes by site; and the sum."""
    run = Run(split, seed)
    dealt = run.deal(run.names)
    masked = {n: run.mask(n, run.names) for n in run.names if n not in gone}
    told = {n: run.open(n, dealt, masked) for n in masked}
    return masked, run.total(masked, dealt, told)[0]


@pytest.mark.parametrize("gone", [(), ("site-3",)])
def test_what_the_server_sees_does_not_depend_on_how_the_sum_is_split(gone):
    """Once seeds are opened the pairwise masks still hide each part: uniform but for the sum."""
    size, equal = 2000, np.full(2000, 1000.0)
    fair = {f"site-{i}": equal for i in range(4)}
    alone = {f"site-{i}": equal * (3 if i == 0 else 0) for i in range(4)}
    alone["site-3"] = fair["site-3"]
    seen = {}
    for name, split in (("fair", fair), ("alone", alone)):
        masked, total = view(split, seed=7, gone=gone)
        run = Run(split, 7)
        opened = [  # the server takes off what it has opened
            masked[n] - sums.mask(np.zeros(size, np.uint64), run.own[n], n, {}, b"q")
            for n in masked
        ]
        assert sums.decode(sum(opened) if not gone else total, BITS)[0] == 1000.0 * len(masked)
        seen[name] = opened
        for part in opened:
            counts = np.bincount(part.view(np.uint8), minlength=256)
            assert stats.chisquare(counts).pvalue > 1e-4
    for one, other in zip(seen["fair"], seen["alone"], strict=True):
        test = stats.ks_2samp(one.astype(float), other.astype(float))
        assert test.pvalue > 1e-4
    pairs = np.corrcoef([part.astype(float) for part in seen["alone"][:2]])[0, 1]
    assert abs(pairs) < 4.0 / np.sqrt(size)


def test_the_view_without_its_last_site_is_noise_and_with_it_the_sum():
    """Any proper subset of the opened parts adds up to noise."""
    numbers = {f"site-{i}": np.full(1000, 5.0) for i in range(4)}
    run, (masked, _) = Run(numbers, 3), view(numbers, 3)
    zero = np.zeros(1000, np.uint64)
    parts = [masked[n] - sums.mask(zero, run.own[n], n, {}, b"q") for n in run.names]
    for k in (1, 2, 3):
        counts = np.bincount(sum(parts[:k]).view(np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4
    assert (sums.decode(sum(parts), BITS) == 20.0).all()
