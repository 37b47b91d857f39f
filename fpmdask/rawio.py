"""Arrays of bytes to and from open files, without a copy between."""

import os
from typing import Any

import numpy as np

# What one system call reads or writes at most (Linux: 2 GiB less a page).
MOST_NBYTES = 1 << 30


def read_at(descriptor: int, at: int, target: np.ndarray[Any, Any]) -> int:
    """Fill a contiguous array from byte ``at`` of an open file on; return the bytes there were.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    memory = target.reshape(-1).data
    done = 0
    while done < len(memory):
        got = os.preadv(descriptor, [memory[done : done + MOST_NBYTES]], at + done)
        if not got:
            break
        done += got
    return done


def write_at(descriptor: int, at: int, data: np.ndarray[Any, Any]) -> None:
    """Write a contiguous array of bytes to an open file, from its byte ``at`` on.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    memory = data.reshape(-1).data
    done = 0
    while done < len(memory):
        done += os.pwritev(descriptor, [memory[done : done + MOST_NBYTES]], at + done)
