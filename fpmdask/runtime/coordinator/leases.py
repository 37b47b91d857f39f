"""Who may use which worker now: one run at a time on each worker, first come first served."""

from __future__ import annotations

from collections.abc import Iterable


class Leases:
    """Leases of workers to runs (no I/O).

    A run asks once for all the workers it wants and gets them all at once, so that two runs cannot
    hold half of the cluster each and wait for ever. A worker on which a call of an ended run still
    goes on is *lingering*: the next run waits for it. One whose call does not return is *stuck*: it
    is leased to nobody. Both until `recovered`.
    """

    def __init__(self) -> None:
        self._holder: dict[str, str] = {}
        self._granted: set[str] = set()
        self._stuck: dict[str, str] = {}
        self._lingering: dict[str, str] = {}
        self._queue: list[tuple[str, tuple[str, ...]]] = []

    @property
    def stuck(self) -> dict[str, str]:
        """Workers that a call of the named run still occupies."""
        return dict(self._stuck)

    def busy(self, workers: Iterable[str]) -> dict[str, str]:
        """Return which of ``workers`` have to be waited for, and the runs that use them."""
        using = self._holder | self._lingering
        return {worker: using[worker] for worker in workers if worker in using}

    def held_by(self, run: str) -> set[str]:
        """Return the workers that ``run`` holds."""
        return {worker for worker, holder in self._holder.items() if holder == run}

    def request(self, run: str, workers: Iterable[str]) -> list[str]:
        """Queue ``run`` for ``workers``; return the runs granted by this, in order."""
        self._queue.append((run, tuple(workers)))
        return self._grant()

    def extend(self, run: str, worker: str) -> bool:
        """Give ``run``, which was granted its own, one more if nobody uses it or wants it first."""
        wanted = any(worker in workers for _, workers in self._queue)
        used = worker in self._holder or worker in self._stuck or worker in self._lingering
        if wanted or used or run not in self._granted:
            return False
        self._holder[worker] = run
        return True

    def release(self, run: str, worker: str | None = None) -> list[str]:
        """Give back one worker of ``run``, or all and its place in the queue."""
        if worker is None:
            self._granted.discard(run)
            self._queue = [entry for entry in self._queue if entry[0] != run]
        for held in self.held_by(run):
            if worker in (None, held):
                del self._holder[held]
        return self._grant()

    def linger(self, run: str, worker: str) -> None:
        """Take ``worker`` from ``run``, which ends; a call of it goes on and will return."""
        if self._holder.get(worker) == run:
            del self._holder[worker]
            self._lingering[worker] = run

    def block(self, run: str, worker: str) -> list[str]:
        """Take ``worker`` from ``run``, which uses it: a call on it does not return."""
        for using in (self._holder, self._lingering):
            if using.get(worker) == run:
                del using[worker]
                self._stuck[worker] = run
        return self._grant()

    def recovered(self, worker: str) -> list[str]:
        """Note that the last call of an ended run on ``worker`` has returned."""
        self._stuck.pop(worker, None)
        self._lingering.pop(worker, None)
        return self._grant()

    def left(self, worker: str) -> list[str]:
        """Forget a worker that left the cluster."""
        for using in (self._stuck, self._lingering, self._holder):
            using.pop(worker, None)
        self._queue = [
            (run, tuple(name for name in workers if name != worker)) for run, workers in self._queue
        ]
        return self._grant()

    def _grant(self) -> list[str]:
        """Grant in order; a later request passes an earlier one only if they are disjoint."""
        granted: list[str] = []
        claimed: set[str] = set()
        waiting: list[tuple[str, tuple[str, ...]]] = []
        for run, workers in self._queue:
            wanted = set(workers) - self._stuck.keys()
            if wanted & (self._holder.keys() | self._lingering.keys() | claimed):
                waiting.append((run, workers))
                claimed |= wanted
                continue
            self._holder.update(dict.fromkeys(wanted, run))
            self._granted.add(run)
            granted.append(run)
        self._queue = waiting
        return granted
