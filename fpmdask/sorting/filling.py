"""Targets of pieces that come from several workers."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence


class Filling:
    """Tells which targets are complete of those that keys of several peers come into.

    Parameters
    ----------
    coming : mapping of str to sequence of (int, int)
        Peer -> the targets that its keys come into, one after the other, and how many into each.
    complete : callable
        Called with each that is, in the thread that hears of its last keys.

    Examples
    --------
    >>> filling = Filling({"a": [(0, 3), (1, 1)], "b": [(1, 1)]}, print)
    >>> filling.add("b", 1)
    >>> filling.add("a", 2)
    >>> filling.add("a", 2)
    0
    1
    """

    def __init__(
        self,
        coming: Mapping[str, Sequence[tuple[int, int]]],
        complete: Callable[[int], None],
    ) -> None:
        self._coming = {peer: deque(into) for peer, into in coming.items()}
        self._complete = complete
        self._missing: Counter[int] = Counter()
        for into in coming.values():
            for target, count in into:
                self._missing[target] += count
        self._lock = threading.Lock()

    def add(self, peer: str, count: int) -> None:
        """Take note of so many more keys of a peer; from any thread."""
        into = self._coming[peer]
        there = []
        with self._lock:
            while count:
                target, wanted = into.popleft()
                some = min(count, wanted)
                if some < wanted:
                    into.appendleft((target, wanted - some))
                count -= some
                self._missing[target] -= some
                if not self._missing[target]:
                    there.append(target)
        for target in there:
            self._complete(target)
