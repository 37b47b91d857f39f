"""What calls of a worker's disk take, for MHETA's machine."""

from itertools import pairwise

import numpy as np
import pytest

from fpmdask.runtime.worker.block_file import SECTOR, BlockFile
from fpmdask.runtime.worker.disk_benchmark import benchmark_disk


@pytest.mark.parametrize("overhead", [0.0, 0.02])
@pytest.mark.parametrize("rows", [1, 700])
def test_calls_take_their_overheads_at_least(tmp_path, overhead, rows):
    file = BlockFile(str(tmp_path), overhead, 0.0)
    region = file.reserve((rows, 100), np.float64)
    region.write((0, rows), np.ones((rows, 100)))
    found = benchmark_disk(region, repeats=3)
    file.close()
    ((nbytes, reading),) = found["reads"]
    assert nbytes == SECTOR
    assert reading >= overhead
    assert all(seconds >= overhead for _, seconds in found["writes"])
    # an issue pays the overhead itself, whose seconds are those of a read
    assert found["prefetch_overhead_s"] > -reading


def test_no_read_is_of_what_was_just_read_or_written(tmp_path, monkeypatch):
    """Caches have that: a disk's overhead would be none."""
    file = BlockFile(str(tmp_path), 0.0, 0.0)
    region = file.reserve((64, 1024), np.float64)
    last = region.in_sectors().shape[0] * SECTOR
    calls, transfer = [], file.transfer

    def told(at, memory, *, write, issued=None):
        calls.append((at, memory.nbytes, write))
        transfer(at, memory, write=write, issued=issued)

    monkeypatch.setattr(file, "transfer", told)
    benchmark_disk(region)
    file.close()
    assert {nbytes for _, nbytes, _ in calls} == {SECTOR}
    reads = [at for at, _, write in calls if not write][:6]
    assert len({*reads}) == 6
    assert all(other - one > 8 * SECTOR for one, other in pairwise(reads))
    assert max(at + nbytes for at, nbytes, _ in calls) <= last + min(reads)
