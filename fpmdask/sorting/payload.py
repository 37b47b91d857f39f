"""Rows of a frame that travel with their keys: columns of NumPy's dtypes, as words of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from fpmdask.sorting.words import row_numbers, same_prefixes
from fpmdask.timing.scratch import memory_of, shortened
from fpmdask.tuning import DEFAULT, SortTuning

# Bytes at whose multiples a column begins.
ALIGNED = 64
# Column dtypes of these sizes travel.
ITEMSIZES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Payload:
    """What travels with keys that end in row numbers.

    Parameters
    ----------
    partitions
        Dask's keys of the frame's partitions, in order.
    sizes
        Their rows.
    bundles
        For each chunk of keys, the numbers of the partitions whose rows it has.
    dtypes
        Those of the index and the columns.
    row_bits, local_bits, whole, null
        See `fpmdask.apps.frames.tasks.rows.Keys`.
    """

    partitions: tuple[Any, ...]
    sizes: tuple[int, ...]
    bundles: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    row_bits: int
    local_bits: int
    whole: bool
    null: tuple[int, int] | None

    @property
    def words(self) -> list[np.dtype[Any]]:
        """What columns travel as: unsigned integers of their size."""
        return [np.dtype(f"u{np.dtype(dtype).itemsize}") for dtype in self.dtypes]

    @property
    def nbytes_per_row(self) -> int:
        """Bytes of a row's columns."""
        return sum(word.itemsize for word in self.words)

    @property
    def nbytes_in_part(self) -> int:
        """Bytes of a row of a part, beside its key: columns, one once more, and its place."""
        return self.nbytes_per_row + max(word.itemsize for word in self.words) + 8

    @property
    def first(self) -> np.ndarray:
        """For each partition, the place of its first row in its chunk."""
        found = np.zeros(len(self.sizes), np.int64)
        for bundle in self.bundles:
            found[[*bundle]] = [*accumulate((self.sizes[n] for n in bundle), initial=0)][:-1]
        return found

    def rows(self, keys: np.ndarray, block: int) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield of each block of keys where it is, the rows' partitions, and their places."""
        local = (1 << self.local_bits) - 1
        for low in range(0, keys.size, block):
            here = slice(low, min(low + block, keys.size))
            numbers = row_numbers(keys[here], self.row_bits)
            yield here, numbers >> self.local_bits, numbers & local

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return vars(self) | {}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Payload:
        """Rebuild from `to_json`."""
        return cls(
            tuple(tuple(key) if isinstance(key, list) else key for key in data["partitions"]),
            tuple(data["sizes"]),
            tuple(map(tuple, data["bundles"])),
            tuple(data["dtypes"]),
            int(data["row_bits"]),
            int(data["local_bits"]),
            bool(data["whole"]),
            None if data["null"] is None else tuple(data["null"]),
        )


def run_edges(size: int, run_bits: int = DEFAULT.sort.run_bits) -> list[int]:
    """Return where the runs of a chunk begin and end; there is one at least.

    Examples
    --------
    >>> run_edges(10), run_edges(9, 3)
    ([0, 10], [0, 8, 9])
    """
    return [*range(0, max(1, size), 1 << run_bits), size]


