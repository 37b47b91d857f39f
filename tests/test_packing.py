"""Orders by packed words are NumPy's stable ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmdask.packing import BLOCK, MANY, groups, ordered_words, packed_order

TOP = 1 << 63


def check(words, many=MANY):
    before = words.copy()
    order, same = packed_order(words, many=many)
    np.testing.assert_array_equal(order, np.argsort(words, kind="stable"))
    np.testing.assert_array_equal(same, words[order][1:] == words[order][:-1])
    np.testing.assert_array_equal(words, before)


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(TOP, TOP + 3) | st.integers(0, 2)))
def test_any_words(values):
    check(np.array(values, np.uint64))


@pytest.mark.parametrize("many", [0, MANY])
@pytest.mark.parametrize("bits", [0, 1, 20, 44, 64])
@pytest.mark.parametrize("size", [BLOCK + 1, 3 * BLOCK])
def test_words_that_differ_in_their_last_or_first_bits(bits, size, many):
    """Those that are left out are all that differs, or some, or none."""
    random = np.random.default_rng(bits)
    low = random.integers(0, max(1, 2**bits - 1), size, np.uint64, endpoint=True)
    check(low, many)
    high = random.integers(0, 2, size, np.uint64) << np.uint64(63)
    check(low + high * np.uint64(bits < 64), many)


def test_groups_are_numbered():
    members, group = groups(np.array([True, True, False, False, True]))
    assert members.tolist() == [0, 1, 2, 4, 5]
    assert group.tolist() == [1, 1, 1, 2, 2]


@given(st.lists(st.floats() | st.sampled_from([0.0, -0.0, np.inf, -np.inf, 5e-324])))
def test_floats_become_words_in_their_order(values):
    for kind in ("f8", "f4", "f2", ">f8"):
        with np.errstate(over="ignore"):
            keys = np.array(values).astype(kind)
        words = ordered_words(keys)
        assert words.dtype == np.uint64
        order = np.argsort(words, kind="stable")
        np.testing.assert_array_equal(order, np.argsort(keys, kind="stable"))
        found = keys[order]
        equal = (found[1:] == found[:-1]) | (np.isnan(found[1:]) & np.isnan(found[:-1]))
        np.testing.assert_array_equal(words[order][1:] == words[order][:-1], equal)
