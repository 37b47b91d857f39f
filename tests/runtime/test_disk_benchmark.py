"""What calls of a worker's disk take, for MHETA's machine."""

import pytest

from fpmdask.runtime.worker.block_file import BlockFile
from fpmdask.runtime.worker.disk_benchmark import benchmark_disk


@pytest.mark.parametrize("overhead", [0.0, 0.02])
def test_calls_take_their_overheads_at_least(tmp_path, overhead):
    file = BlockFile(str(tmp_path), overhead, 0.0)
    found = benchmark_disk(file, repeats=3)
    file.close()
    (reading,) = [seconds for _, seconds in found["reads"]]
    assert reading >= overhead
    assert all(seconds >= overhead for _, seconds in found["writes"])
    # an issue pays the overhead itself, whose seconds are those of a read
    assert found["prefetch_overhead_s"] > -reading
