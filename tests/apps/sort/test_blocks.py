"""Runs that are in order block by block."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmdask.apps.sort.worker import Blocks
from fpmdask.sorting.blocks import BlockedRun, Run, block_size, cut_up, fillings
from fpmdask.tuning import DEFAULT, SortTuning

RANDOM = np.random.default_rng(0)
COUNT = 20_000
KEYS = {
    "uniform": RANDOM.random(COUNT),
    "ordered": np.arange(COUNT),
    "reversed": np.arange(COUNT)[::-1].copy(),
    "NaN": np.where(RANDOM.random(COUNT) < 0.2, np.nan, RANDOM.random(COUNT)),
    "signed zeros": np.where(RANDOM.random(COUNT) < 0.5, -0.0, 0.0),
    "equal": np.zeros(COUNT),
    "half equal": np.where(RANDOM.random(COUNT) < 0.5, 0.5, RANDOM.random(COUNT)),
    ">i4": RANDOM.integers(-(2**31), 2**31, COUNT).astype(">i4"),
    "u8": RANDOM.integers(0, 2**64, COUNT, np.uint64),
    "M8": np.where(RANDOM.random(COUNT) < 0.1, "NaT", "2026-01-01").astype("M8[s]"),
    "c16": RANDOM.random(COUNT) + 1j * RANDOM.integers(0, 2, COUNT),
    "complex NaN": np.where(RANDOM.random(COUNT) < 0.2, complex(np.nan, 1), 1j),
    "?": RANDOM.random(COUNT) < 0.5,
    "S3": RANDOM.integers(97, 123, (COUNT, 3), np.uint8).view("S3").ravel(),
    "U2": RANDOM.integers(97, 123, (COUNT, 2)).astype(np.uint32).view("U2").ravel(),
}


def blocked(keys, size, tuning=DEFAULT.sort):
    blocks = cut_up(keys.copy(), size)
    for block in blocks:
        block.sort()
    return BlockedRun(blocks, tuning)


@pytest.mark.parametrize("size", [777, COUNT])
@pytest.mark.parametrize("name", KEYS)
def test_it_answers_as_one_that_is_in_order(name, size):
    keys = KEYS[name]
    run, wanted = blocked(keys, size), Run(np.sort(keys))
    assert (run.size, run.nbytes) == (COUNT, keys.nbytes)
    assert run.sample.dtype == keys.dtype
    places = {0, COUNT}
    for ranks in ((0.3, 0.5, 0.9), (0.1, 0.5, 0.5001)):
        values = np.sort(np.unique(wanted.keys[[int(rank * COUNT) for rank in ranks]]))
        values = values.astype(keys.dtype, copy=False)
        for found, right in zip(run.counted(values), wanted.counted(values), strict=True):
            np.testing.assert_array_equal(found, right)
            places.update(found.tolist())
        below, through = run.counted(values)
        places.update(((below + through) // 2).tolist())  # among equals
    edges = sorted(places)
    for low, high in pairwise(edges):
        expected = wanted.keys[low:high]
        np.testing.assert_array_equal(run.between(low, high), expected)
        target = np.empty(high - low, keys.dtype)
        run.fill(low, high, target)
        np.testing.assert_array_equal(np.sort(target), expected)
        piece = Blocks(run).read(((low, high),))
        row = np.asarray(piece)
        assert (row.shape, row.dtype, row.nbytes) == ((high - low,), keys.dtype, piece.nbytes)
        np.testing.assert_array_equal(np.sort(row), expected)
        for part in piece.parts:
            raw = np.frombuffer(part, np.uint8)
            assert sum(np.may_share_memory(raw, block) for block in run.blocks) == 1


@given(
    st.lists(st.integers(-5, 5), max_size=60),
    st.integers(1, 9),
    st.lists(st.integers(-6, 6), min_size=1, max_size=6),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
)
def test_parts_between_any_counted_places_are_those_of_all_keys_in_order(keys, size, values, at):
    array = np.array(keys, np.int64)
    run = blocked(array, size) if keys else BlockedRun([array])
    values = np.unique(np.array(values, np.int64))
    below, through = run.counted(values)
    places = sorted(
        {0, len(keys)}
        | {int(b + share * (t - b)) for b, t in zip(below, through, strict=True) for share in at}
    )
    found = [run.between(low, high) for low, high in pairwise(places)]
    assert np.concatenate([array[:0], *found]).tolist() == sorted(keys)


def test_places_that_were_not_counted_are_refused():
    run = blocked(KEYS["uniform"], 777)
    run.counted(np.array([0.5]))
    with pytest.raises(ValueError, match="were not counted"):
        run.slices(0, 17)


@pytest.mark.parametrize("name", ["uniform", "ordered", "reversed"])
def test_ranks_of_a_sample_are_off_by_its_noise(name):
    keys = KEYS[name]
    run = blocked(keys, 777, SortTuning(block_samples=1 << 10))
    ranks = np.searchsorted(np.sort(keys), run.sample)
    off = ranks - (np.arange(run.sample.size) + 0.5) * keys.size / run.sample.size
    assert 0 < run.noise < 0.005 * COUNT
    assert np.abs(off).max() < 4 * run.noise


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 6))
def test_blocks_are_filled_with_all_keys_in_turn(sizes, size):
    total = sum(sizes)
    arrays = np.split(np.arange(total), np.cumsum(sizes)[:-1]) if sizes else []
    keys = np.empty(total, np.int64)
    for block, slices in fillings(arrays, cut_up(keys, size)):
        np.concatenate(slices, out=block)
    assert keys.tolist() == list(range(total))


def test_blocks_grow_with_parts():
    """What is counted in all blocks is at most so many times the keys."""
    for parts in (2, 32, 100, 5000):
        assert parts / block_size(8, parts) <= 32 / block_size(8, 32)
