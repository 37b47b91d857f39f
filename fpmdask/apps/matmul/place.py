"""Where each worker's part of C lies, and how large it is when moving A and B costs time too."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from fpmdask.apps.matmul.plan import MatmulSpec, Tile
from fpmdask.apps.matmul.spec import Chunks
from fpmdask.layout import br
from fpmdask.models import PiecewiseLinearModel
from fpmdask.partition import proportional
from fpmdask.partition.validate import FloatArray

LAYOUTS = ("auto", "rows", "columns")

# What a worker spends on a byte that it receives or sends, in operations of its own: 0.3 CPU-s per
# GB, measured on both ends, at 50 Gflop/s. It comes out of the same quota as the multiplication.
OPERATIONS_PER_BYTE = 15.0
# The layout decides what is moved, that decides the areas, and these the layout.
_ROUNDS = 3
_GAIN = 0.99

Holders = Mapping[Any, Sequence[str]]


@dataclass(frozen=True)
class Placement:
    """A layout and what is expected of it.

    Parameters
    ----------
    layout : {"rows", "columns"}
        What was taken.
    tiles : dict of str to list of Tile
        Worker -> its tiles of C, none for a worker without.
    nbytes : int
        That all workers together receive.
    seconds : float
        Expected of the slowest worker, moving included; NaN where no speed is known.
    """

    layout: str
    tiles: dict[str, list[Tile]]
    nbytes: int
    seconds: float


def placed(
    spec: MatmulSpec,
    layout: str,
    rows: Mapping[str, int],
    *,
    bounds: Mapping[str, float] | None = None,
    rates: Mapping[str, float] | None = None,
    holders: Holders | None = None,
) -> Placement:
    """Return the layout whose slowest worker is expected to finish first.

    Parameters
    ----------
    spec : MatmulSpec
        The product.
    layout : {"auto", "rows", "columns"}
        "auto" compares the others.
    rows : mapping of str to int
        Worker -> rows of C of full width: its share of the work where nothing has to move.
    bounds : mapping of str to float, optional
        Worker -> most rows of full width that it has memory for.
    rates : mapping of str to float, optional
        Worker -> operations per second; without them the areas are those of `rows`.
    holders : mapping, optional
        Key of a chunk of A or B -> workers that hold it.

    Returns
    -------
    Placement
        Workers in the order of `rows`, without tiles those without rows. Rectangles are taken only
        where they are expected to be faster by a hundredth.

    Notes
    -----
    A worker's time is that of its part of C plus that of the bytes of A and B which it receives and
    sends, both out of its own CPU. The areas that make all times equal follow from the bytes of the
    layout, and the layout from the areas; three turns settle it. O(p² + chunk rows · p).
    """
    busy = {worker: share for worker, share in rows.items() if share}
    limits = np.array([(bounds or {}).get(worker, math.inf) for worker in busy])
    held = _held(spec, list(busy), holders or {})
    strips, rectangles = (
        _settled(spec, kind, busy, limits, held, rates) if layout in ("auto", kind) else None
        for kind in ("rows", "columns")
    )
    found = _faster(strips, rectangles)
    return replace(found, tiles={worker: found.tiles.get(worker, []) for worker in rows})


def _faster(strips: Placement | None, rectangles: Placement | None) -> Placement:
    if strips is None or rectangles is None:
        found = strips or rectangles
        assert found is not None
        return found
    if math.isnan(strips.seconds):
        return rectangles if rectangles.nbytes < strips.nbytes else strips
    return rectangles if rectangles.seconds < _GAIN * strips.seconds else strips


def _settled(
    spec: MatmulSpec,
    layout: str,
    rows: dict[str, int],
    limits: FloatArray,
    held: tuple[FloatArray, FloatArray],
    rates: Mapping[str, float] | None,
) -> Placement:
    names = list(rows)
    speeds = np.array([(rates or {}).get(name, math.nan) for name in names])
    per_row = operations(spec, 1) / speeds
    for turn in range(_ROUNDS):
        tiles = _tiles(spec, layout, rows, limits)
        received, sent = _moved(spec, list(tiles.values()), held)
        moving = (received + sent) * OPERATIONS_PER_BYTE / speeds
        shares = np.array(list(rows.values()), dtype=np.float64)
        seconds = float((shares * per_row + moving)[shares > 0].max())
        if math.isnan(seconds) or turn == _ROUNDS - 1 or not moving.any():
            break
        rows = dict(zip(names, _levelled(spec.shape[0], per_row, moving, limits), strict=True))
    return Placement(layout, tiles, int(received.sum()), seconds)


def operations(spec: MatmulSpec, rows: int) -> float:
    """Return the operations of so many rows of C of full width."""
    return (8.0 if spec.dtype.kind == "c" else 2.0) * rows * spec.shape[1] * spec.shape[2]


def _levelled(rows: int, per_row: FloatArray, moving: FloatArray, limits: FloatArray) -> list[int]:
    """Return the rows with which all finish together: ``rows_i · per_row_i + moving_i = T``."""
    low, high = 0.0, float((moving + rows * per_row).max())
    for _ in range(60):
        middle = (low + high) / 2
        shares = np.clip((middle - moving) / per_row, 0.0, limits)
        low, high = (middle, high) if shares.sum() < rows else (low, middle)
    shares = np.clip((high - moving) / per_row, 0.0, limits)
    busy = shares > 0
    made = np.zeros(shares.size, dtype=np.int64)
    made[busy] = proportional(rows, shares[busy], limits[busy])
    return [int(n) for n in made]


def _tiles(
    spec: MatmulSpec, layout: str, rows: Mapping[str, int], limits: FloatArray
) -> dict[str, list[Tile]]:
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
    found = br(list(busy.values()), (height, width), room)
    for worker, r in zip(busy, found.rectangles, strict=True):
        if r.area:
            tiles[worker] = [Tile(r.top, r.left, r.top + r.height, r.left + r.width)]
    return tiles


def _held(
    spec: MatmulSpec, names: Sequence[str], holders: Holders
) -> tuple[FloatArray, FloatArray]:
    """Return bytes per line: of A by chunk row and worker, of B by chunk column and worker."""
    at = {name: position for position, name in enumerate(names)}
    found = []
    for name, chunks, axis in ((spec.a_name, spec.a_chunks, 0), (spec.b_name, spec.b_chunks, 1)):
        across = chunks[1 - axis]
        nbytes = np.zeros((len(chunks[axis]), len(names)))
        for line in range(len(chunks[axis])):
            for other, size in enumerate(across):
                key = (name, line, other) if axis == 0 else (name, other, line)
                for holder in holders.get(key, ()):
                    if holder in at:
                        nbytes[line, at[holder]] += size * spec.dtype.itemsize
        found.append(nbytes)
    return found[0], found[1]


def _moved(
    spec: MatmulSpec, tiles: Sequence[Sequence[Tile]], held: tuple[FloatArray, FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Return the bytes that each worker receives and sends."""
    received, sent = np.zeros((2, len(tiles)))
    whole = float(spec.shape[1] * spec.dtype.itemsize)
    for axis, chunks in ((0, spec.a_chunks), (1, spec.b_chunks)):
        nbytes = held[axis]
        missing = _overlaps(axis, chunks, tiles) * np.maximum(0.0, whole - nbytes)
        received += missing.sum(axis=0)
        # of each line, a holder sends its part of what is missing anywhere
        parts = nbytes / np.maximum(nbytes.sum(axis=1, keepdims=True), 1.0)
        sent += (parts * missing.sum(axis=1, keepdims=True)).sum(axis=0)
    return received, sent


def _overlaps(axis: int, chunks: Chunks, tiles: Sequence[Sequence[Tile]]) -> FloatArray:
    """Return how many lines of each chunk row (axis 0) or column (1) each worker needs."""
    ends = np.array(list(accumulate(chunks[axis])), dtype=np.float64)
    starts = ends - np.array(chunks[axis], dtype=np.float64)
    lines = np.zeros((ends.size, len(tiles)))
    for worker, own in enumerate(tiles):
        for tile in own:
            low, high = tile.bounds[2 * axis : 2 * axis + 2]
            lines[:, worker] += np.clip(np.minimum(ends, high) - np.maximum(starts, low), 0, None)
    return lines


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
        rows |= {tile.row0, tile.row1}
        columns |= {tile.column0, tile.column1}
    return sorted(rows), sorted(columns)


def by_elements(model: PiecewiseLinearModel, width: int) -> PiecewiseLinearModel:
    """Return a model of rows of `width` elements as one of elements.

    Examples
    --------
    >>> by_elements(PiecewiseLinearModel.from_points([10], [2.0]), 4).time(40)
    2.0
    """
    units, seconds = model.points
    return PiecewiseLinearModel.from_points(units * width, seconds)
