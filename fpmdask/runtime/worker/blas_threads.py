"""How many threads BLAS may use, for the time of one task; one count for the whole process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from threadpoolctl import ThreadpoolController


class BlasThreads:
    """The BLAS libraries of this process, limited while at least one task needs it.

    Workers in one process (``processes=False``) share the libraries: the first task sets the
    threads, the last one to end gives back what was there before, and tasks that overlap and want
    different numbers get the newest. Looking for the libraries takes milliseconds, so they are
    looked for again only when modules were imported since: a library comes with a module.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._modules = 0
        self._pools: ThreadpoolController | None = None
        self._tasks = 0
        self._threads: int | None = None
        self._undo = ExitStack()

    @contextmanager
    def limited(self, threads: int) -> Iterator[None]:
        """Let BLAS use ``threads`` threads within the block."""
        with self._lock:
            self._limit(threads)
            self._tasks += 1
        try:
            yield
        finally:
            with self._lock:
                self._tasks -= 1
                if not self._tasks:
                    self._undo.close()
                    self._threads = None

    def _limit(self, threads: int) -> None:
        known = len(sys.modules)
        if self._pools is None or known != self._modules:
            self._pools, self._modules = ThreadpoolController(), known
        elif threads == self._threads:
            return
        self._undo.enter_context(self._pools.limit(limits=threads, user_api="blas"))
        self._threads = threads


blas_threads = BlasThreads()
