"""A share's panels: assembled without a copy where that is possible, usable by BLAS always."""

import numpy as np

from fpmdask.apps.matmul.share import _assembled
from fpmdask.coordinator.worker import RunSpace
from fpmdask.timing import Scratch


def unaligned(values):
    """Return an equal array that begins at an odd address, like one from the network."""
    raw = np.empty(values.nbytes + 8, np.uint8)
    odd = raw[1 - raw.ctypes.data % 2 :][: values.nbytes].view(values.dtype).reshape(values.shape)
    odd[...] = values
    assert not odd.flags.aligned
    return odd


def test_one_piece_is_used_where_it_is():
    space, piece = RunSpace("run", Scratch()), np.ones((3, 4))
    assert _assembled(space, "b", [(piece, (0, 0))], (3, 4), piece.dtype) is piece


def test_a_piece_that_begins_at_any_byte_is_copied_once_to_memory_that_is_kept():
    space, values = RunSpace("run", Scratch()), np.arange(12.0).reshape(3, 4)
    placed = [(unaligned(values), (0, 0))]
    first = _assembled(space, "b", placed, (3, 4), values.dtype)
    assert first.flags.aligned
    assert (first == values).all()
    assert np.shares_memory(first, _assembled(space, "b", placed, (3, 4), values.dtype))


def test_pieces_are_put_together_and_converted():
    space, values = RunSpace("run", Scratch()), np.arange(12, dtype="i4").reshape(3, 4)
    pieces = [(values[:, :1], (0, 0)), (unaligned(values[:, 1:]), (0, 1))]
    whole = _assembled(space, "a", pieces, (3, 4), np.dtype("f8"))
    assert whole.dtype == "f8"
    assert (whole == values).all()
