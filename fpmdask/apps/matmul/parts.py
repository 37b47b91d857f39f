"""Who computes which tiles of C, also when workers leave: a state machine without I/O."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fpmdask.apps.matmul.tile import Tile as Tile
from fpmdask.apps.matmul.tile import merged
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.models import Model
from fpmdask.partition.geometric import geometric
from fpmdask.partition.proportional import proportional

# Events kept for the story that errors tell.
_EVENTS = 64


@dataclass(frozen=True)
class Assignment:
    """A tile of C for one worker; `part` is unique in a run."""

    worker: str
    tile: Tile
    part: int


class PartsPlan:
    """Follow the parts of C from assignment to completion.

    Parameters
    ----------
    tiles : mapping of str to sequence of Tile
        Worker (its address) → its tiles, in worker order; together they are C.
    models : mapping of str to Model, optional
        Seconds by elements of C; where one is missing, lost tiles go by the areas.
    limits : mapping of str to float, optional
        Most elements per worker; no limit where there is none.
    by_rows : bool, optional
        Cut lost tiles into rows only.

    Raises
    ------
    PartitionError
        If there is no tile, or a tile is empty.

    Notes
    -----
    Tiles of a worker that leaves, finished or not, are shared out anew over the living. A worker
    that joins is spare, since parts of A and B would have to move to it: it gets tiles only when
    the others are gone or have no room. Tiles that nobody has room for are stranded until a worker
    joins. A lost tile is cut across its longer side, so that a share is met within one line; an
    L becomes two rectangles.

    Examples
    --------
    >>> plan = PartsPlan({"x": [Tile(0, 0, 6, 3)], "y": [Tile(6, 0, 10, 3)]})
    >>> first, second = plan.assign()
    >>> plan.finished(second.part, "y")
    >>> [(again.worker, again.tile.bounds, again.part) for again in plan.left("x")]
    [('y', (0, 6, 0, 3), 2)]
    >>> plan.finished(2, "y")
    >>> plan.done, [part.tile.row1 for part in plan.parts]
    (True, [6, 10])
    """

    def __init__(
        self,
        tiles: Mapping[str, Sequence[Tile]],
        *,
        models: Mapping[str, Model] | None = None,
        limits: Mapping[str, float] | None = None,
        by_rows: bool = False,
    ) -> None:
        every = [tile for own in tiles.values() for tile in own]
        if not every or any(tile.height < 1 or tile.width < 1 for tile in every):
            raise PartitionError(f"{every} found; give tiles of at least one element")
        self.elements = _area(every)
        self._by_rows = by_rows
        self._models: Mapping[str, Model] = {} if models is None else models
        self._joined: dict[str, Model] = {}  # models of workers that have joined
        self._limits = dict(limits or {})
        self._areas = {worker: _area(own) for worker, own in tiles.items()}
        self._living = list(tiles)
        self._spare: list[str] = []
        self._stranded: list[Tile] = []
        self._open: dict[int, Assignment] = {}
        self._finished: dict[int, Assignment] = {}
        self._events: deque[str] = deque(maxlen=_EVENTS)
        self._next = 0
        self._held: Counter[str] = Counter()  # elements of each worker's parts
        # elements that workers hold for others: chunks that they relay, sums that they help with
        self.beside: Counter[str] = Counter()
        # why what is stranded does not fit into those that are there
        self.refusal: PartitionError | None = None
        for worker, own in tiles.items():
            for tile in own:
                self._begin(worker, tile)

    def assign(self) -> list[Assignment]:
        """Return what is assigned and not finished, in the order of parts."""
        return list(self._open.values())

    def finished(self, part: int, worker: str) -> None:
        """Take note that `worker` keeps `part` now.

        Raises
        ------
        CoordinatorError
            If the part is not being computed by that worker.
        """
        self._check(part, worker)
        self._finished[part] = self._open.pop(part)
        self._note(f"{worker} finished part {part}")

    def left(self, worker: str) -> list[Assignment]:
        """Share out anew all tiles of a worker that is gone with what it held.

        Parameters
        ----------
        worker : str
            One that has no part in the run changes nothing.

        Returns
        -------
        list of Assignment
            What is to be started now; nothing where the tiles are `stranded`.
        """
        return self._without(worker, "left", (self._open, self._finished))

    def joined(
        self, worker: str, model: Model | None = None, limit: float | None = None
    ) -> list[Assignment]:
        """Take note of a worker that may be needed; it gets the stranded tiles.

        Returns
        -------
        list of Assignment
            What is to be started now; nothing where the tiles still do not fit.
        """
        if worker in self._living or worker in self._spare:
            return []
        if model is not None:
            self._joined[worker] = model
        if limit is not None:
            self._limits[worker] = limit
        self._areas.setdefault(worker, 0)
        self._spare.append(worker)
        self._note(f"{worker} joined")
        return self._share_out([])

    def failed(self, part: int, worker: str) -> list[Assignment]:
        """Share out anew what a worker has not finished, and give it no more.

        Parts that it finished stay where they are.

        Returns
        -------
        list of Assignment
            What is to be started now; nothing where the tiles are `stranded`.

        Raises
        ------
        CoordinatorError
            If the part is not being computed by that worker.
        """
        self._check(part, worker)
        return self._without(worker, f"failed at part {part}", (self._open,))

    def room(self, worker: str) -> float:
        """Return how many elements a worker may get beside those that it has."""
        return max(0.0, self.room_beside_tiles(worker) - self.beside[worker])

    def room_beside_tiles(self, worker: str) -> float:
        """Return how many elements a worker may hold more than its tiles, for others too."""
        most = self._limits.get(worker, float("inf"))
        return max(0.0, most - self._held[worker])

    def owns(self, part: int, worker: str) -> bool:
        """Tell whether `worker` is computing `part`."""
        return part in self._open and self._open[part].worker == worker

    @property
    def done(self) -> bool:
        """Whether every element is finished."""
        return not self._open and not self._stranded

    @property
    def stranded(self) -> int:
        """Elements that no worker is there for, or none with room: `refusal` says why."""
        return _area(self._stranded)

    @property
    def parts(self) -> tuple[Assignment, ...]:
        """The finished parts by row and column: once done, they cover C."""
        return tuple(sorted(self._finished.values(), key=lambda part: part.tile))

    @property
    def events(self) -> tuple[str, ...]:
        """What happened, the last events only."""
        return tuple(self._events)

    def _check(self, part: int, worker: str) -> None:
        if self.owns(part, worker):
            return
        if part in self._open:
            state = f"is computed by {self._open[part].worker}"
        elif part in self._finished:
            state = f"was finished by {self._finished[part].worker}"
        else:
            state = f"is unknown or was shared out anew (parts so far: {self._next})"
        raise CoordinatorError(f"stale event: {worker} reports part {part}, which {state}")

    def _without(
        self, worker: str, what: str, held: Sequence[dict[int, Assignment]]
    ) -> list[Assignment]:
        lost = []
        for workers in (self._living, self._spare):
            if worker in workers:
                workers.remove(worker)
        for parts in held:
            for part in [part for part, a in parts.items() if a.worker == worker]:
                lost.append(parts.pop(part).tile)
                self._held[worker] -= lost[-1].area
        self._note(f"{worker} {what}, {_area(lost)} elements to share out anew")
        return self._share_out(lost)

    def _share_out(self, lost: Sequence[Tile]) -> list[Assignment]:
        """Hand out what was lost now or is stranded; it is stranded where nobody has room."""
        waiting = merged([*self._stranded, *lost])
        if not waiting:
            return []
        self._stranded = waiting
        if not self._living:
            self._living, self._spare = self._spare, []
        self.refusal = None
        if not self._living:
            return []
        shares = self._shared(_area(waiting))
        if shares is None and self._spare:
            self._living, self._spare = self._living + self._spare, []
            shares = self._shared(_area(waiting))
        if shares is None:
            return []
        self._stranded = []
        return self._hand_out(waiting, shares)

    def _shared(self, elements: int) -> dict[str, int] | None:
        """Return how many of lost elements each living worker gets, None where they do not fit."""
        room = {worker: self.room(worker) for worker in self._living}
        try:
            return self._by_speed(elements, room)
        except PartitionError as error:
            error.add_note(f"the run so far: {'; '.join(self._events)}")
            self.refusal = error
            return None

    def _by_speed(self, elements: int, room: Mapping[str, float]) -> dict[str, int]:
        found = (self._joined.get(worker, self._models.get(worker)) for worker in room)
        models = [model for model in found if model is not None]
        if len(models) == len(room):
            shares = geometric(elements, models, list(room.values()))
        else:
            # A worker that began with nothing is the slowest we know of, but its speed is not 0.
            least = min((n for n in self._areas.values() if n > 0), default=1)
            speeds = [self._areas[worker] or least for worker in room]
            shares = proportional(elements, speeds, list(room.values()))
        return dict(zip(room, map(int, shares), strict=True))

    def _hand_out(self, tiles: Sequence[Tile], shares: Mapping[str, int]) -> list[Assignment]:
        """Cut the tiles, in order, into the shares; one part per piece."""
        made = []
        waiting = deque(tiles)
        getting = [worker for worker, share in shares.items() if share]
        for worker in getting:
            left = shares[worker]
            while waiting and (left > 0 or worker == getting[-1]):
                last = worker == getting[-1]  # whole lines: it may get less or more
                tile, rest = waiting.popleft().cut(self.elements if last else left, self._by_rows)
                made.append(self._begin(worker, tile))
                left -= tile.area
                if rest is not None:
                    waiting.appendleft(rest)
        return made

    def _begin(self, worker: str, tile: Tile) -> Assignment:
        made = self._open[self._next] = Assignment(worker, tile, self._next)
        self._next += 1
        self._held[worker] += tile.area
        rows, columns = f"{tile.row0} … {tile.row1}", f"{tile.column0} … {tile.column1}"
        self._note(f"part {made.part}: rows {rows}, columns {columns} to {worker}")
        return made

    def _note(self, event: str) -> None:
        self._events.append(event)


def _area(tiles: Sequence[Tile]) -> int:
    return sum(tile.area for tile in tiles)
