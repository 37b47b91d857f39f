"""Microbenchmark of messages between neighbours, as `fpmdask.mheta.instrument.fit` takes them.

Runs on workers, in the thread of a step, on the run's exchange. Every worker of a team calls
`benchmark_messages` at the same place of its step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from fpmdask.runtime.regions import whole
from fpmdask.runtime.worker.exchange import Exchange
from fpmdask.runtime.worker.fetch import Want
from fpmdask.runtime.worker.fingerprint import cpu_quota
from fpmdask.runtime.worker.offers import Offer

# peer's rank, bytes, seconds of sending, of receiving, and of the way to the peer and back
Message = tuple[int, int, float, float, float]
REPEATS = 5
# Messages that each side receives in a `_Pair.message`, and as many that it serves: the data, a
# word that it is there, and the data once more for the round trip of either side.
MESSAGES = 4


def benchmark_messages(
    exchange: Exchange, name: str, team: Sequence[str], sizes: Sequence[int], repeats: int = REPEATS
) -> tuple[list[Message], float]:
    """Return what messages to the neighbouring ranks and back take, and a quota's delay of one.

    Parameters
    ----------
    exchange
        Of the run on this worker.
    name
        The same on all workers, another one for each call.
    team
        Addresses, in the order of the ranks, two at least.
    sizes
        Bytes of messages; at least two sizes make a line.
    repeats
        Messages of each size to each neighbour, after one that opens the connection.

    Raises
    ------
    FetchFailed
        If a neighbour has left.
    RunCancelledError
        If the run is over.

    Notes
    -----
    Sending is offering a copy. Receiving is asking for what is offered already: it includes the
    request. The pairs of even ranks with the next ones go first, then the others.

    During the benchmark a worker does nothing else. During iterations, computing has used up its
    CPU quota when messages come: with a quota of a tenth of a core their CPU time then takes ten
    times as long, as that of computing does. The delay of a message is the difference. It is not
    part of the messages that are returned, whose round trips were made without. Serving a neighbour
    takes other threads about as much CPU time as asking it and receiving takes this one.
    """
    rank, found, cpu = team.index(exchange.address), list[Message](), list[float]()
    for parity in range(2):
        peer = rank + 1 if rank % 2 == parity else rank - 1
        if 0 <= peer < len(team):
            pair = _Pair(exchange, name, team[peer], first=rank < peer)
            for nbytes in sizes:
                timed = [pair.message(nbytes) for _ in range(1 + repeats)]
                found += [(peer, nbytes, *one[:3]) for one in timed[1:]]
                cpu += [one[3] for one in timed[1:]]
            pair.end()
    both = 2 * median(cpu) / MESSAGES if cpu else 0.0  # of who receives, and who serves
    return found, both * (1 / min(1.0, cpu_quota() or 1.0) - 1)


def refuse_messages(exchange: Exchange, name: str, team: Sequence[str]) -> None:
    """Have neighbours that wait for this worker in a `benchmark_messages` be refused, now or later.

    For a worker that takes part no further: parameters are as there.
    """
    rank = team.index(exchange.address)
    for peer in (*team[max(0, rank - 1) : rank], *team[rank + 1 : rank + 2]):
        _Pair(exchange, name, peer, first=False).refuse()


class _Pair:
    """What two workers send to each other and back."""

    def __init__(self, exchange: Exchange, name: str, peer: str, *, first: bool) -> None:
        self._exchange, self._peer, self._first, self._turn = exchange, peer, first, 0
        self._name = name

    def message(self, nbytes: int) -> tuple[float, float, float, float]:
        """Return seconds of sending a message, of receiving it, of a round trip; CPU time."""
        data, nothing = np.zeros(nbytes, np.uint8), np.zeros(1, np.uint8)
        self._turn += 1
        cpu = time.thread_time()
        began = time.perf_counter()
        sent = self._send("data", data)
        sending = time.perf_counter() - began
        self._there_and_back("ready", nothing, starts=self._first)  # both have offered
        began = time.perf_counter()
        self._receive("data", data)
        receiving = time.perf_counter() - began
        sent.wait_read()
        found = 0.0
        for way, starts in (("one way", self._first), ("other way", not self._first)):
            began = time.perf_counter()
            self._there_and_back(way, data, starts=starts)
            if starts:
                found = time.perf_counter() - began
        return sending, receiving, found, time.thread_time() - cpu

    def end(self) -> None:
        """Offer nothing any more."""
        for key in self._keys():
            self._exchange.retire(key)

    def refuse(self) -> None:
        """Have the peer be refused, whatever it waits for."""
        for key in self._keys():
            self._exchange.offers.end(key)

    def _keys(self) -> list[tuple[str, ...]]:
        own = self._exchange.address
        return [self._key(what, own) for what in ("data", "ready", "one way", "other way")]

    def _there_and_back(self, what: str, data: Any, *, starts: bool) -> None:
        if not starts:
            self._receive(what, data)
        sent = self._send(what, data)
        if starts:
            self._receive(what, data)
        else:
            sent.wait_read()

    def _send(self, what: str, data: Any) -> Offer:
        key = self._key(what, self._exchange.address)
        return self._exchange.offer(key, data.copy(), self._turn, readers=[self._peer])

    def _receive(self, what: str, data: Any) -> None:
        want = Want(
            self._key(what, self._peer), whole(data.shape), data, [self._peer], version=self._turn
        )
        # with at_once = 0 this thread receives itself, as where halos are exchanged
        self._exchange.fetch([want], at_once=0).wait()

    def _key(self, what: str, sender: str) -> tuple[str, ...]:
        lower, upper = sorted((self._exchange.address, self._peer))
        return ("benchmark", self._name, lower, upper, sender, what)
