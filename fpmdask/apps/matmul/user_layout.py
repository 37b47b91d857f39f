"""Layouts that were made elsewhere: checked, and spread over C."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from fpmdask.apps.matmul.spec import MatmulSpec
from fpmdask.apps.matmul.tile import Tile
from fpmdask.apps.matmul.tiling import INNER, LAYOUTS, zone_tile
from fpmdask.errors import PartitionError
from fpmdask.layout import Layout, Rectangle
from fpmdask.partition import proportional


def check_layout(layout: Any) -> str | dict[str, list[tuple[int, int, int, int]]]:
    """Return the name of a layout, or (top, left, height, width) of rectangles per worker name.

    Raises
    ------
    PartitionError
        For an unknown name, and rectangles that do not cover a matrix of blocks exactly once or of
        which a worker has others than one, or two that are one without its lower right corner.
    """
    if not isinstance(layout, Mapping):
        known = (*LAYOUTS, INNER)
        if not isinstance(layout, str) or layout not in known:
            raise PartitionError(
                f"layout = {layout!r}; give one of {', '.join(map(repr, known))}, or a mapping "
                "of worker name to its fpmdask.layout.Rectangles"
            )
        return layout
    zones: dict[str, tuple[Rectangle, ...]] = {}
    for name, zone in layout.items():
        if not isinstance(zone, Sequence) or not all(map(_is_whole, zone)):
            raise PartitionError(
                f"the layout gives {name} {zone!r}; give a sequence of fpmdask.layout.Rectangle "
                "with whole numbers"
            )
        if str(name) in zones:
            raise PartitionError(f"the layout names {name} twice")
        zones[str(name)] = tuple(
            Rectangle(int(r.top), int(r.left), int(r.height), int(r.width)) for r in zone if r.area
        )
    every = [found for zone in zones.values() for found in zone]
    if not every:
        raise PartitionError("the layout has no blocks; give every block to a worker")
    shape = max(r.top + r.height for r in every), max(r.left + r.width for r in every)
    Layout(shape, tuple(zones.values()))  # every block exactly once
    for zone in filter(None, zones.values()):
        zone_tile(zone)
    return {n: [(r.top, r.left, r.height, r.width) for r in zone] for n, zone in zones.items()}


def _is_whole(found: Any) -> bool:
    sides = ("top", "left", "height", "width")
    return isinstance(found, Rectangle) and all(
        isinstance(getattr(found, side), Integral) for side in sides
    )


def rows_of(zones: Mapping[str, Sequence[Sequence[int]]], spec: MatmulSpec) -> dict[str, int]:
    """Return the rows of full width that zones of blocks come to, per worker name.

    Raises
    ------
    PartitionError
        If the zones have more blocks than C has elements.
    """
    spread(spec, zones, zones)
    areas = {n: sum(height * width for *_, height, width in zone) for n, zone in zones.items()}
    busy = [name for name, area in areas.items() if area]
    rows = proportional(spec.shape[0], [areas[name] for name in busy])
    return dict.fromkeys(areas, 0) | dict(zip(busy, map(int, rows), strict=True))


def spread(
    spec: MatmulSpec, zones: Mapping[str, Sequence[Sequence[int]]], workers: Iterable[str]
) -> dict[str, list[Tile]]:
    """Return the tiles of zones of blocks, spread over the elements of C.

    Parameters
    ----------
    spec : MatmulSpec
        The product.
    zones : mapping of str to sequence of (top, left, height, width)
        Worker -> its rectangles of blocks, covering a matrix of blocks of any shape.
    workers : iterable of str
        All workers; one without a zone has no part.

    Raises
    ------
    PartitionError
        If C has fewer rows or columns than the matrix of blocks.

    Examples
    --------
    >>> import numpy as np
    >>> axis = (9,)
    >>> spec = MatmulSpec((9, 9, 9), np.dtype("f8"), (axis, axis), (axis, axis), "a", "b")
    >>> found = spread(spec, {"x": [(0, 0, 1, 2)], "y": [(1, 0, 1, 2)]}, "xy")
    >>> [tile.bounds for own in found.values() for tile in own]
    [(0, 5, 0, 9), (5, 9, 0, 9)]
    """
    every = [Rectangle(*found) for zone in zones.values() for found in zone]
    blocks = max(r.top + r.height for r in every), max(r.left + r.width for r in every)
    sides = spec.shape[0], spec.shape[2]
    if blocks[0] > sides[0] or blocks[1] > sides[1]:
        raise PartitionError(
            f"the layout has {blocks[0]} × {blocks[1]} blocks, C has {sides[0]} × {sides[1]} "
            "elements; give a layout of no more blocks"
        )

    def element(edge: int, axis: int) -> int:
        return -(-edge * sides[axis] // blocks[axis])

    tiles: dict[str, list[Tile]] = {worker: [] for worker in workers}
    for worker, zone in zones.items():
        if not zone:
            continue
        found = []
        for top, left, height, width in zone:
            row, column = element(top, 0), element(left, 1)
            down, across = element(top + height, 0) - row, element(left + width, 1) - column
            found.append(Rectangle(row, column, down, across))
        tiles[worker] = [zone_tile(found)]
    return tiles
