"""The local sort that is timed, and that the run itself mostly consists of."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from fpmdask.errors import KernelError
from fpmdask.timing import Deadline, WorkerContext

NAME = "sort.local"
# What NumPy sorts by itself: no objects, no fields.
KINDS = "biufcmMSU"
# Of so many units one key is sorted: enough to tell workers apart, little beside the run.
SAMPLE = 64


class LocalSort:
    """``np.sort`` of a sixty-fourth of a worker's keys, random ones, a piece per thread.

    Parameters
    ----------
    context : WorkerContext
        Gives the memory.
    dtype : dtype
        Of the keys: boolean, numbers, dates, strings or bytes.

    Raises
    ------
    KernelError
        For another dtype.

    Notes
    -----
    A unit is a key. The run sorts its keys in blocks, exchanges them, and sorts them again: the
    times are those of a part of that, and only their ratios count. Memory that does not suffice
    does not show in them; it is bounded by limits.

    Examples
    --------
    >>> kernel = LocalSort(WorkerContext(), dtype="i8")
    >>> kernel.setup(1600)
    >>> kernel.run()
    >>> kernel.teardown()
    """

    name = NAME

    def __init__(self, context: WorkerContext, *, dtype: npt.DTypeLike = "float64") -> None:
        kind = np.dtype(dtype)
        if kind.kind not in KINDS:
            raise KernelError(f"cannot sort keys of dtype {kind}; numbers, dates or strings can")
        self.context, self.dtype = context, kind
        self.parameters: Mapping[str, object] = {"dtype": kind.str}
        self.implementation = f"numpy {np.__version__}"
        self.deadline: Deadline | None = None
        self._keys: tuple[np.ndarray, np.ndarray] | None = None

    def setup(self, units: int) -> None:
        """Make the keys."""
        count = max(1, units // SAMPLE)
        keys = self.context.scratch.take("sort.timed", count, self.dtype)
        fill(keys, np.random.default_rng(count))
        self._keys = keys, self.context.scratch.take("sort.sorted", count, self.dtype)

    def run(self) -> None:
        """Sort a copy of them."""
        if self._keys is None:
            raise KernelError(f"kernel {self.name!r} ran before setup(units)")
        if self.deadline is not None:
            self.deadline.check()
        keys, copy = self._keys
        copy[...] = keys
        pieces = slices(copy, self.context.nthreads)
        if len(pieces) == 1:
            copy.sort()
            return
        with ThreadPoolExecutor(len(pieces), "fpmdask-sort") as threads:
            list(threads.map(np.ndarray.sort, pieces))

    def teardown(self) -> None:
        """Let go of the keys; their memory stays in the context's scratch."""
        self._keys = None

    def complexity(self, units: int) -> float:
        """Return the comparisons, n log2 n."""
        count = max(2, units // SAMPLE)
        return float(count * np.log2(count))

    def __repr__(self) -> str:
        return f"LocalSort(dtype={self.dtype.str!r})"


def fill(keys: np.ndarray, random: np.random.Generator) -> None:
    """Fill an array with random keys of its dtype."""
    kind = keys.dtype
    if kind.kind == "S":
        keys.view(np.uint8)[...] = random.integers(97, 123, keys.nbytes, np.uint8)
    elif kind.kind == "U":
        keys.view(np.uint32)[...] = random.integers(97, 123, keys.nbytes // 4, np.uint32)
    elif kind.kind in "fc":
        keys[...] = random.random(keys.size)
    elif kind.kind in "mM":
        keys.view(np.int64)[...] = random.integers(0, 1 << 62, keys.size)
    else:
        keys[...] = random.integers(0, 2 if kind.kind == "b" else 127, keys.size)
        if kind.kind in "iu" and kind.itemsize > 1:
            keys.view(np.uint8)[...] = random.integers(0, 256, keys.nbytes, np.uint8)


def slices(keys: np.ndarray, count: int) -> list[np.ndarray]:
    """Return an array in so many pieces of about the same size, not smaller than is worth it."""
    return list(np.array_split(keys, min(count, max(1, keys.size >> 14))))
