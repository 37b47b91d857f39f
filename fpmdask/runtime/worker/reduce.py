"""All-reduce: the workers of a step combine their values, and all get the result.

Runs on workers, in the thread of a step, on the run's exchange. Values go up a binary tree over
the ranks and the result comes down: each worker sends and receives three messages at most, in
2 log₂(workers) hops. The order in which values are combined follows from the ranks alone, so that
the same team gets the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fpmdask.runtime.worker.exchange import Exchange
from fpmdask.runtime.worker.fetch import Want


class AllReduce:
    """The all-reduces of one step, one after the other; every worker of the team makes each.

    Parameters
    ----------
    exchange
        Of the run on this worker.
    name
        The same on all workers, another one for each step and attempt.
    team
        Addresses, in the order of the ranks.
    """

    def __init__(self, exchange: Exchange, name: str, team: Sequence[str]) -> None:
        self._exchange, self._rank, self._turn = exchange, team.index(exchange.address), 0
        self._keys = ("reduce", name, "up"), ("reduce", name, "down")
        children = (2 * self._rank + 1, 2 * self._rank + 2)
        self._children = [team[rank] for rank in children if rank < len(team)]
        self._parent = team[(self._rank - 1) // 2] if self._rank else None

    def __call__(self, values: Sequence[float], op: np.ufunc = np.maximum) -> np.ndarray[Any, Any]:
        """Return what `op`, a ufunc of two arguments, makes of all workers' values, as float64.

        Raises
        ------
        FetchFailed
            If a worker of the team has left, or has called `end`.
        RunCancelledError
            If the run is over.
        """
        turn, self._turn = self._turn, self._turn + 1
        up, down = self._keys
        found = np.array(values, np.float64)
        # What is replaced has been read: who offers a turn has had the result of the one before,
        # which has the values of all.
        heard = [np.empty_like(found) for _ in self._children]
        self._fetch(up, turn, dict(zip(self._children, heard, strict=True)))
        for value in heard:
            found = op(found, value)
        if self._parent is not None:
            self._exchange.offer(up, found, turn)
            found = np.empty_like(found)
            self._fetch(down, turn, {self._parent: found})
        if self._children:
            self._exchange.offer(down, found, turn)
        return found

    def retire(self) -> None:
        """Let go of what is offered, once all workers have made their last one."""
        for key in self._keys:
            self._exchange.retire(key)

    def end(self) -> None:
        """Have whoever waits for this worker be refused, in later turns, too."""
        for key in self._keys:
            self._exchange.offers.end(key)

    def _fetch(self, key: Any, turn: int, into: dict[str, np.ndarray[Any, Any]]) -> None:
        wants = [
            Want(key, ((0, out.size),), out, [peer], version=turn) for peer, out in into.items()
        ]
        # with at_once = 0 this thread receives itself
        self._exchange.fetch(wants, at_once=0).wait()
