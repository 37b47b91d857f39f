"""What is timed of a sort of records: their order, and bringing them into it."""

from collections.abc import Mapping

import numpy as np

from fpmdask.errors import KernelError
from fpmdask.records.format import RECORD_NBYTES, Records, order
from fpmdask.timing import Deadline, WorkerContext

NAME = "records.local"
# Of so many records one is sorted, and no more than a run may have: the rest is as fast.
SAMPLE = 16
MOST = 1 << 17


class RecordSort:
    """Order and gather a sixteenth of a worker's records, random ones.

    Parameters
    ----------
    context : WorkerContext
        Gives the memory.

    Notes
    -----
    A unit is a record of 100 bytes. Files are neither read nor written, and no more than 2¹⁷
    records sorted: only the ratios of workers' times count, until a sort has told its own.

    Examples
    --------
    >>> kernel = RecordSort(WorkerContext())
    >>> kernel.setup(1600)
    >>> kernel.run()
    >>> kernel.teardown()
    """

    name = NAME
    parameters: Mapping[str, object] = {}

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.implementation = f"numpy {np.__version__}"
        self.deadline: Deadline | None = None
        self._records: tuple[Records, Records] | None = None

    def setup(self, units: int) -> None:
        """Make the records."""
        count = min(MOST, max(1, units // SAMPLE))
        records, target = (
            self.context.scratch.take(f"records.{what}", (count, RECORD_NBYTES), np.uint8)
            for what in ("timed", "gathered")
        )
        random = np.random.default_rng(count)
        records.reshape(-1)[...] = np.frombuffer(random.bytes(records.nbytes), np.uint8)
        self._records = records, target

    def run(self) -> None:
        """Bring them into order."""
        if self._records is None:
            raise KernelError(f"kernel {self.name!r} ran before setup(units)")
        if self.deadline is not None:
            self.deadline.check()
        records, target = self._records
        gather(records, order(records), target)

    def teardown(self) -> None:
        """Let go of the records; their memory stays in the context's scratch."""
        self._records = None

    def complexity(self, units: int) -> float:
        """Return the comparisons, n log2 n."""
        count = max(2, units // SAMPLE)
        return float(count * np.log2(count))

    def __repr__(self) -> str:
        return "RecordSort()"


def gather(records: Records, numbers: np.ndarray, target: Records) -> None:
    """Copy the records of these numbers, in that order, to ``target``, outside the GIL."""
    whole = np.dtype(f"V{RECORD_NBYTES}")
    out = target.view(whole)[:, 0]
    np.take(records.view(whole)[:, 0], numbers, out=out, mode="clip")
