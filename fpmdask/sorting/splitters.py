"""Where runs are cut so that every part gets its share: samples, candidates, counts.

Histogram sort in rounds: keys are sampled, candidates for the splitters chosen among them, and
counted in every run; where that leaves a part too far from its share, the same between the two
candidates around its end (Solomonik and Kale, 2010, Highly Scalable Parallel Sorting, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

# Candidates per splitter; each round of counts makes its place so many times as exact.
CANDIDATES = 16
# How far from its share a part may be, in shares of the smallest one: what samples are taken for,
# and what another round of counts is not made for.
PRECISION, ENOUGH = 0.0025, 0.0075
# Rounds of counts; between the ends of a bracket so many keys of each run are sampled.
ROUNDS = 4
FEWEST_BETWEEN, MOST_BETWEEN, ALL_BETWEEN = 4, 64, 1 << 13
FEWEST_SAMPLES, MOST_SAMPLES = 256, 1 << 16


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
        leaves `PRECISION` of the smallest part where the runs' samples lie between each other.

    Examples
    --------
    >>> sample_count(1000, 1000, 1), sample_count(24_000_000, 1_700_000, 6)
    (256, 471)
    """
    finer = min(CANDIDATES - 1, 2 * runs)
    wanted = -(-units // max(1, int(PRECISION * finer * max(1, least))))
    return min(MOST_SAMPLES, max(FEWEST_SAMPLES, wanted))


def place_of(turn: int, of: int, run: int, runs: int) -> float:
    """Return where in each of its equal pieces a run is sampled, from 0 to 1.

    Everywhere else, so that runs of the same keys do not all give the same samples.

    Parameters
    ----------
    turn, of
        Which of how many workers has the run.
    run, runs
        Which of its runs it is.
    """
    return (turn + (run + 0.5) / runs) / of


def sampled(run: np.ndarray, count: int, place: float = 0.5) -> np.ndarray:
    """Return a key at the same place of each of `count` equal pieces of a sorted run.

    All keys of a shorter run.

    Examples
    --------
    >>> sampled(np.arange(100), 4).tolist(), sampled(np.arange(3), 4).tolist()
    ([12, 37, 62, 87], [0, 1, 2])
    >>> sampled(np.arange(100), 4, 0.0).tolist()
    [0, 25, 50, 75]
    """
    count = min(count, run.size)
    at = ((np.arange(count) + place) * (run.size / max(1, count))).astype(np.int64)
    return np.asarray(run[at])


def bucket_ends(low: int, high: int, size: int) -> range:
    """Return where keys ``low … high`` are cut for buckets of so many; the last may be half larger.

    Examples
    --------
    >>> [*bucket_ends(0, 45, 10)], [*bucket_ends(100, 110, 10)]
    ([10, 20, 30], [])
    """
    return range(low + size, high - size // 2, size)


def candidates(
    samples: Sequence[np.ndarray],
    sizes: Sequence[int],
    ranks: Sequence[int],
    each: int = CANDIDATES,
    places: Sequence[float] | None = None,
    noise: float = 0.0,
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
    places : sequence of float, optional
        Where in its pieces each run was sampled, in the middle if not given.
    noise : float
        Keys of all runs by which the samples' ranks may be off beside that.

    Returns
    -------
    ndarray
        Without duplicates; at most ``each`` per rank. O(samples log samples).

    Notes
    -----
    A sample stands for the n/s keys around it, so that the rank of one is known up to half of that
    for every run: the window in which the candidates are spread.
    """
    places = [0.5] * len(samples) if places is None else places
    aside = sum(
        (place - 0.5) * size / s.size
        for s, size, place in zip(samples, sizes, places, strict=True)
        if s.size
    )
    pairs = [(s.size, size / s.size) for s, size in zip(samples, sizes, strict=True) if s.size]
    values = np.concatenate(samples)
    weight = np.concatenate([np.full(count, each) for count, each in pairs])
    order = np.argsort(values, kind="stable")
    values, weight = values[order], weight[order]
    rank = np.cumsum(weight) - weight / 2 + aside
    doubt = sum(each for _, each in pairs) / 2 + 1 + noise
    first = np.searchsorted(rank, np.asarray(ranks) - doubt) - 1
    last = np.searchsorted(rank, np.asarray(ranks) + doubt)
    first, last = np.clip(first, 0, values.size - 1), np.clip(last, 0, values.size - 1)
    steps = np.linspace(0.0, 1.0, each) if each > 1 else np.array([0.5])
    at = np.unique(np.rint(first[:, None] + (last - first)[:, None] * steps).astype(np.int64))
    # complex NaNs are several keys for `numpy.sort`
    return np.unique(values[at], equal_nan=False)


def cuts(below: npt.ArrayLike, through: npt.ArrayLike, ranks: Sequence[int]) -> np.ndarray:
    """Return where each run is cut so that as many keys as wanted are before each splitter.

    Parameters
    ----------
    below, through : array_like of int, runs × candidates
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


def brackets(
    below: npt.ArrayLike,
    through: npt.ArrayLike,
    lengths: Sequence[int],
    ranks: Sequence[int],
) -> tuple[np.ndarray, np.ndarray]:
    """Return between which places of each run the splitter of each rank may still be.

    Parameters
    ----------
    below, through : array_like of int, runs × candidates
        As for `cuts`; the candidates in order.
    lengths : sequence of int
        Of the runs.
    ranks : sequence of int
        As for `cuts`.

    Returns
    -------
    low, high : ndarray of int64
        Runs × ranks: the first and, not included, the last place; equal where the rank is met.

    Examples
    --------
    >>> runs = [np.arange(10), np.arange(10)]
    >>> sides = ([np.searchsorted(run, [2, 7], side) for run in runs]
    ...          for side in ("left", "right"))
    >>> low, high = brackets(*sides, [10, 10], [9, 15])
    >>> low.tolist(), high.tolist()
    ([[3, 7], [3, 7]], [[7, 7], [7, 7]])
    """
    edges = np.zeros((len(lengths), 1), np.int64), np.array(lengths, np.int64)[:, None]
    low = np.hstack([edges[0], np.array(through, np.int64).reshape(len(lengths), -1)])
    high = np.hstack([np.array(below, np.int64).reshape(len(lengths), -1), edges[1]])
    at = np.searchsorted(low.sum(0)[1:], ranks)  # the first candidate whose equals reach so far
    met = high.sum(0)[at] <= ranks
    return np.where(met, high[:, at], low[:, at]), high[:, at]


def far_from(edges: np.ndarray, shares: Sequence[int]) -> float:
    """Return how far the worst part is from its share, relative to that.

    Parameters
    ----------
    edges : ndarray of int
        Runs × parts + 1: where the runs are cut, from 0 to their lengths.
    shares : sequence of int
        Keys that each part is to have.
    """
    found, wanted = np.diff(edges.sum(0)), np.array(shares)
    return float((np.abs(found - wanted) / np.maximum(1, wanted)).max(initial=0.0))


class Splitting:
    """Where runs are cut, from rounds of counts: a state machine without I/O.

    Parameters
    ----------
    samples : sequence of ndarray
        `sampled` keys of each run.
    lengths : sequence of int
        Of the runs.
    places : sequence of float
        `place_of` each run.
    shares : sequence of int
        Keys that each part is to have.
    noise : float
        As for `candidates`.
    bucket : int, optional
        Parts are cut into buckets of about so many keys.

    Notes
    -----
    After each count the parts are compared with their shares. Where one is more than `ENOUGH` of
    its share off, keys between the two candidates around each end that is not met are sampled and
    become candidates; after `ROUNDS` counts it is left at that. O(runs · candidates) per count.

    Examples
    --------
    >>> runs = [np.arange(10_000), np.arange(10_000)]
    >>> found = Splitting([run[::1000] for run in runs], [10_000] * 2, [0.0] * 2, [9000, 11000])
    >>> while found.tried is not None:
    ...     sides = ([np.searchsorted(run, found.tried, side) for run in runs]
    ...              for side in ("left", "right"))
    ...     between = found.counted(*sides)
    ...     if between is not None:
    ...         count, low, high = between
    ...         found.refined([[sampled(run[a:b], count) for a, b in zip(*ends, strict=True)]
    ...                        for run, *ends in zip(runs, low, high, strict=True)])
    >>> found.edges.shape, far_from(found.edges, [9000, 11000]) <= ENOUGH
    ((2, 3), True)
    """

    def __init__(
        self,
        samples: Sequence[np.ndarray],
        lengths: Sequence[int],
        places: Sequence[float],
        shares: Sequence[int],
        noise: float = 0.0,
        bucket: int | None = None,
    ) -> None:
        self.lengths, self.shares = list(lengths), list(shares)
        ends = [0, *accumulate(shares)]
        self.ranks = ends[1:-1]
        tried = candidates(samples, lengths, self.ranks, places=places, noise=noise)
        self._bucket = bucket
        if bucket is not None:
            inner = [rank for part in pairwise(ends) for rank in bucket_ends(*part, bucket)]
            near = candidates(samples, lengths, inner, 1, places)
            tried = np.unique(np.concatenate([tried, near]), equal_nan=False)
        # what is to be counted next: in order, None once the edges are known
        self.tried: np.ndarray | None = tried
        # runs × (parts + 1)
        self.edges = np.zeros((len(self.lengths), len(self.shares) + 1), np.int64)
        none = np.zeros((len(self.lengths), 0), np.int64)
        self._known = self.tried[:0]
        self._below, self._through = none, none
        self._rounds = 0
        self._open: np.ndarray = np.zeros(0, np.int64)
        self._low = self._high = none

    def counted(
        self, below: npt.ArrayLike, through: npt.ArrayLike
    ) -> tuple[int, np.ndarray, np.ndarray] | None:
        """Take counts of what was tried: keys of each run below a candidate, and not above it.

        Returns
        -------
        tuple of (int, ndarray, ndarray) or None
            How many keys are to be sampled between which places of each run, runs × open ends;
            None once the edges are known.
        """
        assert self.tried is not None
        self._rounds += 1
        known = np.concatenate([self._known, self.tried])
        order = np.argsort(known, kind="stable")
        self._known = known[order]
        self._below, self._through = (
            np.hstack([old, np.array(new, np.int64).reshape(old.shape[0], -1)])[:, order]
            for old, new in ((self._below, below), (self._through, through))
        )
        self.tried = None
        self.edges[:, 1:-1] = cuts(self._below, self._through, self.ranks)
        self.edges[:, -1] = self.lengths
        low, high = brackets(self._below, self._through, self.lengths, self.ranks)
        self._open = np.flatnonzero((high > low).any(0))
        off = far_from(self.edges, self.shares)
        if off <= ENOUGH or self._rounds == ROUNDS or not self._open.size:
            return None
        self._low, self._high = low[:, self._open], high[:, self._open]
        count = min(MOST_BETWEEN, max(FEWEST_BETWEEN, ALL_BETWEEN // self._open.size))
        return count, self._low, self._high

    def buckets(self) -> list[np.ndarray]:
        """Return, for each part, where the runs are cut: runs × (buckets + 1), one if none asked.

        Between buckets a key that was counted is the first of its equals. O(runs · candidates).
        """
        ranks = self._below.sum(0)
        middle = (ranks[1:] + ranks[:-1]) / 2
        found = []
        for low, high in pairwise(self.edges.T):
            cut = [low[:, None], high[:, None]]
            if self._bucket is not None and ranks.size:
                wanted = bucket_ends(int(low.sum()), int(high.sum()), self._bucket)
                nearest = np.unique(np.searchsorted(middle, wanted))
                # some of a part's equals may be beyond its edges
                cut.insert(1, np.clip(self._below[:, nearest], *cut))
            found.append(np.hstack(cut))
        return found

    def refined(self, samples: Sequence[Sequence[np.ndarray]]) -> None:
        """Take what was sampled, for each run and each open end; it is `tried` next."""
        found = []
        for n, column in enumerate(self._open.tolist()):
            inside = (self._high - self._low)[:, n].tolist()
            rank = int(self.ranks[column] - self._low[:, n].sum())
            found.append(candidates([own[n] for own in samples], inside, [rank]))
        self.tried = np.concatenate(found)
