"""Chunks dealt out to workers as they have shares: those stay that can, slow workers keep less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# A worker hands chunks to others untouched where it holds so many times its share.
SURPLUS = 1.1
# `loads` looks for the time in which all finish among so many times that without moving.
MOST_TIMES, HALVINGS = 1e6, 60


@dataclass(frozen=True)
class Piece:
    """Units ``low … high`` of a chunk, on the worker `owner`."""

    chunk: int
    low: int
    high: int
    owner: str

    @property
    def size(self) -> int:
        """How many units."""
        return self.high - self.low


def loads(
    held: Mapping[str, int],
    shares: Mapping[str, int],
    moving: float,
    most: Mapping[str, float],
) -> dict[str, int]:
    """Return worker -> units that it is to work on so that all finish together, moving included.

    Parameters
    ----------
    held : mapping of str to int
        Worker -> units that it holds.
    shares : mapping of str to int
        Worker -> units that it can do while the others do theirs: as many in all as are held.
    moving : float
        What a unit costs that is sent, and again where it is received, in units of work; below 1.
    most : mapping of str to float
        Worker -> units that it has room for; its share is one of them.

    Returns
    -------
    dict of str to int
        As many in all. At the time T at which all finish, a worker with the share s that held h
        units has done (s T - moving h) / (1 - moving) of them, at least none, or where it has
        received some (s T + moving h) / (1 + moving), as far as it has room. O(workers).

    Examples
    --------
    >>> loads({"a": 60, "b": 60}, {"a": 90, "b": 30}, 0.0, {"a": 120, "b": 120})
    {'a': 90, 'b': 30}
    >>> loads({"a": 60, "b": 60}, {"a": 90, "b": 30}, 0.25, {"a": 120, "b": 120})
    {'a': 94, 'b': 26}
    """
    bounds = {worker: max(share, most[worker]) for worker, share in shares.items()}

    def at(times: float) -> dict[str, float]:
        found = {}
        for worker, share in shares.items():
            have, done = held.get(worker, 0), times * share
            if done < have:
                units = max(0.0, (done - moving * have) / (1 - moving))
            else:
                units = (done + moving * have) / (1 + moving)
            found[worker] = min(units, bounds[worker])
        return found

    total = sum(held.values())
    low, high = 0.0, 1.0
    while sum(at(high).values()) < total and high < MOST_TIMES:
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(at(middle).values()) >= total else (middle, high)
    whole = {worker: int(units) for worker, units in at(high).items()}
    roomiest = max(whole, key=lambda worker: bounds[worker] - whole[worker])
    whole[roomiest] += total - sum(whole.values())
    return whole


def dealt(
    sizes: Sequence[int], places: Sequence[Sequence[str]], shares: Mapping[str, int]
) -> dict[str, list[Piece]]:
    """Return worker -> the pieces of chunks that it is to work on.

    Parameters
    ----------
    sizes : sequence of int
        Units in each chunk.
    places : sequence of sequence of str
        The workers that hold each chunk, at least one.
    shares : mapping of str to int
        Worker -> units that it can do while the others do theirs.

    Returns
    -------
    dict of str to list of Piece
        What a worker holds, unless that is `SURPLUS` times its share or more: then the rest goes to
        those that hold less than theirs. Chunks of workers without a share go to others, too.
        O(chunks + workers log workers).

    Examples
    --------
    >>> made = dealt((60, 60), [["a"], ["b"]], {"a": 90, "b": 30})
    >>> {worker: [(p.chunk, p.low, p.high) for p in own] for worker, own in made.items()}
    {'a': [(0, 0, 60), (1, 30, 60)], 'b': [(1, 0, 30)]}
    """
    own: dict[str, list[Piece]] = {worker: [] for worker in shares}
    over: list[Piece] = []
    for chunk, (size, holders) in enumerate(zip(sizes, places, strict=True)):
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
