"""Rows after an iteration that workers keep beside those of now: what survives the loss of others.

When workers join a team, those that it had until then keep the rows that they have at that moment.
If one that has joined is lost, the others go on from there. Runs in the thread of a step; what is
kept outlives it, until the run ends.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fpmdask.apps.stencil.block import Array, Bring
from fpmdask.apps.stencil.worker.streamed import OnDisk
from fpmdask.apps.stencil.worker.team import Team
from fpmdask.runtime.regions import common, whole
from fpmdask.runtime.rows import Span, in_pieces
from fpmdask.runtime.worker.fetch import Want
from fpmdask.runtime.worker.offers import rows_of

KEPT = "rows kept"


@dataclass(frozen=True)
class Kept:
    """The fields' rows of one worker after an iteration."""

    iteration: int
    span: Span
    sources: Sequence[Array | OnDisk]

    @property
    def nbytes(self) -> int:
        """In memory."""
        return sum(one.nbytes for one in self.sources if isinstance(one, np.ndarray))


class Survivors:
    """What a worker has kept in earlier attempts, and what all have together.

    Parameters
    ----------
    space
        What outlives a step on this worker.
    """

    def __init__(self, space: MutableMapping[Any, Any]) -> None:
        self._space = space
        self._holders: dict[str, Span] = {}

    @property
    def kept(self) -> Kept | None:
        """Of this worker."""
        return self._space.get(KEPT)

    def keep(self, kept: Kept) -> None:
        """Keep rows instead of those that were kept so far."""
        self._space[KEPT] = kept

    def find(self, team: Team, rows: int, after: int) -> int:
        """Return the newest iteration of which all rows are kept, `after` if there is none later.

        Every worker of the team makes this call.
        """
        own, slots = self.kept, np.zeros((len(team.spans), 3))
        if own is not None:
            slots[[*team.spans].index(team.own)] = own.iteration, *own.span
        found = team.reduce(slots.ravel().tolist()).reshape(-1, 3).astype(int).tolist()
        iteration: int
        for iteration in sorted({one[0] for one in found if one[0] > after}, reverse=True):
            spans = {
                worker: (low, high)
                for worker, (which, low, high) in zip(team.spans, found, strict=True)
                if which == iteration
            }
            if covers(spans.values(), rows):
                self._holders = spans
                return iteration
        return after

    def bring(self, team: Team, piece: int) -> Bring:
        """Return what fills rows from those that were found, and offer this worker's."""
        own = self.kept
        sources = own.sources if own is not None and team.own in self._holders else []
        for n, source in enumerate(sources):
            team.exchange.offer(self._key(team, n), source)
        return brought(team, self._holders, sources, lambda n: self._key(team, n), piece)

    def brought(self, team: Team, fields: int) -> None:
        """Offer nothing more once all workers have their rows; what is kept stays."""
        if self._holders:
            team.reduce([0.0])
            for key in self.keys(team, fields):
                team.exchange.retire(key)

    def keys(self, team: Team, fields: int) -> list[tuple[Any, ...]]:
        """Return all that this worker may offer."""
        return [self._key(team, n) for n in range(fields)]

    def _key(self, team: Team, field: int) -> tuple[Any, ...]:
        return ("kept", team.attempt, field)


def covers(spans: Any, rows: int) -> bool:
    """Tell whether spans are all rows, each once.

    Examples
    --------
    >>> covers([(3, 5), (0, 3), (5, 5)], 5), covers([(0, 3)], 5)
    (True, False)
    """
    at = 0
    for low, high in sorted(spans):
        if low != at and low < high:
            return False
        at = max(at, high)
    return at == rows


def brought(
    team: Team,
    holders: Mapping[str, Span],
    sources: Sequence[Array | OnDisk],
    key: Any,
    piece: int | None,
) -> Bring:
    """Return what fills rows of fields from workers that have them, this one's from `sources`.

    Parameters
    ----------
    holders
        Worker → rows.
    key
        Of a field, under which all of them offer their rows.
    piece
        How many rows are fetched at once, where holders read them from disk; None: all.
    """

    def bring(targets: Sequence[Array], low: int, high: int) -> None:
        wants: list[Want] = []
        for peer, theirs in holders.items():
            if (met := common((theirs,), ((low, high),))) is None:
                continue
            for start, stop in in_pieces(*met[0], piece or high):
                some = [target[start - low : stop - low] for target in targets]
                start, stop = start - theirs[0], stop - theirs[0]
                if peer == team.own:
                    for target, source in zip(some, sources, strict=True):
                        target[...] = rows_of(source, start, stop)
                    continue
                for n, target in enumerate(some):
                    box = ((start, stop), *whole(target.shape[1:]))
                    wants.append(Want(key(n), box, target, [peer]))
                if piece is not None:
                    team.fetch(wants)
                    wants.clear()
        team.fetch(wants)

    return bring
