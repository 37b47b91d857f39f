"""Rectangles, and rectangles without a corner: what is cut off and what stays."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fpmdask.apps.matmul.tile import Tile, merged


@st.composite
def tiles(draw):
    row0, column0 = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    height, width = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    corner = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    return Tile(row0, column0, row0 + height, column0 + width, corner)


def elements(tile):
    covered = np.zeros((20, 20), dtype=int)
    covered[tile.row0 : tile.row1, tile.column0 : tile.column1] = 1
    rows, columns = tile.corner
    if not tile.is_rectangle:
        covered[tile.row1 - rows : tile.row1, tile.column1 - columns : tile.column1] = 0
    return covered


@given(tiles())
def test_rectangles_cover_the_tile_and_bounds_describe_it(tile):
    assert Tile.of(tile.bounds) == tile
    covered = sum(elements(rectangle) for rectangle in tile.rectangles)
    np.testing.assert_array_equal(covered, elements(tile))
    assert covered.sum() == tile.area
    assert sum(t.area for t in merged([tile])) == tile.area
    for row in range(20):
        for column in range(20):
            single = Tile(row, column, row + 1, column + 1)
            assert tile.holds(single) == bool(covered[row, column])


@given(tiles(), st.data())
def test_last_lines_come_off_until_one_element_is_left(tile, data):
    while tile.area > 1:
        _, lines, across = tile.last_lines()
        count = data.draw(st.integers(1, lines - 1 if tile.is_rectangle else lines))
        released = tile.last(count)
        assert released.is_rectangle
        assert released.area == count * across
        kept = tile.without(released)
        assert kept is not None
        np.testing.assert_array_equal(elements(kept) + elements(released), elements(tile))
        tile = kept


@given(tiles(), tiles())
def test_only_last_lines_can_be_released(tile, other):
    kept = tile.without(other)
    if kept is not None:
        np.testing.assert_array_equal(elements(kept) + elements(other), elements(tile))
