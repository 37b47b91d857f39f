"""Records: their order, their sums; against Python's own sorting and zlib's CRC."""

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpmdask.records.format import checksum, keys, order, out_of_order, word_sums


def records_of(first_bytes):
    """Return records with these keys, in hex or bytes, and random bodies."""
    records = np.random.default_rng(0).integers(0, 256, (len(first_bytes), 100), np.uint8)
    for record, key in zip(records, first_bytes, strict=True):
        record[:10] = np.frombuffer(key, np.uint8)
    return records


def stably_sorted(records):
    found = sorted(range(len(records)), key=lambda n: records[n, :10].tobytes())
    return np.array(found, np.intp)


few = st.sampled_from([b"\0", b"\1", b"\x7f", b"\x80", b"\xff"])
key = st.one_of(
    st.binary(min_size=10, max_size=10),
    st.lists(few, min_size=10, max_size=10).map(b"".join),
    st.builds(lambda tail: b"samesame" + tail, st.binary(min_size=2, max_size=2)),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(key, max_size=60))
def test_records_are_ordered_stably_by_all_ten_bytes(given_keys):
    records = records_of(given_keys)
    np.testing.assert_array_equal(order(records), stably_sorted(records))


@pytest.mark.parametrize("prefix", [0, 3, 6, 8, 9, 10])
def test_many_records_with_a_common_prefix_are_ordered(prefix):
    random = np.random.default_rng(prefix)
    records = random.integers(0, 256, (20_000, 100), np.uint8)
    records[random.random(20_000) < 0.7, :prefix] = 0xFE
    np.testing.assert_array_equal(order(records), stably_sorted(records))


def test_keys_compare_as_bytes_do():
    records = records_of([b"\xff" + bytes(9), b"\x7f" * 10, bytes(10), bytes(9) + b"\1"])
    assert np.argsort(keys(records)).tolist() == [2, 3, 1, 0]
    assert np.searchsorted(keys(records)[[2, 3, 1, 0]], keys(records)[[0]]).tolist() == [3]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 20_000), st.integers(0, 2**32))
def test_the_checksum_is_the_sum_of_zlibs(count, seed):
    records = np.random.default_rng(seed).integers(0, 256, (count, 100), np.uint8)
    some = records[: min(count, 300)]
    assert checksum(some) == sum(zlib.crc32(record.tobytes()) for record in some)
    assert checksum(records) == checksum(records[:999]) + checksum(records[999:])


def test_sums_do_not_depend_on_the_order_and_show_changes():
    records = np.random.default_rng(1).integers(0, 256, (1000, 100), np.uint8)
    sums = word_sums(records)
    np.testing.assert_array_equal(word_sums(records[::-1].copy()), sums)
    assert (word_sums(records[1:]) != sums).any()
    records[5, 77] ^= 1
    assert (word_sums(records) != sums).sum() == 1


def test_what_is_out_of_order_is_found():
    records = np.random.default_rng(2).integers(0, 3, (1000, 100), np.uint8)
    expected = [n for n in range(1, 1000) if bytes(records[n, :10]) < bytes(records[n - 1, :10])]
    assert out_of_order(records).tolist() == expected
    assert not out_of_order(records[order(records)]).size
