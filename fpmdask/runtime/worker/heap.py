"""Memory that a worker's malloc keeps for later, given back to the system."""

from __future__ import annotations

import ctypes
import time
from functools import cache
from threading import Lock
from typing import Any

# Workers of one process share its heap: it is gone through so often at most, in seconds.
OFTEN = 1.0

_lock = Lock()
_last = [-OFTEN]


@cache
def _malloc_trim() -> Any:
    """Return glibc's function, None where there is another C library."""
    try:
        found = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes, found.restype = [ctypes.c_size_t], ctypes.c_int
    return found


def trim() -> bool:
    """Give back what malloc has free; tell whether there was any.

    Notes
    -----
    Arrays of up to 32 MB come from glibc's heaps once some have been freed, and leave them full of
    holes, unless ``MALLOC_TRIM_THRESHOLD_`` is set, as nannies do: after some products by Dask a
    worker without one had 1.4 GB free there, which count as used. Time grows with the memory and
    with the number of holes.
    """
    found = _malloc_trim()
    if found is None:
        return False
    with _lock:
        now = time.monotonic()
        if now - _last[0] < OFTEN:
            return False
        _last[0] = now
        return bool(found(0))
