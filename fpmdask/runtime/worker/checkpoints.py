"""Checkpoints of a team: its workers write their rows at the same time, one writes the manifest.

Runs in the thread of a step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from fpmdask.errors import RunCancelledError, StorageError
from fpmdask.runtime.checkpoint import Call, Checkpoint, found_in, part_name, remove, written
from fpmdask.runtime.rows import Span, edges_of
from fpmdask.runtime.worker.fetch import FetchFailed
from fpmdask.runtime.worker.reduce import AllReduce
from fpmdask.storage import Folder

# First row, and rows of each field.
Pieces = Iterable[tuple[int, Sequence[np.ndarray[Any, Any]]]]
# The end of a run is heard so much later than that its peers do not answer, at most.
OVER_SECONDS = 1.0


class Checkpoints:
    """Where a team keeps its rows from time to time; every worker makes each call.

    Parameters
    ----------
    order
        What the client says: ``url``, ``every``, ``run`` and the fields of `Call`.
    attempt
        Which one of the run.
    own, team
        Addresses of this worker and of all, in the order of the ranks.
    reduce
        Of the team.
    cancelled
        Is set when the run is over.
    warn
        Is called with what the user must know.
    """

    def __init__(
        self,
        order: Mapping[str, Any],
        attempt: int,
        own: str,
        team: Sequence[str],
        reduce: AllReduce,
        cancelled: threading.Event,
        warn: Callable[[str], None],
    ) -> None:
        self._folder = Folder(order["url"])
        self._call = Call(order["name"], tuple(order["shape"]), tuple(order["dtypes"]))
        self._every, self._attempt = order["every"], f"{order['run']}-{attempt}"
        self._rank, self._team, self._reduce, self._warn = team.index(own), team, reduce, warn
        self._cancelled = cancelled
        self._found: Checkpoint | None = None

    def due(self, iteration: int) -> bool:
        """Tell whether there is to be a checkpoint after an iteration, not the last one."""
        return not iteration % self._every

    def find(self, iterations: int, before: int | None = None) -> int:
        """Return the iteration of the newest checkpoint that is complete, 0 where there is none.

        Parameters
        ----------
        iterations
            Of the call.
        before
            Only checkpoints of earlier iterations than this one are used; None: of any.
        """
        there, unusable = found_in(self._folder, self._call)
        if not self._rank:
            for why in unusable:
                self._say(why)
        limit = iterations if before is None else min(iterations, before)
        while True:
            # a worker may not see yet what others do; of an iteration any one will do
            usable = [one for one in there if one.iteration < limit]
            newest = usable[0].iteration if usable else 0
            limit = -int(self._reduce([-float(newest)])[0])
            if not limit:
                return 0
            self._found = next((one for one in usable if one.iteration == limit), None)
            damaged = ["it"] if self._found is None else self._damaged(self._found)
            if not self._reduce([float(len(damaged))])[0]:
                return limit

    def _damaged(self, found: Checkpoint) -> list[str]:
        own = found.spans()[self._rank :: len(self._team)]  # each worker looks at some of it
        damaged = found.damaged(self._folder, self._call, own)
        if damaged:
            self._say(f"{found.stem} is damaged: {damaged[0]} is not what was written")
        return damaged

    def _say(self, why: str) -> None:
        self._warn(f"a checkpoint in {self._folder.url} is not used: {why}")

    def load(self, targets: Iterable[Any], low: int) -> None:
        """Fill arrays, one for each field, with rows from number `low` on of what was found."""
        assert self._found is not None
        for field, out in enumerate(targets):
            self._found.read(self._folder, self._call, field, low, out)

    def save(self, spans: Mapping[str, Span], iteration: int, fields: int, rows: Pieces) -> None:
        """Write this worker's rows after an iteration; the first worker completes the checkpoint.

        Raises
        ------
        StorageError
            If the storage does not take them, or the workers do not share it.
        FetchFailed
            If a worker of the team has left.
        """
        stem = self._call.stem(iteration, self._attempt)
        sums = self._write(stem, spans[self._team[self._rank]], fields, rows)
        slots = [[0.0] * fields for _ in self._team]
        slots[self._rank] = list(map(float, sums))
        try:
            found = self._reduce([one for some in slots for one in some])
        except (FetchFailed, RunCancelledError):
            # one that had stopped may have missed the end of the run, after which nobody removes it
            if self._cancelled.wait(OVER_SECONDS):
                for field in range(fields):
                    self._folder.remove(part_name(stem, spans[self._team[self._rank]], field))
            raise
        if not self._rank:
            every = found.astype(int).reshape(-1, fields).tolist()
            having = [n for n, worker in enumerate(self._team) if len(range(*spans[worker]))]
            edges = edges_of(len(range(*spans[self._team[n]])) for n in having)
            sums_of = tuple(tuple(every[n]) for n in having)
            self._complete(Checkpoint(stem, iteration, tuple(edges), sums_of))
        self._reduce([0.0])  # nobody ends the run in between

    def _complete(self, new: Checkpoint) -> None:
        if lacking := new.lacking(self._call, self._folder.names()):
            raise StorageError(
                f"the first worker does not find {lacking[0]}, which another one has written, in "
                f"{self._folder.url}; give storage that the client and all workers share"
            )
        new.write(self._folder, self._call)
        if not self._cancelled.is_set():  # else its files may be removed
            remove(self._folder, self._call, keep=new.stem, before=new.stem)

    def _write(self, stem: str, span: Span, fields: int, rows: Pieces) -> list[int]:
        sums = [0] * fields
        if span[0] == span[1]:
            return sums
        with ExitStack() as stack:
            writes = [
                stack.enter_context(
                    self._folder.writing(part_name(stem, span, field), durable=True)
                )
                for field in range(fields)
            ]
            for _, some in rows:
                for field, one in enumerate(some):
                    sums[field] = written(one, writes[field], sums[field])
        return sums