def sections(dtypes: Sequence[Any], size: int) -> tuple[list[int], int]:
    """Return the bytes at which the columns of so many rows begin in a part, and those of the part.

    Examples
    --------
    >>> sections(["u8", "u1", "u4"], 10)
    ([0, 128, 192], 256)
    """
    lengths = [-(-np.dtype(dtype).itemsize * size // ALIGNED) * ALIGNED for dtype in dtypes]
    *begins, end = accumulate(lengths, initial=0)
    return begins, end


def columns_of(frames: Sequence[Any]) -> list[list[Any]]:
    """Return the index and the columns of frames of NumPy's dtypes, each of all frames.

    A range stays one: what `to_numpy` makes of it, it would keep.
    """
    indexes = [frame.index for frame in frames]
    indexes = [index if hasattr(index, "step") else index.to_numpy() for index in indexes]
    columns = ([frame.iloc[:, n].to_numpy() for frame in frames] for n in range(frames[0].shape[1]))
    return [indexes, *columns]


def gathered(
    payload: Payload,
    columns: Sequence[Sequence[Any]],
    low: int,
    keys: np.ndarray,
    made: Sequence[np.ndarray],
    take: Callable[[str, int, Any], np.ndarray],
    *,
    block: int = DEFAULT.sort.row_block,
) -> None:
    """Put the rows of a run of a chunk into the order of its keys.

    Parameters
    ----------
    columns
        For each column, that of each partition of the chunk's bundle.
    low
        Which row of the chunk is the run's first one.
    keys
        Of the run, sorted.
    made
        For each column, memory for that of the run.
    take
        Gives memory that is used again from run to run: label, size and dtype.
    block
        Rows whose numbers are looked at at once.
    """
    first = payload.first - low
    at = take("rows", keys.size, np.intp)
    for here, partitions, local in payload.rows(keys, block):
        np.add(first[partitions], local, out=at[here])
    for pieces, column in zip(columns, made, strict=True):
        whole = _rows_of(pieces, low, take("column", keys.size, column.dtype))
        np.take(whole, at, out=column, mode="clip")  # to raise would take a buffer


def _rows_of(pieces: Sequence[Any], low: int, memory: np.ndarray) -> np.ndarray:
    """Return as many rows as there is memory for, from one on, of a column's pieces as words."""
    at = 0
    for piece in pieces:
        begin, end = max(0, low - at), min(len(piece), low + memory.size - at)
        at += len(piece)
        if begin >= end:
            continue
        some = np.asarray(piece[begin:end])
        if some.size == memory.size and some.flags.c_contiguous:
            return some.view(memory.dtype)
        first = at - len(piece) + begin - low
        memory.view(some.dtype)[first : first + some.size] = some
    return memory


class Part:
    """Memory for the rows of a part of the result, before they are in order and afterwards.

    ::

        as they came  | keys |    | column 0 | column 1 |
        in order      | column 0 | column 1 | bits |

    A column is put in order to where none is that is still needed: that takes as much memory as
    the rows, and once more that of their keys or of a column.

    Parameters
    ----------
    payload : Payload
    dtype : dtype
        Of the keys.
    size : int
        How many there are.
    tuning : SortTuning
        How large runs are, and what is put in order at once.

    Attributes
    ----------
    keys, columns
        To be filled with those of one piece after the other, each in the order of its keys.
    """

    def __init__(
        self,
        payload: Payload,
        dtype: np.dtype[Any],
        size: int,
        tuning: SortTuning = DEFAULT.sort,
    ) -> None:
        self.payload, self._tuning = payload, tuning
        words = payload.words
        self._begins, self._end = sections(words, size)
        widest = max(dtype.itemsize, *(word.itemsize for word in words))
        shift = -(-widest * size // ALIGNED) * ALIGNED
        self._memory = memory_of(self._end + shift)
        self.keys = self._memory[: size * dtype.itemsize].view(dtype)
        self.columns = [
            self._memory[shift + begin : shift + begin + size * word.itemsize].view(word)
            for begin, word in zip(self._begins, words, strict=True)
        ]

    def in_order(self, pieces: Sequence[tuple[int, int, int]]) -> np.ndarray:
        """Return the rows in order, once the keys are; what is in these and in `columns` is lost.

        Parameters
        ----------
        pieces
            Of which run of which chunk the rows come, and how many.

        Returns
        -------
        ndarray of uint8
            The columns as `sections` says. Without `Payload.whole`, then a bit for each row:
            whether it is `tied` to the one before it.
        """
        came, same = whence(self.payload, pieces, self.keys, self._tuning)
        block = self._tuning.row_block
        nbytes = _filled(self._memory, self._begins, self._end, self.columns, came, same, block)
        return shortened(self._memory, nbytes)


def whence(
    payload: Payload,
    pieces: Sequence[tuple[int, int, int]],
    keys: np.ndarray,
    tuning: SortTuning,
) -> tuple[np.ndarray, np.ndarray]:
    """Return where the row of each sorted key came, and whether it is `tied` to the one before it.

    Parameters
    ----------
    pieces
        Of which run of which chunk the part's rows come, and how many; they came in this order.
    keys
        Those of the part, in order.
    tuning
        As for `Part`.

    Notes
    -----
    The rows of one run are in the order of their keys before and after: of each key it takes only
    the run it is of to know where its row came. They are read in as many streams as there are runs.
    O(rows).
    """
    of_run: dict[tuple[int, int], int] = {(c, run): n for n, (c, run, _) in enumerate(pieces)}
    most = max((run for _, run, _ in pieces), default=0) + 1
    which = np.zeros((len(payload.sizes), most), np.min_scalar_type(len(pieces)))
    for chunk, bundle in enumerate(payload.bundles):
        which[[*bundle]] = [of_run.get((chunk, run), 0) for run in range(most)]
    # of a partition's row: where it is in the chunk, and in a table of `most` runs per chunk
    first = payload.first + (np.arange(len(payload.sizes)) * most << tuning.run_bits)
    free = np.cumsum([0, *(size for _, _, size in pieces)])[:-1]
    came = np.empty(keys.size, np.min_scalar_type(keys.size))  # where the row of each key came
    same = np.zeros(0 if payload.whole else keys.size, bool)
    for here, partitions, local in payload.rows(keys, tuning.row_block):
        source = which.take(first[partitions] + local >> tuning.run_bits)
        some = np.bincount(source, minlength=free.size)
        by_source = np.argsort(source, kind="stable")  # by counting: one or two bytes
        next_ones = np.repeat(free - np.cumsum(some) + some, some)
        came[here][by_source] = next_ones + np.arange(source.size)
        free += some
        if not payload.whole:
            before = min(1, here.start)
            own = keys[here.start - before : here.stop]
            same[here] = tied(own, payload.row_bits, payload.null)[before:]
    return came, same


def tied(keys: np.ndarray, row_bits: int, null: tuple[int, int] | None) -> np.ndarray:
    """Tell of each key whether it may have to go before the one before it, by what is cut off.

    Examples
    --------
    >>> keys = np.array([0b0101, 0b0110, 0b1000, 0b1001], np.uint64)
    >>> tied(keys, 2, None).tolist(), tied(keys, 2, (3, 1)).tolist()
    ([False, True, False, True], [False, True, False, False])
    """
    same = same_prefixes(keys, row_bits)
    if null is not None:
        bit, value = null
        same &= keys >> np.uint64(bit) & np.uint64(1) != value
    return same


def in_order(columns: Sequence[np.ndarray], order: np.ndarray, same: np.ndarray) -> np.ndarray:
    """Return a part of the columns' rows in this order, with a bit for each of `same`."""
    begins, end = sections([column.dtype for column in columns], order.size)
    part = np.empty(end + -(-same.size // 8), np.uint8)
    _filled(part, begins, end, columns, order, same, DEFAULT.sort.row_block)
    return part


def _filled(
    part: np.ndarray,
    begins: Sequence[int],
    end: int,
    columns: Sequence[np.ndarray],
    order: np.ndarray,
    same: np.ndarray,
    block: int,
) -> int:
    """Write the columns' rows in order, so many at once, then the bits; return how many bytes."""
    for begin, column in zip(begins, columns, strict=True):
        made = part[begin : begin + order.size * column.itemsize].view(column.dtype)
        for low in range(0, order.size, block):
            np.take(column, order[low : low + block], out=made[low : low + block], mode="clip")
    bits = np.packbits(same)
    part[end : end + bits.size] = bits
    return end + bits.size
