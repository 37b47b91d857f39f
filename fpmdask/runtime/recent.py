"""A bounded memory of what was last heard of: for names of workers that come and go for months.

Used by clients and workers, from any thread.
"""

from __future__ import annotations

from threading import Lock


class Recent:
    """The names that were added last, each once; the oldest is forgotten first. All calls are O(1).

    Parameters
    ----------
    most : int
        How many are kept, at least 1.

    Examples
    --------
    >>> names = Recent(2)
    >>> for name in "abca":
    ...     names.add(name)
    >>> [name in names for name in "abc"], len(names)
    ([True, False, True], 2)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: dict[str, None] = {}  # in the order of adding
        self._changing = Lock()

    def add(self, name: str) -> None:
        """Keep a name, as the newest one."""
        with self._changing:
            self._names.pop(name, None)
            self._names[name] = None
            if len(self._names) > self._most:
                del self._names[next(iter(self._names))]

    def discard(self, name: str) -> None:
        """Forget a name, if it is known."""
        with self._changing:
            self._names.pop(name, None)

    def clear(self) -> None:
        """Forget all."""
        with self._changing:
            self._names.clear()

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)
