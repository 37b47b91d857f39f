"""When each rank leaves a section: messages as the pattern says, R8 to R12.

Ranks are the nodes that have rows, in order. All arrays are float64 of shape [p, K], rank by
distribution (or [p, 1] where all distributions agree); a rank that does not exist, because its
distribution has fewer nodes with rows, enters and leaves at ``-inf``, which no maximum sees. Every
recurrence is one of maxima, sums and order statistics, written without a loop over tiles; the only
loops are over the log2(p) levels of a tree. A section that all ranks leave without a message costs
nothing here.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from fpmdask.mheta.checks import BoolArray, FloatArray

ABSENT = -np.inf


@dataclass(frozen=True, slots=True)
class MessageCosts:
    """What a message costs each rank.

    Attributes
    ----------
    send, receive : ndarray of float64
        S and V of R8: seconds of CPU on the sender and the receiver.
    wire : float
        W: seconds between them.
    here : ndarray of bool
        Which ranks exist.
    tiles : int
        τ of the section.
    """

    send: FloatArray
    receive: FloatArray
    wire: float
    here: BoolArray
    tiles: int

    @property
    def last(self) -> BoolArray:
        """Which rank is the last one."""
        return self.here & ~_above(self.here)


class Pattern(Protocol):
    """The messages of a section, prepared for a batch of distributions."""

    def __init__(self, costs: MessageCosts) -> None: ...

    def leave(self, entered: FloatArray, work: FloatArray) -> FloatArray:
        """Return when each rank leaves the section.

        Parameters
        ----------
        entered : ndarray of float64
            t: when each rank enters.
        work : ndarray of float64
            τ c: its seconds of computing and I/O in all tiles.
        """

    @property
    def messages(self) -> tuple[FloatArray, FloatArray]:
        """How many messages each rank sends and receives."""


class Silence:
    """No messages: e = t + τ c."""

    def __init__(self, costs: MessageCosts) -> None:
        self._shape = costs.here.shape

    def leave(self, entered: FloatArray, work: FloatArray) -> FloatArray:
        """Return when each rank leaves the section."""
        return entered + work

    @cached_property
    def messages(self) -> tuple[FloatArray, FloatArray]:
        """How many messages each rank sends and receives."""
        return np.zeros(self._shape), np.zeros(self._shape)


class NearestNeighbour:
    """R9, a halo exchange: equations 3 and 5 for any number of nodes.

    Each rank sends to rank - 1, then to rank + 1, then receives both in order of arrival::

        u = t + τ c;  low = u + S [rank > 0];  v = low + S [rank < n - 1]
        from below v[i-1] + W, from above low[i+1] + W;  a <= a' the two in order of arrival
        e = max(max(v, a) + V, a') + V

    A rank at an end has one arrival, the other one is at -inf and costs nothing.
    """

    def __init__(self, costs: MessageCosts) -> None:
        below, above = _below(costs.here) & costs.here, _above(costs.here)
        self._below, self._above, self._wire = below, above, costs.wire
        self._wire_up = np.where(costs.here, costs.wire, ABSENT)[1:]
        self._to_below, self._to_above = costs.send * below, costs.send * above
        self._first = costs.receive * (below & above)
        self._second = costs.receive * (below | above)

    def leave(self, entered: FloatArray, work: FloatArray) -> FloatArray:
        """Return when each rank leaves the section."""
        low = entered + work
        low += self._to_below
        ready = low + self._to_above
        from_below, from_above = np.empty_like(low), np.empty_like(low)
        from_below[0] = from_above[-1] = ABSENT
        np.add(ready[:-1], self._wire_up, out=from_below[1:])
        np.add(low[1:], self._wire, out=from_above[:-1])
        left = np.maximum(ready, np.minimum(from_below, from_above))
        left += self._first
        np.maximum(from_below, from_above, out=from_below)
        np.maximum(left, from_below, out=left)
        left += self._second
        return left

    @cached_property
    def messages(self) -> tuple[FloatArray, FloatArray]:
        """How many messages each rank sends and receives."""
        number = self._below.astype(np.float64) + self._above
        return number, number


class Pipeline:
    """R10, equation 4 in completion times: receive, the stages, send, in every tile.

    The recurrence over ranks and tiles is the longest path through a grid whose columns (tiles)
    cost a rank the same, κ = V [rank > 0] + c + S [rank < n - 1]; the path enters at a rank k,
    at its first tile, and runs through the tiles at the costliest rank of k..i::

        e_i = max over k <= i of  t_k + Σ_{k..i} κ + (i - k) W + (τ - 1) max_{k..i} κ

    With P the running sum of κ this is P_i + i W + max over j <= i of
    (max over k <= j of (t_k - P_{k-1} - k W) + (τ - 1) κ_j): two running maxima, O(n).
    """

    def __init__(self, costs: MessageCosts) -> None:
        rank = np.arange(costs.here.shape[0], dtype=np.float64)[:, np.newaxis]
        self._tiles, self._receives = costs.tiles, (rank > 0) & costs.here
        self._sends = costs.here & ~costs.last
        self._messages = costs.receive * self._receives + costs.send * self._sends
        self._hops = rank * costs.wire
        self._hops_here = np.where(costs.here, self._hops, ABSENT)

    def leave(self, entered: FloatArray, work: FloatArray) -> FloatArray:
        """Return when each rank leaves the section."""
        tile = work / self._tiles
        tile += self._messages
        path = np.cumsum(tile, axis=0)
        start = entered - path
        start += tile
        start -= self._hops
        np.maximum.accumulate(start, axis=0, out=start)
        tile *= self._tiles - 1
        start += tile
        np.maximum.accumulate(start, axis=0, out=start)
        start += path
        start += self._hops_here
        return start

    @cached_property
    def messages(self) -> tuple[FloatArray, FloatArray]:
        """How many messages each rank sends and receives."""
        sends, receives = (v.astype(np.float64) for v in (self._sends, self._receives))
        return self._tiles * sends, self._tiles * receives


class _Level(NamedTuple):
    """The messages over a distance d: ranks with r mod 2d = d, and those d below them."""

    far: slice
    near: slice
    far_send: FloatArray
    far_receive: FloatArray
    near_send: FloatArray
    near_receive: FloatArray
    wire_down: FloatArray


class ReductionTree:
    """R11, an all-reduce over a binomial tree to rank 0 and back::

    up    d = 1, 2, 4, ... < n:  r mod 2d = d:  g_r += S_r;  g_{r-d} = max(g_{r-d}, g_r + W) + V
    down  d = ..., 4, 2, 1:      r mod 2d = 0, r + d < n:
                                 g_r += S_r;  g_{r+d} = max(g_{r+d}, g_r + W) + V_{r+d}
    """

    def __init__(self, costs: MessageCosts) -> None:
        self._wire, self._here = costs.wire, costs.here
        self._levels: list[_Level] = []
        size, distance = costs.here.shape[0], 1
        while distance < size:
            far = slice(distance, None, 2 * distance)
            near = slice(0, size - distance, 2 * distance)
            here = costs.here[far]
            self._levels.append(
                _Level(
                    far,
                    near,
                    costs.send[far],
                    costs.receive[far],
                    costs.send[near] * here,
                    costs.receive[near] * here,
                    np.where(here, costs.wire, ABSENT),
                )
            )
            distance *= 2
        self._down = self._levels[::-1]

    def leave(self, entered: FloatArray, work: FloatArray) -> FloatArray:
        """Return when each rank leaves the section."""
        done, wire = entered + work, self._wire
        for far_ranks, near_ranks, far_send, _, _, near_receive, _ in self._levels:
            far, near = done[far_ranks], done[near_ranks]
            far += far_send
            np.maximum(near, far + wire, out=near)
            near += near_receive
        for far_ranks, near_ranks, _, far_receive, near_send, _, wire_down in self._down:
            far, near = done[far_ranks], done[near_ranks]
            near += near_send
            np.maximum(far, near + wire_down, out=far)
            far += far_receive
        return done

    @cached_property
    def messages(self) -> tuple[FloatArray, FloatArray]:
        """How many messages each rank sends and receives: one up and one down each edge."""
        number = np.zeros(self._here.shape)
        for level in self._levels:
            number[level.far] += self._here[level.far]
            number[level.near] += self._here[level.far]
        return number, number


class ReductionFlat:
    """R11, an all-reduce by rank 0::

        a_1 <= a_2 <= ...: t + τ c + S + W of the others;  g = max(g, a_k) + V_0 for each in order
        for i = 1 .. n - 1:  g += S_0;  e_i = max(t_i + τ c_i + S_i, g + W) + V_i;  e_0 = g

    In closed form g = max over k of a_k + (m - k + 1) V_0 and of g_0 + m V_0, m = n - 1.
    """

    def __init__(self, costs: MessageCosts) -> None:
        here = costs.here
        rank = np.arange(here.shape[0], dtype=np.float64)[:, np.newaxis]
        self._others = np.maximum(here.sum(axis=0, keepdims=True) - 1.0, 0.0)
        self._wire, self._send, self._receive = costs.wire, costs.send, costs.receive
        # what is left to receive with the k-th of the arrivals, absent ones being the earliest
        self._left = rank[:0:-1] * costs.receive[:1]
        self._all = self._others[0] * costs.receive[0]
        self._answer = np.where(here, rank * costs.send[:1] + costs.wire, ABSENT)
        self._answers = self._others[0] * costs.send[0]
        self._number = np.where(rank == 0, self._others, 1.0) * here

    def leave(self, entered: FloatArray, work: FloatArray) -> FloatArray:
        """Return when each rank leaves the section."""
        done = entered + work
        root = done[0] + self._all
        done += self._send
        if done.shape[0] > 1:
            arrived = done[1:] + self._wire
            arrived.sort(axis=0)
            arrived += self._left
            np.maximum(root, arrived.max(axis=0), out=root)
        np.maximum(done, root + self._answer, out=done)
        done += self._receive
        np.add(root, self._answers, out=done[0])
        return done

    @cached_property
    def messages(self) -> tuple[FloatArray, FloatArray]:
        """How many messages each rank sends and receives."""
        return self._number, self._number


PATTERN: dict[str, type[Pattern]] = {
    "none": Silence,
    "nearest_neighbour": NearestNeighbour,
    "pipeline": Pipeline,
    "reduction_tree": ReductionTree,
    "reduction_flat": ReductionFlat,
}


def _below(here: BoolArray) -> BoolArray:
    """Return which ranks have one below them."""
    found = np.ones_like(here)
    found[:1] = False
    return found


def _above(here: BoolArray) -> BoolArray:
    """Return which ranks have one above them."""
    found = np.zeros_like(here)
    found[:-1] = here[1:]
    return found
