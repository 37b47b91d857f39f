"""Chunks of workers behind slow links leave them once: one worker gets them whole, and serves them.

The order of a share says which chunks its worker relays, in the order in which panels need them;
threads receive them while the first panels are multiplied. Others ask the relay instead of the
owner, and wait there until the chunk has come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from fpmdask.apps.matmul.plan import MatmulSpec
from fpmdask.apps.matmul.relays import relayed_key, slice_of
from fpmdask.errors import PartitionError, RunCancelledError
from fpmdask.runtime.regions import Box, size, view
from fpmdask.runtime.worker.fetch import Fetch, FetchFailed, Want
from fpmdask.runtime.worker.space import RunSpace


class Relaying:
    """Receives the chunks that a share's order wants relayed, and offers what has arrived.

    Parameters
    ----------
    space
        The run on this worker; its exchange knows the owners.
    spec
        The product.
    wanted
        Keys, and who holds each.
    panels
        Ranges of K, in the order in which they are needed.
    """

    def __init__(
        self,
        space: RunSpace,
        spec: MatmulSpec,
        wanted: Iterable[tuple[Any, str]],
        panels: Sequence[tuple[int, int]],
    ) -> None:
        self._space, self._spec, self._panels = space, spec, panels
        self._fetches: dict[str, Fetch] = {}  # by owner, the one that goes on
        self._spent: dict[str, tuple[int, float]] = {}  # by owner: bytes and CPU-seconds
        self._stopped = threading.Event()
        by_owner: dict[str, list[Any]] = {}
        for key, owner in wanted:
            if relayed_key(key) not in space.offers:
                by_owner.setdefault(owner, []).append(tuple(key))
        self._threads = [
            threading.Thread(target=self._receive, args=item, name="fpmdask-relay", daemon=True)
            for item in by_owner.items()
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._stopped.set()
            for fetch in list(self._fetches.values()):
                fetch.stop()
        for thread in self._threads:
            thread.join()

    @property
    def nbytes_received(self) -> int:
        """Return the bytes that have been received, once the call is over."""
        return sum(nbytes for nbytes, _ in self._spent.values())

    @property
    def cpu_seconds(self) -> float:
        """Return what receiving them took, once the call is over."""
        return sum(seconds for _, seconds in self._spent.values())

    def _receive(self, owner: str, keys: Sequence[Any]) -> None:
        """Receive the chunks of one owner, in its turn of the panels."""
        exchange, spec, nbytes, cpu = self._space.exchange, self._spec, 0, 0.0
        chunks = {key: np.empty(spec.chunk_shape(key), spec.dtype) for key in keys}
        came = dict.fromkeys(keys, 0)
        try:
            for panel in self._panels:
                for key, chunk in chunks.items():
                    if (box := slice_of(spec, key, panel)) is None:
                        continue
                    fetch = self._slice(owner, key, box, chunk)
                    nbytes, cpu = nbytes + fetch.nbytes, cpu + fetch.cpu_seconds
                    came[key] += size(box)
                    exchange.offer(relayed_key(key), chunk, box=box)
        except (FetchFailed, PartitionError, RunCancelledError):
            pass  # who asks for them here is refused, and goes to the owner
        finally:
            self._spent[owner] = nbytes, cpu + time.thread_time()
            for key, chunk in chunks.items():
                if came[key] < chunk.size:
                    exchange.retire(relayed_key(key))

    def _slice(self, owner: str, key: Any, box: Box, chunk: np.ndarray) -> Fetch:
        """Receive a slice into its chunk."""
        want = Want(key, box, view(chunk, box), (owner,), shape=chunk.shape)
        fetch = self._space.exchange.fetch([want], check=check_of(self._spec), at_once=0)
        self._fetches[owner] = fetch
        if self._stopped.is_set():
            fetch.stop()
        fetch.wait()
        return fetch


def check_of(spec: MatmulSpec) -> Callable[[Want, np.dtype[Any]], None]:
    """Return what refuses chunks of A and B as `MatmulSpec.check_chunk` does."""
    return lambda want, found: spec.check_chunk(want.key, found)
