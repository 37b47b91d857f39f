"""C cut into tiles: layouts in elements, edges that nearly coincide made one."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from fpmdask.apps.matmul.parts import Assignment
from fpmdask.apps.matmul.spec import MatmulSpec
from fpmdask.apps.matmul.tile import Tile
from fpmdask.errors import PartitionError
from fpmdask.layout import Rectangle, br, nrrp
from fpmdask.partition.validate import FloatArray

LAYOUTS = ("auto", "rows", "columns", "nrrp")
# What is no layout of C: each worker multiplies a range of K.
INNER = "inner"
# Edges are made one where that changes no side by more than this part of it: less than models err.
NEARLY = 1 / 128


def tiled(
    spec: MatmulSpec, layout: str, rows: Mapping[str, int], limits: FloatArray
) -> dict[str, list[Tile]]:
    """Return the tiles of a layout by name, in proportion to rows and within limits of these."""
    height, _, width = spec.shape
    busy = {worker: share for worker, share in rows.items() if share}
    tiles: dict[str, list[Tile]] = {worker: [] for worker in rows}
    if layout == "rows":
        top = 0
        for worker, share in busy.items():
            tiles[worker] = [Tile(top, 0, top + share, width)]
            top += share
        return tiles
    room = [limit * width for limit, share in zip(limits, rows.values(), strict=True) if share]
    arrange = nrrp if layout == "nrrp" else br
    found = arrange(list(busy.values()), (height, width), room)
    for worker, zone in zip(busy, found.zones, strict=True):
        if zone:
            tiles[worker] = [zone_tile(zone)]
    straight = straightened(tiles)
    fits = all(
        tile.area <= most
        for worker, most in zip(busy, room, strict=True)
        for tile in straight[worker]
    )
    return straight if fits else tiles


def zone_tile(zone: Sequence[Rectangle]) -> Tile:
    """Return a zone as a tile.

    Raises
    ------
    PartitionError
        If its rectangles, which do not overlap, are not together one, or one without its lower
        right corner.

    Examples
    --------
    >>> zone_tile([Rectangle(0, 0, 2, 1), Rectangle(0, 1, 1, 1)]).bounds
    (0, 2, 0, 2, 1, 1)
    """
    row0, column0 = min(r.top for r in zone), min(r.left for r in zone)
    row1, column1 = max(r.top + r.height for r in zone), max(r.left + r.width for r in zone)
    row = max(r.top + r.height for r in zone if r.left + r.width == column1)
    column = max(r.left + r.width for r in zone if r.top + r.height == row1)
    tile = Tile(row0, column0, row1, column1, (row1 - row, column1 - column))
    outside = any(r.top + r.height > row and r.left + r.width > column for r in zone)
    if tile.area != sum(r.area for r in zone) or (outside and not tile.is_rectangle):
        raise PartitionError(
            f"the zone {tuple(zone)} is neither a rectangle nor one without its lower right corner"
        )
    return tile


def straightened(tiles: Mapping[str, Sequence[Tile]]) -> dict[str, list[Tile]]:
    """Return the tiles with edges that nearly coincide made one: C has fewer, larger chunks.

    No side of a tile changes by more than `NEARLY` of its length. O(tiles · log tiles).

    Examples
    --------
    >>> found = straightened({"x": [Tile(0, 0, 500, 9)], "y": [Tile(500, 0, 900, 9)],
    ...                       "z": [Tile(0, 9, 501, 15)], "u": [Tile(501, 9, 900, 15)]})
    >>> cuts(tile for own in found.values() for tile in own)
    ([0, 500, 900], [0, 9, 15])
    """
    every = [tile for own in tiles.values() for tile in own]
    rows, columns = (_joined([tile.edges[axis] for tile in every]) for axis in (0, 1))

    def moved(tile: Tile) -> Tile:
        down, across = tile.edges
        row0, row1, *row = (rows[edge] for edge in down)
        column0, column1, *column = (columns[edge] for edge in across)
        corner = (row1 - row[0], column1 - column[0]) if row else (0, 0)
        return Tile(row0, column0, row1, column1, corner)

    return {worker: [moved(tile) for tile in own] for worker, own in tiles.items()}


def _joined(edges: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return where each edge goes; `edges` are those of every tile along one axis."""
    slack: dict[int, float] = {}  # of each edge, what the smallest side that ends there allows
    for own in edges:
        ordered = sorted(own)
        least = NEARLY / 2 * min(high - low for low, high in pairwise(ordered))
        for edge in ordered:
            slack[edge] = min(slack.get(edge, math.inf), least)
    groups: list[list[int]] = []
    for edge in sorted(slack):
        if groups and edge - groups[-1][0] <= min(slack[e] for e in (*groups[-1], edge)):
            groups[-1].append(edge)
        else:
            groups.append([edge])
    first, last = groups[0][0], groups[-1][-1]
    found: dict[int, int] = {}
    for group in groups:
        at = sum(group) // len(group)
        at = first if first in group else last if last in group else at
        found |= dict.fromkeys(group, at)
    return found


def cuts(tiles: Iterable[Tile]) -> tuple[list[int], list[int]]:
    """Return the rows and the columns at which any of the tiles begins or ends, in order.

    Examples
    --------
    >>> cuts([Tile(0, 0, 6, 3), Tile(0, 3, 2, 4), Tile(2, 3, 6, 4)])
    ([0, 2, 6], [0, 3, 4])
    """
    rows: set[int] = set()
    columns: set[int] = set()
    for tile in tiles:
        rows.update(tile.edges[0])
        columns.update(tile.edges[1])
    return sorted(rows), sorted(columns)


def chunks_of(
    spec: MatmulSpec,
    name: str,
    parts: Sequence[Assignment],
    rows: Sequence[int],
    columns: Sequence[int],
) -> dict[str, list[tuple[Any, int, tuple[int, int, int, int]]]]:
    """Return worker -> (key, part, bounds) of the chunks of C that lie in its parts.

    Parameters
    ----------
    spec
        The product.
    name
        Of C's keys.
    parts
        They cover C.
    rows, columns
        The `cuts` of their tiles. O(chunks + parts).
    """
    at_row = {row: i for i, row in enumerate(rows)}
    at_column = {column: j for j, column in enumerate(columns)}
    keys: dict[str, list[tuple[Any, int, tuple[int, int, int, int]]]] = {}
    for part in parts:
        tile = part.tile
        for i in range(at_row[tile.row0], at_row[tile.row1]):
            for j in range(at_column[tile.column0], at_column[tile.column1]):
                bounds = (rows[i], rows[i + 1], columns[j], columns[j + 1])
                if tile.holds(Tile.of(bounds)):
                    key = spec.key(name, (i, j))
                    keys.setdefault(part.worker, []).append((key, part.part, bounds))
    return keys
