"""Which parts of C are in a Zarr array already, kept in its attributes until all are."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from fpmdask.errors import PartitionError

MARK = "fpmdask.matmul"
VERSION = 2
REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})

# first row, row after the last, first column, column after the last
Bounds = tuple[int, int, int, int]


def missing(whole: Bounds, done: Sequence[Bounds]) -> list[Bounds]:
    """Return rectangles that cover what `done` leaves of `whole`, in the order of their rows.

    Examples
    --------
    >>> missing((0, 9, 0, 8), [(0, 4, 0, 8), (4, 6, 0, 2)])
    [(4, 6, 2, 8), (6, 9, 0, 8)]
    """
    left = [whole]
    for known in done:
        left = [piece for part in left for piece in _without(part, known)]
    return sorted(left)


def _without(part: Bounds, known: Bounds) -> list[Bounds]:
    row0, row1, column0, column1 = part
    top, bottom = max(row0, known[0]), min(row1, known[1])
    first, last = max(column0, known[2]), min(column1, known[3])
    if top >= bottom or first >= last:
        return [part]
    pieces = [
        (row0, top, column0, column1),
        (top, bottom, column0, first),
        (top, bottom, last, column1),
        (bottom, row1, column0, column1),
    ]
    return [piece for piece in pieces if piece[0] < piece[1] and piece[2] < piece[3]]


def joined(done: Sequence[Bounds], new: Bounds) -> list[Bounds]:
    """Return rectangles with one more; those that make one together become one.

    Examples
    --------
    >>> joined([(0, 4, 0, 8), (4, 6, 0, 2)], (4, 6, 2, 8))
    [(0, 6, 0, 8)]
    """
    for other in done:
        beside = other[:2] == new[:2] and (other[3] == new[2] or new[3] == other[2])
        below = other[2:] == new[2:] and (other[1] == new[0] or new[1] == other[0])
        if beside or below:
            row0, column0 = min(other[0], new[0]), min(other[2], new[2])
            row1, column1 = max(other[1], new[1]), max(other[3], new[3])
            rest = [found for found in done if found != other]
            return joined(rest, (row0, row1, column0, column1))
    return [*done, new]


class Checkpoint:
    """What is in `out`; as a context manager, the time in which a call writes to it.

    Parameters
    ----------
    out
        The Zarr array, opened for this call: others may have written its attributes since the
        caller opened it.
    run
        Tells this call from others. It is in the attributes for that time.

    Raises
    ------
    PartitionError
        On entering, if the attributes cannot be written.
    """

    def __init__(self, out: Any, run: str) -> None:
        self._out, self._run = out, run
        found = out.attrs.get(MARK)
        self._state: dict[str, Any] = dict(found) if isinstance(found, Mapping) else {}

    def __enter__(self) -> Self:
        try:
            self._save()
        except OSError as error:
            if error.errno not in REFUSED:
                raise
            raise PartitionError(
                f"out at {self._out.store_path} cannot be written to ({error}); give an array that "
                "this client and the workers may write to"
            ) from error
        return self

    def begin(self, product: Sequence[Any]) -> None:
        """Forget the parts of any other product, which will be written over."""
        state = self._state
        if state.get("version") != VERSION or list(state.get("product", ())) != list(product):
            self._state = {"version": VERSION, "product": list(product), "done": []}
        self._save()

    def missing(self, height: int, width: int) -> list[Bounds]:
        """Return rectangles of C that are to be computed, of a C of this size."""
        return missing((0, height, 0, width), self._done())

    def add(self, part: Bounds) -> None:
        """Note that `part` is written."""
        self._state["done"] = [list(found) for found in joined(self._done(), part)]
        self._save()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._out.attrs.pop(MARK, None)
            return
        # what went wrong matters to the caller, not that this goes wrong then, too
        with contextlib.suppress(Exception):
            if self._state.get("done"):
                self._out.attrs[MARK] = self._state
            else:
                self._out.attrs.pop(MARK, None)

    def _done(self) -> list[Bounds]:
        return [(int(r0), int(r1), int(c0), int(c1)) for r0, r1, c0, c1 in self._state["done"]]

    def _save(self) -> None:
        self._out.attrs[MARK] = {**self._state, "run": self._run}
