"""Bytes that a worker has received from each other one: for the dashboard, with its heartbeats.

Counted in the threads that receive, read on the worker's event loop.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

# Of peers that have left, too; a heartbeat tells of so many at most.
MOST_PEERS = 1 << 10


class Traffic:
    """Bytes per peer, since the worker started.

    Examples
    --------
    >>> traffic = Traffic()
    >>> traffic.received("tcp://10.0.0.2:40000", 8)
    >>> traffic.received("tcp://10.0.0.2:40000", 2)
    >>> traffic.metric(None)
    {'tcp://10.0.0.2:40000': 10}
    """

    def __init__(self) -> None:
        self._nbytes: dict[str, int] = {}
        self._lock = Lock()

    def received(self, peer: str, nbytes: int) -> None:
        """Add what came from a peer."""
        with self._lock:
            self._nbytes[peer] = self._nbytes.get(peer, 0) + nbytes
            if len(self._nbytes) > MOST_PEERS:
                del self._nbytes[next(iter(self._nbytes))]

    def metric(self, worker: Any) -> dict[str, int]:
        """Return address → bytes: one of ``Worker.metrics``."""
        with self._lock:
            return dict(self._nbytes)
