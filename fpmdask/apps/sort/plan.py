"""What of a sort is decided without data: who sorts what, and where the sorted runs are cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fpmdask.errors import PartitionError

# A worker hands chunks to others untouched where it holds so many times its share.
SURPLUS = 1.1
# Candidates per splitter; each round of counts makes its place so many times as exact.
CANDIDATES = 16
# How far from its share a part may be, in shares of the smallest one.
PRECISION = 0.0025
# Positions, as `numpy.argsort` has them.
INDEX = np.dtype(np.int64)
FEWEST_SAMPLES, MOST_SAMPLES = 256, 1 << 16


@dataclass(frozen=True)
class SortSpec:
    """One-dimensional array to be sorted: its dtype, the sizes of its chunks, its name in Dask.

    With `index` the result are the positions of its keys in order, not the keys. ``extra`` are the
    bytes that a worker needs for each key of its part beside the key.
    """

    dtype: np.dtype[Any]
    sizes: tuple[int, ...]
    name: str
    descending: bool = False
    index: bool = False
    extra: int = 0

    @property
    def units(self) -> int:
        """Keys in all."""
        return sum(self.sizes)

    @property
    def nbytes_per_key(self) -> int:
        """Bytes that travel for a key: itself, and its position where that is wanted."""
        return self.dtype.itemsize + (INDEX.itemsize if self.index else 0)

    @property
    def keys(self) -> list[tuple[str, int]]:
        """Dask's keys of the chunks, in order."""
        return [(self.name, n) for n in range(len(self.sizes))]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "dtype": self.dtype.str,
            "sizes": list(self.sizes),
            "name": self.name,
            "descending": self.descending,
            "index": self.index,
            "extra": self.extra,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SortSpec:
        """Rebuild a spec from `to_json`."""
        sizes = tuple(map(int, data["sizes"]))
        dtype = np.dtype(data["dtype"])
        flags = bool(data["descending"]), bool(data["index"])
        return cls(dtype, sizes, data["name"], *flags, int(data["extra"]))


@dataclass(frozen=True)
class Piece:
    """Keys ``low … high`` of a chunk, on the worker `owner`."""

    chunk: int
    low: int
    high: int
    owner: str

    @property
    def size(self) -> int:
        """How many keys."""
        return self.high - self.low


def dealt(
    spec: SortSpec, places: Sequence[Sequence[str]], shares: Mapping[str, int]
) -> dict[str, list[Piece]]:
    """Return worker -> the pieces of chunks that it is to sort before the exchange.

    Parameters
    ----------
    spec : SortSpec
        What is sorted.
    places : sequence of sequence of str
        The workers that hold each chunk, at least one.
    shares : mapping of str to int
        Worker -> keys that it can sort while the others sort theirs.

    Returns
    -------
    dict of str to list of Piece
        What a worker holds, unless that is `SURPLUS` times its share or more: then the rest goes to
        those that hold less than theirs. Chunks of workers without a share go to others, too.
        O(chunks + workers log workers).

    Examples
    --------
    >>> spec = SortSpec(np.dtype("f8"), (60, 60), "x")
    >>> made = dealt(spec, [["a"], ["b"]], {"a": 90, "b": 30})
    >>> {worker: [(p.chunk, p.low, p.high) for p in own] for worker, own in made.items()}
    {'a': [(0, 0, 60), (1, 30, 60)], 'b': [(1, 0, 30)]}
    """
    own: dict[str, list[Piece]] = {worker: [] for worker in shares}
    over: list[Piece] = []
    for chunk, (size, holders) in enumerate(zip(spec.sizes, places, strict=True)):
        here = [worker for worker in holders if shares.get(worker)]
        piece = Piece(chunk, 0, size, here[0] if here else holders[0])
        (own[here[0]] if here else over).append(piece)
    held = {worker: sum(piece.size for piece in pieces) for worker, pieces in own.items()}
    for worker, share in shares.items():
        surplus = held[worker] - share
        if held[worker] <= SURPLUS * share:
            continue
        while surplus > 0:
            last = own[worker].pop()
            kept = max(0, last.size - surplus)
            surplus -= last.size - kept
            held[worker] -= last.size - kept
            if kept:
                own[worker].append(Piece(last.chunk, 0, kept, worker))
            over.append(Piece(last.chunk, kept, last.size, worker))
    room = {worker: max(0, share - held[worker]) for worker, share in shares.items()}
    takers = sorted((worker for worker in shares if room[worker]), key=lambda w: -room[w])
    while over:
        piece = over.pop()
        if not takers:  # the shares are full: whatever is left goes where it costs least
            most = max(shares, key=lambda worker: shares[worker])
            own[most].append(piece)
            continue
        taker = takers[0]
        count = min(room[taker], piece.size)
        own[taker].append(Piece(piece.chunk, piece.low, piece.low + count, piece.owner))
        room[taker] -= count
        if not room[taker]:
            takers.pop(0)
        if count < piece.size:
            over.append(Piece(piece.chunk, piece.low + count, piece.high, piece.owner))
    return own


