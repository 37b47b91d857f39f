from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmdask.errors import KernelError
from fpmdask.timing import Deadline, DeadlinePassed, Scratch
from tests.resident import status


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.lists(st.integers(0, 9), max_size=3).map(tuple),
            st.sampled_from(["u1", "f4", "f8", "c16", "i8", "V10"]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_every_array_is_aligned_contiguous_and_writable(takes):
    scratch = Scratch()
    for label, shape, dtype in takes:
        array = scratch.take(label, shape, dtype)
        assert array.shape == shape
        assert array.dtype == np.dtype(dtype)
        assert array.flags.c_contiguous
        assert array.flags.writeable
        if array.size:
            assert array.ctypes.data % 64 == 0
        array[...] = np.zeros((), dtype)
        assert scratch.nbytes >= array.nbytes


def test_memory_is_kept_while_it_suffices_and_grows_otherwise():
    scratch = Scratch()
    first = scratch.take("a", (10, 10), np.float64)
    assert np.shares_memory(first, scratch.take("a", 100, np.float32))
    assert scratch.nbytes == 800
    assert not np.shares_memory(first, scratch.take("b", 100, np.float64))
    assert not np.shares_memory(first, scratch.take("a", (16, 10), np.float64))
    assert scratch.nbytes == 800 + 1280
    scratch.clear()
    assert scratch.nbytes == 0
    first[:] = 1.0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no memory to be read here")
def test_room_that_was_not_asked_for_takes_no_memory():
    scratch, before = Scratch(), status("VmRSS")
    sizes = [9_000_000 + 250_000 * n for n in range(8)]
    for n, nbytes in enumerate(sizes):
        scratch.take(f"{n}", nbytes, "uint8")[:] = 1
        scratch.take(f"{n}", nbytes + 1_000_000, "uint8")[:] = 1
    grown = status("VmRSS") - before
    assert scratch.nbytes <= grown + (1 << 20)
    assert grown < scratch.nbytes + (1 << 20)  # eight huge pages would be 16


def test_an_exact_buffer_has_no_room():
    scratch = Scratch()
    first = scratch.take("a", 100, "uint8", exact=True)
    assert np.shares_memory(first, scratch.take("a", 100, "uint8"))
    larger = scratch.take("a", 101, "uint8", exact=True)
    assert not np.shares_memory(first, larger)
    with_room = scratch.take("b", 101, "uint8")
    assert np.shares_memory(with_room, scratch.take("b", 151, "uint8"))
    assert larger.base.nbytes == with_room.base.nbytes - 50
    assert scratch.hand_over("c", 101, "uint8").base.nbytes == larger.base.nbytes


@pytest.mark.parametrize(("shape", "dtype"), [((-1,), "f8"), ((2, -3), "f8"), (3, object)])
def test_impossible_arrays_are_refused(shape, dtype):
    with pytest.raises(KernelError, match="allowed are"):
        Scratch().take("a", shape, dtype)


def test_a_deadline_passes():
    now = [10.0]
    deadline = Deadline(2.0, clock=lambda: now[0])
    deadline.check()
    assert deadline.remaining == 2.0
    now[0] = 12.0
    assert not deadline.expired
    now[0] = 12.5
    assert deadline.expired
    assert deadline.remaining == 0
    with pytest.raises(DeadlinePassed, match="2 s"):
        deadline.check()


def test_an_infinite_deadline_never_passes():
    now = [0.0]
    deadline = Deadline(float("inf"), clock=lambda: now[0])
    now[0] = 1e300
    deadline.check()


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_deadline_is_in_the_future(seconds):
    with pytest.raises(KernelError, match="deadline"):
        Deadline(seconds)


def test_a_buffer_much_too_large_is_not_handed_over():
    scratch = Scratch()
    warm = scratch.take("c", 1000, "uint8")
    own = scratch.hand_over("c", 100, "uint8")
    assert not np.shares_memory(own, warm)
    assert scratch.nbytes == 0
    assert scratch.hand_over("new", (2, 3), "float32").shape == (2, 3)
    assert scratch.nbytes == 0
