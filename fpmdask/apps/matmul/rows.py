"""Who computes which rows of C, also when workers leave: a state machine without I/O."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from fpmdask.apps.matmul.intervals import count, merged
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.models import Model
from fpmdask.partition.geometric import geometric
from fpmdask.partition.proportional import proportional

# Events kept for the story that errors tell.
_EVENTS = 64


@dataclass(frozen=True)
class Assignment:
    """Rows ``row0 … row1`` of C for one worker; `part` is unique in a run."""

    worker: str
    row0: int
    row1: int
    part: int


class RowsPlan:
    """Follow the parts of C from assignment to completion.

    Parameters
    ----------
    rows : int
        Of C.
    models : sequence of Model or None, or None
        Per worker; where one is missing, lost rows go by the distribution.
    distribution : sequence of int
        Rows per worker, summing to `rows`.
    workers : sequence of str
        Addresses, in the order of the distribution.
    limits : sequence of float or None, optional
        Most rows per worker.

    Raises
    ------
    PartitionError
        If the numbers do not match.

    Notes
    -----
    Rows of a worker that leaves, finished or not, are shared out anew over the living. A worker
    that joins is spare, since B and the rows of A would have to move to it: it gets rows only when
    the others are gone or have no room. Rows that nobody is there for are stranded until one joins.

    Examples
    --------
    >>> plan = RowsPlan(10, None, [6, 4], ["x", "y"])
    >>> first, second = plan.assign()
    >>> plan.finished(second.part, "y")
    >>> plan.left("x")
    [Assignment(worker='y', row0=0, row1=6, part=2)]
    >>> plan.finished(2, "y")
    >>> plan.done, [part.row1 for part in plan.parts]
    (True, [6, 10])
    """

    def __init__(
        self,
        rows: int,
        models: Sequence[Model | None] | None,
        distribution: Sequence[int],
        workers: Sequence[str],
        *,
        limits: Sequence[float | None] | None = None,
    ) -> None:
        models = [None] * len(workers) if models is None else models
        limits = [None] * len(workers) if limits is None else limits
        counts = (len(workers), len(set(workers)), len(distribution), len(models), len(limits))
        if len(set(counts)) > 1:
            raise PartitionError(
                "workers, different ones, shares, models and limits are "
                f"{', '.join(map(str, counts))}; these numbers must be equal"
            )
        if min(distribution, default=0) < 0 or sum(distribution) != rows:
            raise PartitionError(
                f"the distribution {list(distribution)[:16]} sums to {sum(distribution)}; "
                f"it must be >= 0 and sum to {rows}"
            )
        self.rows = rows
        self._models = dict(zip(workers, models, strict=True))
        self._shares = {w: int(n) for w, n in zip(workers, distribution, strict=True)}
        self._limits = dict(zip(workers, limits, strict=True))
        self._living = list(workers)
        self._spare: list[str] = []
        self._stranded: list[tuple[int, int]] = []
        self._open: dict[int, Assignment] = {}
        self._finished: dict[int, Assignment] = {}
        self._events: deque[str] = deque(maxlen=_EVENTS)
        self._next = 0
        self._hand_out([(0, rows)], self._shares)

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
        """Share out anew all rows of a worker that is gone with what it held.

        Parameters
        ----------
        worker : str
            One that has no part in the run changes nothing.

        Returns
        -------
        list of Assignment
            What is to be started now; nothing where the rows are `stranded`.

        Raises
        ------
        PartitionError
            If the rows do not fit into the limits of the living.
        """
        return self._without(worker, "left", (self._open, self._finished))

    def joined(
        self, worker: str, model: Model | None = None, limit: float | None = None
    ) -> list[Assignment]:
        """Take note of a worker that may be needed; it gets the stranded rows.

        Returns
        -------
        list of Assignment
            What is to be started now.

        Raises
        ------
        PartitionError
            If the stranded rows do not fit into its limit.
        """
        if worker in self._living or worker in self._spare:
            return []
        self._models[worker], self._limits[worker] = model, limit
        self._shares.setdefault(worker, 0)
        self._spare.append(worker)
        self._note(f"{worker} joined")
        return self._share_out([])

    def failed(self, part: int, worker: str) -> list[Assignment]:
        """Share out anew what a worker has not finished, and give it no more.

        Parts that it finished stay where they are.

        Returns
        -------
        list of Assignment
            What is to be started now.

        Raises
        ------
        CoordinatorError
            If the part is not being computed by that worker.
        PartitionError
            If the rows do not fit into the limits of the living.
        """
        self._check(part, worker)
        return self._without(worker, f"failed at part {part}", (self._open,))

    def owns(self, part: int, worker: str) -> bool:
        """Tell whether `worker` is computing `part`."""
        return part in self._open and self._open[part].worker == worker

    @property
    def done(self) -> bool:
        """Whether every row is finished."""
        return not self._open and not self._stranded

    @property
    def stranded(self) -> int:
        """Rows that no worker is there for."""
        return count(self._stranded)

    @property
    def parts(self) -> tuple[Assignment, ...]:
        """The finished parts by row: once done, the row chunks of C."""
        return tuple(sorted(self._finished.values(), key=lambda part: part.row0))

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
                gone = parts.pop(part)
                lost.append((gone.row0, gone.row1))
        self._note(f"{worker} {what}, {count(lost)} rows to share out anew")
        return self._share_out(lost)

    def _share_out(self, lost: Sequence[tuple[int, int]]) -> list[Assignment]:
        """Hand out what was lost now or is stranded; it is stranded where nobody is left."""
        waiting = merged([*self._stranded, *lost])
        if not waiting:
            return []
        self._stranded = waiting
        if not self._living:
            self._living, self._spare = self._spare, []
        if not self._living:
            return []
        try:
            shares = self._shared(count(waiting))
        except PartitionError:
            if not self._spare:
                raise
            self._living, self._spare = self._living + self._spare, []
            shares = self._shared(count(waiting))
        self._stranded = []
        return self._hand_out(waiting, shares)

    def _shared(self, rows: int) -> dict[str, int]:
        """Return how many of lost rows each living worker gets."""
        held = dict.fromkeys(self._living, 0)
        for parts in (self._open, self._finished):
            for a in parts.values():
                if a.worker in held:
                    held[a.worker] += a.row1 - a.row0
        room = {}
        for worker, has in held.items():
            limit = self._limits[worker]
            room[worker] = None if limit is None else max(0.0, limit - has)
        try:
            return self._by_speed(rows, room)
        except PartitionError as error:
            error.add_note(f"the run so far: {'; '.join(self._events)}")
            raise

    def _by_speed(self, rows: int, room: dict[str, float | None]) -> dict[str, int]:
        workers = list(room)
        models = [model for w in workers if (model := self._models[w]) is not None]
        if len(models) == len(workers):
            shares = geometric(rows, models, list(room.values()))
        else:
            # A worker that began with no rows is the slowest we know of, but its speed is not 0.
            least = min((n for n in self._shares.values() if n > 0), default=1)
            speeds = [self._shares[w] or least for w in workers]
            shares = proportional(rows, speeds, list(room.values()))
        return dict(zip(workers, map(int, shares), strict=True))

    def _hand_out(
        self, intervals: Sequence[tuple[int, int]], shares: dict[str, int]
    ) -> list[Assignment]:
        """Cut the intervals, in order, into the shares; one part per piece."""
        made = []
        waiting = deque(intervals)
        for worker, share in shares.items():
            left = share
            while left > 0:
                row0, row1 = waiting.popleft()
                stop = min(row1, row0 + left)
                made.append(Assignment(worker, row0, stop, self._next))
                self._next += 1
                left -= stop - row0
                if stop < row1:
                    waiting.appendleft((stop, row1))
        self._open.update((a.part, a) for a in made)
        for a in made:
            self._note(f"part {a.part}: rows {a.row0} … {a.row1} to {a.worker}")
        return made

    def _note(self, event: str) -> None:
        self._events.append(event)
