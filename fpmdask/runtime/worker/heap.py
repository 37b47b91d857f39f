"""Memory that a worker's malloc keeps for later: for the time of some runs, or given back.

Nannies set ``MALLOC_TRIM_THRESHOLD_``. Each array of 128 KiB and more then comes from the system
and goes back there: memory that is touched for the first time, page by page. Functions that make
such arrays one after the other, as expressions of NumPy do, spend half of their time on that and
more (a Jacobi sweep in bands of 1 MiB 4.5 instead of 2.2 ns per cell, temporaries of 16 MiB 9.9
instead of 1.9 ns per element, on a virtual machine).
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

# Workers of one process share its heap: it is gone through so often at most, in seconds.
OFTEN = 1.0

_lock = Lock()
_last = [-OFTEN]


# Parameters of mallopt, and glibc's defaults.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
TRIM_NBYTES, MMAP_NBYTES = 128 << 10, 128 << 10
# Arrays up to the first come from what was freed before; a heap of glibc's has 64 MiB.
KEPT_MMAP_NBYTES, KEPT_TRIM_NBYTES = 32 << 20, 64 << 20

# Users of `keep`, and of `given_back`, which is stronger.
_keeping, _giving = 0, 0


@cache
def _glibc(name: str, argument: Any, *more: Any) -> Any:
    """Return a function of glibc's, None where there is another C library."""
    try:
        found = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes, found.restype = [argument, *more], ctypes.c_int
    return found


def keep() -> None:
    """Have malloc use again what was freed, until `release` is called as often.

    Where nothing is set in the environment it does so by itself, and nothing is changed.
    """
    _count(keeping=1)


def release() -> None:
    """Undo one `keep`; after the last one freed memory goes back to the system, see `trim`."""
    _count(keeping=-1)


@contextmanager
def given_back() -> Iterator[None]:
    """Have what is freed meanwhile go back to the system, though some `keep` it.

    For what must not take more memory than it was given: each thread's heap keeps what that has
    freed, and how many threads read from a Zarr array follows from the machine's load (0 to 20 MB
    of chunks of 0.8 MB). Arrays that are made meanwhile go back when they are freed, also later.
    """
    _count(giving=1)
    try:
        yield
    finally:
        _count(giving=-1)


def _count(keeping: int = 0, giving: int = 0) -> None:
    global _keeping, _giving
    mallopt = _glibc("mallopt", ctypes.c_int, ctypes.c_int)
    if mallopt is None or "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        return
    with _lock:
        before = _keeping and not _giving
        _keeping, _giving = max(0, _keeping + keeping), max(0, _giving + giving)
        kept = _keeping and not _giving
        if bool(before) == bool(kept):
            return
        mmap = KEPT_MMAP_NBYTES if kept else _set("MALLOC_MMAP_THRESHOLD_", MMAP_NBYTES)
        mallopt(M_MMAP_THRESHOLD, mmap)
        trimmed = KEPT_TRIM_NBYTES if kept else _set("MALLOC_TRIM_THRESHOLD_", TRIM_NBYTES)
        mallopt(M_TRIM_THRESHOLD, trimmed)


def _set(name: str, default: int) -> int:
    """Return what the environment says; glibc does not tell what holds."""
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return default


def trim() -> bool:
    """Give back what malloc has free; tell whether there was any.

    Notes
    -----
    Arrays of up to 32 MB come from glibc's heaps once some have been freed, and leave them full of
    holes, unless ``MALLOC_TRIM_THRESHOLD_`` is set, as nannies do: after some products by Dask a
    worker without one had 1.4 GB free there, which count as used. Time grows with the memory and
    with the number of holes.
    """
    found = _glibc("malloc_trim", ctypes.c_size_t)
    if found is None:
        return False
    with _lock:
        now = time.monotonic()
        if now - _last[0] < OFTEN:
            return False
        _last[0] = now
        return bool(found(0))
