"""Memory that a worker's kernels use again from round to round."""

import contextlib
import math
import mmap
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fpmdask.errors import KernelError

# A cache line, and the widest vector register
ALIGNMENT = 64
# Less is not worth a huge page: NumPy begins here, too.
_HUGE_NBYTES = 4 << 20
_HAS_HUGE = hasattr(mmap, "MADV_HUGEPAGE")


class Scratch:
    """Labelled buffers that grow when needed and are kept.

    Memory touched for the first time is paid for in page faults (over 1 s/GB measured under a CPU
    quota), which would be counted as the kernel's.

    Notes
    -----
    A buffer belongs to its label: arrays taken under one label share memory, and the last one taken
    is the only one that may be used. It is not safe for several threads at once. A buffer has half
    as much room again as was asked for, so that a slightly larger size in the next round needs no
    new buffer. Room that was not asked for costs no memory: huge pages are asked for up to the end
    of what was, as NumPy does for all of an array.

    Examples
    --------
    >>> scratch = Scratch()
    >>> scratch.take("a", (1000, 100), float).shape
    (1000, 100)
    >>> scratch.take("a", 10, "float32").flags.c_contiguous
    True
    >>> scratch.nbytes >= 800_000
    True
    """

    def __init__(self) -> None:
        self._buffers: dict[str, npt.NDArray[np.uint8]] = {}
        self._used: dict[str, int] = {}  # bytes of the largest array taken, per buffer

    def take(
        self,
        label: str,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike,
        *,
        exact: bool = False,
    ) -> npt.NDArray[Any]:
        """Return a C-contiguous array on the buffer of `label`; its contents are undefined.

        Parameters
        ----------
        label : str
            Which buffer.
        shape : int or sequence of int
            Each >= 0.
        dtype : dtype
            Any without Python objects.
        exact : bool
            A new buffer has no room for more.

        Returns
        -------
        ndarray
            Aligned to 64 bytes.

        Raises
        ------
        KernelError
            For a negative shape or a dtype that holds Python objects.
        """
        form = tuple(map(operator.index, shape if isinstance(shape, Sequence) else (shape,)))
        kind = np.dtype(dtype)
        if min(form, default=0) < 0 or kind.hasobject:
            raise KernelError(
                f"scratch {label!r} of shape {form} and dtype {kind}; allowed are lengths >= 0 "
                "and dtypes without Python objects"
            )
        nbytes = math.prod(form) * kind.itemsize
        return self._bytes(label, nbytes, exact)[:nbytes].view(kind).reshape(form)

    def _bytes(self, label: str, nbytes: int, exact: bool) -> npt.NDArray[np.uint8]:
        buffer = self._buffers.get(label)
        if buffer is None or buffer.size < nbytes:
            del buffer
            self._drop(label)  # freed first: never both at once
            buffer = _new(nbytes) if exact else _with_room(nbytes, nbytes // 2)
            self._buffers[label] = buffer
        if nbytes > self._used.get(label, 0):
            _huge(buffer, nbytes)
            self._used[label] = nbytes
        return buffer

    def _drop(self, label: str) -> None:
        self._buffers.pop(label, None)
        self._used.pop(label, None)

    def hand_over(
        self, label: str, shape: int | Sequence[int], dtype: npt.DTypeLike
    ) -> npt.NDArray[Any]:
        """Return an array that is the caller's own, on the buffer of `label` where that fits.

        The scratch has no such buffer any more. One that was used for more than a quarter more is
        given back and new memory returned, so that a result does not hold much more than it needs.

        Parameters
        ----------
        label, shape, dtype
            As for `take`.

        Returns
        -------
        ndarray
            C-contiguous, contents undefined.

        Raises
        ------
        KernelError
            As for `take`.

        Examples
        --------
        >>> scratch = Scratch()
        >>> warm = scratch.take("c", 1000, float)
        >>> own = scratch.hand_over("c", 900, float)
        >>> bool(np.shares_memory(own, warm)), scratch.nbytes
        (True, 0)
        """
        used = self._used.get(label, 0)
        array = self.take(label, shape, dtype, exact=True)
        if used > array.nbytes + array.nbytes // 4:
            del array
            self._drop(label)
            array = self.take(label, shape, dtype, exact=True)
        self._drop(label)
        return array

    @property
    def nbytes(self) -> int:
        """Bytes kept and used, over all labels."""
        return sum(self._used.values())

    def clear(self) -> None:
        """Give all memory back; arrays taken before stay valid for whoever holds them."""
        self._buffers.clear()
        self._used.clear()

    def __repr__(self) -> str:
        return f"Scratch({len(self._buffers)} buffers, {self.nbytes} bytes)"


def memory_of(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return memory of so many bytes, the end of which can be given back by `shortened`."""
    memory = _with_room(nbytes, 0)
    _huge(memory, nbytes)
    return memory


def shortened(memory: npt.NDArray[np.uint8], nbytes: int) -> npt.NDArray[np.uint8]:
    """Return the first bytes of `memory_of`; the system gets back the pages after them.

    Examples
    --------
    >>> memory = memory_of(1 << 23)
    >>> memory[:] = 7
    >>> found = shortened(memory, 1 << 20)
    >>> found.size, int(found.min()), int(memory[-1])
    (1048576, 7, 0)
    """
    mapped = _mapped(memory)
    if mapped is None:
        return memory[:nbytes].copy()
    first = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    if first < memory.size:
        with contextlib.suppress(OSError):  # of locked memory
            mapped.madvise(mmap.MADV_DONTNEED, first, memory.size - first)
    return memory[:nbytes]


def _new(nbytes: int) -> npt.NDArray[np.uint8]:
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    return raw[-raw.ctypes.data % ALIGNMENT :][:nbytes]


def _with_room(nbytes: int, room: int) -> npt.NDArray[np.uint8]:
    """Return memory of which the kernel makes no huge pages unless `_huge` asks it to."""
    if nbytes < _HUGE_NBYTES or not _HAS_HUGE:
        return _new(nbytes + room)
    mapped = mmap.mmap(-1, nbytes + room, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(mapped, np.uint8)


def _huge(buffer: npt.NDArray[np.uint8], nbytes: int) -> None:
    """Ask for huge pages up to the last whole page of so many bytes of a buffer."""
    mapped = _mapped(buffer)
    if mapped is not None:
        with contextlib.suppress(OSError):  # a kernel without them
            mapped.madvise(mmap.MADV_HUGEPAGE, 0, nbytes - nbytes % mmap.PAGESIZE)


def _mapped(buffer: npt.NDArray[np.uint8]) -> mmap.mmap | None:
    base: Any = buffer.base
    found = base.obj if isinstance(base, memoryview) else None
    return found if isinstance(found, mmap.mmap) else None
