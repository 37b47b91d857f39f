"""Who may use which worker now: one run at a time on each worker, first come first served."""

from __future__ import annotations

from collections.abc import Iterable


class Leases:
    """Leases of workers to runs (no I/O).

    A run asks once for all the workers it wants and gets them all at once, so that two runs cannot
    hold half of the cluster each and wait for ever. A worker whose call does not return is *stuck*:
    it is leased to nobody until `recovered`.
    """

    def __init__(self) -> None:
        self._holder: dict[str, str] = {}
        self._stuck: dict[str, str] = {}
        self._queue: list[tuple[str, tuple[str, ...]]] = []

    @property
    def stuck(self) -> dict[str, str]:
        """Workers that a call of the named run still occupies."""
        return dict(self._stuck)

    def held_by(self, run: str) -> set[str]:
        """Return the workers that ``run`` holds."""
        return {worker for worker, holder in self._holder.items() if holder == run}

    def request(self, run: str, workers: Iterable[str]) -> list[str]:
        """Queue ``run`` for ``workers``; return the runs granted by this, in order."""
        self._queue.append((run, tuple(workers)))
        return self._grant()

    def extend(self, run: str, worker: str) -> bool:
        """Give ``run`` one more worker if nobody has it, wants it first, or has it stuck."""
        wanted = any(worker in workers for _, workers in self._queue)
        if wanted or worker in self._holder or worker in self._stuck:
            return False
        self._holder[worker] = run
        return True

    def release(self, run: str, worker: str | None = None) -> list[str]:
        """Give back one worker of ``run``, or all and its place in the queue."""
        if worker is None:
            self._queue = [entry for entry in self._queue if entry[0] != run]
        for held in self.held_by(run):
            if worker in (None, held):
                del self._holder[held]
        return self._grant()

    def block(self, run: str, worker: str) -> None:
        """Take ``worker`` from ``run``, which holds it: a call on it does not return."""
        if self._holder.get(worker) == run:
            del self._holder[worker]
            self._stuck[worker] = run

    def recovered(self, worker: str) -> list[str]:
        """Note that the stuck call on ``worker`` has returned."""
        self._stuck.pop(worker, None)
        return self._grant()

    def left(self, worker: str) -> list[str]:
        """Forget a worker that left the cluster."""
        self._stuck.pop(worker, None)
        self._holder.pop(worker, None)
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
            if wanted & (self._holder.keys() | claimed):
                waiting.append((run, workers))
                claimed |= wanted
                continue
            self._holder.update(dict.fromkeys(wanted, run))
            granted.append(run)
        self._queue = waiting
        return granted
