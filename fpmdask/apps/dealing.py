"""Chunks dealt out to workers as they have shares: those stay that can, slow workers keep less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# A worker hands chunks to others untouched where it holds so many times its share.
SURPLUS = 1.1


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