def sample_count(units: int, least: int, runs: int) -> int:
    """Return how many keys of each sorted run are needed to place splitters.

    Parameters
    ----------
    units, least : int
        Keys in all, and those of the smallest part.
    runs : int
        How many runs there are at least.

    Returns
    -------
    int
        Regular samples leave the rank of a splitter open by units / samples at most; one round of
        `CANDIDATES` counts within that, or the samples of all runs together where these are fewer,
        leaves `PRECISION` of the smallest part.

    Examples
    --------
    >>> sample_count(1000, 1000, 1), sample_count(24_000_000, 1_700_000, 6)
    (256, 471)
    """
    finer = min(CANDIDATES - 1, 2 * runs)
    wanted = -(-units // max(1, int(PRECISION * finer * max(1, least))))
    return min(MOST_SAMPLES, max(FEWEST_SAMPLES, wanted))


def sampled(run: np.ndarray, count: int) -> np.ndarray:
    """Return keys at the middles of `count` equal pieces of a sorted run, or all of a short one.

    Examples
    --------
    >>> sampled(np.arange(100), 4).tolist(), sampled(np.arange(3), 4).tolist()
    ([12, 37, 62, 87], [0, 1, 2])
    """
    count = min(count, run.size)
    at = ((2 * np.arange(count) + 1) * run.size) // (2 * max(1, count))
    return np.asarray(run[at])


def candidates(
    samples: Sequence[np.ndarray],
    sizes: Sequence[int],
    ranks: Sequence[int],
    each: int = CANDIDATES,
) -> np.ndarray:
    """Return sorted keys among which a splitter for each rank is, or one close to it.

    Parameters
    ----------
    samples : sequence of ndarray
        Regular `sampled` keys of each sorted run.
    sizes : sequence of int
        Lengths of the runs.
    ranks : sequence of int
        How many keys of all runs together are to be before each splitter.
    each : int
        Candidates per rank; a single one is in the middle of where the splitter may be.

    Returns
    -------
    ndarray
        Without duplicates; at most ``each`` per rank. O(samples log samples).

    Notes
    -----
    A sample stands for the n/s keys around it, so that the rank of one is known up to half of that
    for every run: the window in which the candidates are spread.
    """
    pairs = [(s.size, size / s.size) for s, size in zip(samples, sizes, strict=True) if s.size]
    values = np.concatenate(samples)
    weight = np.concatenate([np.full(count, each) for count, each in pairs])
    order = np.argsort(values, kind="stable")
    values, weight = values[order], weight[order]
    rank = np.cumsum(weight) - weight / 2
    doubt = sum(each for _, each in pairs) / 2 + 1
    first = np.searchsorted(rank, np.asarray(ranks) - doubt) - 1
    last = np.searchsorted(rank, np.asarray(ranks) + doubt)
    first, last = np.clip(first, 0, values.size - 1), np.clip(last, 0, values.size - 1)
    steps = np.linspace(0.0, 1.0, each) if each > 1 else np.array([0.5])
    at = np.unique(np.rint(first[:, None] + (last - first)[:, None] * steps).astype(np.int64))
    # complex NaNs are several keys for `numpy.sort`
    return np.unique(values[at], equal_nan=False)


def cuts(
    below: Sequence[np.ndarray], through: Sequence[np.ndarray], ranks: Sequence[int]
) -> np.ndarray:
    """Return where each run is cut so that as many keys as wanted are before each splitter.

    Parameters
    ----------
    below, through : sequence of ndarray
        For each run, how many of its keys are less than each candidate, and how many not greater.
    ranks : sequence of int
        Non-decreasing.

    Returns
    -------
    ndarray of int64
        Runs × ranks, non-decreasing along the ranks. Where a candidate's equals hold a rank, they
        are split between both sides, by the order of the runs; the rank is exact then. Otherwise
        the nearest of the candidates around it is taken.

    Examples
    --------
    >>> runs = [np.array([1, 5, 5, 5]), np.array([5, 5, 9])]
    >>> below, through = ([np.searchsorted(run, [5], side) for run in runs]
    ...                   for side in ("left", "right"))
    >>> cuts(below, through, [3]).tolist()
    [[3], [0]]
    """
    low, high = np.array(below, dtype=np.int64), np.array(through, dtype=np.int64)
    all_low, all_high = low.sum(0), high.sum(0)
    found = np.empty((low.shape[0], len(ranks)), dtype=np.int64)
    for column, rank in enumerate(ranks):
        at = int(np.searchsorted(all_high, rank))  # the first whose equals reach so far
        if at < all_high.size and all_low[at] <= rank:
            equal = high[:, at] - low[:, at]
            before = np.cumsum(equal) - equal
            found[:, column] = low[:, at] + np.clip(rank - all_low[at] - before, 0, equal)
        elif at and (at == all_low.size or rank - all_high[at - 1] <= all_low[at] - rank):
            found[:, column] = high[:, at - 1]
        else:
            found[:, column] = low[:, at]
    return np.maximum.accumulate(found, axis=1)


def exchange(
    edges: np.ndarray, runs: Sequence[tuple[str, int]], parts: Sequence[tuple[str, int]]
) -> dict[str, list[tuple[int, list[tuple[str, int, int, int, int]]]]]:
    """Return worker -> its parts of the result, each with the pieces of runs that it consists of.

    Parameters
    ----------
    edges : ndarray of int64
        Runs × (parts + 1): where the runs are cut, from 0 to their lengths.
    runs : sequence of (str, int)
        Worker and number of each run.
    parts : sequence of (str, int)
        Worker and size of each part of the result, in order.

    Returns
    -------
    dict
        Worker -> (part, pieces), a piece being (worker, number of its run, low, high, length of the
        run), none empty. Everybody begins with its own runs, so that not all ask the same one
        first. O(parts · runs).
    """
    first = {worker: at for at, (worker, _) in reversed([*enumerate(runs)])}
    found: dict[str, list[Any]] = {worker: [] for worker, _ in parts}
    lengths = edges[:, -1].tolist()
    for part, (worker, _) in enumerate(parts):
        lows, highs = edges[:, part].tolist(), edges[:, part + 1].tolist()
        turn = first.get(worker, 0)
        own = [
            (*runs[at], lows[at], highs[at], lengths[at])
            for at in (*range(turn, len(runs)), *range(turn))
            if lows[at] < highs[at]
        ]
        found[worker].append((part, own))
    return found


def recipe(
    workers: Sequence[str],
    pieces: Mapping[str, Sequence[Piece]],
    sizes: Mapping[str, Sequence[int]],
    wanted: Mapping[str, Sequence[tuple[int, Sequence[Sequence[Any]]]]],
) -> dict[str, Any]:
    """Return, as plain data, what a lost part of positions is to be made again by.

    Parameters
    ----------
    workers : sequence of str
        Those that sorted.
    pieces, sizes : mapping
        Worker -> the pieces of chunks that it sorted; the lengths of its runs.
    wanted : mapping
        What `exchange` returned.

    Returns
    -------
    dict
        ``pieces`` and ``runs`` per worker; ``parts``, the pieces of runs in each, by the number of
        the worker.
    """
    numbers = {worker: n for n, worker in enumerate(workers)}
    parts = dict(part for own in wanted.values() for part in own)
    return {
        "pieces": [[(p.chunk, p.low, p.high) for p in pieces[w]] for w in workers],
        "runs": [list(sizes[w]) for w in workers],
        "parts": [
            [(numbers[peer], *piece) for peer, *piece in parts[part]] for part in sorted(parts)
        ],
    }


def check_fits(units: Mapping[str, int], bounds: Mapping[str, float]) -> None:
    """Refuse shares that a worker has no memory for.

    Raises
    ------
    PartitionError
        With the first such worker.
    """
    for worker, count in units.items():
        if count > bounds[worker]:
            raise PartitionError(
                f"{count} keys do not fit into the memory of {worker}, which has room for "
                f"{bounds[worker]:.0f}; add workers or memory"
            )
