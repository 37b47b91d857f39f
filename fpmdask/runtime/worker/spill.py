"""What does not fit into a worker's memory: in a file without a name, gone with its last user."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from typing import Any

import numpy as np

from fpmdask.rawio import read_at, write_at
from fpmdask.runtime.regions import Box


class SpillFile:
    """A file without a name on a worker's disk: gone with this object, or however the process ends.

    Parameters
    ----------
    folder : path
        On a local disk.

    Raises
    ------
    OSError
        Where the disk refuses; so do the methods of `Spilled`.

    Examples
    --------
    >>> spilled = SpillFile(tempfile.gettempdir()).reserve(10)
    >>> spilled.write(np.arange(10, dtype=np.uint8))
    >>> np.asarray(spilled.read(((2, 5),))).tolist(), spilled.nbytes
    ([2, 3, 4], 10)
    """

    def __init__(self, folder: str) -> None:
        self.descriptor, path = tempfile.mkstemp(dir=folder)
        os.unlink(path)
        self.close = weakref.finalize(
            self, os.close, self.descriptor
        )  # once, and here at the latest
        self._end = 0
        self._reserving = threading.Lock()

    def reserve(self, nbytes: int) -> Spilled:
        """Return room for so many bytes."""
        with self._reserving:
            at, self._end = self._end, self._end + nbytes
        return Spilled(self, at, nbytes)


class Spilled:
    """Bytes in a `SpillFile`, which a worker may offer to others like an array of bytes.

    They are read when they are sent.
    """

    def __init__(self, file: SpillFile, at: int, nbytes: int) -> None:
        self._file, self.at, self.nbytes = file, at, nbytes
        self._written = 0
        self.shape, self.dtype = (nbytes,), np.dtype(np.uint8)

    def write(self, data: np.ndarray) -> None:
        """Append the bytes of an array, one after the other."""
        write_at(self._file.descriptor, self.at + self._written, data)
        self._written += data.nbytes

    def fill(self, at: int, target: np.ndarray) -> None:
        """Fill an array of bytes with those from ``at`` on."""
        if read_at(self._file.descriptor, self.at + at, target) < target.nbytes:
            raise OSError(f"spilled bytes end before {at + target.nbytes}")

    def read(self, box: Box) -> SpilledPiece:
        """Return what is to be read when it is needed."""
        ((low, high),) = box
        return SpilledPiece(self, low, high)


class SpilledPiece:
    """Bytes ``low … high`` of what was spilled; NumPy reads them."""

    dtype = np.dtype(np.uint8)

    def __init__(self, spilled: Spilled, low: int, high: int) -> None:
        self._spilled, self._low, self.nbytes = spilled, low, high - low

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = np.empty(self.nbytes, np.uint8)
        self._spilled.fill(self._low, found)
        return found
