"""Runs that are in order only where somebody has looked."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpmdask.apps.sort import parted as module
from fpmdask.apps.sort.parted import PartedRun, Run, parted

RANDOM = np.random.default_rng(0)
COUNT = 20_000
KEYS = {
    "uniform": RANDOM.random(COUNT),
    "ordered": np.arange(COUNT),
    "reversed": np.arange(COUNT)[::-1],
    "two humps": np.concatenate([np.arange(COUNT // 2), np.arange(COUNT // 2)]),
    "NaN": np.where(RANDOM.random(COUNT) < 0.2, np.nan, RANDOM.random(COUNT)),
    "equal": np.zeros(COUNT),
    "half equal": np.where(RANDOM.random(COUNT) < 0.5, 0.5, RANDOM.random(COUNT)),
    "i4": RANDOM.integers(-(2**31), 2**31, COUNT).astype("i4"),
    "f4": RANDOM.random(COUNT).astype("f4"),
    "u2": RANDOM.integers(0, 2**16, COUNT).astype("u2"),
    "u8": RANDOM.integers(0, 2**64, COUNT, np.uint64),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(module, "FEWEST_KEYS", 16)
    monkeypatch.setattr(module, "SAMPLE", 256)


@pytest.mark.parametrize("distinct", [0.0, module.DISTINCT])
@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("ends", [[], [0.5], [0.0, 0.3, 0.31, 0.9, 1.0], [0.999]])
def test_it_answers_as_one_that_is_in_order(name, ends, distinct, monkeypatch):
    monkeypatch.setattr(module, "DISTINCT", distinct)  # 0: equal keys are parted, too
    keys = KEYS[name].copy()
    wanted = np.sort(keys)
    run = parted(keys, ends, np.random.default_rng(1))
    for rank in (0.3, 0.5, 0.1, 0.5001, 0.9, 0.0):
        near = wanted[int(rank * COUNT) : int(rank * COUNT) + 40]
        for side in ("right", "left"):
            np.testing.assert_array_equal(
                run.searchsorted(near, side), np.searchsorted(wanted, near, side)
            )
        cut = int(np.searchsorted(wanted, near[0]))
        np.testing.assert_array_equal(np.sort(keys[:cut]), wanted[:cut])
    for low, high in ((100, 300), (5000, 5000), (0, 7), (12_345, 13_000), (0, COUNT)):
        np.testing.assert_array_equal(run.between(low, high), wanted[low:high])


@given(
    st.lists(st.integers(-5, 5) | st.integers(-(2**40), 2**40), max_size=80),
    st.lists(st.floats(0, 1), max_size=4),
    st.lists(st.integers(-6, 6) | st.integers(-(2**40), 2**40), min_size=1, max_size=9),
    st.sampled_from([0.0, 0.9]),
)
@settings(deadline=None)
def test_any_keys_ends_and_values(keys, ends, values, distinct):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FEWEST_KEYS", 2)
        patch.setattr(module, "SAMPLE", 7)
        patch.setattr(module, "DISTINCT", distinct)
        run = PartedRun(np.array(keys, np.int64), sorted(ends), np.random.default_rng(2))
        wanted = np.sort(np.array(keys, np.int64))
        for value in values:
            for side in ("left", "right"):
                found = run.searchsorted(np.array([value]), side)
                assert found.tolist() == [np.searchsorted(wanted, value, side)]
        assert np.sort(run.keys).tolist() == wanted.tolist()


def test_only_what_is_near_the_cuts_is_put_in_order():
    keys = RANDOM.random(1 << 18)
    wanted = np.sort(keys)
    run = PartedRun(keys, [0.25, 0.6], np.random.default_rng(1))
    for rank in (0.25, 0.6):
        value = wanted[int(rank * keys.size) :][:1]
        assert run.searchsorted(value, "left") == [int(rank * keys.size)]
    assert np.count_nonzero(keys == wanted) < 0.1 * keys.size
    assert run.noise > 0
    assert run.sample.size == 256


def test_what_is_faster_sorted_is_sorted():
    """Many cuts, and many equal keys."""
    keys = RANDOM.random(COUNT)
    for values, ends in (
        (keys, [n / 40 for n in range(1, 40)]),
        (np.where(keys < 0.9, np.nan, keys), [0.5]),
        (np.where(keys < 0.9, 0.5, keys), [0.5]),
    ):
        run = parted(values.copy(), ends, np.random.default_rng(1))
        np.testing.assert_array_equal(run.keys, np.sort(values))
        assert run.noise == 0


def test_ranks_of_a_sample_are_off_by_its_noise():
    keys = RANDOM.random(1 << 16)
    run = PartedRun(keys.copy(), [], np.random.default_rng(1))
    ranks = np.searchsorted(np.sort(keys), run.sample)
    off = ranks - (np.arange(run.sample.size) + 0.5) * keys.size / run.sample.size
    assert np.abs(off).max() < 4 * run.noise


@pytest.mark.parametrize("dtype", ["?", "c16", "M8[s]", "S3", ">f8"])
def test_other_keys_are_sorted(dtype):
    keys = RANDOM.integers(0, 2, COUNT).astype(dtype)
    wanted = np.sort(keys)
    run = parted(keys, [0.5], np.random.default_rng(1))
    assert type(run) is Run
    np.testing.assert_array_equal(run.keys, wanted)
    assert run.noise == 0
