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
    """Sites that add up numbers, each with a secret of its own."""

    def __init__(self, numbers, seed=0, label=b"head 1"):
        self.numbers, self.label, self.names = numbers, label, sorted(numbers)
        self.secrets = {n: hashlib.sha256(f"{seed} {n}".encode()).digest() for n in self.names}
        self.private = {n: sums.private_key(s, b"run") for n, s in self.secrets.items()}
        self.keys = {n: sums.public_key(own) for n, own in self.private.items()}

    def mask(self, name, label=None):
        label = label or self.label
        numbers = sums.encode(self.numbers[name], BITS, len(self.names))
        own = sums.seed(self.secrets[name], label)
        return sums.mask(numbers, own, self.private[name], name, self.keys, label)

    def open(self, name, gone):
        pairs = {
            v: sums.pair_seed(self.private[name], name, v, self.keys[v], self.label) for v in gone
        }
        return sums.seed(self.secrets[name], self.label), pairs

    def total(self, masked):
        gone = [name for name in self.names if name not in masked]
        opened = {name: self.open(name, gone) for name in masked}
        seeds = {name: own for name, (own, _) in opened.items()}
        pairs = {name: pair for name, (_, pair) in opened.items()}
        return sums.total(masked, seeds, pairs, gone)


def numbers_of(sites, size=5, seed=0):
    rng = np.random.default_rng(seed)
    return {f"site-{i}": rng.normal(scale=100.0, size=size) for i in range(sites)}


@slowly(20)
@given(st.integers(3, 7), st.data())
def test_the_sum_is_that_of_those_whose_numbers_arrive(sites, data):
    run = Run(numbers_of(sites))
    gone = data.draw(st.lists(st.sampled_from(run.names), max_size=sites - 1, unique=True))
    masked = {n: run.mask(n) for n in run.names if n not in gone}
    exact = sum(run.numbers[n] for n in masked)
    off = np.abs(sums.decode(run.total(masked), BITS) - exact).max()
    assert off <= 0.5 * sites * 2.0**-BITS + 1e-13


def test_sums_repeat_bit_for_bit_in_any_order_and_whatever_the_masks():
    totals = set()
    for seed in (1, 2):
        run = Run(numbers_of(5), seed)
        for order in (run.names, run.names[::-1]):
            totals.add(run.total({n: run.mask(n) for n in order}).tobytes())
    assert len(totals) == 1


def test_sites_at_different_heads_give_noise():
    run = Run(numbers_of(4))
    masked = {n: run.mask(n, b"other" if n == "site-0" else None) for n in run.names}
    total = sums.decode(run.total(masked), BITS)
    assert np.abs(total - sum(run.numbers.values())).min() > 1.0


def test_a_site_said_to_be_gone_stays_hidden_by_its_own_seed():
    """Its numbers arrived; others open their pairwise masks on them, and it opens nothing."""
    run = Run(numbers_of(4, size=4000))
    arrived = run.mask("site-3")
    others = {n: run.mask(n) for n in run.names[:3]}
    exact = sum(run.numbers[n] for n in others)
    assert np.allclose(sums.decode(run.total(others), BITS), exact, atol=1e-10)
    for name in others:
        pair = run.open(name, ["site-3"])[1]["site-3"]
        stream = sums._stream(pair, arrived.size)
        arrived = arrived + stream  # site-3 is the second of every pair: it took them off
    plain = sums.encode(run.numbers["site-3"], BITS, 4)
    left = arrived - plain
    assert np.array_equal(left, sums._stream(sums.seed(run.secrets["site-3"], b"head 1"), 4000))
    counts = np.bincount(arrived.view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_seeds_are_promised_and_differ_between_sums():
    own = sums.seed(b"secret", b"head 1")
    assert own != sums.seed(b"secret", b"head 2") and own != sums.private_key(b"secret", b"head 1")
    assert sums.promise(own) == hashlib.sha256(own).digest()


def test_two_sites_agree_on_a_pair_seed_of_one_sum():
    run = Run(numbers_of(3))
    one = run.open("site-0", ["site-1"])[1]["site-1"]
    assert one == run.open("site-1", ["site-0"])[1]["site-0"]
    assert one != run.open("site-0", ["site-2"])[1]["site-2"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**20, -(2.0**21)])
def test_numbers_out_of_range_are_errors(bad):
    with pytest.raises(ValueError, match="too large"):
        sums.encode(np.array([0.0, bad]), BITS, 5)


def test_the_largest_numbers_of_all_sites_add_up():
    most = 2.0**22 / 5 * (1 - 1e-9)
    total = sum(sums.encode(np.array([most]), BITS, 5) for _ in range(5))
    assert sums.decode(total, BITS)[0] == pytest.approx(5 * most, rel=1e-12)


def view(split, seed, gone=()):
    """What the server has by site once it has taken off all that was opened; and the sum."""
    run = Run(split, seed)
    masked = {n: run.mask(n) for n in run.names if n not in gone}
    opened = {}
    for name, numbers in masked.items():
        own, pairs = run.open(name, gone)
        left = numbers - sums._stream(own, numbers.size)
        for other, pair in pairs.items():
            stream = sums._stream(pair, numbers.size)
            left = left - stream if name < other else left + stream
        opened[name] = left
    return opened, run.total(masked)


@pytest.mark.parametrize("gone", [(), ("site-3",)])
def test_what_the_server_sees_does_not_depend_on_how_the_sum_is_split(gone):
    """Once seeds are opened the pairwise masks still hide each part: uniform but for the sum."""
    size, equal = 2000, np.full(2000, 1000.0)
    fair = {f"site-{i}": equal for i in range(4)}
    alone = {f"site-{i}": equal * (3 if i == 0 else 0) for i in range(4)}
    alone["site-3"] = fair["site-3"]
    seen = {}
    for name, split in (("fair", fair), ("alone", alone)):
        opened, total = view(split, seed=7, gone=gone)
        assert np.array_equal(sum(opened.values()), total)
        assert sums.decode(total, BITS)[0] == 1000.0 * len(opened)
        seen[name] = list(opened.values())
        for part in opened.values():
            counts = np.bincount(part.view(np.uint8), minlength=256)
            assert stats.chisquare(counts).pvalue > 1e-4
    for one, other in zip(seen["fair"], seen["alone"], strict=True):
        assert stats.ks_2samp(one.astype(float), other.astype(float)).pvalue > 1e-4
    pairs = np.corrcoef([part.astype(float) for part in seen["alone"][:2]])[0, 1]
    assert abs(pairs) < 4.0 / np.sqrt(size)


def test_any_part_of_the_sites_adds_up_to_noise():
    opened, total = view({f"site-{i}": np.full(1000, 5.0) for i in range(4)}, 3)
    parts = list(opened.values())
    assert sums.decode(sum(parts), BITS)[0] == sums.decode(total, BITS)[0] == 20.0
    for count in (1, 2, 3):
        partial = sum(parts[:count])
        counts = np.bincount(partial.view(np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4
