"""A worker's part of C, and the chunks that it becomes."""

import numpy as np
import pytest

from fpmdask.apps.matmul.plan import Tile
from fpmdask.apps.matmul.share import Part


@pytest.fixture
def part():
    left, right = np.arange(12.0).reshape(4, 3), np.arange(8.0).reshape(4, 2)
    return Part(((Tile(2, 0, 6, 3), left), (Tile(2, 3, 6, 5), right)))


def test_a_cell_that_is_a_chunk_is_not_copied(part):
    (_, left), (_, right) = part.cells
    assert part.chunk((2, 6, 0, 3)) is left
    assert part.chunk((2, 6, 3, 5)) is right
    assert part.nbytes == left.nbytes + right.nbytes


def test_a_chunk_within_a_cell_has_memory_of_its_own(part):
    chunk = part.chunk((3, 5, 1, 3))
    assert chunk.tolist() == [[4.0, 5.0], [7.0, 8.0]]
    assert chunk.base is None


def test_a_chunk_of_another_part_is_refused(part):
    with pytest.raises(KeyError, match="no cells hold"):
        part.chunk((0, 2, 0, 3))
