"""Processors that do not sleep while the nodes of a lab compute.

A virtual machine's processor that has nothing to do is given to others, and comes back with cold
caches. A node with a tenth of a core, which computes for 1 ms in 10, then takes 18 % longer for a
row where the others wait for it than where they compute (2.5 and 2.1 ms, on `dc`; 2.05 and 2.1 with
this): nodes of a lab would not be the separate machines that they stand for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Runs only where nothing else wants to, and not longer than who has begun it.
SPIN = """
import os, sys
cpu, parent = map(int, sys.argv[1:])
os.sched_setaffinity(0, {cpu})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def awake() -> Iterator[None]:
    """Keep each processor busy with a process of idle priority."""
    processes = [
        subprocess.Popen([sys.executable, "-c", SPIN, str(cpu), str(os.getpid())])
        for cpu in os.sched_getaffinity(0)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
