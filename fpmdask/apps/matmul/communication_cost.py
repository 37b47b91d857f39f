"""What of A and B the workers hold, what has to move for tiles of C, and which order moves less."""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from fpmdask.apps.matmul.plan import MatmulSpec, Tile
from fpmdask.apps.matmul.spec import Chunks
from fpmdask.errors import PartitionError
from fpmdask.partition.validate import FloatArray

# Key of a chunk of A or B -> workers that hold it.
Holders = Mapping[Any, Sequence[str]]
# Bytes per line: of A by chunk row and worker, of B by chunk column and worker.
Held = tuple[FloatArray, FloatArray]


def nearer(
    spec: MatmulSpec, tiles: Mapping[str, Sequence[Tile]], held: tuple[FloatArray, FloatArray]
) -> dict[str, list[Tile]]:
    """Return the tiles, each column and the columns themselves in the order of what is held."""
    rows, columns = (
        dict(zip(tiles, _centres(nbytes, chunks[axis]).tolist(), strict=True))
        for axis, (nbytes, chunks) in enumerate(
            zip(held, (spec.a_chunks, spec.b_chunks), strict=True)
        )
    )
    upright = _stacked(tiles, rows, columns, 0)
    if upright is not None:
        return upright
    return _stacked(tiles, columns, rows, 1) or {w: list(own) for w, own in tiles.items()}


def _stacked(
    tiles: Mapping[str, Sequence[Tile]],
    along: Mapping[str, float],
    across: Mapping[str, float],
    axis: int,
) -> dict[str, list[Tile]] | None:
    """Return the tiles in columns (axis 0) or rows (1) of which each is in order.

    None where they do not lie in such.
    """
    groups: dict[int, list[str]] = {}
    for worker, own in tiles.items():
        if own:
            groups.setdefault((own[0].column0, own[0].row0)[axis], []).append(worker)
    made: dict[str, list[Tile]] = {worker: [] for worker in tiles}
    left, lengths = 0, set()
    for group in sorted(groups.values(), key=lambda g: sum(across[w] for w in g) / len(g)):
        top = 0
        sides = {worker: (tiles[worker][0].height, tiles[worker][0].width) for worker in group}
        for worker in sorted(group, key=along.__getitem__):
            length, width = sides[worker][axis], sides[worker][1 - axis]
            bounds = (top, left, top + length, left + width)
            made[worker] = [Tile(*bounds) if axis == 0 else Tile(*bounds[1::-1], *bounds[:1:-1])]
            top += length
        if len({side[1 - axis] for side in sides.values()}) > 1:
            return None
        lengths.add(top)
        left += width
    return made if len(lengths) == 1 else None


def _centres(nbytes: FloatArray, sizes: Sequence[int]) -> FloatArray:
    """Return where the lines that each worker holds are in the middle; the middle for none."""
    lines = np.array(sizes, dtype=np.float64)
    middles = np.cumsum(lines) - lines / 2
    weights = nbytes * lines[:, np.newaxis]
    total = weights.sum(axis=0)
    centres = (weights * middles[:, np.newaxis]).sum(axis=0) / np.maximum(total, 1.0)
    return np.asarray(np.where(total > 0, centres, lines.sum() / 2))


def held_bytes(
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
                key = spec.key(name, (line, other) if axis == 0 else (other, line))
                for holder in holders.get(key, ()):
                    if holder in at:
                        nbytes[line, at[holder]] += size * spec.dtype.itemsize
        found.append(nbytes)
    return found[0], found[1]


def homes(
    spec: MatmulSpec,
    tiles: Mapping[str, Sequence[Tile]],
    lazy: Collection[str],
    room: Mapping[str, float] | None = None,
) -> dict[Any, str]:
    """Return who is to read each chunk of inputs that are in nobody's memory yet.

    Parameters
    ----------
    spec
        The product.
    tiles
        Worker -> its tiles of C.
    lazy
        Names of these inputs.
    room
        Worker -> bytes that it has for what it reads; without it there is room for everything.

    Returns
    -------
    dict
        Key of a chunk -> one of the workers that need it: of those that need at least half as much
        of it as any other does, the one that has read least for its part of C. Where none of them
        has room, whoever has most. O(chunks · workers).

    Raises
    ------
    PartitionError
        If there is no room for a chunk.

    Examples
    --------
    >>> import numpy as np
    >>> rows = ((2, 2), (4,))
    >>> spec = MatmulSpec((4, 4, 4), np.dtype("f8"), rows, rows, "a", "b")
    >>> homes(spec, {"x": [Tile(0, 0, 2, 4)], "y": [Tile(2, 0, 4, 4)]}, "ab")
    {('a', 0, 0): 'x', ('a', 1, 0): 'y', ('b', 0, 0): 'x', ('b', 1, 0): 'y'}
    """
    names = list(tiles)
    areas = np.array([sum(tile.area for tile in own) for own in tiles.values()], dtype=np.float64)
    read = np.zeros(len(names))
    free = np.array([math.inf if room is None else room[name] for name in names])
    found = {}
    for name, chunks, axis in ((spec.a_name, spec.a_chunks, 0), (spec.b_name, spec.b_chunks, 1)):
        if name not in lazy:
            continue
        lines = _overlaps(axis, chunks, list(tiles.values()))
        for line, size in enumerate(chunks[axis]):
            (near,) = np.nonzero((lines[line] >= lines[line].max() / 2) & (areas > 0))
            for other, depth in enumerate(chunks[1 - axis]):
                key = spec.key(name, (line, other) if axis == 0 else (other, line))
                if key in found:  # A is B
                    continue
                nbytes = size * depth * spec.dtype.itemsize
                able = near[free[near] >= nbytes]
                chosen = int(np.argmax(free))
                if able.size:
                    chosen = int(able[np.argmin(read[able] / areas[able])])
                elif free[chosen] < nbytes:
                    raise PartitionError(
                        f"the chunks that are to be read do not fit: one has {nbytes} bytes, and "
                        f"beside the parts of C and their panels {free[chosen]:.0f} are free at "
                        "most; use smaller chunks, add workers or memory, or give out=, a Zarr "
                        "array of small chunks"
                    )
                read[chosen] += size * depth
                free[chosen] -= nbytes
                found[key] = names[chosen]
    return found


def moved_bytes(
    spec: MatmulSpec, tiles: Sequence[Sequence[Tile]], held: Held
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


def all_bytes(spec: MatmulSpec, held: Held) -> FloatArray:
    """Return all that each worker holds."""
    found = np.zeros(held[0].shape[1])
    for nbytes, sizes in zip(held, (spec.a_chunks[0], spec.b_chunks[1]), strict=True):
        found += np.array(sizes, dtype=np.float64) @ nbytes
    return found
