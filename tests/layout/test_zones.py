"""Zones cover every block exactly once, or are refused; the picture names every worker."""

import dataclasses
import re
import xml.etree.ElementTree

import numpy as np
import pytest

from fpmdask.errors import PartitionError
from fpmdask.layout import Layout, Rectangle, br
from tests.conformance import check_layout


def zones(*rectangles):
    return tuple((Rectangle(*r),) for r in rectangles)


def test_random_cuts_are_accepted_and_any_change_of_one_side_is_refused():
    rng = np.random.default_rng(1)
    for _ in range(50):
        shape = tuple(rng.integers(3, 9, 2).tolist())
        row = int(rng.integers(1, shape[0]))
        column = int(rng.integers(1, shape[1]))
        parts = [
            [0, 0, row, shape[1]],
            [row, 0, shape[0] - row, column],
            [row, column, shape[0] - row, shape[1] - column],
        ]
        check_layout(Layout(shape, zones(*parts)), 3)
        parts[rng.integers(3)][rng.integers(4)] += int(rng.choice([-1, 1]))
        with pytest.raises(PartitionError, match=r"zones|inside"):
            Layout(shape, zones(*parts))


def test_an_overlap_that_makes_up_for_a_gap_is_refused():
    with pytest.raises(PartitionError, match=r"block \(0, 0\) is in 2 zones"):
        Layout((2, 2), zones((0, 0, 1, 2), (0, 0, 1, 2)))
    with pytest.raises(PartitionError, match=r"block \(0, 0\) is in 0 zones"):
        Layout((2, 2), ())


@pytest.mark.parametrize(
    "bad",
    [
        *[(0, 0, 3, 2), (-1, 0, 3, 2), (0, 0, 2, 0), (0, 0, -2, -2)],
        *[(0, 2, 1, 2), (2, 0, 2, 1), (0, 1, 1, 3), (1, 0, 3, 1)],  # beyond the last block
    ],
)
def test_a_rectangle_outside_is_refused(bad):
    with pytest.raises(PartitionError, match="inside"):
        Layout((2, 2), zones(bad))


def test_a_worker_with_two_rectangles_has_zones():
    layout = Layout(
        (2, 2), ((Rectangle(0, 0, 1, 2), Rectangle(1, 0, 1, 1)), zones((1, 1, 1, 1))[0])
    )
    with pytest.raises(PartitionError, match=r"worker 0 has 2 rectangles.*zones"):
        _ = layout.rectangles
    assert layout.volume == 6  # an L needs the rows and columns of its covering square
    assert layout.areas == (3, 1)
    assert layout.half_perimeter == 3.0
    check_layout(layout, 2)


def test_an_idle_worker_has_no_sides():
    layout = Layout((2, 2), ((), *zones((0, 0, 2, 2), (0, 0, 0, 0))))
    assert [(r.height, r.width) for r in layout.rectangles] == [(0, 0), (2, 2), (0, 0)]
    check_layout(layout, 3)


def test_huge_matrices_are_checked_by_their_edges():
    big = 10**7
    layout = Layout((big, big), zones((0, 0, big, 1), (0, 1, big, big - 1)))
    assert layout.areas == (big, big * (big - 1))


def test_speeds_are_one_per_worker():
    with pytest.raises(PartitionError, match="2 speeds found for 1 zones"):
        Layout((2, 2), zones((0, 0, 2, 2)), (1.0, 2.0))


@pytest.mark.parametrize(
    "shape", [(0, 1), (1, -1), (1.5, 2), (2.0, 2), (True, 2), (3,), (1, 2, 3), 4, None, "ab"]
)
def test_bad_shapes(shape):
    with pytest.raises(PartitionError, match=r"shape is .*two ints of at least 1"):
        br([1, 2], shape)
    with pytest.raises(PartitionError, match="shape is"):
        Layout(shape, ())


def test_too_many_blocks():
    with pytest.raises(PartitionError, match=f"{2**60} blocks; .* larger blocks"):
        br([1, 2], (2**30, 2**30))


def test_the_picture_is_xml_with_worker_share_and_speed_of_each():
    layout = br([3.0, 1.0, 2.5, 7.25], (40, 30))
    root = xml.etree.ElementTree.fromstring(layout._repr_html_())
    titles = [t.text for t in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 4
    for worker, title in enumerate(titles):
        share = 100 * layout.areas[worker] / 1200
        assert title.startswith(
            f"worker {worker}: {share:.1f} %, speed {layout.speeds[worker]:.4g}"
        )
    boxes = [r.attrib for r in root.iter("{http://www.w3.org/2000/svg}rect")]
    area = sum(float(b["width"]) * float(b["height"]) for b in boxes)
    assert area == pytest.approx(480 * 360, rel=1e-3)
    assert not re.search("href|script|url", layout._repr_html_())


def test_each_zone_is_drawn_in_proportion_with_its_words_in_the_middle():
    # 480 pixels for 16 blocks; a zone of one column has no room for more than the number
    layout = Layout(
        (8, 16),
        zones((0, 0, 7, 15), (7, 0, 1, 15), (0, 15, 8, 1)),
        (7.0, 1.0, 0.5),
    )
    root = xml.etree.ElementTree.fromstring(layout._repr_html_())
    svg = "{http://www.w3.org/2000/svg}"
    assert root.attrib["viewBox"] == "-1 -1 482.00 262.00"
    shown = [["worker 0", "82.0 %", "speed 7"], ["worker 1", "11.7 %"], ["2"]]
    for group, (zone,), words in zip(root.findall(f"{svg}g"), layout.zones, shown, strict=True):
        box = {
            key: float(group.find(f"{svg}rect").get(key)) for key in ("x", "y", "width", "height")
        }
        assert (box["x"], box["y"]) == (30 * zone.left, 30 * zone.top)
        assert (box["width"], box["height"]) == (30 * zone.width, 30 * zone.height)
        texts = group.findall(f"{svg}text")
        assert [t.text for t in texts] == words
        assert {float(t.get("x")) for t in texts} == {box["x"] + box["width"] / 2}
        lines = [float(t.get("y")) for t in texts]
        assert np.diff(lines).tolist() == [14.0] * (len(words) - 1)
        assert np.mean(lines) == box["y"] + box["height"] / 2 + 4  # a letter is 8 pixels high
    (below,) = root.findall(f"{svg}text")
    assert float(below.get("y")) == 255
    colours = [r.get("fill") for r in root.iter(f"{svg}rect")]
    assert len(set(colours)) == 3


@pytest.mark.parametrize(("side", "words"), [(8, 3), (16, 1), (34, 1), (35, 0)])
def test_as_many_words_are_drawn_as_a_block_has_room_for(side, words):
    """Of 60 pixels all three, of 30 pixels the number, of less than 14 pixels none."""
    layout = Layout((side, side), zones((0, 0, 1, 1), (0, 1, 1, side - 1), (1, 0, side - 1, side)))
    layout = dataclasses.replace(layout, speeds=(1.0, 2.0, 3.0))
    root = xml.etree.ElementTree.fromstring(layout._repr_html_())
    first = next(root.iter("{http://www.w3.org/2000/svg}g"))
    assert len(first.findall("{http://www.w3.org/2000/svg}text")) == words


def test_the_picture_of_idle_workers_and_of_extreme_shapes():
    for shape in [(1, 1), (1, 100000), (100000, 1)]:
        layout = br([1.0] * 5, shape)
        xml.etree.ElementTree.fromstring(layout._repr_html_())
