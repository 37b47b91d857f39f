"""The demo's program, which runs on the workers: rows times a matrix, again and again, out of core.

A worker keeps as many rows in memory as it may, and the others in a file in its local directory,
which is read and written past the page cache. So its speed falls where its rows no longer fit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fpmdask.runtime.worker.block_file import BlockFile, Region

Array = np.ndarray[Any, Any]

# Of the rows, float64: wide enough for BLAS, and narrow enough for disks to be the slower part.
COLUMNS = 256
# Rows that are made, multiplied, read and written at once: 2 MB.
BLOCK = 1024
# Of a worker's memory limit, what its rows may take: Python and Dask take 110 MB themselves.
ROWS_SHARE = 0.08


def matrix(seed: int) -> Array:
    """Return the factor, of such a variance that products are about as large as rows."""
    rng = np.random.default_rng([seed, COLUMNS])
    return np.asarray(rng.standard_normal((COLUMNS, COLUMNS)) / np.sqrt(COLUMNS))


def rows_in_blocks(first: int, rows: int, seed: int) -> Iterator[Array]:
    """Yield rows, counted from `first`; a row is the same in whatever shares they are made."""
    for block in range(first // BLOCK, -(-(first + rows) // BLOCK)):
        made = np.random.default_rng([seed, COLUMNS, block]).random((BLOCK, COLUMNS))
        low = block * BLOCK
        yield made[max(first - low, 0) : first + rows - low]


@dataclass
class RowsTimesMatrix:
    """Replaces rows by their product with a matrix: a `fpmdask.timing.Kernel`.

    Parameters
    ----------
    seed : int
        Of the rows and the matrix.

    Attributes
    ----------
    most : int
        Rows that fit into the memory of the worker on which it was set up.
    """

    seed: int
    name: str = field(default="demo.rows_times_matrix", init=False)
    implementation: str = field(default=f"numpy {np.__version__}", init=False)
    most: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._rows = np.empty((0, COLUMNS))
        self._file: BlockFile | None = None
        self._on_disk: Region | None = None

    @property
    def parameters(self) -> Mapping[str, object]:
        """What identifies it together with its name."""
        return {"columns": COLUMNS}

    def setup(self, units: int, first: int = 0) -> None:
        """Make so many rows, counted from `first`, in memory and on disk."""
        from distributed import get_worker

        from fpmdask.runtime.dask_private import memory_limit
        from fpmdask.runtime.worker.block_file import BlockFile

        worker = get_worker()
        room = memory_limit(worker)
        row_nbytes = 8 * COLUMNS
        self.most = units if room is None else int(ROWS_SHARE * room / row_nbytes)
        kept = min(units, self.most)
        self._matrix = matrix(self.seed)
        self._block, self._product = (np.empty((BLOCK, COLUMNS)) for _ in range(2))
        self._rows = np.empty((kept, COLUMNS))
        if units > kept:
            self._file = BlockFile(worker.local_directory)
            self._on_disk = self._file.reserve((units - kept, COLUMNS), float)
        row = 0
        for block in rows_in_blocks(first, units, self.seed):
            here = max(0, min(len(block), kept - row))
            self._rows[row : row + here] = block[:here]
            if self._on_disk is not None and here < len(block):
                self._on_disk.write((row + here - kept, row + len(block) - kept), block[here:])
            row += len(block)

    def run(self) -> None:
        """Replace all rows once."""
        for low in range(0, len(self._rows), BLOCK):
            block = self._rows[low : low + BLOCK]
            block[...] = np.matmul(block, self._matrix, out=self._product[: len(block)])
        for rows, block in self._read():
            product = np.matmul(block, self._matrix, out=self._product[: len(block)])
            assert self._on_disk is not None
            self._on_disk.write(rows, product)

    def column_sums(self) -> Array:
        """Return the sum of all rows."""
        sums = self._rows.sum(0)
        for _, block in self._read():
            sums += block.sum(0)
        return np.asarray(sums)

    def teardown(self) -> None:
        """Let the rows go, and their file."""
        self._rows, self._on_disk = np.empty((0, COLUMNS)), None
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def complexity(self, units: int) -> float:
        """Floating-point operations of one pass over so many rows."""
        return 2.0 * units * COLUMNS**2

    def _read(self) -> Iterator[tuple[tuple[int, int], Array]]:
        """Yield the rows on disk, in blocks, each with its place."""
        if self._on_disk is None:
            return
        rows = self._on_disk.shape[0]
        for low in range(0, rows, BLOCK):
            until = min(low + BLOCK, rows)
            block = self._block[: until - low]
            self._on_disk.read((low, until), block)
            yield (low, until), block


@dataclass(frozen=True)
class Iterated:
    """What a worker did with its rows.

    Parameters
    ----------
    seconds
        Of all passes.
    most
        Rows that fit into its memory.
    sums
        Of the columns, after the last pass.
    """

    seconds: float
    most: int
    sums: Array


def load(first: int, rows: int, seed: int) -> RowsTimesMatrix:
    """Make a worker's rows, which stay where they are until `iterate` has replaced them."""
    made = RowsTimesMatrix(seed)
    made.setup(rows, first)
    return made


def iterate(rows: RowsTimesMatrix, passes: int) -> Iterated:
    """Replace a worker's rows so many times, and let them go."""
    began = time.perf_counter()
    for _ in range(passes):
        rows.run()
    seconds = time.perf_counter() - began
    sums = rows.column_sums()
    rows.teardown()
    return Iterated(seconds, rows.most, sums)


def expected_sums(rows: int, passes: int, seed: int) -> Array:
    """Return the sums of the columns that all workers together must come to."""
    sums = sum((block.sum(0) for block in rows_in_blocks(0, rows, seed)), np.zeros(COLUMNS))
    factor = matrix(seed)
    for _ in range(passes):
        sums = sums @ factor
    return sums
